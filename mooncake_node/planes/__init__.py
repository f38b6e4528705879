"""Data planes: how objects' bytes come from another node's pool, or its disk, straight into ours."""
