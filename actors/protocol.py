"""The words and numbers of MCP that are needed before the SDK is loaded, which takes longer than all else. A test
compares them with the SDK's own.
"""

from collections.abc import Mapping
from typing import Any, Final

RequestId = int | str

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
CONNECTION_CLOSED: Final = -32000
REQUEST_TIMEOUT: Final = -32001
HEADER_MISMATCH: Final = -32020
MISSING_REQUIRED_CLIENT_CAPABILITY: Final = -32021
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022
URL_ELICITATION_REQUIRED: Final = -32042

ERROR_CODE_HTTP_STATUS: Final[Mapping[int, int]] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    METHOD_NOT_FOUND: 404,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_REQUIRED_CLIENT_CAPABILITY: 400,
    UNSUPPORTED_PROTOCOL_VERSION: 400,
}
"""The HTTP status of an error, by its code, since 2026-07-28."""

PROTOCOL_VERSION_META_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES_META_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO_META_KEY: Final = "io.modelcontextprotocol/clientInfo"
SERVER_INFO_META_KEY: Final = "io.modelcontextprotocol/serverInfo"
LOG_LEVEL_META_KEY: Final = "io.modelcontextprotocol/logLevel"
SUBSCRIPTION_ID_META_KEY: Final = "io.modelcontextprotocol/subscriptionId"

MCP_PROTOCOL_VERSION_HEADER: Final = "mcp-protocol-version"
MCP_METHOD_HEADER: Final = "mcp-method"
MCP_NAME_HEADER: Final = "mcp-name"
ENCODED_HEADER: Final = "=?"
"""The beginning of a header's value that may be encoded: `=?base64?…?=`."""
X_MCP_HEADER: Final = b"x-mcp-header"
"""The keyword of an input schema for an argument that is repeated in a header of its own."""

HANDSHAKE_PROTOCOL_VERSIONS: Final[tuple[str, ...]] = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions that begin with `initialize`, oldest first."""
MODERN_PROTOCOL_VERSIONS: Final[tuple[str, ...]] = ("2026-07-28",)
"""Versions without a handshake, oldest first."""
LATEST_HANDSHAKE_VERSION: Final = "2025-11-25"

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Levels of log messages, the least severe first."""

CLIENT_METHODS: Final = frozenset(
    {
        *("initialize", "ping", "server/discover", "logging/setLevel", "completion/complete", "subscriptions/listen"),
        *("tools/list", "tools/call", "prompts/list", "prompts/get", "resources/list", "resources/read"),
        *("resources/templates/list", "resources/subscribe", "resources/unsubscribe"),
    }
)
"""Requests of clients, of any version."""
CLIENT_NOTIFICATIONS: Final = frozenset(
    {
        *("notifications/initialized", "notifications/cancelled", "notifications/progress"),
        "notifications/roots/list_changed",
    }
)
"""Notifications of clients, of any version."""
NAME_BEARING_METHODS: Final[Mapping[str, str]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
}
"""Requests about one thing, and the parameter that names it."""
LISTEN_STREAM_METHODS: Final = frozenset(
    {
        *("notifications/tools/list_changed", "notifications/prompts/list_changed"),
        *("notifications/resources/list_changed", "notifications/resources/updated"),
    }
)
"""Notifications of changes."""


class JsonRpcError(Exception):
    """The error object of a JSON-RPC response."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return self.message


def as_request_id(value: object) -> RequestId | None:
    """The value, if it can be the id of a request: True is no other way to write 1."""
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


def coerce_request_id(request_id: RequestId) -> RequestId:
    """The number that an id stands for if a peer wrote ours as text; else the id itself."""
    if isinstance(request_id, str):
        try:
            return int(request_id)
        except ValueError:
            return request_id
    return request_id


def progress_token_from_params(params: Mapping[str, Any] | None) -> RequestId | None:
    """The token with which the peer asks for progress; None if it does not."""
    meta: object = (params or {}).get("_meta")
    return as_request_id(meta.get("progressToken")) if isinstance(meta, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
