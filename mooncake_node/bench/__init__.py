"""Measurements a user can repeat: ratios within one run, both ends pinned alike, the placement printed."""
