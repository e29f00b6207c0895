"""One request of a client of the gateway, over any transport: its check against the protocol, and its failure as
reported to the client."""

import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from mcp_nursery.actors.enums import Delivery, ServerState
from mcp_nursery.actors.errors import (
    CallError,
    CallTimeout,
    ContestedResource,
    NurseryError,
    ServerDown,
    ServerError,
    UnknownResource,
    delivery_of,
)
from mcp_nursery.actors.extensions import EXTENSION_OF, TASK_REQUESTS, declares
from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.jsonrpc.relays import ASKED
from mcp_nursery.actors.preload import WIRE_MODELS
from mcp_nursery.actors.protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CLIENT_METHODS,
    CLIENT_NOTIFICATIONS,
    HANDSHAKE_PROTOCOL_VERSIONS,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LATEST_HANDSHAKE_VERSION,
    LEVELS,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    MODERN_PROTOCOL_VERSIONS,
    PROTOCOL_VERSION_META_KEY,
    REQUEST_TIMEOUT,
    JsonRpcError,
)
from mcp_nursery.actors.records import define, field
from mcp_nursery.actors.reply import PROGRESS

from ..log_limits import log_of_client
from .auth.principal import Principal
from .bridge import Json, as_object
from .clients import LOG, ClientListener, ClientSession, is_severe

if TYPE_CHECKING:
    from ..spec import ServerSpec

logger: Final = logging.getLogger(__name__)

STANDARD_REQUESTS: Final = CLIENT_METHODS | EXTENSION_OF.keys()
"""Requests of clients that the protocol or the standard of an extension has."""
Notify = Callable[[str, Mapping[str, Any] | None], Awaitable[None]]
"""A function that sends a notification: `(method, params)`."""
AskClient = Callable[[str, Mapping[str, Any] | None], Awaitable[Json]]
"""A function that sends a request to a client of the handshake era. It returns the result, or raises `JsonRpcError`."""


@define(eq=False)
class ClientRequest:
    """One request of a client."""

    id: str | int
    method: str
    params: Json
    """The parameters, without `_meta`."""
    meta: Json
    notify: Notify
    """The function that sends a notification about this request, ahead of its answer."""
    principal: Hashable
    """The principal of the request: see `Supervisor.request`."""
    session: ClientSession | None = None
    """The session; None since 2026-07-28, as each request stands for itself."""
    ask: AskClient | None = None
    """The function that asks the client in the middle of this request; None in an era without such questions."""
    capabilities: Mapping[str, Any] = field(factory=dict[str, Any])
    """The capabilities of the client."""
    alone: bool = False
    """True if its client is the only one of the gateway."""
    apps: bool = False
    """True if its client shows the pages of tools, whatever its server is told of it."""
    own_capabilities: Mapping[str, Any] | None = None
    """The capabilities of the client, whatever its server is told of it; None: the same."""
    info: Mapping[str, Any] | None = None
    """The client's description of itself."""
    level: str | None = None
    """The level of the least severe log messages that it asks for, outside of a session."""
    instance: str = ""
    """The name of the session's own instance that its task is in; empty: none."""
    went_to: str = ""
    """The name of the session's own instance to which it went last; empty: none."""
    reached: str | None = None
    """The short digest of the transport of the server that has its task; None: it is about no task."""
    went_by: "ServerSpec | None" = None
    """The spec of the server to which it went last."""
    listener: ClientListener | None = None
    """The listener of a stream of notifications, from the arrival of its request on."""
    gone: Callable[[], bool] = bool
    """Returns true once its client has gone without cancelling it."""
    plain: bool | None = None
    """True if the protocol plainly has it as it is; None: not looked at yet. See `is_plain`."""
    delivery: Delivery = Delivery.NOT_SENT
    """The delivery by now: `data.delivery` of its error."""

    @property
    def modern(self) -> bool:
        """True if its client has no session."""
        return self.session is None

    @property
    def client(self) -> Principal | None:
        """The principal whose requests have the same tasks; None: it is not authenticated."""
        whose = self.principal if self.session is None else self.session.client
        return whose if isinstance(whose, Principal) else None

    def describe(self) -> None:
        """Record the client as the `_meta` of a request without a session describes it."""
        self.capabilities = as_object(self.meta.get(CLIENT_CAPABILITIES_META_KEY))
        self.info = as_object(self.meta.get(CLIENT_INFO_META_KEY)) or None
        level = self.meta.get(LOG_LEVEL_META_KEY)
        self.level = level if isinstance(level, str) else None

    @property
    def wanted_level(self) -> str | None:
        """The level of the least severe log messages that its client wants; None: it wants none."""
        return self.level if self.session is None else self.session.level or LEVELS[0]

    def wants(self, level: object) -> bool:
        """True if its client wants log messages of this level."""
        return is_severe(level, self.wanted_level)

    def check_can_answer(self, method: str) -> None:
        """Refuse a question that its client cannot be asked.

        Raises:
            JsonRpcError: The client lacks the capability, or the protocol has no such question.
        """
        if method not in ASKED:
            raise JsonRpcError(METHOD_NOT_FOUND, "Method not found", method)
        need = ASKED[method]
        if need not in self.capabilities:
            data: Json = {"requiredCapabilities": {need: {}}}
            raise JsonRpcError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"the client of this call has no {need}", data)

    def record_failure(self, before: Delivery, error: NurseryError) -> None:
        """Record the delivery of an attempt that has failed; `before`: the delivery until then, which stays if the
        attempt was not sent."""
        after = delivery_of(error)
        self.delivery = before if after is Delivery.NOT_SENT else after

    async def forward(self, method: str, params: Mapping[str, Any]) -> None:
        """Pass on a notification of the server about this request."""
        if method == PROGRESS:
            if "progressToken" not in self.meta:
                return
            params = {**params, "progressToken": self.meta["progressToken"]}
        elif method == LOG and not self.wants(params.get("level")):
            return
        await self.notify(method, params)


