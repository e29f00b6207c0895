"""The imports of a supervisor, made in threads: its own modules before its servers are started, the SDK meanwhile.

The patterns that every text is searched for are compiled at the same time.
"""

from contextvars import ContextVar
from typing import Final

from mcp_nursery.actors.preload import CONNECTION_MODULES, RESULT_TYPES, SDK_MODULES, Stage, import_all

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


def _compile_patterns() -> None:
    from .security.injection import prepare
    from .security.redaction import compile_patterns

    prepare()
    compile_patterns()


SUPERVISOR_MODULES: Final = Stage(_load_supervisor, CONNECTION_MODULES)
"""All that it takes to start servers."""
PATTERNS: Final = Stage(_compile_patterns, SUPERVISOR_MODULES)
"""The patterns that the answers of servers are searched for."""
CALL_MODULES: Final = Stage(lambda: None, PATTERNS, RESULT_TYPES)
"""All that most calls take. A question of a server needs the SDK, which is loaded then: it takes as much memory."""
ALL_MODULES: Final = Stage(lambda: None, PATTERNS, SDK_MODULES)
"""All that it takes to talk to servers of any kind."""
