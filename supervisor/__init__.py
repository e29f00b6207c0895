"""The public API of mcp-nursery, loaded when it is first used: `import mcp` alone takes most of a second."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_nursery.actors.callbacks import Callbacks, ServerMessage
    from mcp_nursery.actors.errors import (
        BreakerOpen,
        CallError,
        CallTimeout,
        ConfigError,
        ConnectionLost,
        InvalidArguments,
        InvalidResult,
        NotApproved,
        NurseryError,
        ServerBusy,
        ServerDown,
        ServerError,
        SupervisorClosed,
        UnknownServer,
        UnknownTool,
    )
    from mcp_nursery.actors.liveness import Liveness
    from mcp_nursery.actors.states import Delivery, ServerState

    from .calls.call import Call
    from .calls.fan_out import CallOutcome, FanOut
    from .config import Config, discover_config, load_config
    from .events import (
        DefinitionChanged,
        Event,
        EventStream,
        InjectionSuspected,
        Lagged,
        ServerRemoved,
        SnapshotEvent,
        StateChanged,
        ToolsChanged,
    )
    from .opening import open_supervisor
    from .restart_policy import RestartPolicy
    from .security.redaction import Redactor
    from .security.trust import TrustRequest
    from .spec import ServerSpec
    from .status import CallCounts, ServerStatus, SupervisorStatistics
    from .storage.store import MemoryStore
    from .supervisor import Supervisor
    from .tools.approval import Approval, ApprovalRequest, ApprovalRules
    from .tools.error_content import error_content
    from .tools.hints import ToolHints
    from .tools.outcome import ToolOutcome
    from .tools.pins import DefinitionChange
    from .tools.results import ToolResult
    from .tools.tool import Tool
    from .toolset import Toolset
    from .transports import (
        DockerTransport,
        HttpTransport,
        InProcessTransport,
        SseTransport,
        StdioTransport,
        WebSocketTransport,
    )

_HOMES = {
    "mcp_nursery.actors.errors": (
        "BreakerOpen",
        "CallError",
        "CallTimeout",
        "ConfigError",
        "ConnectionLost",
        "InvalidArguments",
        "InvalidResult",
        "NotApproved",
        "NurseryError",
        "ServerBusy",
        "ServerDown",
        "ServerError",
        "SupervisorClosed",
        "UnknownServer",
        "UnknownTool",
    ),
    "mcp_nursery.actors.callbacks": ("Callbacks", "ServerMessage"),
    "mcp_nursery.actors.liveness": ("Liveness",),
    "mcp_nursery.actors.states": ("Delivery", "ServerState"),
    ".config": ("Config", "discover_config", "load_config"),
    ".events": (
        "DefinitionChanged",
        "Event",
        "EventStream",
        "InjectionSuspected",
        "Lagged",
        "ServerRemoved",
        "SnapshotEvent",
        "StateChanged",
        "ToolsChanged",
    ),
    ".calls.call": ("Call",),
    ".calls.fan_out": ("CallOutcome", "FanOut"),
    ".opening": ("open_supervisor",),
    ".restart_policy": ("RestartPolicy",),
    ".spec": ("ServerSpec",),
    ".status": ("CallCounts", "ServerStatus", "SupervisorStatistics"),
    ".storage.store": ("MemoryStore",),
    ".supervisor": ("Supervisor",),
    ".tools.approval": ("Approval", "ApprovalRequest", "ApprovalRules"),
    ".tools.error_content": ("error_content",),
    ".tools.hints": ("ToolHints",),
    ".tools.outcome": ("ToolOutcome",),
    ".tools.pins": ("DefinitionChange",),
    ".security.redaction": ("Redactor",),
    ".security.trust": ("TrustRequest",),
    ".tools.results": ("ToolResult",),
    ".tools.tool": ("Tool",),
    ".toolset": ("Toolset",),
    ".transports": (
        "DockerTransport",
        "HttpTransport",
        "InProcessTransport",
        "SseTransport",
        "StdioTransport",
        "WebSocketTransport",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Approval",
    "ApprovalRequest",
    "ApprovalRules",
    "BreakerOpen",
    "Call",
    "CallCounts",
    "CallError",
    "CallOutcome",
    "CallTimeout",
    "Callbacks",
    "Config",
    "ConfigError",
    "ConnectionLost",
    "DefinitionChange",
    "DefinitionChanged",
    "Delivery",
    "DockerTransport",
    "Event",
    "EventStream",
    "FanOut",
    "HttpTransport",
    "InProcessTransport",
    "InjectionSuspected",
    "InvalidArguments",
    "InvalidResult",
    "Lagged",
    "Liveness",
    "MemoryStore",
    "NotApproved",
    "NurseryError",
    "Redactor",
    "RestartPolicy",
    "ServerBusy",
    "ServerDown",
    "ServerError",
    "ServerMessage",
    "ServerRemoved",
    "ServerSpec",
    "ServerState",
    "ServerStatus",
    "SnapshotEvent",
    "SseTransport",
    "StateChanged",
    "StdioTransport",
    "Supervisor",
    "SupervisorClosed",
    "SupervisorStatistics",
    "Tool",
    "ToolHints",
    "ToolOutcome",
    "ToolResult",
    "ToolsChanged",
    "Toolset",
    "TrustRequest",
    "UnknownServer",
    "UnknownTool",
    "WebSocketTransport",
    "discover_config",
    "error_content",
    "load_config",
    "open_supervisor",
]


def __getattr__(name: str) -> Any:
    """Import a public name's module when the name is first asked for (PEP 562)."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
