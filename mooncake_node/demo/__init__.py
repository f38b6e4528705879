"""The demo: real tensors through a real daemon and real processes, and the proof that they lie in memory once."""
