"""A call of a tool, as a caller's task sends it on its way."""

from typing import Any

from mcp_nursery.actors.jsonrpc.codec import encode
from mcp_nursery.actors.messages import CALL_TOOL, Request
from mcp_nursery.actors.reply import ReplySlot


def params_of(tool: str, arguments: bytes | None = None) -> bytes:
    name = encode(tool)
    return b'{"name":%b}' % name if arguments is None else b'{"name":%b,"arguments":%b}' % (name, arguments)


def tool_request(
    server: str, tool: str, arguments: bytes | None, meta: dict[str, Any], slot: ReplySlot, *, limited: bool = False
) -> Request:
    return Request(server, CALL_TOOL, tool, params_of(tool, arguments), meta, slot, limited)
