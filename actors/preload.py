"""What connections need, loaded in a thread: the SDK takes longer than everything else together, and no loop is to
stand still for it. A connection to a process needs it only for what is not plain: see `session.session`.
"""

import atexit
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Final

import trio

_OWN: Final = (
    "mcp_nursery.actors.session.connection",
    "mcp_nursery.actors.jsonrpc.stream_carrier",
)
"""What speaks with a process."""
_TYPES: Final = "mcp_nursery.actors.session.results"
"""What makes of an answer what its caller gets: a third of the SDK."""
_NEEDED: Final = (
    "mcp_nursery.actors.session.sdk",
    "mcp_nursery.actors.session.models",
    _TYPES,
    "mcp_nursery.actors.transports.docker_gateway",
    "mcp_nursery.actors.transports.in_process",
    "mcp_nursery.actors.transports.sse",
    "mcp_nursery.actors.transports.streamable_http",
    "mcp_nursery.actors.transports.websocket",
    "httpcore2",  # by httpx2, when its first client is made
)
_BACKEND: Final = "anyio._backends._trio"
"""What anyio imports when its first task group is made. Its own affair, which it may call otherwise."""

LOADING: Final = threading.Lock()
"""Held by the thread that loads: two that import what imports each other may see half of it."""
_LAST_WAIT: Final = 10.0
"""Seconds that an interpreter which ends waits for that thread."""
_TURN: Final = trio.lowlevel.RunVar[trio.StrictFIFOLock]("_TURN")
"""Held by the task that waits for that thread: many may want it, there are not as many threads, and they would go on in
any order: requests of one client would overtake each other."""


@atexit.register
def _finish() -> None:
    """Let the thread come to an end with what it loads: an interpreter that ends stops other threads wherever they are,
    and where that is in a module written in Rust, the whole process aborts."""
    LOADING.acquire(timeout=_LAST_WAIT)


@cache
def _load_own() -> None:
    for name in _OWN:
        import_module(name)


def load_own() -> None:
    """Load what speaks with a process, once."""
    with LOADING:
        _load_own()


async def own_loaded() -> None:
    """Have that loaded."""
    if not _load_own.cache_info().currsize:
        await aside(load_own)


@cache
def _load_types() -> None:
    import_module(_TYPES)


def load_types() -> None:
    """Load the types of results, once a process."""
    with LOADING:
        _load_types()


def has_types() -> bool:
    """Whether the types of results are loaded."""
    return bool(_load_types.cache_info().currsize)


async def types_loaded() -> None:
    """Have the types of results loaded. Those who wait go on in the order in which they came."""
    await in_turn(has_types, load_types)


@cache
def _load() -> None:
    for name in _NEEDED:
        import_module(name)
    with suppress(ModuleNotFoundError):
        import_module(_BACKEND)


def load() -> None:
    """Load it now, once a process."""
    with LOADING:
        _load_own()
        _load_types()
        _load()


def is_loaded() -> bool:
    """Whether nothing is left to load."""
    return bool(_load.cache_info().currsize)


async def aside(load: Callable[[], object]) -> None:
    """Load something in a thread; under a clock that jumps when every task waits in the loop: it would not wait for a
    thread, and what a program tests would be late. Who no longer waits leaves it to the thread."""
    testing = sys.modules.get("trio.testing")
    if testing is not None and isinstance(trio.lowlevel.current_clock(), testing.MockClock):
        load()
    else:
        await trio.to_thread.run_sync(load, abandon_on_cancel=True)


async def loaded() -> None:
    """Have it loaded. Those who wait go on in the order in which they came."""
    await in_turn(is_loaded, load)


async def in_turn(is_done: Callable[[], bool], load: Callable[[], object]) -> None:
    """Load something aside, unless that is done. Who comes later overtakes nobody who waits for it."""
    turn = _turn()
    if not is_done() or turn.locked():
        async with turn:
            if not is_done():
                await aside(load)


def _turn() -> trio.StrictFIFOLock:
    try:
        return _TURN.get()
    except LookupError:
        turn = trio.StrictFIFOLock()
        _TURN.set(turn)
        return turn
