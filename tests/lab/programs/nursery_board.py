"""A server of FastMCP whose tool has a page, with the script in the file that it is given; run by a Python of its
own."""

import sys
from pathlib import Path

from fastmcp import FastMCP
from fastmcp.apps.config import AppConfig

server = FastMCP("board")
PAGE = "ui://board/view.html"
SCRIPT = Path(sys.argv[1]).read_text().replace("</script", "<\\/script")
BUTTON = '<button style="position: fixed; inset: 0; width: 100%; height: 100%">refresh</button>'
calls: list[str] = []


@server.tool(app=AppConfig(resource_uri=PAGE))
def show() -> str:
    """Shows the board."""
    return "the board"


@server.tool(app=AppConfig(resource_uri=PAGE, visibility=["app"]))
def refresh() -> str:
    """For the page."""
    calls.append("refresh")
    return f"refreshed {len(calls)}"


@server.resource(PAGE)
def page() -> str:
    """The page."""
    return f"<!doctype html><meta charset=utf-8>{BUTTON}<script type=module>{SCRIPT}</script>"


if __name__ == "__main__":
    server.run(show_banner=False)
