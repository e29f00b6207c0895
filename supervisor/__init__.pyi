from .calls.call import Call
from .config import discover_config, load_config
from .decisions.restart_policy import RestartPolicy
from .errors import (
    BreakerOpen,
    CallError,
    CallTimeout,
    ConfigError,
    ConnectionLost,
    InvalidResult,
    NotApproved,
    NurseryError,
    ServerBusy,
    ServerDown,
    ServerError,
    UnknownTool,
)
from .login import OAuth
from .opening import open_supervisor
from .servers.borrowed import BorrowedServer
from .spec import ServerSpec
from .storage.store import MemoryStore
from .supervisor import Supervisor
from .tools.approval_rules import Approval
from .tools.tool import Tool
from .tools.tool_result import ToolResult
from .transports import (
    DockerTransport,
    HttpTransport,
    InProcessTransport,
    SseTransport,
    StdioTransport,
    WebSocketTransport,
)

__all__ = [
    "Approval",
    "BorrowedServer",
    "BreakerOpen",
    "Call",
    "CallError",
    "CallTimeout",
    "ConfigError",
    "ConnectionLost",
    "DockerTransport",
    "HttpTransport",
    "InProcessTransport",
    "InvalidResult",
    "MemoryStore",
    "NotApproved",
    "NurseryError",
    "OAuth",
    "RestartPolicy",
    "ServerBusy",
    "ServerDown",
    "ServerError",
    "ServerSpec",
    "SseTransport",
    "StdioTransport",
    "Supervisor",
    "Tool",
    "ToolResult",
    "UnknownTool",
    "WebSocketTransport",
    "discover_config",
    "load_config",
    "open_supervisor",
]
