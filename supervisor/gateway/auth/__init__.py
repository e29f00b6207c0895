"""Authentication of clients, and what of the servers each of them may use."""
