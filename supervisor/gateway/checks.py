"""Whether the parameters of a request are what the protocol has for it. The SDK's models say so; those that every
conversation begins with are plain in most cases, and need not wait until the SDK is loaded.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, cast

from mcp_nursery.actors.protocol import CLIENT_METHODS, INVALID_PARAMS, METHOD_NOT_FOUND, JsonRpcError

from ..preload import loaded
from .downstream import Incoming


async def check_request(incoming: Incoming, protocol_version: str) -> None:
    """Refuse what the client's version of the protocol does not have.

    Raises:
        JsonRpcError: It has no such method, or one with other parameters.
    """
    if incoming.method not in CLIENT_METHODS or is_plain(incoming):
        return
    await loaded()
    from mcp_types import methods
    from pydantic import ValidationError

    params = incoming.params | ({"_meta": incoming.meta} if incoming.meta else {})
    try:
        methods.validate_client_request(incoming.method, protocol_version, params)
    except KeyError:
        raise JsonRpcError(METHOD_NOT_FOUND, "Method not found", incoming.method) from None
    except ValidationError:
        raise JsonRpcError(INVALID_PARAMS, "Invalid request parameters", "") from None


def is_plain(incoming: Incoming) -> bool:
    """Whether a request is one that any version of the handshake era has, with nothing in it but what is easily seen to
    be right."""
    plain = _PLAIN.get(incoming.method)
    return plain is not None and not (incoming.modern or incoming.meta) and plain(incoming.params)


def _opens(params: Mapping[str, Any]) -> bool:
    """The parameters of `initialize`."""
    info, capabilities = params.get("clientInfo"), params.get("capabilities")
    return (
        set(params) == {"protocolVersion", "clientInfo", "capabilities"}
        and isinstance(params["protocolVersion"], str)
        and _has_texts(info, ("name", "version"), ("title", "description", "websiteUrl"))
        and isinstance(capabilities, dict)
        and all(_is_capability(*each) for each in cast("dict[str, object]", capabilities).items())
    )


def _is_capability(name: str, value: object) -> bool:
    if name == "roots":
        return value == {} or value in ({"listChanged": True}, {"listChanged": False})
    if name == "experimental":
        return isinstance(value, dict) and all(
            isinstance(each, dict) for each in cast("dict[str, object]", value).values()
        )
    return name in ("sampling", "elicitation") and _holds_nothing(value)


def _holds_nothing(value: object) -> bool:
    """Whether it is an object whose members, if any, are empty ones."""
    return isinstance(value, dict) and all(each == {} for each in cast("dict[str, object]", value).values())


def _has_texts(value: object, needed: Collection[str], others: Collection[str]) -> bool:
    if not isinstance(value, dict):
        return False
    given = cast("dict[str, object]", value)
    known = given.keys() >= set(needed) and given.keys() <= {*needed, *others}
    return known and all(isinstance(each, str) for each in given.values())


def _lists(params: Mapping[str, Any]) -> bool:
    """The parameters of a list: perhaps where to go on."""
    return not params or (set(params) == {"cursor"} and isinstance(params["cursor"], str))


_LISTS: Final = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
_PLAIN: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    "initialize": _opens,
    "ping": lambda params: not params,
    **dict.fromkeys(_LISTS, _lists),
}
