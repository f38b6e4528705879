"""The cluster: what makes several nodes one store. Joins directory, peers and data plane with the local master."""