def check_declares(capabilities: Mapping[str, Any], extension: str) -> None:
    """Refuse a client with these capabilities if it has not declared an extension.

    Raises:
        JsonRpcError: It has not.
    """
    if not declares(capabilities, extension):
        data: Json = {"requiredCapabilities": {"extensions": {extension: {}}}}
        raise JsonRpcError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"the client has not declared {extension}", data)


def split_meta(given: object) -> tuple[Json, Json]:
    """The parameters without `_meta`, and `_meta`; parameters that are no object count as empty. `_meta` that is no
    object stays in the parameters, where the check of the request finds it."""
    params = as_object(given)
    if not isinstance(params.get("_meta"), dict | None):
        return params, {}
    return params, as_object(params.pop("_meta", None))


def split_message(message: Json) -> tuple[Any, str, Json, Json]:
    """The id, the method, the parameters without `_meta`, and the `_meta` of a request."""
    return message["id"], message["method"], *split_meta(message.get("params"))


def offered_version(params: Json) -> str:
    """The version by which the parameters of `initialize` are checked."""
    offered = params.get("protocolVersion")
    return offered if offered in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION


# -- the check of its parameters ---------------------------------------------------------------------------------------

# The SDK's models decide. Most requests are plain, and need no models: a gateway whose clients send nothing else never
# loads the SDK.


async def check_request(request: ClientRequest, protocol_version: str) -> None:
    """Refuse a request that the client's version of the protocol does not have.

    Raises:
        JsonRpcError: That version has no such method, or has other parameters for it.
    """
    if request.method in CLIENT_NOTIFICATIONS:
        raise JsonRpcError(METHOD_NOT_FOUND, "Method not found", request.method)
    if request.method not in CLIENT_METHODS or is_plain(request):
        return
    await WIRE_MODELS.ensure_loaded()
    from mcp_types import methods
    from pydantic import ValidationError

    params = request.params | ({"_meta": request.meta} if request.meta else {})
    try:
        methods.validate_client_request(request.method, protocol_version, params)
    except KeyError:
        raise JsonRpcError(METHOD_NOT_FOUND, "Method not found", request.method) from None
    except ValidationError:
        raise JsonRpcError(INVALID_PARAMS, "Invalid request parameters", "") from None


def is_plain(request: ClientRequest) -> bool:
    """True if every version of its client's era has such a request, and all in it is easily seen to be valid."""
    if request.plain is None:
        check = (_PLAIN_MODERN if request.session is None else _PLAIN_IN_SESSION).get(request.method)
        request.plain = (
            check is not None
            and check(request.params)
            and type(request.meta.get("progressToken", "")) in (str, int)
            and (request.session is not None or _is_plain_envelope(request.meta))
        )
    return request.plain


