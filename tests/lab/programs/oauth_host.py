"""A host of its own: calls one tool of a server that wants OAuth.

python oauth_host.py URL [STATE]
"""

import sys

import trio

from mcp_nursery.supervisor import HttpTransport, OAuth, ServerSpec, open_supervisor


async def main():
    spec = ServerSpec("far", HttpTransport(sys.argv[1], auth=OAuth()))
    async with open_supervisor([spec], state=sys.argv[2] if len(sys.argv) > 2 else None) as supervisor:
        await supervisor.wait_connected("far")
        sys.stdout.write((await supervisor.call_tool("look", server="far")).content[0].text)


trio.run(main)
