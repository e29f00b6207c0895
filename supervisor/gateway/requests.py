"""A client's request out of its JSON-RPC message, and its failure into one. Pure."""

import logging
from typing import Any, Final

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import (
    CallError,
    CallTimeout,
    InstancesTaken,
    NurseryError,
    ServerDown,
    ServerError,
    UnknownResource,
)
from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.protocol import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LATEST_HANDSHAKE_VERSION,
    REQUEST_TIMEOUT,
    JsonRpcError,
)

from .downstream import Incoming, as_object
from .eras import Json

logger: Final = logging.getLogger(__name__)


class Ending(JsonRpcError):
    """The refusal of a request that comes while the gateway ends. Nothing was done for it: another gateway may."""

    def __init__(self) -> None:
        super().__init__(INTERNAL_ERROR, "the gateway is ending: it takes no more requests")


def without_meta(given: object) -> tuple[Json, Json]:
    """Parameters without `_meta`, and `_meta`; what is no object counts as empty."""
    params = as_object(given)
    return params, as_object(params.pop("_meta", None))


def described(message: Json) -> tuple[Any, str, Json, Json]:
    """Id, method, parameters without `_meta`, and `_meta` of a request."""
    return message["id"], message["method"], *without_meta(message.get("params"))


def offered_version(params: Json) -> str:
    """The version by which the parameters of `initialize` are judged."""
    offered = params.get("protocolVersion")
    return offered if offered in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION


def failure_frame(incoming: Incoming, error: Exception) -> tuple[int, bytes]:
    """The code of an error, and the message that tells a client of it. Of a bug of ours it is told nothing."""
    if isinstance(error, JsonRpcError):
        return error.code, codec.error(incoming.id, error.code, error.message, error.data)
    logger.error("the gateway failed to answer %s; please report it", incoming.method, exc_info=error)
    return INTERNAL_ERROR, codec.error(incoming.id, INTERNAL_ERROR, "Internal error")


def told(error: NurseryError, *, begun: bool = True) -> JsonRpcError:
    """An error of the supervisor as a client is told of it: with what the user of a client can do, who has no program
    that could do anything.

    Args:
        error: What went wrong.
        begun: Whether the client may have tools that it could call.
    """
    match error:
        case ServerError():
            said = error.raw or error
            return JsonRpcError(error.code, said.message, said.data)
        case UnknownResource():
            return JsonRpcError(INVALID_PARAMS, error.fact)
        case CallTimeout():
            return JsonRpcError(REQUEST_TIMEOUT, error.fact, {"delivery": error.delivery.value})
        case ServerDown():
            data = {"state": error.state.value, "retryIn": error.retry_in, "delivery": error.delivery.value}
            words = "; ".join(filter(None, (error.fact, _way_out(error, begun=begun))))
            return JsonRpcError(INTERNAL_ERROR, words, data)
        case CallError():
            retry = {"retryIn": error.retry_in} if isinstance(error, InstancesTaken) else {}
            return JsonRpcError(INTERNAL_ERROR, error.fact, retry | {"delivery": error.delivery.value})
        case _:
            return JsonRpcError(INTERNAL_ERROR, error.fact)


def _way_out(error: ServerDown, *, begun: bool) -> str:
    if error.revived_by_calls and begun:
        return "the next call of one of its tools starts it again"
    comes_back = error.retry_in is not None and not error.revived_by_calls
    return "" if comes_back else _WAYS_OUT.get(error.state, "").format(error.server)


_WAYS_OUT: Final = {
    ServerState.FAILED: "correct its command or settings where it is configured, then start it again from there",
    ServerState.STOPPED: "start the gateway again",
    ServerState.NEEDS_AUTH: "authorise it: mcp-nursery login {}",
}
