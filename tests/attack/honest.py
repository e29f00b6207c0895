"""The process of honest clients of the gateway: neighbours of who is hostile, and those who call hostile servers."""

import itertools
import json
from collections import Counter
from contextlib import AsyncExitStack, closing
from typing import Any

import httpx2
import trio

from ..lab.raw_clients import NEW, OLD, HttpClient, StdioClient, answer_in, opened, request
from .channel import Channel
from .figures import Calls, Outcome
from .host import CALL_TIMEOUT

LASTING = 30.0
"""Seconds after which a client gives up."""


class Client:
    """One that calls again and again."""

    def __init__(self, raw: HttpClient | StdioClient, version: str) -> None:
        self.raw, self._version = raw, version
        self._numbers = itertools.count(2)
        self.calls = Calls()
        self.lost: list[str] = []
        self.outcomes: list[Outcome] = []

    async def call(self, tool: str, **arguments: Any) -> tuple[Any, float]:
        """The result, or in words why there is none; and how long it took."""
        number = next(self._numbers)
        frame = request(self._version, number, "tools/call", name=tool, arguments=arguments)
        began, said = trio.current_time(), None
        try:
            said = answer_in(await self.raw.ask(frame), number)
        except (httpx2.HTTPError, AssertionError, KeyError, ValueError) as error:
            said = {"none": repr(error)[:300]}
        return said, trio.current_time() - began

    async def neighbour(self) -> None:
        while True:
            said, took = await self.call("calm_echo", text="heard?")
            self.calls.add(trio.current_time() - took)
            if said.get("result", {}).get("structuredContent") != {"result": "heard?"}:
                self.lost.append(json.dumps(said)[:300])
            await trio.sleep(0.005)

    async def victim(self, server: str, name: str) -> None:
        for number in itertools.count():
            key = f"{server}.{name}.{number}"
            said, took = await self.call(f"{server}_{'read' if number % 3 == 2 else 'once'}", key=key)
            most = 2 if number % 3 == 2 else 1
            self.outcomes.append(
                Outcome(server, key, _delivery(said), json.dumps(said)[:300], most, took, CALL_TIMEOUT)
            )
            await trio.sleep(0.02)


def _delivery(said: Any) -> str:
    """As the words for a model have it."""
    if "none" in said:
        return "none"
    if "error" in said:
        return "answered"
    result = said["result"]
    if not result.get("isError"):
        return "result"
    text = "".join(block.get("text", "") for block in result.get("content", ()))
    return "not_sent" if "\nstage: send\n" in text or "\nstage: connect\n" in text else "unknown"


async def use(pipe: tuple[int, int], channel: Channel) -> None:
    """Call while everything else goes on."""
    at = await channel.hear()
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:

        async def client(port: int, version: str, **headers: str) -> Client:
            made = httpx2.AsyncClient(timeout=LASTING, headers=headers)
            http = await stack.enter_async_context(made)
            url = f"http://127.0.0.1:{port}/mcp"
            return Client(await opened(HttpClient(http, url, version), version), version)

        writing, reading = (stack.enter_context(closing(trio.lowlevel.FdStream(fd))) for fd in pipe)
        streams = StdioClient(writing, reading)
        nursery.start_soon(streams.run)

        neighbours = {
            "the gateway, new": await client(at["port"], NEW),
            "the gateway, old": await client(at["port"], OLD),
            "the gateway on standard streams": Client(await opened(streams, OLD), OLD),
            "the guarded gateway": await client(at["guarded"], NEW, authorization=f"Bearer {at['token']}"),
        }
        victims = [await client(at["port"], version) for version in (NEW, OLD)]
        for each in neighbours.values():
            nursery.start_soon(each.neighbour)
        await channel.ask("ready")
        for each in neighbours.values():
            each.calls.cut()
        await channel.hear()
        quiet = {name: each.calls.cut() for name, each in neighbours.items()}
        async with trio.open_nursery() as calling:
            for number, each in enumerate(victims):
                calling.start_soon(each.victim, at["servers"][number % len(at["servers"])], f"v{number}")
            await channel.hear()
            calling.cancel_scope.cancel()
        waits = {name: (quiet[name], each.calls.cut()) for name, each in neighbours.items()}
        nursery.cancel_scope.cancel()
    await channel.ask("calm")
    answers = Counter(message["id"] for message in map(json.loads, streams.heard) if "method" not in message)
    twice = [f"{count} answers to request {number}" for number, count in answers.items() if count > 1]
    everybody = [*neighbours.values(), *victims]
    await channel.tell(
        {
            "waits": waits,
            "lost": [*twice, *(f"{name}: {words}" for name, each in neighbours.items() for words in each.lost)],
            "outcomes": [outcome for each in everybody for outcome in each.outcomes],
        }
    )
