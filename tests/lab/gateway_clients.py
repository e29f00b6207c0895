"""Servers that ask when the test says so, and clients of a gateway.

A `stream` is of the handshake era and says nothing of whose call it asks about; one that is `named` says so, as over
HTTP; one that is `modern` asks by `input_required`.
"""

import json
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, field, frozen

from mcp_nursery.actors.callbacks import NO_HOST
from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.jsonrpc.carrier import Origin
from mcp_nursery.actors.jsonrpc.stream_carrier import StreamCarrier
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.actors.session.connection import Connection, open_connection
from mcp_nursery.actors.transports.base import StreamConnector
from mcp_nursery.supervisor import MemoryStore, ServerSpec, Supervisor, open_supervisor
from mcp_nursery.supervisor.gateway import Gateway, gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import ClientSession

from .talker import Talker

KNOWN = {"resources/subscribe", "resources/unsubscribe", "logging/setLevel", "ping"}
OLD, NEW = "2025-11-25", "2026-07-28"
CAN: dict[str, Any] = {"elicitation": {"form": {}}}
ENVELOPE: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": NEW,
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": CAN,
}


class Process(Talker):
    """One incarnation: what it was asked to do, and what it asked."""

    def __init__(self, server: "AskingServer") -> None:
        super().__init__()
        self.server = server
        self.calls: dict[str, tuple[Any, Any]] = {}
        """The ids of its calls that it has not answered, by whom they are for."""
        self.answers: dict[str, list[Any]] = {}
        """What was answered to its questions, by whom they were for."""
        self.cancelled: list[Any] = []
        """The reasons for which requests were taken back."""
        self.ended = trio.Event()
        self.tools = ["work"]
        self._asked: dict[str, str] = {}
        self._news = trio.lowlevel.ParkingLot()

    def take(self, message: dict[str, Any]) -> None:  # noqa: C901
        method, params = message.get("method"), message.get("params") or {}
        if method is None:
            self.answers.setdefault(self._asked.pop(message["id"]), []).append(message)
        elif method == "server/discover" and self.server.kind == "modern":
            told = {"supportedVersions": [NEW], "capabilities": {"tools": {}, "logging": {}}}
            self.result(message, told | {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"})
        elif method == "initialize":
            capabilities = {"tools": {"listChanged": True}, "logging": {}, "resources": {"subscribe": True}}
            info = {"name": "asking", "version": "1"}
            self.result(message, {"protocolVersion": OLD, "capabilities": capabilities, "serverInfo": info})
        elif method == "tools/list":
            hints = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
            tools = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in self.tools]}
            self.result(message, tools | (hints if self.server.kind == "modern" else {}))
        elif method == "resources/list":
            self.result(message, {"resources": [{"uri": "note://a", "name": "a"}]})
        elif method == "tools/call":
            who = params["arguments"]["who"]
            self.calls[who] = message["id"], params["_meta"].get("progressToken")
            if "inputResponses" in params:
                self.answers.setdefault(who, []).extend({"result": each} for each in params["inputResponses"].values())
        elif method in KNOWN - self.server.refuses:
            self.server.requests.append((self, method, params))
            self.result(message, {})
        elif method == "notifications/cancelled":
            self.cancelled.append(params.get("reason"))
        elif "id" in message:
            self.say_json(id=message["id"], error={"code": -32601, "message": "Method not found"})
        self.server.changed.unpark_all()

    def say_json(self, **message: Any) -> None:
        self.say(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def result(self, request: dict[str, Any], result: dict[str, Any]) -> None:
        self.say_json(id=request["id"], result=result)

    def ask(self, who: str) -> None:
        """Ask, in the middle of this one's call."""
        key = f"q{len(self.server.questions)}"
        self.server.questions.append(key)
        params: dict[str, Any] = {"message": f"for {who}", "requestedSchema": {"type": "object", "properties": {}}}
        if self.server.kind == "modern":
            questions = {key: {"method": "elicitation/create", "params": params}}
            asked = {"resultType": "input_required", "inputRequests": questions, "requestState": key}
            self.say_json(id=self.calls.pop(who)[0], result=asked)
        else:
            self._asked[key] = who
            self.say_json(id=key, method="elicitation/create", params=params, **self.about(who))

    def about(self, who: str) -> dict[str, Any]:
        return {"about": self.calls[who][0]} if self.server.kind == "named" else {}

    def log(self, who: str) -> None:
        self.say_json(
            method="notifications/message", params={"level": "error", "data": f"for {who}"}, **self.about(who)
        )

    def progress(self, who: str) -> None:
        token = self.calls[who][1]
        params = {"progressToken": token, "progress": 1, "message": f"for {who}"}
        self.say_json(method="notifications/progress", params=params)

    def answer(self, who: str) -> None:
        request_id, _ = self.calls.pop(who)
        complete = {"resultType": "complete"} if self.server.kind == "modern" else {}
        self.say_json(id=request_id, result=complete | {"content": [{"type": "text", "text": f"for {who}"}]})

    def die(self) -> None:
        self.ended.set()
        self._news.unpark_all()

    async def read(self) -> list[bytes]:
        while not self._said and not self.ended.is_set():
            await self._news.park()
        batch = list(self._said)
        self._said.clear()
        return batch

    async def loss(self) -> Loss:
        await trio.lowlevel.checkpoint()
        return Loss("died", exit_code=1)


@define(eq=False)
class AskingServer:
    kind: str = "stream"
    processes: list[Process] = field(factory=list[Process])
    """All there ever were."""
    questions: list[str] = field(factory=list[str])
    requests: list[tuple[Process, str, Any]] = field(factory=list[tuple[Process, str, Any]])
    refuses: set[str] = field(factory=set[str])
    """Methods that it does not know."""
    alive: int = 0
    most: float = math.inf
    """Processes that can be alive at once."""
    changed: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    def spec(self, **options: Any) -> ServerSpec:
        return ServerSpec("lab", Transport(self), **options)

    async def called(self, who: str, *, times: int = 1) -> Process:
        """The process that has so many calls for this one, or just one."""
        while True:
            await trio.lowlevel.checkpoint()
            found = [process for process in self.processes if who in process.calls and not process.ended.is_set()]
            if len(found) >= times:
                return found[-1]
            with trio.fail_after(20):
                await self.changed.park()


@frozen
class Transport:
    server: AskingServer
    kind = "scripted"

    def connector(self, *, close_grace: float) -> "Connector":
        return Connector(self.server)


@frozen
class Connector(StreamConnector):
    server: AskingServer

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Process, None]:
        process = Process(self.server)
        if self.server.alive >= self.server.most:
            process.die()
        self.server.processes.append(process)
        self.server.alive += 1
        try:
            yield process
        finally:
            self.server.alive -= 1
            process.die()

    @asynccontextmanager
    async def connect(self, host: Any = NO_HOST) -> AsyncGenerator[Connection, None]:
        if self.server.kind != "named":
            async with StreamConnector.connect(self, host) as connection:
                yield connection
            return
        async with self.open() as stream, open_connection(NamedCarrier(stream), host) as connection:
            yield connection


