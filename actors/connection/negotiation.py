"""Which era a server speaks. One good answer of either kind settles it; a mute probe costs a second, not ten."""

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TypeGuard

import trio
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    Implementation,
    UnsupportedProtocolVersionErrorData,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from ..messages import Era, Handshake

CLIENT_INFO = Implementation(name="mcp-nursery", version=version("mcp-nursery"))
"""What servers are told of us."""

PATIENCE = 1.0
"""Seconds a probe may stay mute before `initialize` is sent as well."""

BAD_ANSWER = (MCPError, ValueError, RuntimeError)
"""What the session raises for a refusal, an answer it cannot read (pydantic's `ValidationError` is a `ValueError`; what
is nested too deep is another, or a `RecursionError`), and a version it does not share."""


async def negotiate(session: ClientSession, remembered: Era | None) -> Handshake:
    """Open the conversation with as little traffic as what is remembered allows.

    Raises:
        MCPError: Refused, or the connection ended.
        pydantic.ValidationError: An answer nobody can read.
        RuntimeError: No protocol version in common.
    """
    if remembered is Era.HANDSHAKE:
        await _handshake(session)
    else:
        await _probe(session)
    return facts(session)


def facts(session: ClientSession) -> Handshake:
    """What the server said of itself, once the session has adopted an answer."""
    protocol_version = session.protocol_version
    assert protocol_version is not None  # set by whichever attempt succeeded
    return Handshake(
        era=Era.MODERN if protocol_version in MODERN_PROTOCOL_VERSIONS else Era.HANDSHAKE,
        protocol_version=protocol_version,
        server_info=session.server_info,
        capabilities=session.server_capabilities,
        instructions=session.instructions,
    )


async def probe(session: ClientSession) -> None:
    """Ask what every server answers at once: `ping` on older eras, `server/discover` on the modern one.

    Raises:
        MCPError: Refused, or no answer.
        pydantic.ValidationError: An answer nobody can read.
    """
    version = session.protocol_version
    assert version is not None  # the handshake came first
    if version in MODERN_PROTOCOL_VERSIONS:
        await session.send_discover(version)
    else:
        await session.send_ping()


async def _handshake(session: ClientSession) -> None:
    try:
        await session.initialize()
    except MCPError as refused:
        if not _knows_no_handshake(refused):
            raise
        await session.discover()


async def _probe(session: ClientSession) -> None:
    """Ask `server/discover`; when it stays mute, send `initialize` too and take the first good answer."""
    probe, offer = _Attempt(session.discover), _Attempt(session.initialize)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.make)
        with trio.move_on_after(PATIENCE):
            await probe.done.wait()
        if not probe.done.is_set():
            nursery.start_soon(offer.make)
            await _first_success(probe, offer)
        nursery.cancel_scope.cancel()
    if probe.succeeded or offer.succeeded:
        return
    if offer.error is not None:
        if not _knows_no_handshake(offer.error):
            raise offer.error
        await session.discover()  # it was too slow for the first probe, and has read it all the same
        return
    assert probe.error is not None
    if _is_modern_only(probe.error):
        raise probe.error
    await _handshake(session)


def _is_unsupported(refusal: Exception) -> TypeGuard[MCPError]:
    return isinstance(refusal, MCPError) and refusal.code == UNSUPPORTED_PROTOCOL_VERSION


def _knows_no_handshake(refusal: Exception) -> bool:
    """Whether a refusal of `initialize` itself proves a modern server."""
    return isinstance(refusal, MCPError) and refusal.code in (UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND)


def _is_modern_only(refusal: Exception) -> bool:
    """Whether the refusal names versions, and none that a handshake could reach."""
    if not _is_unsupported(refusal):
        return False
    try:
        supported = UnsupportedProtocolVersionErrorData.model_validate(refusal.data).supported
    except ValidationError:
        return False
    return not any(version in HANDSHAKE_PROTOCOL_VERSIONS for version in supported)


class _Attempt:
    """One way of opening the conversation, run as a task of its own."""

    def __init__(self, attempt: Callable[[], Awaitable[object]]) -> None:
        self._attempt = attempt
        self.done = trio.Event()
        self.error: Exception | None = None

    @property
    def succeeded(self) -> bool:
        return self.done.is_set() and self.error is None

    async def make(self) -> None:
        try:
            await self._attempt()
        except BAD_ANSWER as error:
            self.error = error
        self.done.set()


async def _first_success(*attempts: _Attempt) -> None:
    """Wait until one attempt succeeds, or all have failed."""
    async with trio.open_nursery() as nursery:

        async def watch(attempt: _Attempt) -> None:
            await attempt.done.wait()
            if attempt.succeeded:
                nursery.cancel_scope.cancel()

        for attempt in attempts:
            nursery.start_soon(watch, attempt)
