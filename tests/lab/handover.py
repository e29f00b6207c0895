"""Clients that call all along, of either era, plain ones and those of the SDK, while gateways come and go."""

import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import httpx2
import trio
from mcp.client import Client

from mcp_nursery.actors.nurseries import run_alongside

from .raw_clients import NEW, request

TOOL = "pid"
"""A tool that says by which process it was answered."""


class Callers:
    """What clients were answered: by whom, and what failed."""

    def __init__(self, names: Iterable[str]) -> None:
        self.answers: dict[str, Counter[str]] = {name: Counter() for name in names}
        """By client: its answers, by the text of them."""
        self.failures: list[str] = []
        self._changed = trio.Event()
        self._stopping, self._stopped = trio.Event(), trio.Event()

    def count(self, client: str, text: str) -> None:
        self.answers[client][text] += 1
        self._changed.set()
        self._changed = trio.Event()

    def fail(self, client: str, problem: object) -> None:
        self.failures.append(f"{client}: {problem!r}")
        self.count(client, "")

    async def each(self, holds: Callable[[Counter[str]], bool]) -> None:
        """Wait until this holds for the answers of each client.

        Raises:
            AssertionError: Not within a minute.
        """
        with trio.move_on_after(60):
            while not all(map(holds, self.answers.values())):
                await self._changed.wait()
            return
        raise AssertionError((self.answers, self.failures))

    async def more_than(self, seen: Mapping[str, int]) -> None:
        """Wait until each client has more answers than it had."""
        while not all(sum(self.answers[name].values()) > count for name, count in seen.items()):
            await self._changed.wait()

    async def stop(self) -> None:
        """Have all clients end, each after its call."""
        self._stopping.set()
        await self._stopped.wait()

    async def run(self, clients: Iterable[Callable[[], Awaitable[None]]]) -> None:
        """Run clients until they are to end."""
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client)
        self._stopped.set()

    async def plain(self, name: str, url: str, *, keeps: bool) -> None:
        """A client of 2026-07-28 without the SDK, with a connection for all calls or one for each."""
        frame = request(NEW, 1, "tools/call", name=TOOL, arguments={})
        headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        headers |= {"mcp-protocol-version": NEW, "mcp-method": "tools/call", "mcp-name": TOOL}
        headers |= {} if keeps else {"connection": "close"}
        async with httpx2.AsyncClient(timeout=60) as http:
            while not self._stopping.is_set():
                try:
                    said = await http.post(url, content=frame, headers=headers)
                    result = said.json()["result"]
                except (httpx2.HTTPError, ValueError, KeyError) as error:
                    self.fail(name, error)
                else:
                    text = result["content"][0]["text"]
                    if said.status_code == 200 and not result.get("isError"):
                        self.count(name, text)
                    else:
                        self.fail(name, json.dumps(result))

    async def sdk(self, name: str, url: str, mode: str) -> None:
        """A client of the SDK, which is opened once."""
        async with Client(url, mode=mode) as client:
            while not self._stopping.is_set():
                try:
                    result = await client.call_tool(TOOL, {})
                except Exception as error:
                    self.fail(name, error)
                else:
                    text = "".join(each.text for each in result.content if each.type == "text")
                    self.fail(name, text) if result.is_error else self.count(name, text)


@asynccontextmanager
async def calling(url: str, *, modes: tuple[str, ...] = (NEW, "auto"), each: int = 2) -> AsyncGenerator[Callers, None]:
    """So many clients of each kind, which call until they are stopped, or the block is left."""
    plain = {f"plain {number} {keeps}": keeps for number in range(each) for keeps in (True, False)}
    sdk = {f"sdk {number} {mode}": mode for number in range(each) for mode in modes}
    callers = Callers([*plain, *sdk])
    clients = [partial(callers.plain, name, url, keeps=keeps) for name, keeps in plain.items()]
    clients += [partial(callers.sdk, name, url, mode) for name, mode in sdk.items()]
    async with run_alongside(partial(callers.run, clients)):
        yield callers
