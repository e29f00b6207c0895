"""A host on asyncio: starts the server of `.mcp.json` here, as Claude Code would, and loses what is behind it.

Writes what it got as JSON.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

QUESTION = {"source_timezone": "UTC", "time": "12:30", "target_timezone": "Asia/Tokyo"}


def servers() -> list[psutil.Process]:
    """Those behind the gateway, which is our child."""
    (gateway,) = psutil.Process().children()
    return gateway.children(recursive=True)


async def main(name: str, entry: dict[str, Any]) -> None:
    parameters = StdioServerParameters(command=entry["command"], args=entry["args"], env=dict(os.environ))
    async with Client(stdio_client(parameters)) as client:
        tools = (await client.list_tools()).tools
        answers = [await client.call_tool("convert_time", QUESTION)]
        before = servers()
        for process in before:
            process.kill()
        while (last := await client.call_tool("convert_time", QUESTION)).is_error:
            answers.append(last)
            await asyncio.sleep(0.25)
        said = {"name": name, "tools": [tool.name for tool in tools], "server": client.server_info.name}
        again = not set(before) & set(servers())
    answers.append(last)
    said |= {"killed": len(before), "restarted": again}
    json.dump({**said, "answers": [[bool(each.is_error), each.content[0].text] for each in answers]}, sys.stdout)


((server, written),) = json.loads(Path(".mcp.json").read_text())["mcpServers"].items()
asyncio.run(main(server, written))