def _is_plain_envelope(meta: Mapping[str, Any]) -> bool:
    """True if this is plain `_meta` of a request without a session. Other members of it are free."""
    return (
        meta.get(PROTOCOL_VERSION_META_KEY) in MODERN_PROTOCOL_VERSIONS
        and _are_capabilities(meta.get(CLIENT_CAPABILITIES_META_KEY))
        and _has_texts(meta.get(CLIENT_INFO_META_KEY, _NO_INFO), *_OF_INFO)
        and meta.get(LOG_LEVEL_META_KEY, LEVELS[0]) in LEVELS
    )


def _is_plain_initialize(params: Mapping[str, Any]) -> bool:
    """True if these are plain parameters of `initialize`."""
    return (
        set(params) == {"protocolVersion", "clientInfo", "capabilities"}
        and isinstance(params["protocolVersion"], str)
        and _has_texts(params["clientInfo"], *_OF_INFO)
        and _are_capabilities(params["capabilities"])
    )


def _are_capabilities(value: object) -> bool:
    return isinstance(value, dict) and all(_is_capability(*each) for each in cast("dict[str, object]", value).items())


def _is_capability(name: str, value: object) -> bool:
    if name == "roots":
        return value == {} or value in ({"listChanged": True}, {"listChanged": False})
    if name in ("experimental", "extensions"):
        return isinstance(value, dict) and all(
            isinstance(each, dict) for each in cast("dict[str, object]", value).values()
        )
    levels = _LEVELS_OF.get(name)
    return levels is not None and _are_objects(value, levels)


def _are_objects(value: object, levels: int) -> bool:
    """True if the value is an object with nothing but objects in it, as many levels deep at most."""
    if not isinstance(value, dict):
        return False
    inner = cast("dict[str, object]", value).values()
    return not inner or (levels > 0 and all(_are_objects(each, levels - 1) for each in inner))


def _has_texts(value: object, needed: Collection[str], others: Collection[str]) -> bool:
    if not isinstance(value, dict):
        return False
    given = cast("dict[str, object]", value)
    known = given.keys() >= set(needed) and given.keys() <= {*needed, *others}
    return known and all(isinstance(each, str) for each in given.values())


def _is_plain_list(params: Mapping[str, Any]) -> bool:
    """True if these are plain parameters of a list: none, or a cursor."""
    return not params or (set(params) == {"cursor"} and isinstance(params["cursor"], str))


def _is_plain_call(params: Mapping[str, Any]) -> bool:
    """True if these are plain parameters of a call: a name, and arguments if any."""
    return (
        params.keys() <= {"name", "arguments"}
        and type(params.get("name")) is str
        and type(params.get("arguments", _NONE)) is dict
    )


def _is_plain_get(params: Mapping[str, Any]) -> bool:
    """True if these are plain parameters of a prompt: as of a call, with texts as arguments."""
    return _is_plain_call(params) and all(type(each) is str for each in params.get("arguments", _NONE).values())


def _is_plain_uri(params: Mapping[str, Any]) -> bool:
    """True if the only parameter is the URI of a resource."""
    return set(params) == {"uri"} and type(params["uri"]) is str


def _is_plain_completion(params: Mapping[str, Any]) -> bool:
    """True if these are plain parameters of a completion: what is completed, and the argument so far."""
    return (
        set(params) == {"ref", "argument"}
        and _has_texts(params["argument"], ("name", "value"), ())
        and any(
            _has_texts(params["ref"], ("type", key), ()) and params["ref"]["type"] == kind
            for kind, key in (("ref/prompt", "name"), ("ref/resource", "uri"))
        )
    )


def _is_plain_listen(params: Mapping[str, Any]) -> bool:
    """True if the only parameter is a plain filter of notifications."""
    wanted = params.get("notifications")
    return (
        set(params) == {"notifications"}
        and isinstance(wanted, dict)
        and all(_is_plain_wish(*each) for each in cast("dict[str, object]", wanted).items())
    )


def _is_plain_wish(name: str, value: object) -> bool:
    if name in ("resourceSubscriptions", "taskIds"):
        return isinstance(value, list) and all(type(each) is str for each in cast("list[object]", value))
    return name in ("toolsListChanged", "promptsListChanged", "resourcesListChanged") and type(value) is bool


def _is_plain_level(params: Mapping[str, Any]) -> bool:
    """True if the only parameter is a level of logging."""
    return set(params) == {"level"} and params["level"] in LEVELS


