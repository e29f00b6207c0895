"""Clients of the gateway's ASGI application, in memory: those of the handshake era are asked by a request on the stream
of their call and answer by another POST; the others are told `input_required` and come again."""

import json
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from itertools import count
from typing import Any

import trio

from mcp_nursery.supervisor.gateway.auth.principal import Principal, bearer_of

from .gateway_clients import CAN, ENVELOPE, NEW, OLD

BOTH = "application/json, text/event-stream"


async def by_name(scope: dict[str, Any]) -> Principal | None:
    """A client is who its token says; nobody in particular without one."""
    name = bearer_of(scope)
    return None if name is None else Principal(name)


class Exchange:
    """One HTTP request. It goes on until it is answered, or its client goes."""

    def __init__(self, body: bytes, hear: Callable[[dict[str, Any]], None]) -> None:
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self.session: str | None = None
        """The session that the response names."""
        self.last: dict[str, Any] | None = None
        """The last message of the response."""
        self.text = ""
        """The response, if it is a document."""
        self.gone, self.ended = trio.Event(), trio.Event()
        self.is_whole = False
        """Whether the response has come to its end."""
        self.reads = 0
        """How often somebody has listened to its client."""
        self.may_read = trio.Event()
        """Whether its client reads what it is sent."""
        self.may_read.set()
        self._body = [body]
        self._hear = hear

    async def run(self, application: Any, scope: dict[str, Any]) -> None:
        try:
            await application(scope, self._receive, self._send)
        finally:
            self.ended.set()

    async def _receive(self) -> dict[str, Any]:
        self.reads += 1
        await trio.lowlevel.checkpoint()
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        await self.may_read.wait()
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
            self.session = self.headers.get(b"mcp-session-id", b"").decode() or None
        elif not self.gone.is_set():
            self.is_whole = not message.get("more_body", False)
            self.text = message["body"].decode()
            for line in message["body"].splitlines():
                text = line.removeprefix(b"data: ")
                if text.startswith(b"{"):
                    self.last = json.loads(text)
                    self._hear(self.last)


