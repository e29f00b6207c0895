"""Whatever a server says or asks reaches the user whose call it is about, or nobody. Virtual time.

Clients with and without sessions, one user with two clients, and the host's own calls; servers that do not say whose
call they ask about, that say so, and newer ones; all of them may be slow, go on with calls that were taken back, and
die; clients may leave.
"""

from contextlib import suppress

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError

from mcp_nursery.supervisor import NurseryError
from mcp_nursery.supervisor.testing import run_virtual

from ..supervisor.gateway.asking import AskingServer, served

pytestmark = pytest.mark.slow

CLIENTS = ("Ann", "Bob", "Cid", "Dan", "Dan", "host")
OF_CLIENTS = ("reply", "cancel", "leave")
ACTS = (
    "call",
    "call",
    "call",
    "ask",
    "ask",
    "ask",
    "log",
    "progress",
    "answer",
    "reply",
    "cancel",
    "cancel",
    "leave",
    "die",
)


def plans_of(clients):
    """What these do, and their servers: `(act, client, seconds until the next)`."""
    return st.lists(
        st.tuples(st.sampled_from(ACTS), st.sampled_from(clients), st.sampled_from([0, 0, 1, 90])),
        min_size=12,
        max_size=40,
    )


PLANS = st.lists(st.integers(0, len(CLIENTS) - 1), min_size=2, max_size=3, unique=True).flatmap(plans_of)


class Host:
    """The host's own calls of the same server."""

    def __init__(self, supervisor):
        self.supervisor = supervisor
        self.name, self.session = "host", None
        self.heard = []
        self.goes_on = trio.Event()

    async def work(self):
        async def progress(done, total, message):
            await trio.lowlevel.checkpoint()
            self.heard.append(message)

        with trio.CancelScope() as self.scope, suppress(NurseryError):
            result = await self.supervisor.call_tool("work", {"who": "host"}, server="lab", on_progress=progress)
            self.heard.append(result.content[0].text)


def told(client):
    """What a client's user heard of calls."""
    return [each for each in client.heard if isinstance(each, str) and each.startswith("for ")]


def of_client(act, client, gateway):
    if act == "reply":
        client.goes_on.set()
    elif act == "leave" and client.session is not None:
        gateway.news.leave(client.session)
    elif act == "cancel" and hasattr(client, "scope"):
        client.scope.cancel()


def of_server(act, who, server):
    """What it does about a call, also one that was taken back."""
    for process in server.processes:
        if who in process.calls and not process.ended.is_set():
            process.die() if act == "die" else getattr(process, act)(who)
            return


async def work(client):
    with suppress(MCPError):  # it may be too late with what it brings
        await client.work()


async def play(kind, instances, plan):
    server = AskingServer(kind)
    async with served(server, instances=instances, max_instances=2) as (supervisor, gateway, make, nursery):
        clients = [
            make("Ann"),
            make("Bob"),
            make("Cid", session=False),
            *(make("Dan", session=False, principal="Dan") for _ in range(2)),
            Host(supervisor),
        ]
        for act, number, seconds in plan:
            client = clients[number]
            if act == "call":
                nursery.start_soon(work, client)
            elif act in OF_CLIENTS:
                of_client(act, client, gateway)
            else:
                of_server(act, client.name, server)
            await trio.sleep(seconds + 0.1)
        for client in clients:
            assert set(told(client)) <= {f"for {client.name}"}
        for process in server.processes:
            for who, answers in process.answers.items():
                by = {answer["result"]["content"]["by"] for answer in answers if "result" in answer}
                assert by <= {who}
        assert len(server.processes) - sum(one.ended.is_set() for one in server.processes) <= 3
    assert server.alive == 0


@pytest.mark.parametrize("instances", ["shared", "session", "single"])
@pytest.mark.parametrize("kind", ["stream", "named", "modern"])
def test_nothing_reaches_another_client_s_user(kind, instances):
    @given(PLANS)
    def check(plan):
        run_virtual(lambda: play(kind, instances, plan))

    check()
