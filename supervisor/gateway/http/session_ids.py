"""Session ids that outlive their gateway. An id has sealed in it what another gateway with the same key needs to go on
with the session, so that neither a restart nor a balancer costs a client its session.

The JSON `[began, version, capabilities, info, replica]` is sealed (`sealing`), bound to the client and the server: for
another client, or on another path, an id does not open, as if it were forged.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from mcp_nursery.actors.protocol import HANDSHAKE_PROTOCOL_VERSIONS
from mcp_nursery.actors.records import frozen

from ..auth.principal import Principal
from ..bridge import Json
from ..sealing import SessionKeys, bind

_FORMAT: Final = b"mcp-nursery session 1"
"""The format of the JSON: it changes with the form of `SessionStart`."""


@frozen
class SessionStart:
    """The beginning of a session, as its id holds it."""

    began: float
    """The Unix time at which the session began."""
    version: str
    """The version of the protocol that its client offered."""
    capabilities: Mapping[str, Any]
    """The capabilities of its client."""
    info: Mapping[str, Any] | None
    """The client's description of itself; only its name and version if it is very long."""
    replica: str = ""
    """The only gateway that can go on with the session; empty: any can."""


def seal_session(keys: SessionKeys, start: SessionStart, owner: Principal | None, server: str | None) -> str | None:
    """Make the id of a session that its owner has with a server; None: with all of them. None if what its client
    declares does not fit into one."""
    bound = bind(_FORMAT, owner, server)
    whole = _seal(keys, start, start.info, bound)
    if whole is None and start.info is not None:
        return _seal(keys, start, _cut(start.info), bound)
    return whole


def _seal(keys: SessionKeys, start: SessionStart, info: Mapping[str, Any] | None, bound: bytes) -> str | None:
    try:
        plain = orjson.dumps((round(start.began), start.version, start.capabilities, info, start.replica))
    except TypeError:  # an integer beyond 64 bits, for example
        return None
    return keys.seal(plain, bound)


def open_session(
    keys: SessionKeys, session_id: str, owner: Principal | None, server: str | None
) -> SessionStart | None:
    """The beginning of the session with this id, which may be anything that a client sends, however long ago that is.
    None if no key has sealed it for this client and server, or all servers, if that is None."""
    plain = keys.open(session_id, bind(_FORMAT, owner, server))
    return None if plain is None else _parse(plain)


def _cut(info: Mapping[str, Any]) -> Json:
    """The members that every description has."""
    return {name: info[name] for name in ("name", "version") if name in info}


def _parse(plain: bytes) -> SessionStart | None:
    """The beginning that was sealed; None if its protocol version is unknown here, as that of a later program."""
    start = SessionStart(*orjson.loads(plain))
    return start if start.version in HANDSHAKE_PROTOCOL_VERSIONS else None
