"""The words of spans and metrics: OpenTelemetry's semantic conventions for MCP and GenAI where they have one, and our
own under `mcp_nursery.`. Pure."""

from collections.abc import Mapping
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from mcp_nursery.actors.errors import NurseryError, ServerError

from ..decisions.state_machine import Snapshot
from ..tools.tool_result import ToolResult
from ..transports import LOCAL_KINDS, REMOTE_KINDS

Attributes: TypeAlias = Mapping[str, str | int]

SERVER_ATTRIBUTE: Final = "mcp_nursery.server"
STATE: Final = "mcp_nursery.state"
INCARNATION: Final = "mcp_nursery.incarnation"
ATTEMPT: Final = "mcp_nursery.attempt"
DELIVERY: Final = "mcp_nursery.delivery"
OUTCOME: Final = "mcp_nursery.outcome"
STATUS: Final = "mcp_nursery.status"

METHOD: Final = "mcp.method.name"
PROTOCOL_VERSION: Final = "mcp.protocol.version"
OPERATION: Final = "gen_ai.operation.name"
REQUEST_ID: Final = "jsonrpc.request.id"
STATUS_CODE: Final = "rpc.response.status_code"
ERROR: Final = "error.type"

TARGETS: Final[Mapping[str, str]] = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}
"""The attribute that holds the object of a request, by the method, where there are few objects."""

OTHER: Final = "_OTHER"
"""The conventions' word for an error that has none of its own."""

_SCHEME_PORTS: Final = {"http": 80, "ws": 80, "https": 443, "wss": 443}

_ERROR_CODES: Final = (range(-32768, -31999), range(100, 600))
"""Codes that a metric keeps: those that JSON-RPC reserves, MCP's among them, and the statuses of HTTP."""


def about_server(snapshot: Snapshot) -> Attributes:
    """The attributes of a server. Of its URL only host and port are given, as path and query may hold secrets, and no
    session id, which is one."""
    spec, introduction = snapshot.spec, snapshot.introduction
    about: dict[str, str | int] = {SERVER_ATTRIBUTE: spec.name}
    kind = spec.transport.kind
    if kind in LOCAL_KINDS:
        about["network.transport"] = "pipe"
    elif kind in REMOTE_KINDS:
        about |= {"network.transport": "tcp", "network.protocol.name": "websocket" if kind == "ws" else "http"}
        about |= _address(spec.transport)
    if introduction is not None:
        about[PROTOCOL_VERSION] = introduction.protocol_version
    return about


def _address(transport: object) -> Attributes:
    written = getattr(transport, "transport", transport)  # of one whose variables are resolved at each connect
    try:
        parts = urlsplit(str(getattr(written, "url", "")))
        host, port = parts.hostname, parts.port or _SCHEME_PORTS.get(parts.scheme)
    except ValueError:
        return {}
    if not host or port is None or "$" in parts.netloc or "{" in parts.netloc:  # what a variable stands for is secret
        return {}
    return {"server.address": host, "server.port": port}


def about_request(server: Attributes, method: str, target: str | None) -> Attributes:
    """The attributes of a request to a server: its method, and the tool or prompt that it is about."""
    about = {**server, METHOD: method}
    if method == "tools/call":
        about[OPERATION] = "execute_tool"
    if target is not None and method in TARGETS:
        about[TARGETS[method]] = target
    return about


def span_name(method: str, target: str | None) -> str:
    """The name of a request's span. A resource's URI does not belong there: there may be any number of them."""
    return f"{method} {target}" if target is not None and method in TARGETS else method


def about_error(ended: object) -> Attributes:
    """The attributes of a request's failure: its kind, no word of the error. Empty if it has not failed."""
    match ended:
        case ServerError():
            return {ERROR: str(ended.code), STATUS_CODE: str(ended.code)}
        case NurseryError():
            return {ERROR: type(ended).__name__}
        case ToolResult(is_error=True):
            return {ERROR: "tool_error"}
        case BaseException():
            return {ERROR: OTHER}
        case _:
            return {}


def bounded(error: Attributes) -> Attributes:
    """The attributes of a failure for a metric: codes that are neither JSON-RPC's nor MCP's nor a status of HTTP become
    one."""
    code = error.get(STATUS_CODE)
    if code is None or any(int(code) in codes for codes in _ERROR_CODES):
        return error
    return {ERROR: OTHER, STATUS_CODE: OTHER}


def outcome_of(ended: object) -> str:
    """`ok`, `tool_error`, `error`, or `cancelled` where the caller gave up."""
    match ended:
        case None:
            return "cancelled"
        case BaseException():
            return "error"
        case ToolResult(is_error=True):
            return "tool_error"
        case _:
            return "ok"
