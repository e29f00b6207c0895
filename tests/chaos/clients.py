"""A hundred clients of both eras in one process: raw HTTP, so that every answer is seen as it came."""

import itertools
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import httpx2
import trio

from ..lab.raw_clients import NEW, OLD, HttpClient, request
from .judge import Outcome
from .plan import GOOD

CLIENTS = 100
PATIENCE = 60.0
"""Seconds after which a client takes it that there is no answer."""
THINK = (0.4, 2.0)
"""Seconds between two requests of a client."""
RENEWED = 40
"""Requests after which a client of the handshake era ends its session and begins another."""
LISTENERS = 5
"""Clients of the handshake era that have a stream for notifications open all along."""
ABOUT = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": {"name": "chaos", "version": "1"}}
INITIALIZED = '{"jsonrpc":"2.0","method":"notifications/initialized"}'
POLL = 0.3
"""Seconds between two questions about a task."""
UNKNOWN = -32602
"""The error for a task that nobody knows."""
BY_STATUS = {404: "lost", 429: "refused", 503: "refused"}
NOT_SENT = ("send", "connect", "lookup")
"""Stages of a call, in the words for a model, at which no server has it."""
TAKES = (0.0, 0.0, 0.1, 0.3)
"""Seconds between an execution and its answer."""
LASTS = (0.5, 1.0, 2.0, 3.0)
"""Seconds of a task."""
FOLLOWS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
"""The capabilities of a client that follows tasks itself. For others the gateway does."""


class Client:
    """One client, which makes one request after another."""

    def __init__(
        self,
        name: str,
        version: str,
        http: httpx2.AsyncClient,
        url: str,
        *,
        note: Callable[..., None],
        servers: Sequence[str],
    ) -> None:
        self.name, self.version = name, version
        self._servers = servers
        self._raw = HttpClient(http, url, version)
        self._http, self._url, self._note = http, url, note
        self._numbers = itertools.count(1)
        self._chance = Random(name)

    @property
    def has_session(self) -> bool:
        return self._raw.session is not None

    async def live(self, over: trio.Event) -> None:
        """Make requests until it is over."""
        await trio.sleep(self._chance.uniform(0, THINK[1]))
        for turn in itertools.count(1):
            if over.is_set():
                return
            if self.version == OLD:
                if turn % RENEWED == 0:
                    await self.leave()
                if not self.has_session and not await self.begin():
                    continue
            if self._chance.random() < 0.05:
                await self._ask("tools/list")
            else:
                tools = ("once", "once", "again", "later", "later")
                await self.call(self._chance.choice(self._servers), self._chance.choice(tools))
            with trio.move_on_after(self._chance.uniform(*THINK)):
                await over.wait()

    async def begin(self) -> bool:
        """Begin a session; False if that failed."""
        said = await self._ask("initialize", **ABOUT)
        if said == "result":
            await self._send("POST", INITIALIZED, "notifications/initialized")
        return self.has_session

    async def leave(self) -> None:
        """End the session."""
        if self.has_session:
            await self._send("DELETE", None, "DELETE")
            self._raw.session = None

    async def call(self, server: str, tool: str) -> str:
        number = next(self._numbers)
        takes = self._chance.choice(LASTS if tool == "later" else TAKES)
        arguments = {"key": f"{self.name}.{number}", "takes": takes}
        return await self._ask("tools/call", number, server, name=f"{server}_{tool}", arguments=arguments)

    async def listen(self) -> None:
        """Have the stream for notifications open, again and again; a session must never be unknown there."""
        while True:
            if not self.has_session:
                await trio.sleep(0.2)
                continue
            began, session = trio.current_time(), self._raw.session
            headers = {"accept": "text/event-stream", "mcp-session-id": str(session), "mcp-protocol-version": OLD}
            try:
                async with self._http.stream("GET", self._url, headers=headers) as said:
                    if said.status_code == 404 and session == self._raw.session:
                        self._note(Outcome(self.name, "", "GET", "", "lost", await _text(said), began, 0.0))
                    else:
                        async for _ in said.aiter_raw():
                            pass
            except httpx2.TransportError:
                pass  # it went with its replica, and is opened again
            await trio.sleep(0.5)

    async def _ask(self, method: str, number: int | None = None, server: str = "", **params: Any) -> str:
        number = number or next(self._numbers)
        key = params["arguments"]["key"] if server else ""
        frame = request(self.version, number, method, able=FOLLOWS, **params)
        tool = params["name"].removeprefix(f"{server}_") if server else method
        return await self._exchange("POST", frame, Outcome(self.name, server, tool, key, "", "", 0.0, 0.0), number)

    async def _send(self, verb: str, frame: str | None, method: str) -> None:
        await self._exchange(verb, frame, Outcome(self.name, "", method, "", "", "", 0.0, 0.0), None)

    async def _exchange(self, verb: str, frame: str | None, asked: Outcome, number: int | None) -> str:
        headers = {"mcp-session-id": str(self._raw.session)} if frame is None else self._raw.headers(frame)
        if asked.tool == "initialize":
            headers.pop("mcp-session-id", None)
        began = trio.current_time()
        try:
            answer = await self._http.request(verb, self._url, content=frame, headers=headers)
        except httpx2.TimeoutException as error:
            said, words = "none", repr(error)
        except httpx2.TransportError as error:
            said, words = "cut", repr(error)
        else:
            words = f"{answer.status_code} {answer.text[:1000]}"
            said = judged(answer.status_code, answer.headers.get("content-type", ""), answer.text, number, asked)
            if said.startswith("task "):
                made = trio.current_time()
                said, words = await self._followed(said.removeprefix("task "), asked)
                began += max(0.0, min(trio.current_time() - made, LASTS[-1]))  # in which it worked
            if asked.tool == "initialize":
                self._raw.session = answer.headers.get("mcp-session-id") if said == "result" else None
            elif said == "lost":
                self._raw.session = None
        took = trio.current_time() - began
        words = "" if said == "result" else words
        self._note(Outcome(asked.client, asked.server, asked.tool, asked.key, said, words, began, took))
        return said

    async def _followed(self, task: str, asked: Outcome) -> tuple[str, str]:
        """What becomes of a task: whatever replica there is, is asked."""
        words = "nobody knew it"
        for number in itertools.count(1):
            if number * POLL > PATIENCE:
                return "none", words
            await trio.sleep(POLL)
            frame = request(NEW, number, "tasks/get", able=FOLLOWS, taskId=task)
            try:
                answer = await self._http.post(self._url, content=frame, headers=self._raw.headers(frame))
                words = f"{answer.status_code} {answer.text[:1000]}"
                [text] = _messages(answer.headers.get("content-type", ""), answer.text)
                message = json.loads(text)
            except (httpx2.TransportError, ValueError):
                continue  # the replica has gone
            status = message.get("result", {}).get("status")
            if status == "completed":
                return _said_by(message["result"]["result"], asked), words
            if message.get("error", {}).get("code") == UNKNOWN:
                return "forgotten", words
            if status not in ("working", None):
                return "none", words
        raise AssertionError


