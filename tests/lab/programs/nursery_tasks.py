"""A server of the extension Tasks as FastMCP has it, over stdio, or over HTTP at the port in its arguments; run by a
Python of its own."""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

from fastmcp import Context, FastMCP
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from starlette.middleware import Middleware

server = FastMCP("tasks")
server.add_extension(TasksExtension())
NEEDED = TaskConfig(mode="required", poll_interval=timedelta(milliseconds=100))
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@server.tool(task=NEEDED)
async def add(a: int, b: int) -> int:
    """Add two numbers, in some time."""
    await asyncio.sleep(0.3)
    return a + b


@server.tool(task=NEEDED)
async def fail() -> str:
    """Raise."""
    raise ValueError("not today")


@server.tool(task=NEEDED)
async def greet(ctx: Context) -> str | InputRequiredResult:
    """Greet somebody who has to be asked for."""
    said = (ctx.input_responses or {}).get("name")
    if isinstance(said, ElicitResult) and said.content:
        return f"hello {said.content['name']}"
    form = ElicitRequestFormParams(message="Who are you?", requested_schema=FORM)
    return InputRequiredResult(input_requests={"name": ElicitRequest(params=form)}, request_state="asked")


@server.tool(task=NEEDED)
async def wait(note: str) -> str:
    """Write to a file when it begins, and when it is cancelled."""
    write = Path(note).write_text
    write("begun")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        write("cancelled")
        raise
    return "done"


@server.tool(task=NEEDED)
async def outlast(caller: str, folder: str) -> str:
    """Write to the ledger of a folder at the beginning, and again once there is a file `end`."""
    with Path(folder, "ledger").open("a") as ledger:  # noqa: ASYNC230
        print("begun", caller, file=ledger, flush=True)
        while not Path(folder, "end").exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(0.05)
        print("ended", caller, file=ledger, flush=True)
    return f"for {caller}"


class Asked:
    """Writes the id of each task that the server is asked for to the file that the environment names."""

    def __init__(self, app):
        self._app, self._file = app, os.environ.get("ASKED")

    async def __call__(self, scope, receive, send):
        headers = dict(scope.get("headers", ()))
        if self._file and headers.get(b"mcp-method") == b"tasks/get":
            with Path(self._file).open("ab") as asked:  # noqa: ASYNC230
                asked.write(headers[b"mcp-name"] + b"\n")
        await self._app(scope, receive, send)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        middleware = [Middleware(Asked)]
        server.run("http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False, middleware=middleware)
    else:
        server.run(show_banner=False)
