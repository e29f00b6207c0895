"""What clients say over streamable HTTP, once they are let in: JSON-RPC messages, and what is no request of theirs.

A request of a client is one POST. Before 2026-07-28 it belongs to a session, and what a server asks in the middle of it
goes out on its stream and is answered by another POST; since then it stands for itself. A client that goes away takes
its request back, in either era: nobody is left who could hear the answer.
"""

import math
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import trio
from attrs import frozen

from mcp_nursery.actors.account import NEWS, QUESTIONS, VALUE
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.jsonrpc import codec, large_messages
from mcp_nursery.actors.limits import MOST_VALUES
from mcp_nursery.actors.protocol import (
    ERROR_CODE_HTTP_STATUS,
    HANDSHAKE_PROTOCOL_VERSIONS,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    LISTEN_STREAM_METHODS,
    MCP_PROTOCOL_VERSION_HEADER,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    JsonRpcError,
)

from ..preload import loaded
from .access import RETRY_AFTER, Refused
from .attendance import Attendance
from .bytes_under_way import SMALL, BytesUnderWay
from .catalogues import View
from .downstream import Incoming, as_object
from .eras import Json
from .gateway import LISTEN, Gateway
from .http_limits import HttpLimits
from .http_request import HttpRequest, UnderWay, expired
from .http_sessions import HttpSession, HttpSessions
from .requests import Ending, described, failure_frame, offered_version

SESSION: Final = "mcp-session-id"
_UNREAD: Final = "the answer is lost: too much waits to be read"


