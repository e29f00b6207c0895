"""What a supervisor needs, loaded in threads: its own modules before its servers are started, the SDK beside that.

What every text is searched with is compiled at the same time.
"""

import gc
import threading
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import Final

from mcp_nursery.actors import preload as of_connections

_OWN: Final = (
    "mcp_nursery.supervisor.supervisor",
    "mcp_nursery.supervisor.calls.approval",
    "mcp_nursery.supervisor.servers.servers",
    "mcp_nursery.supervisor.telemetry.telemetry",
    "mcp_nursery.actors.transports.stdio",
)
_FREEZES: Final = threading.Event()
"""Whether what is loaded is frozen."""


AHEAD: Final = ContextVar("AHEAD", default=True)
"""Whether the SDK is loaded before something needs it: what hands on messages as they came may never need it."""


@cache
def _load_own() -> None:
    of_connections.load_own()
    with of_connections.LOADING:
        for name in _OWN:
            import_module(name)


@cache
def _load_rest() -> None:
    of_connections.load()
    from .security.injection import prepare

    prepare()
    if _FREEZES.is_set():
        gc.freeze()


def freeze_loaded() -> None:
    """Have no collection of garbage look at what is loaded, from when it is. For a process that is ours alone: a host
    decides for itself. A whole collection takes 0.05 s for that, in which the loop stands still."""
    _FREEZES.set()
    if _is_loaded():
        gc.freeze()


def load() -> None:
    """Load all of it now, once a process."""
    _load_own()
    _load_rest()


async def own_loaded() -> None:
    """Have its own modules loaded: what it takes to start servers."""
    if not _load_own.cache_info().currsize:
        await of_connections.aside(_load_own)


async def loaded() -> None:
    """Have everything loaded: what it takes to talk to them. Those who wait go on in the order in which they came."""
    await of_connections.in_turn(_is_loaded, _load_rest)


def _is_loaded() -> bool:
    return bool(_load_rest.cache_info().currsize)
