"""The messages of clients over streamable HTTP, once they are admitted: JSON-RPC, and all that is no request.

A request of a client is one POST. Before 2026-07-28 it belongs to a session, and a question of a server in the middle
of it goes out on its stream and is answered by another POST; since then each request stands for itself. A client of
the older era cancels by `notifications/cancelled` (`HttpSession.cancel_request`), one of the newer era by closing its
connection (`exchange.py`).
"""

import math
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import trio

from mcp_nursery.actors.account import NEWS, QUESTIONS, VALUE
from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.extensions import TASK_CHANGED
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.jsonrpc import codec, large_messages
from mcp_nursery.actors.limits import MOST_VALUES
from mcp_nursery.actors.messages import CANCELLED, LISTEN
from mcp_nursery.actors.pieces import SMALL
from mcp_nursery.actors.protocol import (
    ERROR_CODE_HTTP_STATUS,
    HANDSHAKE_PROTOCOL_VERSIONS,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    LISTEN_STREAM_METHODS,
    MCP_PROTOCOL_VERSION_HEADER,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    JsonRpcError,
)

from ..auth.principal import RETRY_AFTER, Refused
from ..bridge import Json, as_object
from ..client_request import (
    ANSWERED,
    ClientRequest,
    GatewayEnding,
    check_request,
    encode_failure,
    offered_version,
    split_message,
)
from ..gateway import Gateway
from .exchange import Attendance, HttpExchange, expiry_refusal
from .request_limits import UNCOUNTED_BYTES, BytesUnderWay, HttpLimits
from .routing_headers import check_headers, check_version
from .sessions import NOTED, HttpSession, HttpSessions

SESSION: Final = "mcp-session-id"
_NOT_ONE: Final = "the body must be one JSON-RPC message"
_ENDED: Final = "{}: this request was not answered before, and may have been carried out"
_UNREAD_BY_CLIENT: Final = "the answer is lost: too much waits to be read"


