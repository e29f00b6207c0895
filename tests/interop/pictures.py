"""Draws the pictures of the page in the documentation, by a real browser. From the project's folder:

python -m tests.interop.pictures
"""

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from mcp_nursery.supervisor import HttpTransport, RestartPolicy, ServerSpec, StdioTransport
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ..lab.pages import paged
from ..lab.specs import lasting, nothing, spec
from .browsers import browser
from .elements import gallery

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
SEARCH = {
    "description": "Search the documents of a team.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Words that have to be there"},
            "most": {"type": "integer", "default": 10},
            "order": {"enum": ["newest", "best"]},
        },
        "required": ["query"],
    },
}


REFUSAL = (
    b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 54\r\nconnection: close\r\ncontent-type: text/plain\r\n"
    b"content-length: 20\r\n\r\none session a minute"
)
INSTALLER = """#!/bin/sh
echo "npm http fetch GET 200 https://registry.npmjs.org/playwright 812ms" >&2
exec sleep 600
"""
"""The program `npx` that never ends."""


async def main() -> None:
    """Draw all of them."""
    FOLDER.mkdir(exist_ok=True)
    await overview()
    await troubles()
    await elements()


async def overview() -> None:
    """Draw the first page, and the pages of a server and of a tool."""
    tools = {"search": lasting(0.02), "fetch": nothing}
    documents = ScriptedServer(tools=tools, declared={"search": SEARCH})
    crm = ScriptedServer(
        Life(dies_after=1, exit_code=137, stderr="out of memory"), Life(refuses="exited with code 137")
    )
    specs = [
        spec(ScriptedServer(), "calendar"),
        spec(documents, "documents"),
        spec(crm, "crm", policy=RestartPolicy(delays=[600])),
        spec(
            ScriptedServer(Life(refuses="no database at db.example:5432")), "billing", policy=RestartPolicy(delays=[])
        ),
    ]
    async with paged(specs) as gateway, browser(Path(tempfile.mkdtemp())) as page:
        await gateway.supervisor.wait_connected("documents")
        for number in range(40):
            await gateway.supervisor.call_tool("search", {"query": str(number)}, server="documents")
        await page.go(f"{gateway.origin}/ui")
        await page.until("document.querySelector('#troubles .state.waiting')")
        await trio.sleep(11)  # until there is a point of the calls
        await page.go(f"{gateway.origin}/ui")
        await page.picture(FOLDER / "page.png", 1180, 720)
        await page.picture(FOLDER / "page-narrow-dark.png", 420, 800, dark=True)
        await page.go(f"{gateway.origin}/ui/server?name=crm")
        await page.picture(FOLDER / "page-server.png", 1180, 700)
        await page.go(f"{gateway.origin}/ui/tool?server=documents&tool=search")
        await page.fill("arg.0", "invoices")
        await page.press("Call")
        await page.picture(FOLDER / "page-tool.png", 1180, 640)


async def troubles() -> None:
    """Draw the first page in three situations: a crash loop, a slow first start, a rate limit."""
    files = spec(ScriptedServer(), "files")
    dies = Life(dies_after=1, exit_code=137, stderr="out of memory")
    folder = Path(tempfile.mkdtemp())
    installer = folder / "npx"
    installer.write_text(INSTALLER)
    installer.chmod(0o700)
    browser_server = ServerSpec("browser", StdioTransport(str(installer), ["-y", "@playwright/mcp"]))
    crm = spec(ScriptedServer(dies, dies, dies), "crm", policy=RestartPolicy())
    async with refusing() as port, browser(Path(tempfile.mkdtemp())) as page:
        web = ServerSpec("web", HttpTransport(f"http://127.0.0.1:{port}/mcp"))
        for name, server, there in (
            ("crash-loop", crm, "document.querySelector('#troubles').textContent.includes('4 of 4')"),
            ("slow-start", browser_server, "document.body.textContent.includes('812ms')"),
            ("rate-limit", web, "document.querySelector('#troubles .state.waiting')"),
        ):
            async with paged([files, server]) as gateway:
                await gateway.supervisor.wait_connected("files")
                await page.go(f"{gateway.origin}/ui")
                await page.until(there)
                if server is not crm:
                    await trio.sleep(10)  # until there is something on the timeline
                await page.picture(FOLDER / f"{name}.png", 1180, 560)


async def elements() -> None:
    """Draw all elements of the page, light and dark."""
    folder = Path(tempfile.mkdtemp())
    file = folder / "elements.html"
    file.write_text(gallery())
    async with browser(folder / "profile") as page:
        await page.go(file.as_uri())
        await page.picture(FOLDER / "elements.png", 1180, 1070)
        await page.picture(FOLDER / "elements-dark.png", 1180, 1070, dark=True)


@asynccontextmanager
async def refusing() -> AsyncGenerator[int, None]:
    """The port of a server that refuses each request."""

    async def refuse(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(REFUSAL)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, refuse, 0, host="127.0.0.1"))
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
