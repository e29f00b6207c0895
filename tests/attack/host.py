"""The process under attack: a supervisor of hostile servers and of a quiet one, and a gateway with every front."""

import os
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import psutil
import trio

from mcp_nursery.supervisor import (
    Call,
    CallError,
    HttpTransport,
    NurseryError,
    OAuth,
    RestartPolicy,
    ServerSpec,
    SseTransport,
    StdioTransport,
    Supervisor,
    ToolResult,
    WebSocketTransport,
    open_supervisor,
)
from mcp_nursery.supervisor.gateway import OAuthResource, gateway_callbacks, open_gateway, open_http, serve_stdio
from mcp_nursery.supervisor.gateway.http.application import serve_http
from mcp_nursery.supervisor.gateway.stdio.stdio_gateway import ClientStreams
from mcp_nursery.supervisor.http_server.listening import bind_socket

from ..lab.processes import Journal, lab
from .channel import Channel
from .figures import ECHO, Calls, Outcome, Turns

CALL_TIMEOUT = 1.0
"""Seconds of a call that names no other."""
CONNECT = 2.0
"""Seconds of a start."""
HEALED = 10.0
"""Seconds after which a server that is honest again answers, and what was left is gone."""
SPARE = 8
"""Open files that may be more than before: connections that are kept for later."""
POLICY = RestartPolicy(delays=[0.05] * 10_000)
CREDENTIALS = OAuth(grant="client_credentials", client_id="mine", client_secret="mine-5ecret")


def _spec(name: str, place: dict[str, Any]) -> ServerSpec:
    match place["kind"]:
        case "stdio":
            transport = StdioTransport(place["command"], place["args"])
        case "ws":
            transport = WebSocketTransport(place["url"])
        case "sse":
            transport = SseTransport(place["url"])
        case _:
            transport = HttpTransport(place["url"], auth=CREDENTIALS if name == "guarded" else None)
    return ServerSpec(name, transport, policy=POLICY, breaker=None, connect_timeout=CONNECT, call_timeout=CALL_TIMEOUT)