class WebClient:
    """A client whose user answers what he is asked when the test says so.

    Args:
        application: What it talks to.
        nursery: Where its requests run.
        name: Of its user.
        tool: What the tool of the calls is named here.
        known: Whether it says who it is.
        modern: Whether it has no session.
    """

    def __init__(
        self,
        application: Any,
        nursery: trio.Nursery,
        name: str,
        path: str,
        tool: str,
        *,
        known: bool = True,
        modern: bool = False,
    ) -> None:
        self.name = name
        self.modern = modern
        self.heard: list[str] = []
        """Texts that it was told or asked."""
        self.session: str | None = None
        self.last: Exchange | None = None
        """The last exchange that was begun."""
        self.questions: set[Any] = set()
        """Ids of what it is asked, not answered yet."""
        self.states: dict[str, dict[str, Any]] = {}
        """What it is to come again with, and the keys of the questions."""
        self._application = application
        self._nursery = nursery
        self._path = path
        self._tool = tool
        self._token = name if known else None
        self._scope = trio.CancelScope()
        self._opening = trio.Lock()
        self._answering = trio.Event()
        self._ids = count(1)
        self._last_id: int | None = None

    # -- what it does ---------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """One call, with all questions about it."""
        if not self.modern:
            async with self._opening:
                if self.session is None:
                    await self._open()
        with trio.CancelScope() as self._scope:
            result = await self._call(self.name)
            while result.get("resultType") == "input_required":
                state, keys = result["requestState"], result["inputRequests"]
                for question in keys.values():
                    self.heard.append(question["params"]["message"])
                self.states[state] = keys
                try:
                    await self._answering.wait()
                finally:
                    del self.states[state]
                result = await self._call(self.name, inputResponses=self._answers(keys), requestState=state)

    def reply(self) -> None:
        """Answer all that was asked."""
        self._answering.set()
        self._answering = trio.Event()

    def vanish(self) -> None:
        """Go away in the middle of a call."""
        self._scope.cancel()

    async def take_back(self) -> None:
        """Take back the last request."""
        if self.session is not None:
            params = {"requestId": self._last_id}
            await self._exchange({"method": "notifications/cancelled", "params": params})

    async def leave(self) -> None:
        """End the session; the next call begins another."""
        session, self.session = self.session, None
        if session is not None:
            await self._exchange(None, session=session, verb="DELETE")

    async def meddle(self, other: "WebClient", *, holds: bool) -> None:
        """Try to answer for another user, and to hear what he hears; `holds`: the gateway holds calls for clients that
        come again, and no server judges what they bring."""
        stolen = other.session
        for question in list(other.questions):
            for session in (self.session, stolen):
                if session is not None:
                    await self._exchange({"id": question, "result": self._answer}, session=session)
        for verb in () if stolen is None else ("GET", "DELETE"):
            said = await self._exchange(None, session=stolen, verb=verb)
            assert said.status == HTTPStatus.NOT_FOUND
        for state, keys in list(other.states.items()) if holds and self.modern else ():
            answers = self._answers(keys)
            result = await self._call(other.name, inputResponses=answers, requestState=state)
            assert "requestState" in result["message"]

    @property
    def _answer(self) -> dict[str, Any]:
        return {"action": "accept", "content": {"by": self.name}}

    def _answers(self, keys: dict[str, Any]) -> dict[str, Any]:
        return dict.fromkeys(keys, self._answer)

    # -- how ------------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        info = {"name": "test", "version": "1"}
        await self._request("initialize", {"protocolVersion": OLD, "capabilities": CAN, "clientInfo": info})
        self._nursery.start_soon(partial(self._exchange, None, verb="GET"))

    async def _call(self, who: str, **more: Any) -> dict[str, Any]:
        return await self._request("tools/call", {"name": self._tool, "arguments": {"who": who}} | more)

    async def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Its result, or its error; empty if there is none."""
        self._last_id = next(self._ids)
        params |= {"_meta": {"progressToken": 1} | (ENVELOPE | LEVEL if self.modern else {})}
        said = await self._exchange({"id": self._last_id, "method": method, "params": params})
        if method == "initialize":
            self.session = said.session
        last = said.last or {}
        return last.get("result") or last.get("error") or {}

    async def _exchange(
        self, message: dict[str, Any] | None, *, session: str | None = None, verb: str = "POST"
    ) -> Exchange:
        in_session = message is None or not self.modern or "method" not in message
        headers = {"accept": BOTH, "content-type": "application/json"}
        headers["mcp-protocol-version"] = OLD if in_session else NEW
        if message is not None and not in_session:
            headers |= {"mcp-method": message["method"], "mcp-name": message["params"].get("name", "")}
        elif named := session or self.session:
            headers["mcp-session-id"] = named
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        lines = [(b"host", b"localhost"), *((key.encode(), value.encode()) for key, value in headers.items())]
        scope = {"type": "http", "method": verb, "path": self._path, "headers": lines}
        body = b"" if message is None else json.dumps({"jsonrpc": "2.0", **message}).encode()
        exchange = self.last = Exchange(body, self._hear)
        self._nursery.start_soon(exchange.run, self._application, scope)
        try:
            await exchange.ended.wait()
        finally:
            exchange.gone.set()
        return exchange

    def _hear(self, message: dict[str, Any]) -> None:
        params = message.get("params") or {}
        text = params.get("message") or params.get("data")
        content = (message.get("result") or {}).get("content")
        self.heard += [each for each in (text, content and content[0]["text"]) if each]
        if "id" in message and "method" in message:
            self.questions.add(message["id"])
            self._nursery.start_soon(self._reply, message["id"])

    async def _reply(self, question: Any) -> None:
        await self._answering.wait()
        self.questions.discard(question)
        if self.session is not None:
            await self._exchange({"id": question, "result": self._answer})


LEVEL = {"io.modelcontextprotocol/logLevel": "debug"}
