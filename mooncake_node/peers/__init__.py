"""Peers: what nodes say to each other, and the links they say it over."""
