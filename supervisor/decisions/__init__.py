"""The decisions about a server: when it starts again, in which state it is, what is counted of it. Pure."""