class HttpMessages:
    """Serves requests that are let in.

    Args:
        gateway: What is served.
        sessions: Of clients of the handshake era.
        limits: What a request may cost.
        attendance: Attends to clients that wait.
        kept: What is kept for them.
    """

    def __init__(
        self, gateway: Gateway, sessions: HttpSessions, limits: HttpLimits, attendance: Attendance, kept: BytesUnderWay
    ) -> None:
        self._gateway = gateway
        self._attendance = attendance
        self._sessions = sessions
        self._limits = limits
        self._kept = kept

    async def serve(self, request: UnderWay) -> None:
        """Serve one request to its end.

        Raises:
            Refused: There is no room for it.
        """
        try:
            await self._serve(request)
        finally:
            self._kept.give_back(request.client, request.kept)

    async def _serve(self, request: UnderWay) -> None:
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

    async def say_why(self, request: UnderWay) -> None:
        """End the response of a request that was cancelled before.

        Raises:
            Refused: It does not go on, though it was let in.
        """
        http, incoming = request.http, request.incoming
        if request.refusal is not None:
            raise request.refusal
        if trio.current_time() < request.scope.deadline:  # its client has taken it back, or has gone
            ended = request.session_ended is not None and request.session_ended.is_set()
            await http.response.end(HTTPStatus.NOT_FOUND if ended else HTTPStatus.ACCEPTED)
        elif request.is_stream:
            raise expired()
        elif incoming is None:
            await http.response.end(HTTPStatus.REQUEST_TIMEOUT, "the request took too long")
        else:
            why = f"no answer within {self._limits.request_seconds:g} s: the gateway has cancelled this request"
            await self._hand_over(request, self._failure(http, incoming, JsonRpcError(REQUEST_TIMEOUT, why)))

    # -- what is no request ---------------------------------------------------------------------------------------

    async def _of_session(self, request: UnderWay) -> None:
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

    async def _stream(self, request: UnderWay, session: HttpSession) -> None:
        """What is said unasked, until its client goes or its session ends."""
        http = request.http
        request.begin_stream()
        session.streaming = True
        session.enter()
        waiting = self._attendance.begin(request)
        try:
            await http.response.open_stream()
            await session.stream(http.response)
            await http.response.end()
        finally:
            await self._attendance.end(waiting)
            session.streaming = False
            session.leave()

    async def _session_of(self, request: UnderWay) -> HttpSession | None:
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
        await http.response.answer(codec.error(None, code, message), status)

    # -- messages -------------------------------------------------------------------------------------------------

    async def _post(self, request: UnderWay, *, in_session: bool) -> None:
        http = request.http
        kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            await http.response.end(HTTPStatus.BAD_REQUEST, "the content type must be application/json")
            return
        if not http.accepts("application/json", "text/event-stream"):
            await http.response.end(
                HTTPStatus.NOT_ACCEPTABLE, "application/json and text/event-stream must be accepted"
            )
            return
        message = await self._message(request)
        if message is not None:
            await (self._in_session if in_session else self._alone)(request, message)

    async def _message(self, request: UnderWay) -> Json | None:
        """The message of a request; None if it was refused, or its client has gone. The bytes are not kept, and what
        was parsed counts for what it keeps."""
        http, body = request.http, await self._body(request)
        if body is None:
            return None
        self._keep(request, len(body) + VALUE * await by_turns(large_messages.values_in(body)))
        try:
            messages = list(await by_turns(large_messages.read(body, most=MOST_VALUES)))
        except ValueError as error:
            why = str(error) if isinstance(error, large_messages.Refused) else "Parse error"
            await self._refuse(http, HTTPStatus.BAD_REQUEST, PARSE_ERROR, why)
            return None
        if len(messages) != 1 or body.lstrip()[:1] == b"[":
            await self._refuse(http, HTTPStatus.BAD_REQUEST, INVALID_REQUEST, "the body must be one JSON-RPC message")
            return None
        return messages[0]

    async def _body(self, request: UnderWay) -> bytes | None:
        """The body of a request; None if it was refused, or its client has gone."""
        http, limits = request.http, self._limits
        request.scope.deadline = trio.current_time() + limits.body_seconds
        body, more = bytearray(), True
        while more:
            message = await http.receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = bool(message.get("more_body"))
            if len(body) > limits.body:
                await http.response.end(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request is too large")
                return None
            self._keep(request, len(body))
        request.scope.deadline = math.inf
        return bytes(body)

    def _keep(self, request: UnderWay, count: int) -> None:
        """Keep so many bytes of a request.

        Raises:
            Refused: There is no room.
        """
        if count <= SMALL:
            return
        self._kept.give_back(request.client, request.kept)
        request.kept = 0
        if not self._kept.take(request.client, count):
            status = HTTPStatus.TOO_MANY_REQUESTS if self._kept.fits_all(count) else HTTPStatus.SERVICE_UNAVAILABLE
            raise Refused(status, "too many bytes are under way: read the answers first", RETRY_AFTER)
        request.kept = count

    # -- before 2026-07-28 ----------------------------------------------------------------------------------------

    async def _in_session(self, request: UnderWay, message: Json) -> None:
        opens = message.get("method") == "initialize" and SESSION not in request.http.headers
        if not opens:
            session = await self._session_of(request)
            if session is not None:
                await self._use(request, session, message)
            return
        session = await self._sessions.open(request.client, request.view)
        try:
            await self._use(request, session, message)
        finally:
            session.leave()
            if not session.version:
                self._sessions.end(session)

    async def _use(self, request: UnderWay, session: HttpSession, message: Json) -> None:
        http, method, request_id = request.http, message.get("method"), message.get("id")
        if method is None and ("result" in message or "error" in message):
            session.answered(message)
            await http.response.end()
        elif not isinstance(method, str) or not _is_id(request_id, absent="id" not in message):
            await self._refuse(http, HTTPStatus.BAD_REQUEST, INVALID_REQUEST, "not a JSON-RPC message")
        elif "id" not in message:
            if method == "notifications/cancelled":
                cancelled = as_object(message.get("params"))
                session.take_back(cancelled.get("requestId"), cancelled.get("reason"))
            await http.response.end()
        else:
            await self._ask_in_session(request, session, message)

    async def _ask_in_session(self, request: UnderWay, session: HttpSession, message: Json) -> None:
        http, client = request.http, session.client
        assert client is not None  # it lives
        incoming = Incoming(*described(message), partial(self._tell, request), principal=client, session=client)
        incoming.ask = partial(session.ask, partial(self._put_question, request))
        incoming.capabilities, incoming.info = client.capabilities, client.info
        request.session_ended, request.incoming = session.ended, incoming
        if incoming.method == "initialize":
            http.response.headers[SESSION] = session.id
        session.begin(incoming.id, request.scope)
        try:
            await self._answer(request, session.version or offered_version(incoming.params), session)
        finally:
            session.finish(request.scope)

    # -- since 2026-07-28 -----------------------------------------------------------------------------------------

    async def _alone(self, request: UnderWay, message: Json) -> None:
        await loaded()
        from mcp.shared.inbound import InboundLadderRejection, unsupported_protocol_version_rejection

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
        incoming = Incoming(request_id, method, params, meta, partial(self._tell, request), principal=request.client)
        incoming.describe(rejection.client_capabilities, rejection.client_info)
        request.incoming = incoming
        if method == LISTEN:
            request.begin_stream()
        await self._answer(request, rejection.protocol_version)

    # -- answers --------------------------------------------------------------------------------------------------

    async def _answer(self, request: UnderWay, version: str, session: HttpSession | None = None) -> None:
        """Answer a request, unless its client goes away before that."""
        http, incoming = request.http, request.incoming
        assert incoming is not None  # it is what is answered
        if not request.is_stream and self._limits.request_seconds is not None:
            request.scope.deadline = trio.current_time() + self._limits.request_seconds
        waiting = self._attendance.begin(request)
        try:
            try:
                await self._kept.room(request.client)
                result = await self._gateway.answer(incoming, request.view, version)
                if session is not None and incoming.method == "initialize":
                    self._welcome(session, incoming, result)
                answer = _Answer(codec.result(incoming.id, result))
                del result  # what waits for a client is kept once
            except Exception as error:  # which may be large, and is not kept either
                answer = self._failure(http, incoming, error)
            await self._hand_over(request, answer)
        finally:
            await self._attendance.end(waiting)

    async def _hand_over(self, request: UnderWay, answer: "_Answer") -> None:
        """Answer, if there is room for what waits until its client reads; otherwise the answer is lost."""
        frame, status = answer.frame, answer.status
        with self._kept.unread(request.client, len(frame)) as has_room:
            if not has_room:  # it is large: a server has answered
                assert request.incoming is not None  # it was answered
                frame = codec.error(request.incoming.id, answer.code, _UNREAD, {"delivery": "answered"})
            await request.http.response.answer(frame, status)

    async def _tell(self, request: UnderWay, method: str, params: Mapping[str, Any] | None) -> None:
        """Say something of a request on its stream. What is no news that was subscribed to is lost if there is no room
        for it until its client reads."""
        frame = codec.notification(method, params)
        with self._kept.unread(request.client, len(frame), NEWS) as has_room:
            if has_room or method in LISTEN_STREAM_METHODS:
                await request.http.response.event(frame)

    async def _put_question(self, request: UnderWay, frame: bytes) -> None:
        """Ask something on the stream of a request.

        Raises:
            JsonRpcError: There is no room for it until its client reads.
        """
        with self._kept.unread(request.client, len(frame), QUESTIONS) as has_room:
            if not has_room:
                raise JsonRpcError(INTERNAL_ERROR, "too much waits to be read by the client of this call")
            await request.http.response.event(frame)

    def _welcome(self, session: HttpSession, incoming: Incoming, result: Json) -> None:
        """The client of a session has introduced itself."""
        assert session.client is not None  # it lives
        session.client.introduce(incoming.params)
        session.version = result["protocolVersion"]
        self._sessions.welcome(session)

    def _failure(self, http: HttpRequest, incoming: Incoming, error: Exception) -> "_Answer":
        code, frame = failure_frame(incoming, error)
        status = ERROR_CODE_HTTP_STATUS.get(code, HTTPStatus.OK) if incoming.modern else HTTPStatus.OK
        if isinstance(error, Ending):
            status = HTTPStatus.SERVICE_UNAVAILABLE
            http.response.headers |= RETRY_AFTER
        return _Answer(frame, status, code)


@frozen
class _Answer:
    frame: bytes
    status: int = HTTPStatus.OK
    code: int = INTERNAL_ERROR
    """Of an error, also of one that takes its place."""


def _rejection(http: HttpRequest, view: View, message: Json) -> Any:
    """What its headers and its envelope say: who asks, or what is wrong with them."""
    from mcp.shared.inbound import (
        InboundLadderRejection,
        classify_inbound_request,
        find_duplicated_routing_header,
        validate_mcp_param_headers,
    )

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


def _is_id(request_id: object, *, absent: bool) -> bool:
    return absent or (isinstance(request_id, str | int) and not isinstance(request_id, bool))
