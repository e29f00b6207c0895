"""A server that asks and does not read: what it costs the host is bounded, and nothing is lost once it reads."""

import gc
import json
import sys
from pathlib import Path

import pytest
import trio

from mcp_nursery.actors.jsonrpc.stream_carrier import MOST_OWED, OUTBOX_LIMIT, Outbox
from mcp_nursery.supervisor import MemoryStore, ServerSpec, StdioTransport, open_supervisor

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def server(name, script, *arguments):
    return ServerSpec(name, StdioTransport(sys.executable, ["-I", "-S", str(ROOT / script), *map(str, arguments)]))


async def until(holds):
    with trio.fail_after(120):
        while not holds():  # noqa: ASYNC110 - there is no event for what another process does
            await trio.sleep(0.01)


@pytest.mark.parametrize(
    ("count", "method", "length", "reads"),
    [
        (400_000, "ping", 6, False),
        (20_000, "ping", 6, True),
        (10_000, "elicitation/create", 6, True),
        (3000, "ping", 5000, True),
    ],
)
async def test_a_server_that_asks_and_does_not_read(tmp_path, count, method, length, reads):
    go, found = tmp_path / "go", tmp_path / "found"
    deaf = server("deaf", "tests/lab/programs/asking_deaf.py", go, found, count, method, length)
    quiet = server("quiet", "benchmarks/peers/echo_server.py")
    async with open_supervisor([deaf, quiet], gate=60, state=MemoryStore()) as supervisor:
        before = {id(each) for each in gc.get_objects() if isinstance(each, Outbox) and each.owed}
        await supervisor.call_tool("attack", server="deaf")
        outboxes = [each for each in gc.get_objects() if isinstance(each, Outbox) and id(each) not in before]
        await until(lambda: not all(each.has_room for each in outboxes))
        (outbox,) = (each for each in outboxes if not each.has_room)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: supervisor.call_tool("echo", server="deaf"))
            with trio.fail_after(120):
                for _ in range(200):
                    await supervisor.call_tool("echo", {"text": "x"}, server="quiet")
            assert outbox.owed < MOST_OWED + 32
            assert outbox.owed_bytes < OUTBOX_LIMIT + (1 << 20)
            if reads:
                go.touch()
                await until(found.exists)
                await until(found.read_text)
                assert json.loads(found.read_text()) == [True, count if method == "ping" else 0]
            else:
                nursery.cancel_scope.cancel()
        assert supervisor.status()[0].incarnation == 1
        assert reads == (outbox.owed == 0)
