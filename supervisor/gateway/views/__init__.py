"""The views of clients on the servers: one of them, all of them, or a search."""
