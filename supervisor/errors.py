"""All errors that are raised on purpose, and the text of an error for a model."""

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.errors import (
    AuthorizationFailed,
    BreakerOpen,
    CallError,
    CallTimeout,
    ConfigError,
    ConnectionLost,
    ContestedResource,
    InstancesTaken,
    InvalidArguments,
    InvalidResult,
    NotApproved,
    NurseryError,
    ServerBusy,
    ServerDown,
    ServerError,
    SkillMismatch,
    SupervisorClosed,
    UnknownPrompt,
    UnknownResource,
    UnknownServer,
    UnknownTool,
)

from .tools.outcome import error_content

__all__ = [
    "AuthorizationFailed",
    "BreakerOpen",
    "CallError",
    "CallTimeout",
    "ConfigError",
    "ConnectionLost",
    "ContestedResource",
    "Delivery",
    "InstancesTaken",
    "InvalidArguments",
    "InvalidResult",
    "NotApproved",
    "NurseryError",
    "ServerBusy",
    "ServerDown",
    "ServerError",
    "SkillMismatch",
    "SupervisorClosed",
    "UnknownPrompt",
    "UnknownResource",
    "UnknownServer",
    "UnknownTool",
    "error_content",
]
