"""The control socket: a running host shows its servers to a person at another terminal, and takes orders.

`sockets` has its place and its owner, `protocol` the messages, `server` the host's end, `client` the other. It is a
client of the public surface of a supervisor; nothing else knows of it.
"""
