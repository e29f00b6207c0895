"""A host to be killed: keeps the lab server with these `key=value` arguments, says who runs, and waits for the end.

Usage: killed_host.py STATE NAME [key=value ...]
"""

import json
import sys
from pathlib import Path

import trio

from mcp_nursery.supervisor import ServerSpec, StdioTransport, open_supervisor

LAB = Path(__file__).with_name("nursery_lab.py")


async def main() -> None:
    state, name, *flags = sys.argv[1:]
    spec = ServerSpec(name, StdioTransport(sys.executable, ["-I", "-S", str(LAB), *flags]))
    async with open_supervisor([spec], state=state) as supervisor:
        await supervisor.wait_connected(name)
        pids = [supervisor.status()[0].pid]
        for place in ("group", "session"):
            result = await supervisor.call_tool("spawn", {"place": place}, server=name)
            pids.append(int(result.full_text))
        sys.stdout.write(json.dumps(pids) + "\n")
        sys.stdout.flush()
        await trio.sleep_forever()


trio.run(main)
