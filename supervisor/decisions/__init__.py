"""The decisions about a server: the time of its next start, its state, and its figures. Pure."""
