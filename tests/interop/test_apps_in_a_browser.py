"""A page of a FastMCP server in a real browser, shown through the gateway at `/mcp` by a host with the official bridge.

The host and the page are bundled from the official SDK, and know nothing of the gateway: the page calls a tool by the
name that its server has for it.
"""

import os
from functools import partial
from http import HTTPStatus
from pathlib import Path

import pytest
import trio
from mcp.client import Client

from mcp_nursery.supervisor import ServerSpec, StdioTransport

from ..lab import PROGRAMS
from ..lab.gateways import served
from ..lab.processes import lab
from . import installing
from .browsers import browser
from .test_python_servers import FASTMCP

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent
SDK, BUNDLER = "@modelcontextprotocol/ext-apps@2.0.4", "esbuild@0.25.12"


def bundled(folder, name):
    """The script of this name with all that it imports."""
    node, modules = installing.npm_modules(SDK)
    _, bundler = installing.npm_modules(BUNDLER)
    to, bundle = folder / f"{name}.js", bundler / "esbuild/bin/esbuild"
    options = ["--bundle", "--minify", "--format=esm", f"--outfile={to}"]
    installing.run([node, bundle, HERE / f"{name}.mjs", *options], {**os.environ, "NODE_PATH": str(modules)})
    return to


@pytest.fixture
def scripts(tmp_path):
    with installing.needed_by_test("a host of MCP Apps"):
        return [bundled(tmp_path, name) for name in ("app_host", "app_view")]


@pytest.fixture
def board(scripts):
    with installing.needed_by_test(FASTMCP):
        python = str(installing.python_with(FASTMCP))
    return ServerSpec("board", StdioTransport(python, ["-I", str(PROGRAMS / "nursery_board.py"), str(scripts[1])]))


def page_of(script):
    """The page of the host, as a gateway serves it."""
    files = {"/ui": (b"<!doctype html><script type=module src=/ui/host.js></script>", b"text/html")}
    files["/ui/host.js"] = script.read_bytes(), b"text/javascript"

    async def serve(path, exchange):
        body, kind = files[path]
        await exchange.answer(body, HTTPStatus.OK, kind)

    async def page(exchange, scope):
        return partial(serve, scope["path"])

    return page


async def test_a_page_calls_a_tool_of_its_server(board, scripts, tmp_path):
    with trio.fail_after(120):
        async with (
            served([board, lab("lab")], http={"page": page_of(scripts[0])}) as (_, url),
            browser(tmp_path / "profile") as page,
        ):
            await page.go(f"{url.removesuffix('/mcp')}/ui")
            said = "window.seen?.said"
            await page.until(f"{said}.includes('shown: the board')")
            seen = await page.value("window.seen")
            assert seen["uri"] == "ui://board+board/view.html"
            assert seen["mimeType"] == "text/html;profile=mcp-app"
            assert {"board_show", "board_refresh", "lab_echo"} <= set(seen["tools"])
            for kind in ("mousePressed", "mouseReleased"):
                at = {"x": 300, "y": 300, "button": "left", "clickCount": 1}
                await page.ask("Input.dispatchMouseEvent", type=kind, **at)
            await page.until(f"{said}.length > 2")
            _, called, refused = await page.value(said)
            assert called == "called: refreshed 1"
            assert "no tool named 'nothing'" in refused
            async with Client(url) as other:  # which shows no pages
                names = {tool.name for tool in (await other.list_tools()).tools}
            assert {name for name in names if name.startswith("board_")} == {"board_show"}
