"""The transports: each module opens one kind of connection to a server and ends all it started."""
