"""Runs a list of exchanges through a supervisor and through the SDK's client, and keeps what each got and sent."""

import copy
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import define, field
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types import REQUEST_TIMEOUT, Implementation, ListRootsResult, Root
from pydantic import FileUrl, ValidationError

from mcp_nursery.actors.session.session import client_info
from mcp_nursery.supervisor import (
    Call,
    CallTimeout,
    InvalidResult,
    NurseryError,
    ServerError,
    ServerSpec,
    StdioTransport,
    Supervisor,
    UnknownTool,
    open_supervisor,
)
from mcp_nursery.supervisor.errors import InvalidArguments

from ..lab import PROGRAMS
from .exchanges import MODERN, Exchange

SERVER = PROGRAMS / "stdio_scripted.py"
WITHIN = 15


@define
class Seen:
    """What came of one exchange, as plain values."""

    outcome: Any = None
    reports: list[Any] = field(factory=list)
    """The progress, as [progress, total, message], in the order of the callback."""
    reports_before: int = 0
    """How many there were when the call returned."""
    frames: list[Any] = field(factory=list)
    """What the server read, ids made comparable."""


@define
class Recording:
    """One run of a list through one client."""

    greeting: list[Any]
    """What the server read before the first exchange."""
    facts: Any
    """Protocol version, server info and instructions, as the client has them, and the tools listed."""
    seen: dict[str, Seen]


Run = tuple[Any, list[Seen]]
"""What a client says of the server, and what came of each exchange; the frames are the server's to tell."""


# -- the server -------------------------------------------------------------------------------------------------------


def command(folder: Path, era: str, exchanges: Sequence[Exchange]) -> tuple[list[str], Path]:
    """The command line of a server scripted for these exchanges, and its log. Its tools come in three pages."""
    kind = '"resultType":"complete",' if era == MODERN else ""
    calls = {one.name: [_of_era(step, kind) for step in one.steps] for one in exchanges}
    tools = [_tool(one.name, one.output) for one in exchanges if one.listed]
    badly = {**_tool("badly_annotated"), "inputSchema": BAD_HEADER}
    pages = [tools[::2], [_tool("mark"), badly], tools[1::2]]
    script, log = folder / "script.json", folder / "log"
    script.write_text(json.dumps({"pages": pages, "calls": calls}))
    return ["-I", "-S", str(SERVER), era, str(script), str(log)], log


BAD_HEADER = {"type": "object", "properties": {"a": {"type": "number", "x-mcp-header": "not a token"}}}


def _tool(name: str, output: Any = None) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}} | ({} if output is None else {"outputSchema": output})


def _of_era(step: Any, kind: str) -> Any:
    return step.replace("$KIND", kind) if isinstance(step, str) else step


# -- ours -------------------------------------------------------------------------------------------------------------


async def ours(arguments: Sequence[str], exchanges: Sequence[Exchange], within: float = WITHIN) -> Run:
    """Through a supervisor, its router and its actors."""
    return await _ours(arguments, exchanges, within, lambda supervisor, call: supervisor.call_tool(**call))


async def ours_in_bulk(arguments: Sequence[str], exchanges: Sequence[Exchange], within: float = WITHIN) -> Run:
    """As `ours`, each call as a fan-out of one."""

    async def made(supervisor: Supervisor, call: dict[str, Any]) -> Any:
        (answer,) = await supervisor.gather([Call(**call)])
        if isinstance(answer, NurseryError):
            raise answer
        return answer

    return await _ours(arguments, exchanges, within, made)


@contextmanager
def no_server_logs() -> Generator[None, None, None]:
    """Nobody hears what servers log, and so none is asked for it: the SDK's client asks for none either."""
    logger = logging.getLogger("mcp_nursery.server")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


async def _ours(
    arguments: Sequence[str],
    exchanges: Sequence[Exchange],
    within: float,
    made: Callable[[Supervisor, dict[str, Any]], Awaitable[Any]],
) -> Run:
    transport = StdioTransport(sys.executable, arguments)
    spec = ServerSpec("lab", transport, restart="temporary", extensions={})  # the SDK's client announces none either
    with trio.fail_after(within), no_server_logs():
        async with open_supervisor([spec], roots="cwd") as supervisor:
            status = await supervisor.wait_connected("lab")

            async def call(exchange: Exchange, on_progress: Any) -> Any:
                asked = {
                    "name": exchange.name,
                    "arguments": exchange.arguments,
                    "server": "lab",
                    "meta": exchange.meta,
                    "timeout": exchange.timeout,
                    "on_progress": on_progress,
                }
                result = await made(supervisor, asked)
                return _result(result.content, result.structured, result.is_error, result.meta)

            async def mark() -> None:
                await supervisor.call_tool("mark", server="lab")

            facts = [
                status.protocol_version,
                status.server_info,
                status.instructions,
                sorted(tool.tool for tool in supervisor.tools),
            ]
            return facts, await _run(exchanges, call, mark)


def _ours_error(error: Exception) -> Any:
    match error:
        case ServerError():
            return ["error", error.code, error.message, error.data]
        case InvalidResult():
            return ["refused"]
        case InvalidArguments():
            return ["unsendable"]
        case CallTimeout():
            return ["timeout"]
        case UnknownTool():
            return ["unknown tool"]
        case _:
            raise error


# -- the SDK's --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def sdk_client(arguments: Sequence[str]):
    """The SDK's client over its own stdio transport; it says the same of itself as we do."""
    parameters = StdioServerParameters(command=sys.executable, args=list(arguments))
    with open(os.devnull, "w") as nowhere:  # noqa: ASYNC230
        async with Client(
            stdio_client(parameters, errlog=nowhere),
            client_info=Implementation.model_validate(client_info()),
            list_roots_callback=_roots,
        ) as client:
            yield client


