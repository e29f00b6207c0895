"""The imports of connections, made in a thread: the SDK takes longer than everything else together, and the loop must
not stand still for it. A connection needs it only for what is not plain: see `session.session`.
"""

import atexit
import gc
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Final

import trio

from .threads import BRIEF_THREADS

LOADING: Final = threading.Lock()
"""The lock of the loading thread: two that import modules which import each other may see half of them."""
FREEZES: Final = threading.Event()
"""The event: set if loaded modules are exempt from garbage collection. See `freeze_loaded`."""
_LAST_WAIT: Final = 60.0
"""Seconds that an ending interpreter waits for that thread."""


@atexit.register
def _finish() -> None:
    """Wait until the thread has finished loading: an ending interpreter stops other threads wherever they are, and
    where that is in a module written in Rust, the whole process aborts."""
    LOADING.acquire(timeout=_LAST_WAIT)


class Stage:
    """Modules that `load` loads together, once a process, after the stages `after`."""

    def __init__(self, load: Callable[[], object], *after: "Stage") -> None:
        self._load = load
        self._after = after
        self.is_loaded: bool = False
        """True if they are fully loaded: `sys.modules` also has those that a thread is still loading."""
        self._turn: Final = trio.lowlevel.RunVar[trio.StrictFIFOLock | None]("_turn", None)
        """The lock of the task that waits for the loading thread: tasks may outnumber threads, and would go on in any
        order: requests of one client would overtake each other."""

    def load(self) -> None:
        """Load them now, unless they are loaded. Called in a thread, or before there is a loop."""
        with LOADING:
            self.load_in_order()

    def load_in_order(self) -> None:
        """Load the stages before this one, then this one. The caller holds `LOADING`."""
        for stage in self._after:
            stage.load_in_order()
        if not self.is_loaded:
            self._load()
            self.is_loaded = True
            if FREEZES.is_set():
                gc.freeze()

    async def ensure_loaded(self) -> None:
        """Have them loaded in a thread. Tasks that wait go on in the order in which they came; later ones overtake
        none."""
        turn = self._turn.get()
        if turn is None:
            turn = trio.StrictFIFOLock()
            self._turn.set(turn)
        if not self.is_loaded or turn.locked():
            async with turn:
                if not self.is_loaded:
                    await run_aside(self.load)


def freeze_loaded() -> None:
    """Exempt modules from garbage collection, once they are loaded. For a process that is ours alone: a host decides
    for itself. A full collection would spend 0.05 s on them, in which the loop stands still."""
    FREEZES.set()
    gc.freeze()


async def run_aside(load: Callable[[], object]) -> None:
    """Load something in a thread, which goes on if the caller is cancelled; in the loop under a clock that jumps when
    every task waits: it would not wait for a thread, and what a program tests would be late."""
    mock_clock = getattr(sys.modules.get("trio.testing"), "MockClock", None)  # a module may be half imported
    if mock_clock is not None and isinstance(trio.lowlevel.current_clock(), mock_clock):
        load()
    else:
        await BRIEF_THREADS.run(load, abandon_on_cancel=True)


def import_all(*modules: str) -> None:
    """Import modules, in this order."""
    for name in modules:
        import_module(name)


def _load_connections() -> None:
    import_all("mcp_nursery.actors.session.connection", "mcp_nursery.actors.jsonrpc.stream_carrier")


def _load_result_types() -> None:
    import_all("mcp_nursery.actors.session.results")


def _load_wire_models() -> None:
    import_all("mcp_types.methods")


def _load_remote() -> None:
    import_all(
        "mcp_nursery.actors.transports.http.connectors",
        "mcp_nursery.actors.transports.websocket.connector",
        "httpcore2",  # by httpx2, when its first client is made
    )
    with suppress(ModuleNotFoundError):
        # Loaded by anyio when its first task group is made: a private module, which it may rename.
        import_module("anyio._backends._trio")


def _load_sdk() -> None:
    import_all(
        "mcp_nursery.actors.session.sdk",
        "mcp_nursery.actors.session.models",
        "mcp_nursery.actors.oauth.renewal",
        "mcp_nursery.actors.transports.docker",
        "mcp_nursery.actors.transports.in_process",
    )


CONNECTION_MODULES: Final = Stage(_load_connections)
"""The modules that speak with a process."""
REMOTE_MODULES: Final = Stage(_load_remote, CONNECTION_MODULES)
"""The modules that speak with a server over a network."""
RESULT_TYPES: Final = Stage(_load_result_types)
"""The types of results: a third of the SDK."""
WIRE_MODELS: Final = Stage(_load_wire_models, RESULT_TYPES)
"""The models of all messages of all versions of the protocol."""
SDK_MODULES: Final = Stage(_load_sdk, REMOTE_MODULES, WIRE_MODELS)
"""All that connections of any kind may need."""
