"""The imports of a supervisor, made in threads: its own modules before its servers are started, the SDK beside that.

What every text is searched with is compiled at the same time.
"""

import gc
import threading
from contextvars import ContextVar
from typing import Final

from mcp_nursery.actors.preload import CONNECTION_MODULES, SDK_MODULES, Stage, import_all

_FREEZES: Final = threading.Event()
"""The event that what is loaded is frozen."""


AHEAD: Final = ContextVar("AHEAD", default=True)
"""True if the SDK is loaded before something needs it: a program that hands messages on as they came may never need
it."""


def _load_supervisor() -> None:
    import_all(
        "mcp_nursery.supervisor.supervisor",
        "mcp_nursery.supervisor.calls.approvals",
        "mcp_nursery.supervisor.servers.servers",
        "mcp_nursery.supervisor.telemetry.providers",
        "mcp_nursery.actors.transports.stdio",
    )


def _load_rest() -> None:
    from .security.injection import prepare

    prepare()
    if _FREEZES.is_set():
        gc.freeze()


SUPERVISOR_MODULES: Final = Stage(_load_supervisor, CONNECTION_MODULES)
"""All that it takes to start servers."""
ALL_MODULES: Final = Stage(_load_rest, SUPERVISOR_MODULES, SDK_MODULES)
"""All that it takes to talk to them."""


def freeze_loaded() -> None:
    """Have no collection of garbage look at what is loaded, from when it is. For a process that is ours alone: a host
    decides for itself. A whole collection takes 0.05 s for that, in which the loop stands still."""
    _FREEZES.set()
    if ALL_MODULES.is_loaded:
        gc.freeze()
