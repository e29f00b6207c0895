"""K8: subagents of a host use its servers, and a subagent that is cancelled takes nothing with it but its own calls."""

import trio
import trio.testing

from mcp_nursery.supervisor import BorrowedServer, open_supervisor

from ..lab.processes import lab, status_of, supervised


async def test_a_subagent_that_is_cancelled_in_a_call_ends_only_its_own():
    """Two subagents and their host have calls under way in one process; it hears of one cancelled call."""
    results = {}

    async def sleep(supervisor, label):
        results[label] = (await supervisor.call_tool("sleep", {"seconds": 60, "label": label}, server="lab")).full_text

    async def subagent(label, *, task_status=trio.TASK_STATUS_IGNORED):
        with trio.CancelScope() as scope:
            servers = [BorrowedServer("lab", allow=["sleep", "wake"])]
            async with open_supervisor(borrow=supervisor, servers=servers, template=f"{label}_{{tool}}") as child:
                assert [tool.name for tool in child.tools] == [f"{label}_sleep", f"{label}_wake"]
                task_status.started(scope)
                await sleep(child, label)

    async with supervised(lab()) as supervisor:
        pid = status_of(supervisor).pid
        async with trio.open_nursery() as nursery:
            scope = await nursery.start(subagent, "a")
            await nursery.start(subagent, "b")
            nursery.start_soon(sleep, supervisor, "host")
            await trio.testing.wait_all_tasks_blocked()
            await supervisor.call_tool("sleeping", {"count": 3}, server="lab")
            scope.cancel()
            assert (await supervisor.call_tool("cancelled", {"count": 1}, server="lab")).full_text == "a"
            assert scope.cancelled_caught
            assert results == {}
            await supervisor.call_tool("wake", server="lab")
        assert results == {"b": "b", "host": "host"}
        assert status_of(supervisor).pid == pid
        assert status_of(supervisor).calls.in_flight == 0
