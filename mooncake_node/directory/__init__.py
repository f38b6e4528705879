"""The directory: which nodes live, and which of them have which keys. A hint that nodes can rebuild, never the truth."""
