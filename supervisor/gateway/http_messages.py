"""What clients say over streamable HTTP, once they are let in: JSON-RPC messages, and what is no request of theirs.

A request of a client is one POST. Before 2026-07-28 it belongs to a session, and what a server asks in the middle of it
goes out on its stream and is answered by another POST; since then it stands for itself. A client that goes away takes
its request back, in either era: nobody is left who could hear the answer.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import trio
from attrs import field, frozen
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_PROTOCOL_VERSION_HEADER,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
    validate_mcp_param_headers,
)
from mcp_types import HEADER_MISMATCH, INVALID_REQUEST, PARSE_ERROR, REQUEST_TIMEOUT
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.jsonrpc import codec, large_messages
from mcp_nursery.actors.limits import MOST_VALUES

from .access import Principal
from .catalogues import View
from .downstream import Incoming, as_object
from .eras import Json
from .gateway import LISTEN, Gateway
from .http_limits import HttpLimits, expire
from .http_sessions import HttpSession, HttpSessions
from .requests import described, failure_frame, offered_version
from .responses import KEEPALIVE, Response

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

SESSION: Final = "mcp-session-id"


@frozen
class HttpRequest:
    """One HTTP request."""

    method: str
    path: str
    """Under the one that the application is mounted at."""
    headers: Mapping[str, str] = field(repr=False)
    """By names in small letters; of several of one name the last."""
    lines: Collection[tuple[str, str]] = field(repr=False)
    """All of them."""
    receive: Receive
    response: Response

    def accepts(self, kind: str) -> bool:
        """Whether its client takes this media type."""
        taken = {part.partition(";")[0].strip().lower() for part in self.headers.get("accept", "").split(",")}
        return bool(taken & {kind, "*/*", f"{kind.partition('/')[0]}/*"})


@frozen
class Admitted:
    """A request that is let in."""

    http: HttpRequest
    view: View
    """What its client sees."""
    client: Principal | None
    """Whose it is, if that is known."""
    scope: trio.CancelScope
    """What it runs in."""


class HttpMessages:
    """Serves requests that are let in.

    Args:
        gateway: What is served.
        sessions: Of clients of the handshake era.
        limits: What a request may cost.
    """

    def __init__(self, gateway: Gateway, sessions: HttpSessions, limits: HttpLimits) -> None:
        self._gateway = gateway
        self._sessions = sessions
        self._limits = limits

    async def serve(self, request: Admitted) -> None:
        """Serve one request to its end."""
        http = request.http
        version = http.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        in_session = version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
        if http.method == "POST":
            await self._post(request, in_session=in_session)
        elif not in_session or http.method not in ("GET", "DELETE"):
            http.response.headers["allow"] = "GET, POST, DELETE" if in_session else "POST"
            await http.response.end(HTTPStatus.METHOD_NOT_ALLOWED, "method not allowed")
        else:
            await self._of_session(request)

    # -- what is no request ---------------------------------------------------------------------------------------

    async def _of_session(self, request: Admitted) -> None:
        http, session = request.http, await self._session_of(request)
        if session is None:
            return
        if http.method == "DELETE":
            self._sessions.end(session)
            await http.response.end(HTTPStatus.OK)
        elif not http.accepts("text/event-stream"):
            await http.response.end(HTTPStatus.NOT_ACCEPTABLE, "text/event-stream must be accepted")
        elif session.streaming:
            await http.response.end(HTTPStatus.CONFLICT, "this session has such a stream already")
        else:
            await self._stream(request, session)

    async def _stream(self, request: Admitted, session: HttpSession) -> None:
        """What is said unasked, until its client goes or its session ends."""
        http = request.http
        expire(request.scope, request.client)
        session.streaming = True
        session.enter()
        try:
            await http.response.open_stream()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_attend, http, nursery.cancel_scope)
                await session.stream(http.response)
                await http.response.end()
                nursery.cancel_scope.cancel()
        finally:
            session.streaming = False
            session.leave()

    async def _session_of(self, request: Admitted) -> HttpSession | None:
        """The session that a request names; None if it was refused."""
        http = request.http
        session_id = http.headers.get(SESSION)
        if session_id is None:
            await self._refuse(http, HTTPStatus.BAD_REQUEST, INVALID_REQUEST, "no session id")
            return None
        session = self._sessions.get(session_id, request.client, request.view.server)
        if session is None:
            await self._refuse(http, HTTPStatus.NOT_FOUND, INVALID_REQUEST, "no such session: it has ended")
        return session

    async def _refuse(self, http: HttpRequest, status: int, code: int, message: str) -> None:
        body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
        await http.response.answer(codec.encode(body), status)

    # -- messages -------------------------------------------------------------------------------------------------

    async def _post(self, request: Admitted, *, in_session: bool) -> None:
        http = request.http
        kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            await http.response.end(HTTPStatus.BAD_REQUEST, "the content type must be application/json")
            return
        if not (http.accepts("application/json") and http.accepts("text/event-stream")):
            await http.response.end(
                HTTPStatus.NOT_ACCEPTABLE, "application/json and text/event-stream must be accepted"
            )
            return
        body = await self._body(http)
        if body is None:
            return
        try:
            messages = list(await by_turns(large_messages.read(body, most=MOST_VALUES)))
        except ValueError as error:
            why = str(error) if isinstance(error, large_messages.Refused) else "Parse error"
            await self._refuse(http, HTTPStatus.BAD_REQUEST, PARSE_ERROR, why)
            return
        if len(messages) != 1 or body.lstrip()[:1] == b"[":
            await self._refuse(http, HTTPStatus.BAD_REQUEST, INVALID_REQUEST, "the body must be one JSON-RPC message")
            return
        await (self._in_session if in_session else self._alone)(request, messages[0])

    async def _body(self, http: HttpRequest) -> bytes | None:
        """The body of a request; None if it was refused, or its client has gone."""
        body, more = bytearray(), True
        with trio.move_on_after(self._limits.body_seconds) as limit:
            while more:
                message = await http.receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                more = bool(message.get("more_body"))
                if len(body) > self._limits.body:
                    await http.response.end(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request is too large")
                    return None
        if limit.cancelled_caught:
            await http.response.end(HTTPStatus.REQUEST_TIMEOUT, "the request took too long")
            return None
        return bytes(body)

    # -- before 2026-07-28 ----------------------------------------------------------------------------------------

    async def _in_session(self, request: Admitted, message: Json) -> None:
        http = request.http
        opens = message.get("method") == "initialize" and SESSION not in http.headers
        if not opens:
            session = await self._session_of(request)
            if session is not None:
                await self._use(http, request.view, session, message)
            return
        session = await self._sessions.open(request.client, request.view)
        try:
            await self._use(http, request.view, session, message)
        finally:
            session.leave()
            if not session.version:
                self._sessions.end(session)

    async def _use(self, http: HttpRequest, view: View, session: HttpSession, message: Json) -> None:
        method, request_id = message.get("method"), message.get("id")
        if method is None and ("result" in message or "error" in message):
            session.answered(message)
            await http.response.end()
        elif not isinstance(method, str) or not _is_id(request_id, absent="id" not in message):
            await self._refuse(http, HTTPStatus.BAD_REQUEST, INVALID_REQUEST, "not a JSON-RPC message")
        elif "id" not in message:
            self._told(session, method, message)
            await http.response.end()
        else:
            session.enter()
            try:
                await self._ask_in_session(http, view, session, message)
            finally:
                session.leave()

    @staticmethod
    def _told(session: HttpSession, method: str, message: Json) -> None:
        if method == "notifications/cancelled":
            session.take_back(as_object(message.get("params")).get("requestId"))

    async def _ask_in_session(self, http: HttpRequest, view: View, session: HttpSession, message: Json) -> None:
        client = session.client
        assert client is not None  # it lives
        incoming = Incoming(*described(message), http.response.notify, principal=session, session=client)
        incoming.ask = partial(session.ask, http.response)
        incoming.capabilities, incoming.info = client.capabilities, client.info
        version = session.version or offered_version(incoming.params)
        if incoming.method == "initialize":
            http.response.headers[SESSION] = session.id

        async def answer() -> Json:
            result = await self._gateway.answer(incoming, view, version)
            if incoming.method == "initialize":
                client.introduce(incoming.params)
                session.version = result["protocolVersion"]
                self._sessions.welcome(session)
            return result

        with session.request(incoming.id) as scope:
            await self._answer(http, incoming, answer, by_status=False)
        if scope.cancelled_caught and not http.response.ended:
            await http.response.end(HTTPStatus.NOT_FOUND if session.ended.is_set() else HTTPStatus.ACCEPTED)

    # -- since 2026-07-28 -----------------------------------------------------------------------------------------

    async def _alone(self, request: Admitted, message: Json) -> None:
        http, view = request.http, request.view
        version = http.headers[MCP_PROTOCOL_VERSION_HEADER]
        method = message.get("method")
        if not isinstance(method, str) or not _is_id(message.get("id"), absent="id" not in message):
            await self._refuse(http, HTTPStatus.BAD_REQUEST, INVALID_REQUEST, "the body must be one request")
            return
        if "id" not in message:
            unsupported = unsupported_protocol_version_rejection(version)
            if unsupported is not None:
                await self._refuse(http, HTTPStatus.BAD_REQUEST, unsupported.code, unsupported.message)
            else:
                await http.response.end()
            return
        request_id, _, params, meta = described(message)
        rejection = _rejection(http, view, message)
        if isinstance(rejection, InboundLadderRejection):
            frame = codec.error(request_id, rejection.code, rejection.message, rejection.data)
            await http.response.answer(frame, ERROR_CODE_HTTP_STATUS.get(rejection.code, HTTPStatus.BAD_REQUEST))
            return
        incoming = Incoming(request_id, method, params, meta, http.response.notify, principal=request.client)
        incoming.describe(rejection.client_capabilities, rejection.client_info)
        if method == LISTEN:
            expire(request.scope, request.client)
        answer = partial(self._gateway.answer, incoming, view, rejection.protocol_version)
        await self._answer(http, incoming, answer, by_status=True)

    # -- answers --------------------------------------------------------------------------------------------------

    async def _answer(
        self, http: HttpRequest, incoming: Incoming, answer: Callable[[], Awaitable[Json]], *, by_status: bool
    ) -> None:
        """Answer a request, unless its client goes away before that."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_attend, http, nursery.cancel_scope)
            status = HTTPStatus.OK
            try:
                frame = codec.result(incoming.id, await self._in_time(incoming, answer))
            except Exception as error:
                code, frame = failure_frame(incoming, error)
                if by_status:
                    status = HTTPStatus(ERROR_CODE_HTTP_STATUS.get(code, HTTPStatus.OK))
            await http.response.answer(frame, status)
            nursery.cancel_scope.cancel()

    async def _in_time(self, incoming: Incoming, answer: Callable[[], Awaitable[Json]]) -> Json:
        seconds = self._limits.request_seconds
        if seconds is None or incoming.method == LISTEN:
            return await answer()
        with trio.move_on_after(seconds):
            return await answer()
        raise MCPError(REQUEST_TIMEOUT, f"no answer within {seconds:g} s: the gateway has cancelled this request")


def _rejection(http: HttpRequest, view: View, message: Json) -> Any:
    """What its headers and its envelope say: who asks, or what is wrong with them."""
    twice = find_duplicated_routing_header(http.lines)
    if twice is not None:
        return InboundLadderRejection(HEADER_MISMATCH, f"{twice} header appears more than once")
    route = classify_inbound_request(message, headers=http.headers)
    if isinstance(route, InboundLadderRejection) or message["method"] != "tools/call":
        return route
    params: Json = message["params"]
    schema = view.input_schema(params.get("name"))
    if schema is None:
        return route
    return validate_mcp_param_headers(schema, as_object(params.get("arguments")), http.headers) or route


async def _attend(http: HttpRequest, scope: trio.CancelScope) -> None:
    """Keep a client that waits, and end what is done for one that has gone."""
    gone = False
    while not gone:
        with trio.move_on_after(KEEPALIVE) as silence:
            gone = (await http.receive())["type"] == "http.disconnect"
        if silence.cancelled_caught:
            await http.response.keep_alive()
    if not http.response.ended:
        scope.cancel()


def _is_id(request_id: object, *, absent: bool) -> bool:
    return absent or (isinstance(request_id, str | int) and not isinstance(request_id, bool))
