"""The room that speaks with clients: sockets, connections, requests. What it may decide is what a frame means."""
