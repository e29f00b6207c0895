"""Whatever a server says or asks reaches the user whose call it is about, or nobody. Virtual time.

Clients of the HTTP front with and without sessions, with all servers and with one, one user with two clients, and the
host's own calls; servers that do not say whose call they ask about, that say so, and newer ones; all of them may be
slow, go on with calls that were taken back, and die; clients may go away, leave and come again, and meddle with what is
another's.
"""

from contextlib import suppress
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor import NurseryError
from mcp_nursery.supervisor.gateway import open_http
from mcp_nursery.supervisor.testing import run_virtual

from ..lab.gateway_clients import AskingServer, served
from ..lab.web_clients import WebClient, by_name

pytestmark = pytest.mark.slow

CLIENTS = ("Ann", "Bob", "Cid", "Dan", "Dan", "host")
OF_CLIENTS = ("reply", "vanish", "take_back", "leave")
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
    "vanish",
    "take_back",
    "leave",
    "die",
)


def plans_of(clients):
    """What these do, and their servers, once each has called: `(act, client, seconds until the next)`."""
    return st.lists(
        st.tuples(st.sampled_from(ACTS), st.sampled_from(clients), st.sampled_from([0, 0, 1, 90])),
        min_size=8,
        max_size=24,
    )


PLANS = st.lists(st.integers(0, len(CLIENTS) - 1), min_size=2, max_size=3, unique=True).flatmap(plans_of)


class Host:
    """The host's own calls of the same server."""

    def __init__(self, supervisor):
        self.supervisor = supervisor
        self.name = "host"
        self.heard = []
        self._scope = trio.CancelScope()

    async def work(self):
        async def progress(done, total, message):
            await trio.lowlevel.checkpoint()
            self.heard.append(message)

        with trio.CancelScope() as self._scope, suppress(NurseryError):
            result = await self.supervisor.call_tool("work", {"who": "host"}, server="lab", on_progress=progress)
            self.heard.append(result.content[0].text)

    def vanish(self):
        self._scope.cancel()

    def reply(self):
        """It is never asked."""


def told(client):
    """What a client's user heard of calls."""
    return [each for each in client.heard if each.startswith("for ")]


def of_client(act, client, nursery):
    if act == "vanish":
        client.vanish()
    elif act == "reply":
        client.reply()
    elif client.name != "host":
        nursery.start_soon(getattr(client, act))


def meddle(kind, others, client, nursery):
    """They do with what is this user's whatever they can."""
    for other in others:
        if other.name not in (client.name, "host") and client.name != "host":
            nursery.start_soon(partial(other.meddle, client, holds=kind != "modern"))


def of_server(act, who, server):
    """What it does about a call, also one that was taken back."""
    for process in server.processes:
        if who in process.calls and not process.ended.is_set():
            process.die() if act == "die" else getattr(process, act)(who)
            return


async def play(kind, instances, plan):
    server = AskingServer(kind)
    async with (
        served(server, instances=instances, max_instances=2) as (supervisor, gateway, _, nursery),
        open_http(gateway, authenticate=by_name) as application,
    ):
        one, every = ("/mcp/lab", "work"), ("/mcp", supervisor.tools[0].name)
        clients = [
            WebClient(application, nursery, "Ann", *one),
            WebClient(application, nursery, "Bob", *every),
            WebClient(application, nursery, "Cid", *every, known=False, modern=True),
            WebClient(application, nursery, "Dan", *every, modern=True),
            WebClient(application, nursery, "Dan", *one),
            Host(supervisor),
        ]
        present = [clients[number] for number in {number for _, number, _ in plan}]
        for client in present:
            nursery.start_soon(client.work)
        await trio.sleep(0.1)
        for act, number, seconds in plan:
            client = clients[number]
            if act == "call":
                nursery.start_soon(client.work)
            elif act in OF_CLIENTS:
                of_client(act, client, nursery)
            else:
                of_server(act, client.name, server)
            await trio.sleep(0.1)
            if act == "ask":
                meddle(kind, present, client, nursery)
            await trio.sleep(seconds)
        for client in clients:
            assert set(told(client)) <= {f"for {client.name}"}
        for process in server.processes:
            for who, answers in process.answers.items():
                by = {answer["result"]["content"]["by"] for answer in answers if "content" in answer.get("result", {})}
                assert by <= {who}
        assert len(server.processes) - sum(one.ended.is_set() for one in server.processes) <= 3
    assert server.alive == 0


# A server that says whose call it asks about is never leased, so "single" is "shared" to it.
WORLDS = [("stream", "single"), *((kind, of) for kind in ("stream", "named", "modern") for of in ("shared", "session"))]


@pytest.mark.parametrize(("kind", "instances"), WORLDS)
def test_nothing_reaches_another_client_s_user(kind, instances):
    @given(PLANS)
    def check(plan):
        run_virtual(lambda: play(kind, instances, plan))

    check()
