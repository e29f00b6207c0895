"""A supervisor of another thread: whatever is called, cancelled and left, each call has one outcome on each side."""

import asyncio
import threading

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_nursery.supervisor.errors import NurseryError
from mcp_nursery.supervisor.portal import open_supervisor_thread
from mcp_nursery.supervisor.testing import ScriptedServer

from ..lab.specs import spec

PLANS = st.lists(
    st.tuples(
        st.sampled_from(["mcp_a_quick", "mcp_a_slow", "mcp_b_hang", "mcp_b_fail"]),
        st.none() | st.integers(0, 4),  # turns of the loop after which the call is cancelled
        st.booleans(),  # whether a timeout of its own ends it
    ),
    max_size=12,
)


class Played:
    """One program on asyncio: all its calls, as their tools and their callers saw them."""

    def __init__(self, plan):
        self.plan = plan
        self.began, self.ended = [], []
        self.outcomes = {}
        tools = {"quick": self.tool(0), "slow": self.tool(0.002), "hang": self.tool(1_000), "fail": self.tool(None)}
        self.servers = {
            "a": ScriptedServer(tools={name: tools[name] for name in ("quick", "slow")}),
            "b": ScriptedServer(tools={name: tools[name] for name in ("hang", "fail")}),
        }

    def tool(self, seconds):
        async def lasts(arguments):
            self.began.append(arguments["number"])
            try:
                if seconds is None:
                    raise ValueError
                await trio.sleep(seconds)
                return "done"
            finally:
                self.ended.append(arguments["number"])

        return lasts

    async def main(self, turns, waits):
        async with asyncio.timeout(60):
            specs = [spec(server, name) for name, server in self.servers.items()]
            async with open_supervisor_thread(specs) as supervisor:
                await supervisor.list_tools()
                tasks = [self.begin(supervisor, number, waits) for number in range(len(self.plan))]
                if waits and tasks:
                    await asyncio.wait(tasks)
                for _ in range(turns):
                    await asyncio.sleep(0)
            if tasks:
                await asyncio.wait(tasks)

    def begin(self, supervisor, number, waits):
        tool, cancelled_after, timed = self.plan[number]
        ends = timed or (waits and tool == "mcp_b_hang" and cancelled_after is None)
        task = asyncio.create_task(self.call(supervisor, number, tool, 0.01 if ends else 5))
        if cancelled_after is not None:
            asyncio.create_task(self.cancel(task, cancelled_after))  # noqa: RUF006 - it ends with the loop
        return task

    async def call(self, supervisor, number, tool, timeout):
        outcomes = self.outcomes.setdefault(number, [])
        try:
            result = await supervisor.call_tool(tool, {"number": number}, timeout=timeout)
            outcomes.append(result.full_text)
        except (NurseryError, asyncio.CancelledError) as error:
            outcomes.append(type(error).__name__)

    async def cancel(self, task, turns):
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()


@given(PLANS, st.integers(0, 6), st.booleans())
@settings(max_examples=60)
def test_each_call_has_one_outcome_on_each_side(plan, turns, waits):
    """`turns`: of the loop, after which the block is left; `waits`: it is left only when all calls have ended."""
    played = Played(plan)
    asyncio.run(played.main(turns, waits))
    called = [arguments["number"] for server in played.servers.values() for _, _, arguments in server.calls]
    assert len(called) == len(set(called))  # none was made twice
    assert sorted(played.began) == sorted(played.ended)  # none goes on
    for number, (tool, cancelled_after, _) in enumerate(plan):
        if cancelled_after == 0 and number not in played.outcomes:
            continue  # it was cancelled before it began
        [outcome] = played.outcomes[number]
        if outcome == "done":
            assert number in called
            assert tool in ("mcp_a_quick", "mcp_a_slow")
    assert not [each for each in threading.enumerate() if each.name == "mcp-nursery"]