class NamedCarrier(StreamCarrier):
    """What says which request it is about is taken as what came in the exchange of that one."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._slots: dict[Any, Any] = {}

    def send(self, batch: Any) -> Any:
        refused = super().send(batch)
        self._slots |= {each.slot.request_id: each.slot for each in batch if each.slot is not None}
        return refused

    async def _take_in(self, hub: Any) -> bool:
        batch = await self._stream.read()
        for frame in batch:
            about = json.loads(frame).get("about")
            await hub.take_in([frame], self if about is None else Exchange(self, self._slots[about]))
        return bool(batch)


@frozen
class Exchange(Origin):
    carrier: NamedCarrier
    slot: ReplySlot | None = None

    def respond(self, frame: bytes) -> None:
        self.carrier.respond(frame)


def as_read(result: object) -> Any:
    """A result as a client reads it."""
    return json.loads(codec.encode(result))


@define(eq=False)
class Client:
    """A client of the gateway, with a session or without. What its user is asked is answered when the test says so."""

    gateway: Gateway
    name: str
    session: ClientSession | None = None
    principal: Any = None
    view: str | None = "lab"
    heard: list[Any] = field(factory=list[Any])
    """All that it was told or asked, as text."""
    results: list[Any] = field(factory=list[Any])
    asked: trio.Event = field(factory=trio.Event)
    goes_on: trio.Event = field(factory=trio.Event)
    scope: trio.CancelScope = field(factory=trio.CancelScope)

    async def tell(self, method: str, params: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.heard.append(params.get("data") or params.get("message"))

    async def ask(self, method: str, params: Any) -> dict[str, Any]:
        self.heard.append(params["message"])
        self.asked.set()
        await self.goes_on.wait()
        return {"action": "accept", "content": {"by": self.name}}

    async def request(self, method: str, **params: Any) -> Any:
        meta = {"progressToken": self.name} | ({} if self.session else ENVELOPE)
        incoming = ClientRequest(1, method, params, meta, self.tell, self.principal, self.session, capabilities=CAN)
        if self.session is not None:
            incoming.ask = self.ask
            incoming.principal = self.principal or self.session
        else:
            incoming.level = "debug"
        return as_read(await self.gateway.answer(incoming, self.gateway.view(self.view), OLD if self.session else NEW))

    async def work(self) -> None:
        """One call; a client without sessions answers what it is asked and comes again."""
        call = {"name": "work", "arguments": {"who": self.name}}
        with trio.CancelScope() as self.scope:
            result = await self.request("tools/call", **call)
            while result.get("resultType") == "input_required":
                answers = {}
                for key, question in result["inputRequests"].items():
                    answers[key] = await self.ask(question["method"], question["params"])
                result = await self.request(
                    "tools/call", **call, inputResponses=answers, requestState=result["requestState"]
                )
            self.results.append(result["content"][0]["text"])
            self.heard.append(result["content"][0]["text"])


async def leased(server: AskingServer, ann: Client, bob: Client, nursery: trio.Nursery) -> Process:
    """Ann is asked in the middle of her call, and Bob, who calls then, has an instance leased: that."""
    nursery.start_soon(ann.work)
    (await server.called(ann.name)).ask(ann.name)
    await ann.asked.wait()
    nursery.start_soon(bob.work)
    return await server.called(bob.name)


@asynccontextmanager
async def served(
    server: AskingServer, answer_within: float = 300.0, **options: Any
) -> AsyncGenerator[tuple[Supervisor, Gateway, Callable[..., Client], trio.Nursery], None]:
    """A gateway in front of it; clients by `make(name, …)`; and a nursery for their calls."""
    async with (
        trio.open_nursery() as nursery,
        open_supervisor([server.spec(**options)], callbacks=gateway_callbacks(), state=MemoryStore()) as supervisor,
        open_gateway(supervisor, answer_within=answer_within) as gateway,
    ):
        await supervisor.wait_connected("lab")

        def make(name: str, *, session: bool = True, **options: Any) -> Client:
            own = ClientSession(lambda said: None, nursery, "lab") if session else None
            client = Client(gateway, name, own, **options)
            if own is not None:
                own.capabilities = CAN
                own.notify = lambda said: client.heard.append((said.method, said.params))
                gateway.news.enter(own)
            return client

        yield supervisor, gateway, make, nursery
        nursery.cancel_scope.cancel()
