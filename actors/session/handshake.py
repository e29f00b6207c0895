"""The era that a server speaks. One request is sent at a time; after both, the answer to `initialize` decides.

A server that speaks both eras switches to the handshake era when it answers `initialize`, whatever it answered before.
So `initialize` is sent only if the server has read the probe and not answered it, and then its answer decides.
"""

import math
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast

import trio

from ..enums import ANY_PROTOCOL, Era, Protocol, Remembered
from ..jsonrpc.endpoint import ConnectionClosed
from ..messages import Handshake
from ..protocol import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    METHOD_NOT_FOUND,
    MODERN_PROTOCOL_VERSIONS,
    UNSUPPORTED_PROTOCOL_VERSION,
    JsonRpcError,
)
from ..secrets import MAX_LINE, words_of
from .base import BAD_ANSWER
from .session import INITIALIZE, ServerSession

T = TypeVar("T")
Hello = dict[str, Any]

KNOWN_VERSIONS = (*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS)
_VERSION = re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}\b")

PROBE_TIMEOUT = 1.0
"""Seconds a server that has read the probe may stay silent before `initialize` is sent as well."""

PRECEDENCE = 10.0
"""Seconds to wait for an answer to `initialize` after a good one to the probe; and for one to the probe after a refusal
of `initialize`, unless that proves a modern server."""


async def _at_once() -> None:
    await trio.lowlevel.checkpoint()


async def negotiate(
    session: ServerSession,
    remembered: Remembered | None,
    taken: Callable[[], Awaitable[None]] = _at_once,
    *,
    protocol: Protocol = "auto",
) -> Handshake:
    """Do the handshake with as few requests as the facts allow that an earlier conversation found. They count for the
    protocol `auto` alone; for a version, one question is asked.

    `taken` returns once the server has read what it was sent, or if that is unknown. A server may take long to start,
    and only one that has read a question can leave it unanswered.

    Raises:
        WrongProtocol: The server answers another version than the one that is wanted.
        JsonRpcError: Refused, or the connection ended.
        NotValid: An answer is not valid.
        RuntimeError: No protocol version in common.
    """
    answered = False
    if protocol not in ANY_PROTOCOL:
        await _ask_for(session, protocol)
    elif remembered not in (None, Era.MODERN) or protocol == "handshake-first":
        await _handshake(session, remembered if remembered in HANDSHAKE_PROTOCOL_VERSIONS else None)
    else:
        answered = await _probe(session, taken)
    return facts(session, era_answered=answered)


def facts(session: ServerSession, *, era_answered: bool) -> Handshake:
    """The server's introduction, once the session has adopted an answer."""
    protocol_version = session.protocol_version
    assert protocol_version is not None  # set by whichever attempt succeeded
    return Handshake(
        era=Era.MODERN if session.is_modern else Era.HANDSHAKE,
        protocol_version=protocol_version,
        server_info=session.server_info,
        capabilities=session.server_capabilities,
        instructions=session.instructions,
        era_answered=era_answered or session.is_modern,
        offered=None if session.is_modern else session.offered,
    )


class WrongProtocol(Exception):
    """The server, or its transport, does not speak what its spec pins. Trying again cannot help."""


def check_protocol(protocol: Protocol, only: Era | None) -> None:
    """Refuse a protocol that a transport cannot carry.

    Raises:
        WrongProtocol: It is of the other era.
    """
    wanted = Era.MODERN if protocol in MODERN_PROTOCOL_VERSIONS else Era.HANDSHAKE
    if protocol not in ANY_PROTOCOL and only is not None and wanted is not only:
        raise WrongProtocol(f"its protocol is set to {protocol!r}, and over its transport servers speak the {only} era")


async def _ask_for(session: ServerSession, protocol: Protocol) -> None:
    """Do the handshake with the one request that can give the wanted version."""
    try:
        if protocol in MODERN_PROTOCOL_VERSIONS:
            await _discover(session, trio.Event())
        else:
            await (_initialize(session) if protocol == "handshake" else session.initialize())
    except JsonRpcError as refused:
        if others := versions_named(refused, KNOWN_VERSIONS, protocol):
            problem = f"it speaks {' and '.join(others)}, and its setting protocol is {protocol!r}: {words_of(refused)}"
            raise WrongProtocol(problem) from refused
        raise
    if protocol not in ("handshake", session.protocol_version):
        raise WrongProtocol(f"its protocol is set to {protocol!r}, and it answers {session.protocol_version!r}")


async def _handshake(session: ServerSession, offer: str | None = None) -> None:
    try:
        await _initialize(session, offer)
    except JsonRpcError as refused:
        if not (_knows_no_handshake(refused) or versions_named(refused, MODERN_PROTOCOL_VERSIONS)):
            raise
        await _discover_once(session)


async def _initialize(session: ServerSession, offer: str | None = None) -> Hello:
    """Send `initialize`; if the server refuses the version and names others, once more with the best of them."""
    try:
        return await session.initialize(offer)
    except JsonRpcError as refused:
        others = versions_named(refused, HANDSHAKE_PROTOCOL_VERSIONS, offer or LATEST_HANDSHAKE_VERSION)
        if not others:
            raise
    return await session.initialize(others[0])


