"""The control socket: what a person at another terminal sees of a running host, and tells it to do.

`sockets` is where it is and whose, `protocol` what is said on it, `server` the host's end, `client` the other. A client
of the public surface of a supervisor; nothing else knows of it.
"""
