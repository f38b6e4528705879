"""The node daemon: one shared-memory pool and the only authority over it."""
