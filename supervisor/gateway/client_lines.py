"""Lines of a client on standard streams: which message opens the conversation, what a batch holds, and what is said to
what is none of either. Pure."""

from collections.abc import Mapping
from typing import Any, Final, cast

from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.jsonrpc.large_messages import Refused, check_values, members
from mcp_nursery.actors.limits import MOST_VALUES, size_text
from mcp_nursery.actors.pieces import SMALL
from mcp_nursery.actors.protocol import CLIENT_CAPABILITIES_META_KEY, INVALID_REQUEST, PARSE_ERROR, as_request_id

from .downstream import as_object

FRAME_LIMIT: Final = 16 << 20
"""Bytes of one line that a client may send; a longer one is refused."""
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""What some programs write before the first line."""
BATCHING: Final = "2025-03-26"
"""The only version of the protocol that has batches."""
NO_BATCH: Final = codec.error(None, INVALID_REQUEST, f"an empty batch, or one in another version than {BATCHING}")
"""What is answered to a batch that is not taken."""
_HANDSHAKES: Final = frozenset(["initialize", "ping"])
"""Methods of eras with a handshake alone: a client may make sure that somebody is there before it begins."""


def refusal(line: bytes) -> bytes:
    """What is answered to a line that is no message. It has the id of a request if that can be seen."""
    said = members(line)
    request_id = as_request_id(said.get("id")) if "method" in said else None
    code = PARSE_ERROR if request_id is None and _method(line) is None else INVALID_REQUEST
    return codec.error(request_id, code, f"not a JSON-RPC message of at most {size_text(FRAME_LIMIT)}")


def opens_with_handshake(line: bytes) -> bool | None:
    """Whether the client that writes this first opens with a handshake; None: nobody can tell by this line."""
    method = _method(line)
    return method in _HANDSHAKES if isinstance(method, str) else None


def capabilities_in(line: bytes) -> Mapping[str, Any] | None:
    """What the client that writes this first can be asked; None: nobody can tell by this line."""
    message: object = codec.decode(line) if len(line) <= SMALL else None
    params = as_object(as_object(message).get("params"))
    said = params if _method(line) == "initialize" else as_object(params.get("_meta"))
    name = "capabilities" if said is params else CLIENT_CAPABILITIES_META_KEY
    return as_object(said[name]) if name in said else None


def _method(line: bytes) -> object:
    """The method of a message; None: it is not JSON; else False: it has none."""
    if len(line) > SMALL:
        return members(line).get("method")
    try:
        message = codec.decode(line)
    except ValueError:
        return None
    return cast("dict[str, object]", message).get("method", False) if type(message) is dict else False


def is_batch(line: bytes) -> bool:
    """Whether a line looks like one."""
    return line[:64].lstrip()[:1] == b"["


async def messages_of(line: bytes) -> list[bytes] | None:
    """The messages of a batch, each as a line; None if it is not JSON or has too many values to be read."""
    try:
        await by_turns(check_values(line, MOST_VALUES))
        batch = cast("list[object]", codec.decode(line))
    except (Refused, ValueError):
        return None
    return [codec.encode(cast("object", each) if type(each) is dict else None) for each in batch]
