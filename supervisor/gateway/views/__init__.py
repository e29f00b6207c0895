"""The views of clients on the servers: a single server, all servers, or a search."""
