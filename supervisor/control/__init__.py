"""The control socket: a running host shows its servers to a person at another terminal, and takes orders.

`sockets` has the socket's place and owner, `protocol` the messages, `server` the host's end, and `client` the other.
This package uses the public surface of a supervisor and its table of orders alone.
"""
