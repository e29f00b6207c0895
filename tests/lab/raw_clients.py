"""Clients that write and read raw JSON-RPC, over standard streams and over HTTP: what comes is kept as it came."""

import json
import os
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from functools import partial
from typing import Any

import httpx2
import trio

from mcp_nursery.supervisor.gateway import Gateway, serve_stdio
from mcp_nursery.supervisor.gateway.stdio.streams import ClientStreams

OLD, NEW = "2025-11-25", "2026-07-28"


def exact(text: str) -> Any:
    """A JSON text as a value in which no number has lost a digit."""
    return json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=lambda name: f"<{name}>")


class StdioClient:
    """A client of what reads and writes these streams. `heard` is every frame, as text."""

    def __init__(self, writing: trio.abc.SendStream, reading: trio.abc.ReceiveStream, pid: int | None = None) -> None:
        self._writing, self._reading = writing, reading
        self._rest = b""
        self.pid = pid
        self.heard: list[str] = []
        self._news = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        while chunk := await self._reading.receive_some(1 << 16):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self.heard += [line.decode() for line in lines]
            self._news.unpark_all()

    async def send(self, *frames: str) -> None:
        await self._writing.send_all(b"".join(frame.encode() + b"\n" for frame in frames))

    async def until(self, condition: Callable[[Any], object], since: int = 0) -> None:
        """Wait until a frame fits."""
        while not any(condition(json.loads(frame)) for frame in self.heard[since:]):
            since = len(self.heard)
            await self._news.park()

    async def ask(self, frame: str, on_frame: Callable[[str], Awaitable[object]] | None = None) -> list[str]:
        """Send a request; all that comes until its answer, as text. `on_frame` is called with each."""
        number, seen = json.loads(frame)["id"], len(self.heard)
        frames: list[str] = []
        await self.send(frame)
        while True:
            for text in self.heard[seen:]:
                seen += 1
                frames.append(text)
                message = json.loads(text)
                if message.get("id") == number and "method" not in message:
                    return frames
                if on_frame is not None:
                    await on_frame(text)
            if seen == len(self.heard):
                await self._news.park()


@asynccontextmanager
async def stdio_client(command: Sequence[str], **options: Any) -> AsyncGenerator[StdioClient, None]:
    """A client of what this command starts. It has ended when the block is left."""
    async with trio.open_nursery() as nursery:
        run = trio.run_process
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "check": False, **options}
        process = await nursery.start(lambda task_status: run(command, **pipes, task_status=task_status))
        client = StdioClient(process.stdin, process.stdout, process.pid)
        nursery.start_soon(client.run)
        try:
            yield client
        finally:
            await process.stdin.aclose()


@asynccontextmanager
async def piped_client(gateway: Gateway, server: str | None) -> AsyncGenerator[StdioClient, None]:
    """A client of a gateway's stdio front in this loop."""
    (here, to), (back, there) = os.pipe(), os.pipe()
    for fd in (here, there):
        os.set_blocking(fd, False)
    async with trio.open_nursery() as nursery, trio.lowlevel.FdStream(to) as writing:
        nursery.start_soon(partial(serve_stdio, gateway, server, streams=ClientStreams(here, there)))
        async with trio.lowlevel.FdStream(back) as reading:
            client = StdioClient(writing, reading)
            nursery.start_soon(client.run)
            yield client
            nursery.cancel_scope.cancel()
    for fd in (here, there):
        os.close(fd)


class HttpClient:
    """A client of an endpoint. `unasked` are the frames of its stream of news, as text."""

    def __init__(self, http: httpx2.AsyncClient, url: str, version: str) -> None:
        self._http = http
        self._url = url
        self._version = version
        self.session: str | None = None
        self.unasked: list[str] = []
        self._news = trio.lowlevel.ParkingLot()

    def headers(self, frame: str) -> dict[str, str]:
        """Of the request that brings this frame."""
        message = json.loads(frame)
        headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        if self.session is not None:
            headers["mcp-session-id"] = self.session
        if message.get("method") != "initialize":
            headers["mcp-protocol-version"] = self._version
        if self._version == NEW and "method" in message:
            headers["mcp-method"] = message["method"]
            params = message.get("params", {})
            name = params.get("name") or params.get("uri") or params.get("taskId")
            headers |= {"mcp-name": name} if name else {}
        return headers

    async def ask(self, frame: str, on_frame: Callable[[str], Awaitable[object]] | None = None) -> list[str]:
        """Send a request; all that comes in its response, as text. `on_frame` is called with each."""
        heard: list[str] = []
        async with self._http.stream("POST", self._url, content=frame.encode(), headers=self.headers(frame)) as said:
            self.session = said.headers.get("mcp-session-id", self.session)
            if said.headers["content-type"] == "application/json":
                return [(await said.aread()).decode()]
            async for line in said.aiter_lines():
                if line.startswith("data: "):
                    heard.append(line.removeprefix("data: "))
                    if on_frame is not None:
                        await on_frame(heard[-1])
        return heard

    async def send(self, *frames: str) -> None:
        for frame in frames:
            said = await self._http.post(self._url, content=frame.encode(), headers=self.headers(frame))
            assert said.status_code == 202, (said.status_code, said.text)

    async def end(self) -> None:
        """End the session."""
        assert self.session is not None
        said = await self._http.delete(self._url, headers={"mcp-session-id": self.session})
        assert said.status_code == 200

    async def listen(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read the stream of news."""
        assert self.session is not None
        headers = {"accept": "text/event-stream", "mcp-session-id": self.session, "mcp-protocol-version": OLD}
        async with self._http.stream("GET", self._url, headers=headers) as said:
            assert said.status_code == 200
            task_status.started()
            async for line in said.aiter_lines():
                if line.startswith("data: "):
                    self.unasked.append(line.removeprefix("data: "))
                    self._news.unpark_all()

    async def until(self, condition: Callable[[Any], object]) -> None:
        """Wait until a frame of the stream of news fits."""
        while not any(condition(json.loads(frame)) for frame in self.unasked):
            await self._news.park()


@asynccontextmanager
async def http_client(url: str, version: str) -> AsyncGenerator[HttpClient, None]:
    """A client of this endpoint."""
    async with httpx2.AsyncClient(timeout=60) as http:
        yield HttpClient(http, url, version)


def request(version: str, number: int, method: str, *, able: dict[str, Any] | None = None, **params: Any) -> str:
    if version == NEW:
        meta = {"protocolVersion": NEW, "clientCapabilities": able or {}, "clientInfo": {"name": "raw", "version": "1"}}
        own = params.get("_meta", {})
        params["_meta"] = own | {f"io.modelcontextprotocol/{key}": value for key, value in meta.items()}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


async def opened(client: Any, version: str) -> Any:
    """Shake hands."""
    about: dict[str, Any] = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    if version == OLD:
        [said] = await client.ask(request(OLD, 1, "initialize", **about))
        assert "result" in json.loads(said)
        await client.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')
    return client


def answer_in(frames: Sequence[str], number: int) -> Any:
    """The only answer among what came."""
    answers = [message for message in map(json.loads, frames) if "method" not in message]
    assert [message["id"] for message in answers] == [number], frames
    return answers[0]
