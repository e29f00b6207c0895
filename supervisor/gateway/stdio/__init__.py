"""The client on standard streams."""