async def _roots(_context: Any) -> ListRootsResult:
    """As the supervisor says."""
    await trio.lowlevel.checkpoint()
    return ListRootsResult(roots=[Root(uri=FileUrl(Path.cwd().as_uri()))])


async def sdks(arguments: Sequence[str], exchanges: Sequence[Exchange], within: float = WITHIN) -> Run:
    """Through the SDK's client."""
    with trio.fail_after(within):
        async with sdk_client(arguments) as client:
            tools, cursor = [], None
            while True:
                page = await client.list_tools(cursor=cursor)
                tools += [tool.name for tool in page.tools]
                if (cursor := page.next_cursor) is None:
                    break

            async def call(exchange: Exchange, on_progress: Any) -> Any:
                result = await client.call_tool(
                    exchange.name,
                    exchange.arguments,
                    read_timeout_seconds=exchange.timeout,
                    progress_callback=on_progress,
                    meta=exchange.meta,
                )
                return _result(result.content, result.structured_content, result.is_error, result.meta)

            async def mark() -> None:
                await client.call_tool("mark")

            info = client.server_info.model_dump(by_alias=True, mode="json", exclude_none=True)
            facts = [client.protocol_version, info, client.instructions, sorted(tools)]
            return facts, await _run(exchanges, call, mark)


def _sdks_error(error: Exception, exchange: Exchange) -> Any:
    match error:
        case MCPError(code=code) if code == REQUEST_TIMEOUT and exchange.timeout is not None:
            return ["timeout"]
        case MCPError(code=code, message=message):
            return ["error", code, message, error.data]
        case ValidationError() if error.title == "CallToolRequestParams":
            return ["unsendable"]
        case ValidationError() | RuntimeError():
            return ["refused"]
        case ValueError():
            return ["unsendable"]
        case _:
            raise error


# -- both -------------------------------------------------------------------------------------------------------------


async def _run(exchanges: Sequence[Exchange], call: Callable[..., Any], mark: Callable[[], Any]) -> list[Seen]:
    await mark()
    seen = []
    for exchange in exchanges:
        seen.append(await _one(exchange, call))
        await mark()
    return seen


async def _one(exchange: Exchange, call: Callable[..., Any]) -> Seen:
    seen, scope = Seen(), trio.CancelScope()

    async def on_progress(*report: Any) -> None:
        seen.reports.append(list(report))
        if exchange.cancels:
            scope.cancel()

    with scope, exchange.around():
        try:
            seen.outcome = await call(exchange, on_progress if exchange.progress else None)
        except NurseryError as error:
            seen.outcome = _ours_error(error)
        except (MCPError, RuntimeError, ValueError) as error:
            seen.outcome = _sdks_error(error, exchange)
    if scope.cancelled_caught:
        seen.outcome = ["cancelled"]
    seen.reports_before = len(seen.reports)
    return seen


def _result(content: Any, structured: Any, is_error: Any, meta: Any) -> Any:
    blocks = [block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in content]
    return ["result", blocks, structured, bool(is_error), meta]


def record(
    client: Callable[..., Any], folder: Path, era: str, exchanges: Sequence[Exchange], within: float = WITHIN
) -> Recording:
    """Run the exchanges through a client and a server scripted for them."""
    arguments, log = command(folder, era, exchanges)
    facts, seen = trio.run(client, arguments, exchanges, within)
    slices: list[list[Any]] = [[]]
    for frame in frames_in(log):
        if frame is None:
            slices.append([])
        else:
            slices[-1].append(frame)
    greeting, *each, rest = map(comparable, slices)
    assert rest == [], "frames after the last exchange"
    for one, frames in zip(seen, each, strict=True):
        one.frames = frames
    named = zip((exchange.name for exchange in exchanges), seen, strict=True)
    return Recording(greeting, facts, dict(named))


def frames_in(log: Path) -> list[Any]:
    """What a server wrote down, but for the stream that we listen on and the SDK's client does not."""
    frames = [json.loads(line) for line in log.read_bytes().splitlines()]
    listening = {frame["id"] for frame in frames if _method(frame) == "subscriptions/listen"}
    return [frame for frame in frames if not listening & {_id(frame), _cancelled(frame)}]


def _method(frame: Any) -> object:
    return frame and frame.get("method")


def _id(frame: Any) -> object:
    return frame and frame.get("id")


def _cancelled(frame: Any) -> object:
    return frame["params"]["requestId"] if _method(frame) == "notifications/cancelled" else None


def comparable(frames: list[Any]) -> list[Any]:
    """The frames with the client's own ids replaced by their places, also where they are named again."""
    places = {}
    frames = copy.deepcopy(frames)
    for frame in frames:
        params = frame.get("params", {})
        meta = params.get("_meta", {})
        if "id" in frame and "method" in frame:
            places[frame["id"]] = f"#{len(places) + 1}"
            if meta.get("progressToken") == frame["id"]:
                meta["progressToken"] = places[frame["id"]]
            frame["id"] = places[frame["id"]]
        elif "id" in frame:
            frame["id"] = places.get(frame["id"], frame["id"])
        if frame.get("method") == "notifications/cancelled":
            params["requestId"] = places[params["requestId"]]
    return frames


def written(value: Any) -> str:
    """A value as text, for a comparison that tells 1 from 1.0 and True, and takes NaN for itself."""
    return json.dumps(value, sort_keys=True, indent=1)