async def _probe(session: ServerSession, taken: Callable[[], Awaitable[None]]) -> bool:
    """Send `server/discover`; if the server reads it and stays silent, send `initialize` too, whose answer then
    decides. Returns whether the answer to the probe proves the era."""
    answered = trio.Event()
    probe, offer = _Attempt(partial(_discover, session, answered)), _Attempt(partial(_initialize, session))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.make)
        await _answered_or_mute(probe, answered, taken)
        if not probe.done.is_set():
            nursery.start_soon(offer.make)
            await _settled(probe, offer)
        nursery.cancel_scope.cancel()
    if offer.result is not None:
        await session.adopt(INITIALIZE, offer.result)  # whichever of two answers the session read last
        return answered.is_set() and probe.result is None  # a server that speaks both was slow to show it
    if probe.result is None:
        await _settle_refused(session, probe, offer)
    return answered.is_set()


async def _discover(session: ServerSession, answered: trio.Event) -> Hello:
    """Send `server/discover`, and wait for as long as a start may take.

    If a refusal names a shared version, ask again with that one. `answered` is set with the first answer.
    """
    version = MODERN_PROTOCOL_VERSIONS[-1]
    while True:
        try:
            found = await session.send_discover(version)
            break
        except JsonRpcError as refused:
            if isinstance(refused, ConnectionClosed):
                raise
            shared = [each for each in MODERN_PROTOCOL_VERSIONS if each in (_versions_named(refused) or ())]
            if answered.is_set() or not shared:
                answered.set()
                raise
            answered.set()
            version = shared[-1]
    answered.set()
    return await session.adopt_discovered(found)


async def _discover_once(session: ServerSession) -> None:
    """Send `server/discover` to a server that has proved to be modern: once more if it names a version that we
    share."""
    try:
        found = await session.send_discover(MODERN_PROTOCOL_VERSIONS[-1])
    except JsonRpcError as refused:
        shared = [each for each in MODERN_PROTOCOL_VERSIONS if each in (_versions_named(refused) or ())]
        if not shared:
            raise
        found = await session.send_discover(shared[-1])
    await session.adopt_discovered(found)


async def _answered_or_mute(
    probe: "_Attempt[Hello]",
    answered: trio.Event,
    taken: Callable[[], Awaitable[None]],
) -> None:
    """Wait until the probe is over, or the server stays silent for a second after it has read it."""
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            await probe.done.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(listen)
        await taken()
        with trio.move_on_after(PROBE_TIMEOUT):
            await answered.wait()
        if answered.is_set():
            await probe.done.wait()
        nursery.cancel_scope.cancel()


async def _settled(probe: "_Attempt[Hello]", offer: "_Attempt[Hello]") -> None:
    """Wait until `initialize` has a good answer, or waiting for one cannot help."""
    async with trio.open_nursery() as nursery:

        async def hold_against(patience: trio.CancelScope) -> None:
            await probe.done.wait()
            if probe.result is not None:
                patience.deadline = trio.current_time() + PRECEDENCE

        with trio.CancelScope() as patience:
            nursery.start_soon(hold_against, patience)
            await offer.done.wait()
        if offer.result is None:
            with trio.move_on_after(math.inf if _knows_no_handshake(offer.error) else PRECEDENCE):
                await probe.done.wait()
        nursery.cancel_scope.cancel()


async def _settle_refused(session: ServerSession, probe: "_Attempt[Hello]", offer: "_Attempt[Hello]") -> None:
    """Continue after no request got a good answer."""
    if offer.error is not None:
        if not _knows_no_handshake(offer.error):
            raise offer.error
        await _discover_once(session)  # it refused the first probe for another reason, such as a start under way
        return
    assert probe.error is not None
    if _is_modern_only(probe.error):
        raise probe.error
    await _handshake(session)


def _knows_no_handshake(refusal: Exception | None) -> bool:
    """True if a refusal of `initialize` itself proves a modern server."""
    return isinstance(refusal, JsonRpcError) and refusal.code in (UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND)


def _is_modern_only(refusal: Exception) -> bool:
    """True if the refusal names versions, but none that a handshake could reach."""
    named = _versions_named(refusal)
    return named is not None and not any(version in HANDSHAKE_PROTOCOL_VERSIONS for version in named)


def versions_named(refusal: Exception, known: Sequence[str], refused: str | None = None) -> Sequence[str]:
    """The known versions that a refusal names in place of the one that it refuses, the best first. Servers name them in
    its data, or only in its message, as SDKs do over HTTP."""
    if not isinstance(refusal, JsonRpcError) or isinstance(refusal, ConnectionClosed):
        return ()
    data: object = refusal.data
    listed = cast("Hello", data).get("supported") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        said = refusal.message[:MAX_LINE]
        listed = _VERSION.findall(said) if "version" in said.lower() else []
    return [each for each in reversed(known) if each in listed and each != refused]


def _versions_named(refusal: Exception) -> Sequence[str] | None:
    """The versions that the error of an unsupported version names; None if it is another error, or cannot be read."""
    if not isinstance(refusal, JsonRpcError) or refusal.code != UNSUPPORTED_PROTOCOL_VERSION:
        return None
    said: object = refusal.data
    data = cast("Hello", said) if isinstance(said, dict) else {}
    named: object = data.get("supported")
    if not isinstance(named, list) or not isinstance(data.get("requested"), str):
        return None
    versions = cast("list[object]", named)
    return [each for each in versions if isinstance(each, str)] if all(isinstance(e, str) for e in versions) else None


class _Attempt(Generic[T]):
    """One way of opening the conversation, run as a task of its own."""

    def __init__(self, attempt: Callable[[], Awaitable[T]]) -> None:
        self._attempt = attempt
        self.done = trio.Event()
        self.result: T | None = None
        self.error: Exception | None = None

    async def make(self) -> None:
        try:
            self.result = await self._attempt()
        except BAD_ANSWER as error:
            self.error = error
        self.done.set()
