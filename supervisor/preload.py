"""The imports of a supervisor, made in threads: its own modules before its servers are started, the SDK meanwhile.

The patterns that every text is searched for are compiled at the same time.
"""

import gc
import threading
from contextvars import ContextVar
from typing import Final

from mcp_nursery.actors.preload import CONNECTION_MODULES, SDK_MODULES, Stage, import_all

_FREEZES: Final = threading.Event()
"""The event: set if loaded modules are to be frozen."""


AHEAD: Final = ContextVar("AHEAD", default=True)
"""True if the SDK is loaded before something needs it: a program that passes messages on as they came may never need
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
    from .security.redaction import compile_patterns

    prepare()
    compile_patterns()
    if _FREEZES.is_set():
        gc.freeze()


SUPERVISOR_MODULES: Final = Stage(_load_supervisor, CONNECTION_MODULES)
"""All that it takes to start servers."""
ALL_MODULES: Final = Stage(_load_rest, SUPERVISOR_MODULES, SDK_MODULES)
"""All that it takes to talk to them."""


def freeze_loaded() -> None:
    """Exempt the modules from garbage collection, once they are loaded. For a process that is ours alone: a host
    decides for itself. A full collection would spend 0.05 s on them, in which the loop stands still."""
    _FREEZES.set()
    if ALL_MODULES.is_loaded:
        gc.freeze()