class Neighbour:
    """Calls a quiet server again and again."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.calls = Calls()
        self.lost: list[str] = []

    async def call(self) -> None:
        while True:
            began = trio.current_time()
            try:
                result = await self._supervisor.call_tool("echo", {"text": "heard?"}, server="calm", timeout=5)
                if result.structured != {"result": "heard?"}:
                    self.lost.append(repr(result)[:300])
            except NurseryError as error:
                self.lost.append(repr(error)[:300])
            self.calls.add(began)
            await trio.sleep(0.002)


class Callers:
    """Those who call the hostile servers, and what became of each call."""

    def __init__(self, supervisor: Supervisor, seed: int) -> None:
        self._supervisor, self._seed = supervisor, seed
        self.over = False
        self.outcomes: list[Outcome] = []

    async def call(self, server: str, caller: int) -> None:
        chance, number = Random(f"{self._seed}/{server}/{caller}"), 0
        while not self.over:
            number += 1
            await self._one(chance, server, f"{server}.{caller}.{number}")
            await trio.sleep(chance.choice((0, 0.005, 0.05)))

    async def _one(self, chance: Random, server: str, key: str) -> None:
        again = chance.random() < 0.4
        if server == "lab":
            tool, arguments = ("look" if again else "commit"), {"token": key, "takes": 0.01}
        else:
            tool, arguments = ("read" if again else "once"), {"key": key}
        resend = chance.choice(("safe", "safe", "never", "always"))
        timeout = chance.choice((0.05, 0.3, 1.0))
        given_up = chance.choice((None, None, None, 0.01, 0.1))
        when_down = chance.choice(("fail", "wait", "reconnect"))
        most = 2 if resend == "always" or (again and resend == "safe") else 1
        settings = {"server": server, "timeout": timeout, "resend": resend, "when_down": when_down}
        began, outcome = trio.current_time(), None
        with trio.CancelScope(deadline=began + given_up if given_up else float("inf")):
            if chance.random() < 0.2:
                (outcome,) = await self._supervisor.gather([Call(tool, arguments, **settings)])
            else:
                outcome = await self._outcome(tool, arguments, settings)
        took = trio.current_time() - began
        bound = min(timeout, given_up or timeout)
        self.outcomes.append(Outcome(server, key, _said(outcome), repr(outcome)[:300], most, took, bound))

    async def _outcome(self, tool: str, arguments: Any, settings: Any) -> Any:
        try:
            return await self._supervisor.call_tool(tool, arguments, **settings)
        except NurseryError as error:
            return error


def _said(outcome: Any) -> str:
    if isinstance(outcome, ToolResult):
        return "result"
    if isinstance(outcome, CallError):
        return str(outcome.delivery)
    return "taken back" if outcome is None else "no call"


class Host:
    """What is attacked, and who uses it."""

    def __init__(self, supervisor: Supervisor, seed: int, ports: Mapping[int, str], plants: AbstractSet[str]) -> None:
        self._supervisor, self._ports, self._plants = supervisor, ports, plants
        self._neighbour, self._callers = Neighbour(supervisor), Callers(supervisor, seed)
        self._hostile = [status.name for status in supervisor.status() if status.name not in ("calm", "load")]
        self._kept: list[Any] = []

    async def endure(self, channel: Channel) -> dict[str, Any]:
        """Be quiet, be attacked, be well again: all that can be said of it."""
        turns = Turns()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._neighbour.call)
            await channel.ask("ready")
            self._neighbour.calls.cut()
            await channel.hear()
            quiet, files = self._neighbour.calls.cut(), open_files()
            turns.before_task_step(trio.lowlevel.current_task())
            trio.lowlevel.add_instrument(turns)
            async with trio.open_nursery() as callers:
                for server in self._hostile:
                    for caller in range(3):
                        callers.start_soon(self._callers.call, server, caller)
                for plant in self._plants - {"twice"}:
                    nursery.start_soon(getattr(self, f"_plant_{plant}"))
                await channel.hear()
                self._callers.over = True
            beside = self._neighbour.calls.cut()
            await channel.ask("calm")
            sick = await self._heal(files)
            trio.lowlevel.remove_instrument(turns)
            nursery.cancel_scope.cancel()
        return {
            "waits": (quiet, beside),
            "lost": self._neighbour.lost,
            "turn": (turns.cpu, turns.wall, turns.slowest),
            "outcomes": self._callers.outcomes,
            "sick": sick,
        }

    async def _heal(self, files: int) -> list[str]:
        """What is not as it was when everybody has been honest for a while."""
        sick = [problem for server in self._hostile if (problem := await self._healed(server))]
        with trio.move_on_after(HEALED):
            while open_files() > files + SPARE or any(each.calls.in_flight for each in self._servers()):  # noqa: ASYNC110 - others close them
                await trio.sleep(0.02)
        busy = {each.name: each.calls.in_flight for each in self._servers() if each.calls.in_flight}
        sick += [f"calls in flight: {busy}"] if busy else []
        if open_files() > files + SPARE:
            sick.append(f"open files: {open_files()}, and {files} before; {_connections(self._ports)}")
        return sick

    def _servers(self) -> list[Any]:
        return [status for status in self._supervisor.status() if status.name != "calm"]

    async def _healed(self, server: str) -> str | None:
        tool, words = ("commit", {"token": "healed"}) if server == "lab" else ("once", {"key": f"{server}.healed"})
        problem: Any = None
        with trio.move_on_after(HEALED):
            while True:
                try:
                    await self._supervisor.call_tool(tool, words, server=server, when_down="wait", timeout=5)
                    return None
                except NurseryError as error:
                    problem = error
                with suppress(NurseryError):
                    await self._supervisor.reconnect(server)
                await trio.sleep(0.1)
        return f"{server} is not well again: {problem!r}"

    # -- faults that are planted ------------------------------------------------------------------------------------

    async def _plant_turn(self) -> None:
        began = trio.current_time()
        while trio.current_time() < began + 0.2:
            pass
        await trio.sleep_forever()

    async def _plant_late(self) -> None:
        """Turns that are short, one after another: nobody else has his."""
        while True:
            for _ in range(20):
                began = trio.current_time()
                while trio.current_time() < began + 0.03:
                    pass
                await trio.lowlevel.cancel_shielded_checkpoint()
            await trio.sleep(0.05)

    async def _plant_memory(self) -> None:
        self._kept.append(b"x" * (900 << 20))
        await trio.sleep_forever()

    async def _plant_files(self) -> None:
        self._kept.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(100))
        await trio.sleep_forever()


def _connections(ports: Mapping[int, str]) -> str:
    """How many there are to or from each of these."""
    found = psutil.Process().net_connections("tcp")
    ends = [(each.status, end.port) for each in found for end in (each.laddr, each.raddr) if end]
    kinds = Counter(f"{status.lower()} {ports[port]}" for status, port in ends if port in ports)
    kinds.update(_kinds_of_files())
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def _kinds_of_files() -> list[str]:
    """The kind of each open file: `socket`, `pipe`, or its path."""
    kinds = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one of this list
            kinds.append(os.readlink(f"/proc/self/fd/{name}").partition(":[")[0])
    return kinds


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@asynccontextmanager
async def _fronts(stack: AsyncExitStack, gateway: Any, issuer: str, pipes: list[tuple[int, int]]):
    """Two over HTTP, of which one wants tokens, and two on standard streams. Gives the ports."""
    resource = OAuthResource(issuer, "https://gateway.example", jwks=f"{issuer.removesuffix('/tenant')}/keys")
    plain = await stack.enter_async_context(open_http(gateway))
    guarded = await stack.enter_async_context(open_http(gateway, oauth=resource))
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        ports = []
        for application in (plain, guarded):
            listening = bind_socket("127.0.0.1", 0)
            ports.append(listening.getsockname()[1])
            nursery.start_soon(partial(serve_http, gateway, application, listening, drain=1, stop=stop.wait))
        for reading, writing in pipes:
            for fd in (reading, writing):
                os.set_blocking(fd, False)  # as `open_client_streams` does: the loop stood still until a client read
            nursery.start_soon(partial(serve_stdio, gateway, streams=ClientStreams(reading, writing)))
        yield ports
        stop.set()
        nursery.cancel_scope.cancel()


async def host(
    seed: int, channel: Channel, pipes: list[tuple[int, int]], folder: Path, plants: AbstractSet[str]
) -> None:
    """Supervise whom the attackers name."""
    said = await channel.hear()
    specs = [
        *(ServerSpec(name, StdioTransport(ECHO[0], ECHO[1:])) for name in ("calm", "load")),
        lab(journal=Journal(folder / "journal"), policy=POLICY, breaker=None, call_timeout=CALL_TIMEOUT),
        *(_spec(name, place) for name, place in said["places"].items()),
    ]
    options = {"callbacks": gateway_callbacks(), "template": "{server}_{tool}", "state": folder / "state.db"}
    async with AsyncExitStack() as stack:
        supervisor = await stack.enter_async_context(open_supervisor(specs, **options))
        gateway = await stack.enter_async_context(open_gateway(supervisor))
        for spec in specs:
            await supervisor.wait_connected(spec.name)
        ports = await stack.enter_async_context(_fronts(stack, gateway, said["issuer"], pipes))
        await channel.ask({"port": ports[0], "guarded": ports[1], "pid": os.getpid()})
        named = {ports[0]: "the gateway", ports[1]: "the guarded gateway"}
        named |= {urlsplit(place["url"]).port: name for name, place in said["places"].items() if "url" in place}
        report = await Host(supervisor, seed, named, plants).endure(channel)
        await channel.tell(report)
