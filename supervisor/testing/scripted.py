"""Servers in memory that fail on demand. They speak the protocol frame by frame, so all of the wire is under test.

A `ScriptedServer` opens one `Incarnation` after another, each with the next `Life`: a stream on our side, a server's
loop on the other. The server records requests and times for a test to check.
"""

import json
import math
from base64 import b64encode
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from mcp_nursery.actors.errors import StartFailed
from mcp_nursery.actors.jsonrpc.carrier import FrameStream
from mcp_nursery.actors.messages import CANCELLED
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.records import define, field, frozen
from mcp_nursery.actors.transports.base import StreamConnector

from .life import Ask, Life, Refusal, ToolFunction, tell_progress

if TYPE_CHECKING:
    from mcp_nursery.actors.server_actor import Connector

_MODERN, _HANDSHAKE = "2026-07-28", "2025-11-25"
_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


async def _echo(arguments: dict[str, Any]) -> object:
    await trio.lowlevel.checkpoint()
    return json.dumps(arguments, sort_keys=True)


@define(eq=False, init=False)
class ScriptedServer:
    """A server that lives its lives one after another, the last one again and again.

    ::

        server = ScriptedServer(Life(refuses="no such luck"), Life(dies_after=60))
        async with open_supervisor([ServerSpec("lab", server.transport)]) as supervisor: ...
    """

    lives: Sequence[Life]
    """The lives, one for each incarnation; the last is repeated."""
    tools: Mapping[str, ToolFunction]
    """The tools that it offers, by name."""
    annotations: Mapping[str, Mapping[str, Any]]
    """The annotations of each tool, with the protocol's keys."""
    declared: Mapping[str, Mapping[str, Any]]
    """Further members of each tool's definition."""
    resources: Mapping[str, ToolFunction]
    """The resources that can be read, by URI; those with a `{` are templates. Each takes `{"uri": …}`, and returns text
    or bytes."""
    prompts: Mapping[str, ToolFunction]
    """The prompts that can be filled in, by name. Each takes the arguments, and returns the text of one message."""
    completions: Mapping[str, Sequence[str]]
    """The values of each argument that can be completed."""
    requests: list[tuple[int, str, dict[str, Any]]] = field(factory=list[tuple[int, str, dict[str, Any]]])
    """Every other request of a caller that it read, as (incarnation, method, params)."""
    starts: list[float] = field(factory=list[float])
    """The times at which each incarnation was opened, on Trio's clock."""
    ends: list[float] = field(factory=list[float])
    """The times at which each incarnation was closed."""
    calls: list[tuple[int, str, dict[str, Any]]] = field(factory=list[tuple[int, str, dict[str, Any]]])
    """Every `tools/call` it read, as (incarnation, tool, arguments): the ledger of what it may have acted on."""
    cancelled: list[int | str] = field(factory=list["int | str"])
    """The ids of the requests that callers have cancelled."""
    probes: list[float] = field(factory=list[float])
    """The times at which it was probed for liveness."""
    listings: list[tuple[float, str]] = field(factory=list[tuple[float, str]])
    """The times at which a page of a list was asked for, on Trio's clock, each with the method."""
    fresh_for: dict[str, float] = field(factory=dict[str, float])
    """Seconds, by method, for which it says, if it is `modern`, that an answer to `resources/read`, or to a method that
    lists, stays true. A test may add to it. Default: 0."""
    capabilities: dict[str, Any] = field(factory=dict[str, Any])
    """The capabilities that it declares, with the protocol's keys. A test may add to them."""
    answers: dict[str, ToolFunction] = field(factory=dict[str, ToolFunction])
    """Functions for requests of other methods, by method. Each takes the parameters, and returns the result. A test may
    add to it."""
    info: dict[str, Any] = field(factory=lambda: {"name": "scripted", "version": "1"})
    """The name and version that it declares, with the protocol's keys. A test may change them."""
    instructions: str | None = None
    """The instructions that it declares for a model. A test may set them."""
    most_alive: int = 0
    """The most incarnations ever open at once."""
    _current: "Incarnation | None" = None

    def __init__(
        self,
        *lives: Life,
        tools: Mapping[str, ToolFunction] | None = None,
        annotations: Mapping[str, Mapping[str, Any]] | None = None,
        declared: Mapping[str, Mapping[str, Any]] | None = None,
        resources: Mapping[str, ToolFunction] | None = None,
        prompts: Mapping[str, ToolFunction] | None = None,
        completions: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Script a server.

        Args:
            lives: One for each incarnation; the last is repeated. Default: a healthy one.
            tools: By name. Default: `echo`, which returns its arguments as JSON.
            annotations: Of each tool, with the protocol's keys, such as `readOnlyHint`.
            declared: Further members of each tool's definition, with the protocol's keys, such as `inputSchema`.
            resources: What can be read, by URI; one with a `{` is a template, and answers for every URI that begins as
                it does. None: it offers no resources.
            prompts: What can be filled in, by name. None: it offers no prompts.
            completions: Possible values, by argument. None: it completes nothing.
        """
        self.__attrs_init__(  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            lives or (Life(),),
            {"echo": _echo} if tools is None else tools,
            annotations or {},
            declared or {},
            resources or {},
            prompts or {},
            completions or {},
        )
        self.capabilities["tools"] = {}
        if resources is not None:
            self.capabilities["resources"] = {}
        if prompts is not None:
            self.capabilities["prompts"] = {}
        if completions is not None:
            self.capabilities["completions"] = {}

    @property
    def alive(self) -> int:
        """The number of incarnations that are open now."""
        return len(self.starts) - len(self.ends)

    @property
    def transport(self) -> "ScriptedTransport":
        """The transport for `ServerSpec(name, server.transport)`."""
        return ScriptedTransport(self)

    def crash(self, exit_code: int = 1) -> None:
        """End the living incarnation now, as if its process had died. `crash`, `hang` and `garble` may be called in any
        thread; in another than that of the supervisor they take effect soon."""
        self._do(lambda incarnation: incarnation.die(exit_code))

    def hang(self) -> None:
        """Have the living incarnation send nothing any more, although its connection stays open."""
        self._do(Incarnation.hang)

    def garble(self, line: str = "Traceback (most recent call last):") -> None:
        """Have the living incarnation send a line that is no message."""
        self._do(lambda incarnation: incarnation.garble(line))

    def _do(self, function: "Callable[[Incarnation], object]") -> None:
        incarnation = self._current
        if incarnation is None:
            return
        if trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is incarnation.token:
            function(incarnation)
        else:
            with suppress(trio.RunFinishedError):  # its life is over
                incarnation.token.run_sync_soon(function, incarnation)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification from the living incarnation: on each stream that is listened to, if it is `modern` and
        there is one."""
        await trio.lowlevel.checkpoint()
        if self._current is not None:
            self._current.notify(method, params or {})

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Incarnation", None]:
        """Live the next life.

        Raises:
            StartFailed: The life refuses.
        """
        number = len(self.starts)
        life = self.lives[min(number, len(self.lives) - 1)]
        self.starts.append(trio.current_time())
        self.most_alive = max(self.most_alive, self.alive)
        try:
            if life.refuses is not None:
                raise StartFailed(life.refuses, retriable=life.usable, needs_auth=life.needs_auth)
            async with trio.open_nursery() as nursery:
                self._current = Incarnation(self, life, number + 1, nursery)
                nursery.start_soon(self._current.live)
                try:
                    yield self._current
                finally:
                    with trio.CancelScope(shield=True):  # bounded by the script
                        await trio.sleep(life.closes_after)
                    nursery.cancel_scope.cancel()
        finally:
            self.ends.append(trio.current_time())


@frozen
class ScriptedTransport:
    """A scripted server as the transport of a `ServerSpec`."""

    server: ScriptedServer

    @property
    def kind(self) -> str:
        """`scripted`."""
        return "scripted"

    def connector(self, *, close_grace: float) -> "Connector":
        """The connector of an incarnation; it closes as its script says."""
        del close_grace
        return _ScriptedConnector(self.server)


@frozen
class _ScriptedConnector(StreamConnector):
    server: ScriptedServer

    def open(self) -> AbstractAsyncContextManager[FrameStream]:
        """Begin its next life."""
        return self.server.open()


class Incarnation:
    """A `FrameStream` that answers as its life says, and records requests in its server."""

    def __init__(self, server: ScriptedServer, life: Life, number: int, nursery: trio.Nursery) -> None:
        self._server = server
        self._life = life
        self._number = number
        self._nursery = nursery
        self._to_server, self._requests = trio.open_memory_channel[bytes](math.inf)
        self._answers: deque[bytes] = deque()
        self._answered = trio.lowlevel.ParkingLot()
        self._reading = trio.Event()
        self._read = 0
        self._exit_code: int | None = None
        self._greeted_at = math.inf
        self._running: dict[int | str, trio.CancelScope] = {}
        self._modern_session = False
        self._listening: set[int | str] = set()
        """The ids of the requests by which a client listens."""
        self._asked: list[ToolFunction] = []
        self._hangs = False
        self.token: Final = trio.lowlevel.current_trio_token()
        """The loop that it lives in."""

    # -- the stream -----------------------------------------------------------------------------------------------

    pid = None

    @property
    def stderr_tail(self) -> str:
        """The last text written to standard error by now."""
        return self._life.stderr

    unfinished = False

    def write_nowait(self, frames: Sequence[bytes]) -> int:
        """Accept the frames that it still reads."""
        if self._exit_code is not None:
            raise trio.BrokenResourceError
        room = min(len(frames), max(0, self._life.deaf_after - self._read))
        for frame in frames[: int(room)]:
            self._read += 1
            self._to_server.send_nowait(frame)
        return int(room)

    async def writable(self) -> None:
        """Wait until it reads more."""
        await trio.sleep_forever()  # a deaf one stays deaf

    async def taken(self) -> None:
        """Wait until it reads."""
        await self._reading.wait()

    async def read(self) -> list[bytes]:
        """The frames that it has sent."""
        while not self._answers and self._exit_code is None:
            await self._answered.park()
        batch = list(self._answers)
        self._answers.clear()
        return batch

    async def loss(self) -> Loss:
        """The reason of its end."""
        await trio.lowlevel.checkpoint()
        message = "401 Unauthorized" if self._life.needs_auth else f"exited with code {self._exit_code}"
        return Loss(
            message,
            exit_code=self._exit_code,
            stderr_tail=self._life.stderr,
            needs_auth=self._life.needs_auth,
        )

    # -- the server -----------------------------------------------------------------------------------------------

    def die(self, exit_code: int) -> None:
        """End with this exit code, unless it has ended."""
        if self._exit_code is None:
            self._exit_code = exit_code
            self._answered.unpark_all()

    def hang(self) -> None:
        """Send nothing any more."""
        self._hangs = True

    def garble(self, line: str) -> None:
        """Send a line that is no message."""
        self._send(line.encode())

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, unless it has ended or fallen silent."""
        self._send(json.dumps(message).encode())

    def _send(self, frame: bytes) -> None:
        silent = self._hangs or trio.current_time() >= self._greeted_at + self._life.silent_after
        if self._exit_code is None and not silent:
            self._answers.append(frame)
            self._answered.unpark_all()

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification, on each stream of a listening client if there is one."""
        stamps: list[dict[str, Any]] = [{"_meta": {_SUBSCRIPTION: request_id}} for request_id in self._listening]
        for stamp in stamps or [{}]:
            self.send({"jsonrpc": "2.0", "method": method, "params": {**params, **stamp}})

    async def live(self) -> None:
        """Answer requests, until it ends."""
        await trio.sleep(self._life.connects_after)
        self._reading.set()
        if self._life.mute:
            return
        async for frame in self._requests:
            if self._exit_code is not None:
                return
            self._handle(json.loads(frame))

    def _handle(self, message: dict[str, Any]) -> None:
        method, request_id = message.get("method"), message.get("id")
        params: dict[str, Any] = message.get("params") or {}
        if method == CANCELLED:
            self._server.cancelled.append(params["requestId"])
            self._listening.discard(params["requestId"])
            if (scope := self._running.get(params["requestId"])) is not None:
                scope.cancel()
        elif request_id is not None and method is not None:
            self._answer(request_id, method, params)

    @property
    def _instructions(self) -> dict[str, str]:
        said = self._server.instructions
        return {} if said is None else {"instructions": said}

    def _answer(self, request_id: int | str, method: str, params: dict[str, Any]) -> None:
        match method:
            case "server/discover" if self._life.dies_of_probe:
                self.die(self._life.exit_code)
            case "server/discover" if self._life.modern:
                self._probed()
                self._modern_session = True
                self._result(request_id, self._discovery())
                self._greeted()
            case "initialize" if not self._modern_session:
                greeting = {
                    "protocolVersion": _HANDSHAKE,
                    "capabilities": self._server.capabilities,
                    "serverInfo": self._server.info,
                    **self._instructions,
                }
                self._result(request_id, greeting)
                self._greeted()
            case "tools/list" | "resources/list" | "resources/templates/list" | "prompts/list":
                self._server.listings.append((trio.current_time(), method))
                caching = _caching(modern=self._modern_session, seconds=self._server.fresh_for.get(method, 0))
                self._result(request_id, {**self._listing(method), **caching})
            case "tools/call":
                name: str = params["name"]
                arguments: dict[str, Any] = params.get("arguments", {})
                self._server.calls.append((self._number, name, arguments))
                self._nursery.start_soon(self._call, request_id, method, params)
            case (
                "resources/read"
                | "prompts/get"
                | "completion/complete"
                | "resources/subscribe"
                | "resources/unsubscribe"
            ):
                self._server.requests.append((self._number, method, params))
                self._nursery.start_soon(self._call, request_id, method, params)
            case "subscriptions/listen" if self._server.capabilities.get("resources"):
                self._server.requests.append((self._number, method, params))
                self._listening.add(request_id)
                accepted = {"notifications": params["notifications"], "_meta": {_SUBSCRIPTION: request_id}}
                acknowledged = "notifications/subscriptions/acknowledged"
                self.send({"jsonrpc": "2.0", "method": acknowledged, "params": accepted})
            case "ping":
                self._probed()
                self._result(request_id, {})
            case _ if method in self._server.answers:
                self._server.requests.append((self._number, method, params))
                self._nursery.start_soon(self._call, request_id, method, params)
            case _:
                self.send(
                    {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32601, "message": "Method not found"}}
                )

    def _probed(self) -> None:
        if self._greeted_at < math.inf:
            self._server.probes.append(trio.current_time())

    def _greeted(self) -> None:
        if self._greeted_at < math.inf:
            return  # a later probe
        self._greeted_at = trio.current_time()
        if not math.isinf(self._life.dies_after):
            self._nursery.start_soon(self._die_later)

    async def _die_later(self) -> None:
        await trio.sleep(self._life.dies_after)
        self.die(self._life.exit_code)

    async def _call(self, request_id: int | str, method: str, params: dict[str, Any]) -> None:
        tell_progress.set(lambda report: self._progress(params, report))
        with trio.CancelScope() as self._running[request_id]:
            try:
                complete = {"resultType": "complete"} if self._modern_session else {}
                self._result(request_id, {**complete, **await self._outcome(method, params)})
            except Refusal as refusal:
                self.send({"jsonrpc": "2.0", "id": request_id, "error": refusal.error})
        del self._running[request_id]

    def _progress(self, params: dict[str, Any], report: dict[str, Any]) -> None:
        token = params.get("_meta", {}).get("progressToken")
        if token is not None:
            report = {"progressToken": token, **report}
            self.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": report})

    async def _outcome(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method in self._server.answers:
            return cast("dict[str, Any]", await self._server.answers[method](params))
        if method not in _ANSWERS:
            await trio.lowlevel.checkpoint()
            return {"completion": self._completion(params)} if method == "completion/complete" else {}
        try:
            value = await self._function(method, params)
        except Refusal:
            raise
        except Exception as error:  # a tool that raises is a tool that answers with `isError`
            if method != "tools/call":
                raise Refusal(-32603, str(error)) from None
            return {"content": [{"type": "text", "text": str(error)}], "isError": True}
        if isinstance(value, Ask):
            self._asked.append(value.then)
            state = str(len(self._asked) - 1)
            return {"resultType": "input_required", "inputRequests": value.requests, "requestState": state}
        answer = _ANSWERS[method](params, value)
        if self._modern_session and method == "resources/read":
            answer |= _caching(modern=True, seconds=self._server.fresh_for.get(method, 0))
        return answer

    def _completion(self, params: dict[str, Any]) -> dict[str, Any]:
        argument = params["argument"]
        known = self._server.completions.get(argument["name"], ())
        return {"values": [value for value in known if value.startswith(argument["value"])][:100]}

    def _function(self, method: str, params: dict[str, Any]) -> Awaitable[object]:
        if "requestState" in params:
            return self._asked[int(params["requestState"])](params.get("inputResponses", {}))
        if method == "resources/read":
            return self._readable(params["uri"])({"uri": params["uri"]})
        functions = self._server.tools if method == "tools/call" else self._server.prompts
        if params["name"] not in functions and method != "tools/call":
            raise Refusal(-32602, f"Unknown prompt: {params['name']}")
        return functions[params["name"]](params.get("arguments", {}))

    def _readable(self, uri: str) -> ToolFunction:
        for listed, function in self._server.resources.items():
            if listed == uri or ("{" in listed and uri.startswith(listed.partition("{")[0])):
                return function
        raise Refusal(-32602, "Resource not found", {"uri": uri})

    def _result(self, request_id: int | str, result: Mapping[str, Any]) -> None:
        self.send({"jsonrpc": "2.0", "id": request_id, "result": result})

    def _listing(self, method: str) -> dict[str, Any]:
        server, uris = self._server, list(self._server.resources)
        match method:
            case "tools/list":
                return {"tools": [self._tool(name) for name in server.tools]}
            case "resources/list":
                return {"resources": [{"uri": uri, "name": uri} for uri in uris if "{" not in uri]}
            case "resources/templates/list":
                return {"resourceTemplates": [{"uriTemplate": uri, "name": uri} for uri in uris if "{" in uri]}
            case _:
                return {"prompts": [{"name": name} for name in server.prompts]}

    def _tool(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "inputSchema": {"type": "object"},
            "annotations": dict(self._server.annotations.get(name, {})),
            **self._server.declared.get(name, {}),
        }

    def _discovery(self) -> dict[str, Any]:
        return {
            "supportedVersions": [_MODERN],
            "capabilities": self._server.capabilities,
            "_meta": {"io.modelcontextprotocol/serverInfo": self._server.info},
            **self._instructions,
            **_caching(modern=True),
        }


def _caching(*, modern: bool, seconds: float = 0) -> dict[str, Any]:
    return {"resultType": "complete", "ttlMs": int(seconds * 1000), "cacheScope": "private"} if modern else {}


def _tool_answer(params: dict[str, Any], value: object) -> dict[str, Any]:
    del params
    if isinstance(value, str):
        return {"content": [{"type": "text", "text": value}]}
    return {"content": [], "structuredContent": value}


def _contents(params: dict[str, Any], value: object) -> dict[str, Any]:
    held = {"blob": b64encode(value).decode()} if isinstance(value, bytes) else {"text": str(value)}
    return {"contents": [{"uri": params["uri"], **held}]}


def _message(params: dict[str, Any], value: object) -> dict[str, Any]:
    del params
    return {"messages": [{"role": "user", "content": {"type": "text", "text": str(value)}}]}


_ANSWERS: Mapping[str, Callable[[dict[str, Any], object], dict[str, Any]]] = {
    "tools/call": _tool_answer,
    "resources/read": _contents,
    "prompts/get": _message,
}
