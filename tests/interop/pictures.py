"""Draws the pictures of the page in the documentation, by a real browser. From the project's folder:

python -m tests.interop.pictures
"""

import tempfile
from pathlib import Path

import trio

from mcp_nursery.supervisor import RestartPolicy
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ..lab.pages import paged
from ..lab.specs import lasting, nothing, spec
from .browsers import browser

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


async def main() -> None:
    """Draw all of them."""
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
    FOLDER.mkdir(exist_ok=True)
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


if __name__ == "__main__":
    trio.run(main)
