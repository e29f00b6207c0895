"""The client that the suite starts, all of it through the public API: `python -m tests.conformance.client URL`."""

import logging
import sys

import trio
from mcp_types import ElicitResult

from mcp_nursery.supervisor import HttpTransport, MemoryStore, ServerError, ServerSpec, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks

from . import script

SUITE = "suite"


async def elicit(message) -> ElicitResult:
    """Accept the form as it stands."""
    return ElicitResult(action="accept", content=script.filled_in(message.params.requested_schema))


async def main(url: str) -> None:
    logging.basicConfig(level=logging.INFO)
    with trio.fail_after(script.TIME):
        await play(url)


async def play(url: str) -> None:
    spec = ServerSpec(SUITE, HttpTransport(url))
    async with open_supervisor([spec], callbacks=Callbacks(elicit=elicit), state=MemoryStore()) as supervisor:
        await supervisor.wait_connected(SUITE)
        tools = {tool.tool: tool.input_schema for tool in await supervisor.list_tools(SUITE)}
        for name, arguments in script.calls(tools):
            try:
                print(name, (await supervisor.call_tool(name, arguments, server=SUITE)).full_text)
            except ServerError as refused:  # one scenario lists a tool that it does not have
                print(refused)


if __name__ == "__main__":
    trio.run(main, sys.argv[-1])
