"""The socket that an HTTP server listens on, and its handover to another process.

Either both processes are started with the same socket, as systemd starts its services (socket activation): no
connection is lost. Or both bind a socket of their own to one address (`SO_REUSEPORT`): no connection is refused, but
the kernel resets connections whose handshake is under way while the first process closes its socket.
"""

import os
import socket
from collections.abc import MutableMapping
from typing import Final

from mcp_nursery.actors.errors import ConfigError

LISTEN_BACKLOG: Final = 128
"""Connections that may wait to be accepted."""
UNREAD: Final = 30.0
"""Seconds for which a client may take no byte of what it is sent, before its connection is reset."""

_FIRST_INHERITED: Final = 3
"""The descriptor of the first socket that was passed on: `SD_LISTEN_FDS_START` of systemd."""
_LONGEST_ID: Final = 20
"""Digits that no process id reaches; Python would refuse a number of more than 4,300."""


def bind_socket(host: str, port: int, *, reuse_port: bool = False, option: str = "--http") -> socket.socket:
    """Bind a socket to an address of this machine and a port, a free one for 0, and listen on it unless the port is
    shared: then call `listen` later. With `reuse_port`, another process of the same user may be bound to the same port,
    if it sets this, too. Errors name the option that has given the address.

    Raises:
        ConfigError: The socket cannot be bound.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listening.family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if reuse_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, port))
        if not reuse_port:
            listening.listen(LISTEN_BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}", field=option) from None
    _bound_unread(listening)
    return listening


def inherited_socket(environment: MutableMapping[str, str], host: str, port: int) -> socket.socket | None:
    """The socket that the starter of this process has passed on by the variables `LISTEN_PID` and `LISTEN_FDS`, as
    systemd does; None if there is none for this process. The variables are removed: processes that this one starts are
    passed no socket. It has to listen on this host and port, because the options of serving were chosen for them.

    Raises:
        ConfigError: The variables are invalid, or there is not exactly one socket that listens there.
    """
    process, count = environment.pop("LISTEN_PID", None), environment.pop("LISTEN_FDS", None)
    environment.pop("LISTEN_FDNAMES", None)
    if process is None:
        return None
    if not (process.isdecimal() and len(process) < _LONGEST_ID):
        raise ConfigError(f"must be a process id, not {process!r:.80}", field="LISTEN_PID")
    if int(process) != os.getpid():  # meant for an ancestor of this process
        return None
    if count != "1":
        raise ConfigError(f"must be 1, the one socket that is served, not {count!r}", field="LISTEN_FDS")
    try:
        listening = socket.socket(fileno=_FIRST_INHERITED)
    except OSError as error:
        problem = f"descriptor {_FIRST_INHERITED} cannot be used: {error.strerror or error}"
        raise ConfigError(problem, field="LISTEN_FDS") from None
    try:
        _check_inherited(listening, host, port)
    except ConfigError:
        listening.close()
        raise
    listening.set_inheritable(False)
    _bound_unread(listening)
    return listening


def _check_inherited(listening: socket.socket, host: str, port: int) -> None:
    listens = listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not listens or listening.family not in (socket.AF_INET, socket.AF_INET6):
        raise ConfigError(f"descriptor {_FIRST_INHERITED} is no socket that listens for TCP", field="LISTEN_FDS")
    found = listening.getsockname()[:2]
    if found[0] not in _addresses(host) or found[1] != port:
        problem = f"the socket that was passed on listens on {found[0]}:{found[1]}, not on {host}:{port}"
        raise ConfigError(problem, field="--http")


def _addresses(host: str) -> set[object]:
    """The addresses of a host name; an address stands for itself."""
    try:
        return {each[4][0] for each in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


def _bound_unread(listening: socket.socket) -> None:
    timeout = getattr(socket, "TCP_USER_TIMEOUT", None)  # on Linux alone; for clients that vanish without a packet
    if timeout is not None:
        listening.setsockopt(socket.IPPROTO_TCP, timeout, int(UNREAD * 1000))


def listen(listening: socket.socket) -> None:
    """Begin to accept connections on a socket that shares its port: new ones go to each process that listens there.

    Raises:
        ConfigError: The socket cannot listen.
    """
    try:
        listening.listen(LISTEN_BACKLOG)
    except OSError as error:
        raise ConfigError(f"cannot listen: {error.strerror or error}", field="--http") from None
