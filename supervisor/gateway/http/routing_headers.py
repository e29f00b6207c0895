"""The headers in which a client repeats its request since 2026-07-28, so that a proxy can route it, beside its body."""

from collections.abc import Mapping
from typing import Any

from mcp_nursery.actors.extensions import APPS, TASK_REQUESTS, declares
from mcp_nursery.actors.jsonrpc.codec import encode
from mcp_nursery.actors.preload import SDK_MODULES
from mcp_nursery.actors.protocol import (
    ENCODED_HEADER,
    HEADER_MISMATCH,
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    MODERN_PROTOCOL_VERSIONS,
    NAME_BEARING_METHODS,
    PROTOCOL_VERSION_META_KEY,
    X_MCP_HEADER,
    JsonRpcError,
)

from ..bridge import Json, as_object
from ..client_request import ClientRequest, is_plain
from ..views.view import View
from .exchange import HttpExchange


async def check_version(version: str) -> None:
    """Refuse a notification of a version that is not spoken here.

    Raises:
        JsonRpcError: It is not, as the SDK words it.
    """
    if version not in MODERN_PROTOCOL_VERSIONS:
        await SDK_MODULES.ensure_loaded()
        from mcp.shared.inbound import unsupported_protocol_version_rejection

        rejection = unsupported_protocol_version_rejection(version)
        assert rejection is not None
        raise JsonRpcError(rejection.code, rejection.message, rejection.data)


async def check_headers(exchange: HttpExchange, message: Json, request: ClientRequest) -> None:
    """Refuse a request whose headers or envelope are wrong; `message`: the whole of it. The SDK's rules decide, unless
    it is plain that they agree.

    Raises:
        JsonRpcError: They are wrong.
    """
    schema = _schema(exchange.view, request)
    if is_plain(request) and _agree_plainly(exchange, request) and X_MCP_HEADER not in encode(schema):
        return
    await SDK_MODULES.ensure_loaded()
    from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request, validate_mcp_param_headers

    _check_names(exchange, message)
    found = classify_inbound_request(message, headers=exchange.headers)
    rejection = found if isinstance(found, InboundLadderRejection) else None
    if rejection is None and schema is not None:
        arguments = as_object(request.params.get("arguments"))
        rejection = validate_mcp_param_headers(schema, arguments, exchange.headers)
    if rejection is not None:
        raise JsonRpcError(rejection.code, rejection.message, rejection.data)


def _schema(view: View, request: ClientRequest) -> Mapping[str, Any] | None:
    """The input schema of the tool that is called, if it is known."""
    if request.method != "tools/call":
        return None
    if declares(request.capabilities, APPS):
        view = view.with_apps()
    return view.input_schema(request.params.get("name"))


def _agree_plainly(exchange: HttpExchange, request: ClientRequest) -> bool:
    """True if each header about a plain request is there once, and says in plain ASCII what its body says."""
    about = [line for line in exchange.lines if line[0].startswith("mcp-")]
    wanted = {MCP_PROTOCOL_VERSION_HEADER: request.meta[PROTOCOL_VERSION_META_KEY], MCP_METHOD_HEADER: request.method}
    if request.method in NAME_BEARING_METHODS:
        wanted[MCP_NAME_HEADER] = request.params[NAME_BEARING_METHODS[request.method]]
    elif request.method in TASK_REQUESTS and MCP_NAME_HEADER in exchange.headers:  # FastMCP's client leaves it out
        wanted[MCP_NAME_HEADER] = request.params.get("taskId")
    given = dict(about)
    said = "".join(given.values())
    return len(given) == len(about) and given == wanted and said.isascii() and ENCODED_HEADER not in said


def _check_names(exchange: HttpExchange, message: Json) -> None:
    """Refuse faults in the headers that the SDK does not see.

    Raises:
        JsonRpcError: There is one.
    """
    from mcp.shared.inbound import decode_header_value, find_duplicated_routing_header

    twice = find_duplicated_routing_header(exchange.lines)
    if twice is not None:
        raise JsonRpcError(HEADER_MISMATCH, f"{twice} header appears more than once")
    beyond = next((name for name, value in exchange.lines if name.startswith("mcp-") and not value.isascii()), None)
    if beyond is not None:  # the SDK's decoder raises
        raise JsonRpcError(HEADER_MISMATCH, f"{beyond} header must be ASCII, encoded as =?base64?...?=")
    named = exchange.headers.get(MCP_NAME_HEADER)
    if message["method"] not in TASK_REQUESTS or named is None:
        return
    if decode_header_value(named) != as_object(message.get("params")).get("taskId"):
        fault = f"{MCP_NAME_HEADER} header does not match the request body's 'taskId' parameter"
        raise JsonRpcError(HEADER_MISMATCH, fault)