_LEVELS_OF: Final = {"sampling": 1, "elicitation": 1, "tasks": 3}
"""Levels of the objects of a capability that say nothing but that they are there."""
_NONE: Final[Mapping[str, Any]] = {}
_LIST_METHODS: Final = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
_PLAIN: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    **dict.fromkeys(_LIST_METHODS, _is_plain_list),
    "tools/call": _is_plain_call,
    "prompts/get": _is_plain_get,
    "resources/read": _is_plain_uri,
    "completion/complete": _is_plain_completion,
}
_PLAIN_IN_SESSION: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    **_PLAIN,
    "initialize": _is_plain_initialize,
    "ping": lambda params: not params,
    "logging/setLevel": _is_plain_level,
    "resources/subscribe": _is_plain_uri,
    "resources/unsubscribe": _is_plain_uri,
}
_PLAIN_MODERN: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    **_PLAIN,
    **dict.fromkeys(TASK_REQUESTS, lambda _: True),  # of an extension: the protocol says nothing of their parameters
    "server/discover": lambda params: not params,
    "subscriptions/listen": _is_plain_listen,
}
_OF_INFO: Final = (("name", "version"), ("title", "description", "websiteUrl"))
"""The members that the description of a client has, and that it may have: texts."""
_NO_INFO: Final = {"name": "", "version": ""}
"""The description of a client that leaves it out, which it may."""


# -- the failure of a request, as reported to its client ---------------------------------------------------------------


class GatewayEnding(JsonRpcError):
    """The refusal of a request that comes while the gateway ends. Nothing was done: another gateway may answer it."""

    def __init__(self) -> None:
        super().__init__(INTERNAL_ERROR, "the gateway is ending: it takes no more requests")


ANSWERED: Final = {"delivery": Delivery.ANSWERED.value}
"""The data of an error about a request that was answered, where the answer is lost on its way to the client."""
_OPENINGS: Final = frozenset(["initialize", "server/discover"])


def encode_failure(request: ClientRequest, error: Exception) -> tuple[int, bytes]:
    """Encode an error for a client. Returns its code and the message."""
    said = failure_of(request, error)
    return said.code, codec.error(request.id, said.code, said.message, said.data)


def failure_of(request: ClientRequest, error: Exception, *, restarts_in: float | None = None) -> JsonRpcError:
    """The error that a client is sent instead of an answer. Its `data.delivery` says whether a server may have acted,
    and `data.retryIn` in how many seconds the server can be asked again, if that is known; except where a server's own
    error has data that is no object: that is passed as it came, and is an answer. A bug of ours reveals no details.
    `restarts_in` are the seconds until its server is started again; None: the error says when."""
    match error:
        case JsonRpcError():
            said = error
        case NurseryError():
            request.record_failure(request.delivery, error)
            said = to_client_error(error, begun=request.method not in _OPENINGS)
            data: object = said.data
            if isinstance(error, ServerError) and not isinstance(data, dict | None):
                return said
        case _:
            words = "the gateway failed to answer %s; please report it"
            log_of_client(logger, logging.ERROR, words, request.method, exc_info=error)
            said = JsonRpcError(INTERNAL_ERROR, "Internal error")
    data = said.data
    given = cast("dict[str, Any]", data) if isinstance(data, dict) else {"about": data} if data else {}
    rest = restarts_in or (error.retry_in if isinstance(error, CallError) else None)
    said.data = {"delivery": request.delivery.value} | ({"retryIn": rest} if rest else {}) | given
    return said


def to_client_error(error: NurseryError, *, begun: bool = True) -> JsonRpcError:
    """Translate an error of the supervisor for a client, with advice for a user who has nothing but that client. Once
    the client has `begun`, it may already have tools that it could call."""
    match error:
        case ServerError():
            said = error.raw or error
            return JsonRpcError(error.code, said.message, said.data)
        case UnknownResource() | ContestedResource():
            return JsonRpcError(INVALID_PARAMS, error.fact)
        case CallTimeout():
            return JsonRpcError(REQUEST_TIMEOUT, error.fact)
        case ServerDown():
            words = "; ".join(filter(None, (error.fact, _advise(error, begun=begun))))
            return JsonRpcError(INTERNAL_ERROR, words, {"state": error.state.value})
        case _:
            return JsonRpcError(INTERNAL_ERROR, error.fact)


def _advise(error: ServerDown, *, begun: bool) -> str:
    if error.revived_by_calls and begun:
        return "the next call of one of its tools starts it again"
    comes_back = error.retry_in is not None and not error.revived_by_calls
    return "" if comes_back else _ADVICE.get(error.state, "")


_ADVICE: Final = {
    ServerState.FAILED: "correct its command or settings where it is configured, then start it again from there",
    ServerState.STOPPED: "start the gateway again",
}