class HttpMessages:
    """The handler of requests that are admitted. `kept` is the account of what is kept for clients that wait."""

    def __init__(
        self, gateway: Gateway, sessions: HttpSessions, limits: HttpLimits, attendance: Attendance, kept: BytesUnderWay
    ) -> None:
        self._gateway = gateway
        self._attendance = attendance
        self._sessions = sessions
        self._limits = limits
        self._kept = kept

    async def serve(self, exchange: HttpExchange) -> None:
        """Serve one exchange to its end.

        Raises:
            Refused: There is no room for it.
        """
        version = exchange.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        in_session = version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
        if exchange.method == "POST":
            await self._post(exchange, in_session=in_session)
        elif not in_session or exchange.method not in ("GET", "DELETE"):
            exchange.answer_headers["allow"] = "GET, POST, DELETE" if in_session else "POST"
            await exchange.end(HTTPStatus.METHOD_NOT_ALLOWED, "method not allowed")
        else:
            await self._serve_session(exchange)

    async def explain_end(self, exchange: HttpExchange) -> None:
        """End the response of a request that was cancelled.

        Raises:
            Refused: The request was refused after it had been admitted.
        """
        request, refusal = exchange.request, exchange.refusal
        if refusal is not None:
            if request is None or exchange.is_stream or request.delivery is Delivery.NOT_SENT:
                raise refusal
            error = JsonRpcError(INTERNAL_ERROR, _ENDED.format(refusal.reason))  # a status has it made again
            await self._send_answer(exchange, request, *self._error_answer(exchange, request, error))
        elif trio.current_time() < exchange.scope.deadline:  # its client has cancelled it, or has gone
            await exchange.end(HTTPStatus.NOT_FOUND if exchange.session_ended else HTTPStatus.ACCEPTED)
        elif exchange.is_stream:
            raise expiry_refusal()
        elif request is None:
            await exchange.end(HTTPStatus.REQUEST_TIMEOUT, "the request took too long")
        else:
            why = f"no answer within {self._limits.request_seconds:g} s: the gateway has cancelled this request"
            error = JsonRpcError(REQUEST_TIMEOUT, why)
            await self._send_answer(exchange, request, *self._error_answer(exchange, request, error))

    # -- all that is no request ------------------------------------------------------------------------------------

    async def _serve_session(self, exchange: HttpExchange) -> None:
        session = await self._find_session(exchange)
        if session is None:
            return
        if exchange.method == "DELETE":
            await self._sessions.end_everywhere(session)
            await exchange.end(HTTPStatus.OK)
        elif not exchange.accepts("text/event-stream"):
            await exchange.end(HTTPStatus.NOT_ACCEPTABLE, "text/event-stream must be accepted")
        elif session.streaming:
            await exchange.end(HTTPStatus.CONFLICT, "this session has such a stream already")
        else:
            await self._stream(exchange, session)

    async def _stream(self, exchange: HttpExchange, session: HttpSession) -> None:
        """Send the notifications about no request, until the client goes or its session ends."""
        exchange.begin_stream()
        session.streaming = True
        session.enter()
        self._attendance.begin(exchange)
        try:
            await exchange.open_stream()
            await session.stream(exchange)
            await exchange.end()
        finally:
            await self._attendance.end(exchange)
            session.streaming = False
            session.leave()

    async def _find_session(self, exchange: HttpExchange) -> HttpSession | None:
        """The session that a request names; None if it was refused."""
        session_id = exchange.headers.get(SESSION)
        if session_id is None:
            await self._refuse(exchange, HTTPStatus.BAD_REQUEST, INVALID_REQUEST, "no session id")
            return None
        session = await self._sessions.find(session_id, exchange.client, exchange.view)
        if session is None:
            await self._refuse(exchange, HTTPStatus.NOT_FOUND, INVALID_REQUEST, "no such session: it has ended")
        return session

    async def _refuse(self, exchange: HttpExchange, status: int, code: int, message: str) -> None:
        await exchange.answer(codec.refusal(None, code, message), status)

    # -- messages -------------------------------------------------------------------------------------------------

    async def _post(self, exchange: HttpExchange, *, in_session: bool) -> None:
        kind = exchange.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            await exchange.end(HTTPStatus.BAD_REQUEST, "the content type must be application/json")
            return
        if not exchange.accepts("application/json", "text/event-stream"):
            await exchange.end(HTTPStatus.NOT_ACCEPTABLE, "application/json and text/event-stream must be accepted")
            return
        message = await self._message(exchange)
        if message is not None:
            await (self._accept_in_session if in_session else self._answer_modern)(exchange, message)

    async def _message(self, exchange: HttpExchange) -> Json | None:
        """Read the message of a request; None if it was refused, or its client has gone. The bytes are not kept; the
        parsed message is charged for the memory that it takes."""
        body = await self._body(exchange)
        if body is None:
            return None
        if body[:1] != b"{" and large_messages.is_batch(body):
            await self._refuse(exchange, HTTPStatus.BAD_REQUEST, INVALID_REQUEST, _NOT_ONE)
            return None
        try:
            if len(body) <= SMALL:
                values = large_messages.values_in(body)
            else:
                values = await by_turns(large_messages.check_values(body, MOST_VALUES))
            self._charge(exchange, len(body) + VALUE * values)
            if len(body) <= SMALL and values <= large_messages.CROWDED:
                return codec.message(body)
            return await by_turns(large_messages.parse(body, values, most=MOST_VALUES))
        except ValueError as error:
            why = str(error) if isinstance(error, large_messages.MessageTooCostly) else "Parse error"
            await self._refuse(exchange, HTTPStatus.BAD_REQUEST, PARSE_ERROR, why)
            return None

    async def _body(self, exchange: HttpExchange) -> bytes | None:
        """Read the body of a request; None if it was refused, or its client has gone."""
        limits = self._limits
        exchange.scope.deadline = trio.current_time() + limits.body_seconds
        body, more = bytearray(), True
        while more:
            message = await exchange.receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = bool(message.get("more_body"))
            if len(body) > limits.body:
                await exchange.end(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request is too large")
                return None
            self._charge(exchange, len(body))
        exchange.scope.deadline = math.inf
        return bytes(body)

    def _charge(self, exchange: HttpExchange, count: int) -> None:
        """Charge so many bytes for a request, in place of those charged before.

        Raises:
            Refused: There is no room.
        """
        if count <= UNCOUNTED_BYTES:
            return
        self._kept.release(exchange.client, exchange.kept)
        exchange.kept = 0
        if not self._kept.reserve(exchange.client, count):
            status = HTTPStatus.TOO_MANY_REQUESTS if self._kept.fits_all(count) else HTTPStatus.SERVICE_UNAVAILABLE
            raise Refused(status, "too many bytes are under way: read the answers first", RETRY_AFTER)
        exchange.kept = count

    # -- before 2026-07-28 ----------------------------------------------------------------------------------------

    async def _accept_in_session(self, exchange: HttpExchange, message: Json) -> None:
        opens = message.get("method") == "initialize" and SESSION not in exchange.headers
        if not opens:
            session = await self._find_session(exchange)
            if session is not None:
                await self._dispatch(exchange, session, message)
            return
        session = self._sessions.open(exchange.client, exchange.view)
        try:
            await self._dispatch(exchange, session, message)
        finally:
            session.leave()
            if not session.version:
                self._sessions.end(session)

    async def _dispatch(self, exchange: HttpExchange, session: HttpSession, message: Json) -> None:
        method, request_id = message.get("method"), message.get("id")
        if method is None and ("result" in message or "error" in message):
            session.take_answer(message)
            await exchange.end()
        elif not isinstance(method, str) or not _is_id(request_id, absent="id" not in message):
            await self._refuse(exchange, HTTPStatus.BAD_REQUEST, INVALID_REQUEST, "not a JSON-RPC message")
        elif "id" not in message:
            if method == CANCELLED:
                cancelled = as_object(message.get("params"))
                session.cancel_request(cancelled.get("requestId"), cancelled.get("reason"))
            else:
                given = as_object(message["params"]) if "params" in message else None
                self._limit(exchange)
                await self._gateway.news.forward(exchange.view, session.client, method, given)
            await exchange.end()
        else:
            await self._answer_in_session(exchange, session, message)

    async def _answer_in_session(self, exchange: HttpExchange, session: HttpSession, message: Json) -> None:
        client = session.client
        request = ClientRequest(
            *split_message(message), partial(self._notify, exchange), principal=client, session=client
        )
        request.ask = partial(session.ask, partial(self._ask_client, exchange))
        request.capabilities, request.info = client.capabilities, client.info
        exchange.request, request.gone = request, exchange.has_vanished
        session.begin(request.id, exchange)
        try:
            await self._answer(exchange, session.version or offered_version(request.params), session)
        finally:
            session.finish(exchange)

    # -- since 2026-07-28 -----------------------------------------------------------------------------------------

    async def _answer_modern(self, exchange: HttpExchange, message: Json) -> None:
        version = exchange.headers[MCP_PROTOCOL_VERSION_HEADER]
        method = message.get("method")
        if not isinstance(method, str) or not _is_id(message.get("id"), absent="id" not in message):
            await self._refuse(exchange, HTTPStatus.BAD_REQUEST, INVALID_REQUEST, "the body must be one request")
            return
        if "id" not in message:  # nothing to do: such a client cancels by closing its connection
            try:
                await check_version(version)
            except JsonRpcError as error:
                await self._refuse(exchange, HTTPStatus.BAD_REQUEST, error.code, error.message)
            else:
                await exchange.end()
            return
        request_id, _, params, meta = split_message(message)
        request = ClientRequest(
            request_id, method, params, meta, partial(self._notify, exchange), principal=exchange.client
        )
        request.describe()
        try:
            await check_headers(exchange, message, request)
        except JsonRpcError as error:
            frame = codec.refusal(request_id, error.code, error.message, **as_object(error.data))
            await exchange.answer(frame, ERROR_CODE_HTTP_STATUS.get(error.code, HTTPStatus.BAD_REQUEST))
            return
        exchange.request, request.gone = request, exchange.has_vanished
        if method == LISTEN:
            exchange.begin_stream()
        await self._answer(exchange, version)

    # -- answers --------------------------------------------------------------------------------------------------

    async def _answer(self, exchange: HttpExchange, version: str, session: HttpSession | None = None) -> None:
        """Answer a request, unless its client goes away before that."""
        request = exchange.request
        assert request is not None  # it is what is answered
        if not exchange.is_stream:
            self._limit(exchange)
        self._attendance.begin(exchange)
        try:
            try:
                if session is not None and request.method == "initialize":
                    await self._name_session(exchange, session, request, version)
                await self._kept.wait_for_room(exchange.client)
                result = await self._gateway.answer(request, exchange.view, version)
                if session is not None and request.method == "initialize":
                    await trio.lowlevel.checkpoint_if_cancelled()  # it may have ended since this task was woken
                    self._introduce(session, request, result)
                elif session is not None and request.method in NOTED:
                    await self._sessions.note(session, request)
                answer = codec.result(request.id, result), HTTPStatus.OK, INTERNAL_ERROR
                del result  # what waits for a client is kept once
            except Exception as error:  # which may be large, and is not kept either
                answer = self._error_answer(exchange, request, error)
            await self._send_answer(exchange, request, *answer)
        finally:
            await self._attendance.end(exchange)

    def _limit(self, exchange: HttpExchange) -> None:
        if self._limits.request_seconds is not None:
            exchange.scope.deadline = trio.current_time() + self._limits.request_seconds

    async def _send_answer(
        self, exchange: HttpExchange, request: ClientRequest, frame: bytes, status: HTTPStatus, code: int
    ) -> None:
        """Send the answer, if there is room to keep it until its client reads; otherwise it is lost, and an error of
        this code takes its place."""
        with self._kept.hold_unread(exchange.client, len(frame)) as has_room:
            if not has_room:  # it is large: a server has answered
                frame = codec.error(request.id, code, _UNREAD_BY_CLIENT, ANSWERED)
            await exchange.answer(frame, status)

    async def _notify(self, exchange: HttpExchange, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification about a request on its stream. Unless it was subscribed to, it is lost if there is no
        room to keep it until the client reads."""
        frame = codec.notification(method, params)
        with self._kept.hold_unread(exchange.client, len(frame), NEWS) as has_room:
            if has_room or method in LISTEN_STREAM_METHODS or method == TASK_CHANGED:
                await exchange.event(frame)

    async def _ask_client(self, exchange: HttpExchange, frame: bytes) -> None:
        """Send a question on the stream of a request.

        Raises:
            JsonRpcError: Its client has gone, or there is no room to keep it until the client reads.
        """
        if exchange.client_gone:
            raise JsonRpcError(INTERNAL_ERROR, "the client of this call has gone: it cannot be asked")
        with self._kept.hold_unread(exchange.client, len(frame), QUESTIONS) as has_room:
            if not has_room:
                raise JsonRpcError(INTERNAL_ERROR, "too much waits to be read by the client of this call")
            await exchange.event(frame)

    async def _name_session(
        self, exchange: HttpExchange, session: HttpSession, request: ClientRequest, version: str
    ) -> None:
        """Give the client the id of its session, before anything of the response is sent. The parameters that are
        sealed in the id are checked first, since the session may go on elsewhere by them.

        Raises:
            JsonRpcError: The parameters are wrong.
        """
        if self._sessions.seals(session):
            await check_request(request, version)
            await trio.lowlevel.checkpoint_if_cancelled()  # it may have ended since this task was woken
            self._sessions.seal(session, request.params, exchange.view)
        exchange.answer_headers[SESSION] = session.id

    def _introduce(self, session: HttpSession, request: ClientRequest, result: Json) -> None:
        """Record in a session how its client has introduced itself."""
        session.client.introduce(request.params)
        session.version = result["protocolVersion"]
        self._sessions.welcome(session)

    def _error_answer(
        self, exchange: HttpExchange, request: ClientRequest, error: Exception
    ) -> tuple[bytes, HTTPStatus, int]:
        """The message, the status and the code of an error."""
        code, frame = encode_failure(request, error)
        status = ERROR_CODE_HTTP_STATUS.get(code, HTTPStatus.OK) if request.modern else HTTPStatus.OK
        if isinstance(error, GatewayEnding):
            status = HTTPStatus.SERVICE_UNAVAILABLE
            exchange.answer_headers |= RETRY_AFTER
        return frame, HTTPStatus(status), code


def _is_id(request_id: object, *, absent: bool) -> bool:
    return absent or (isinstance(request_id, str | int) and not isinstance(request_id, bool))