async def _text(said: httpx2.Response) -> str:
    return (await said.aread()).decode(errors="replace")


def judged(status: int, kind: str, text: str, number: int | None, asked: Outcome) -> str:
    """What an answer over HTTP says of its request."""
    if status in BY_STATUS:
        return BY_STATUS[status]
    if number is None:
        return "result" if status in (200, 202) else "unknown"
    try:
        messages = [json.loads(each) for each in _messages(kind, text)]
        answers = [each for each in messages if "method" not in each]
    except ValueError:
        return "unknown"  # a page of the balancer: 502, 504
    if [each.get("id") for each in answers] != [number]:
        return "wrong"
    [answer] = answers
    return _delivery_of(answer["error"]) if "error" in answer else _said_by(answer["result"], asked)


def _messages(kind: str, text: str) -> list[str]:
    if "text/event-stream" in kind:
        return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return [text]


def _delivery_of(error: Any) -> str:
    data = error.get("data")
    return str(data.get("delivery", "answered")) if isinstance(data, dict) else "answered"


def _said_by(result: Any, asked: Outcome) -> str:
    if result.get("resultType") == "task":
        return f"task {result['taskId']}"
    text = "".join(block.get("text", "") for block in result.get("content", ()))
    if result.get("isError"):
        return "not_sent" if any(f"\nstage: {stage}\n" in text for stage in NOT_SENT) else "unknown"
    whole = {f"{server}_{tool}" for server in GOOD for tool in ("once", "again")}
    if asked.tool == "tools/list" and not whole <= {tool["name"] for tool in result["tools"]}:
        return "wrong"
    return "wrong" if text != asked.key else "result"


class Crowd:
    """All clients, and what became of each of their requests."""

    def __init__(self, http: httpx2.AsyncClient, url: str, servers: Sequence[str]) -> None:
        self.outcomes: list[Outcome] = []
        self.over = trio.Event()
        self._clients = [
            Client(f"c{number}", (OLD, NEW)[number % 2], http, url, note=self.outcomes.append, servers=servers)
            for number in range(CLIENTS)
        ]

    @property
    def _of_sessions(self) -> list[Client]:
        return [client for client in self._clients if client.version == OLD]

    async def run(self) -> None:
        """Have all of them live until it is over; who listens is cancelled then."""
        async with trio.open_nursery() as listening:
            for client in self._of_sessions[:LISTENERS]:
                listening.start_soon(client.listen)
            async with trio.open_nursery() as nursery:
                for client in self._clients:
                    nursery.start_soon(client.live, self.over)
            listening.cancel_scope.cancel()

    async def until(self, count: int) -> None:
        """Wait until there are so many outcomes."""
        while len(self.outcomes) < count:  # noqa: ASYNC110 - the event would be set a hundred times a second
            await trio.sleep(0.1)

    async def go_on(self) -> tuple[int, int]:
        """Have each session make one call more: how many there are, and how many of them were answered."""
        having = [client for client in self._of_sessions if client.has_session]
        said: list[str] = []

        async def one(client: Client) -> None:
            said.append(await client.call("good0", "once"))

        async with trio.open_nursery() as nursery:
            for client in having:
                nursery.start_soon(one, client)
        return len(having), said.count("result")

    async def leave(self) -> None:
        """End all sessions."""
        async with trio.open_nursery() as nursery:
            for client in self._of_sessions:
                nursery.start_soon(client.leave)


def make_http() -> httpx2.AsyncClient:
    """The connections of all clients."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx2.AsyncClient(timeout=PATIENCE, limits=limits)
