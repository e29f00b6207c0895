"""First lists, which wait for what is coming. In memory, virtual time."""

from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from mcp_nursery.actors.protocol import CLIENT_CAPABILITIES_META_KEY, SUBSCRIPTION_ID_META_KEY, JsonRpcError
from mcp_nursery.supervisor import MemoryStore, RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.gateway import Access, gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import ClientSession
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.gateway_clients import ENVELOPE, NEW, as_read
from ...lab.specs import SERVERS, Named, nothing, spec

OLD = "2025-11-25"
CHANGED = "notifications/tools/list_changed"
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
EVERYTHING = Access()
NOTHING = {}
APPS = {"extensions": {"io.modelcontextprotocol/ui": {}}}


def script(*lives):
    return ScriptedServer(
        *lives,
        tools={"look": nothing},
        prompts={"hint": nothing},
        resources={"note://one": nothing, "note://{name}": nothing},
    )


def late(seconds):
    return script(Life(connects_after=seconds))


class Front:
    """Clients of a gateway, at the end of their ways in."""

    def __init__(self, gateway, nursery):
        self.gateway, self.nursery = gateway, nursery

    def session(self):
        """A client of all servers, and what it is told of from now on."""
        heard = []
        session = ClientSession(lambda said: heard.append(said.method), self.nursery)
        self.gateway.news.enter(session)
        return session, heard

    async def list(self, method="tools/list", *, modern=True, server=None, access=EVERYTHING, of=None):
        """What the entries of a list are called. `of`: a session that asks for it."""
        session = of or (None if modern else ClientSession(print, self.nursery, server))
        modern = session is None
        incoming = ClientRequest(1, method, {}, dict(ENVELOPE) if modern else {}, print, "ann", session=session)
        result = as_read(await self.gateway.answer(incoming, self.gateway.view(server, access), NEW if modern else OLD))
        return [entry["name"] for entry in result[LISTS[method]]]

    async def introduction(self, server, *, modern, able=NOTHING):
        """What a client of one server, or of all, is told first."""
        method, params, meta = "server/discover", {}, ENVELOPE | {CLIENT_CAPABILITIES_META_KEY: able}
        if not modern:
            method, meta = "initialize", {}
            params = {"protocolVersion": OLD, "capabilities": able, "clientInfo": {"name": "test", "version": "1"}}
        incoming = ClientRequest(1, method, params, dict(meta), print, "ann")
        incoming.describe()
        return await self.gateway.answer(incoming, self.gateway.view(server), NEW if modern else OLD)

    async def told(self, *, modern, server=None):
        """What a client is told of, who is there from now on."""
        heard = []
        if not modern:
            self.gateway.news.enter(ClientSession(lambda said: heard.append(said.method), self.nursery, server))
            return heard

        begun = trio.Event()

        async def tell(method, params):
            await trio.lowlevel.checkpoint()
            assert params["_meta"] == {SUBSCRIPTION_ID_META_KEY: "news"}
            if not begun.is_set():
                begun.set()
            else:
                heard.append(method)

        wanted = {"notifications": {"toolsListChanged": True}}
        incoming = ClientRequest("news", "subscriptions/listen", wanted, dict(ENVELOPE), tell, "ann")
        self.nursery.start_soon(self.gateway.answer, incoming, self.gateway.view(server), NEW)
        await begun.wait()
        return heard


@asynccontextmanager
async def served(specs, *, state=None, **how):
    """A supervisor, and clients of a gateway that nobody has waited for."""
    options = {"gate": 0, "template": "{server}_{tool}", "callbacks": gateway_callbacks()}
    async with (
        open_supervisor(specs, state=state or MemoryStore(), **options) as supervisor,
        open_gateway(supervisor, **how) as gateway,
        trio.open_nursery() as nursery,
    ):
        yield supervisor, Front(gateway, nursery)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("method", LISTS)
async def test_a_first_list_waits_for_first_attempts(autojump_clock, method, modern):
    async with served([spec(late(3), "a"), spec(late(5), "b")]) as (_, front):
        assert len(await front.list(method, modern=modern)) == 2
        assert trio.current_time() == 5


@pytest.mark.parametrize("modern", [True, False])
async def test_a_list_of_one_server_waits_for_that_one(autojump_clock, modern):
    async with served([spec(late(3), "a"), spec(late(5), "b")]) as (_, front):
        assert await front.list(server="a", modern=modern) == ["look"]
        assert trio.current_time() == 3


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("server", [None, "slow"])
async def test_when_the_gate_runs_out_a_list_has_what_there_is_and_clients_hear_of_the_rest(
    autojump_clock, caplog, modern, server
):
    async with served([spec(late(1), "fast"), spec(late(20), "slow")]) as (_, front):
        heard = await front.told(modern=modern, server=server)
        some = ["fast_look"] if server is None else []
        for _ in range(2):
            assert await front.list(modern=modern, server=server) == some
            assert trio.current_time() == 10
        await trio.sleep(11)
        assert heard.count(CHANGED) == (2 if server is None else 1)  # that of the fast one, too
        assert len(await front.list(modern=modern, server=server)) == len(some) + 1
    missed = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert missed == ["slow: not connected after 10 s: lists go without it, and clients are told when it comes"]


async def test_who_came_while_another_was_waited_for_is_not_called_missing(autojump_clock, caplog):
    async with served([spec(late(20), "slow"), spec(late(4), "fast")]) as (_, front):
        assert await front.list() == ["fast_look"]
    missed = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.partition(":")[0] for text in missed] == ["slow"]


async def test_the_time_counts_from_the_opening(autojump_clock):
    """A host's own limit counts from the start of the gateway; a client that comes later does not wait again."""
    async with served([spec(late(60))]) as (supervisor, front):
        await trio.sleep(7)
        assert await front.list() == []
        assert trio.current_time() == 10
        await trio.sleep(7)
        assert await front.list() == []
        assert trio.current_time() == 17
        await supervisor.add_server(spec(late(60), "other"))
        assert await front.list() == []
        assert trio.current_time() == 27


@pytest.mark.parametrize(("gate", "until"), [(0, 0), (2, 2), (100, 20)])
async def test_how_long_lists_wait_can_be_said(autojump_clock, caplog, gate, until):
    async with served([spec(late(20))], gate=gate) as (_, front):
        assert len(await front.list()) == (until == 20)
        assert trio.current_time() == until
    assert len(caplog.records) == (until == 2)


async def test_what_is_in_the_cache_waits_for_nobody(autojump_clock):
    state = MemoryStore()
    for name in ("a", "b", "c"):
        SERVERS[name] = script(Life(), Life(connects_after=4))
    kept = [ServerSpec(name, Named(name)) for name in ("a", "b")]
    async with served(kept, state=state) as (_, front):
        assert len(await front.list()) == 2
    assert trio.current_time() == 0
    async with served(kept, state=state) as (_, front):
        for method in LISTS:
            assert await front.list(method)
            assert await front.list(method, server="b")
        assert trio.current_time() == 0
    SERVERS["c"] = late(6)
    async with served([*kept, ServerSpec("c", Named("c"))], state=state) as (_, front):
        assert await front.list(server="a") == ["look"]
        assert trio.current_time() == 0
        assert len(await front.list()) == 3
        assert trio.current_time() == 6


@pytest.mark.parametrize("modern", [True, False])
async def test_one_server_is_introduced_from_the_cache(autojump_clock, modern):
    """A host that waits a second for its servers has the tools of all that it has started before."""
    SERVERS["a"] = server = script(Life(), Life(connects_after=4))
    server.instructions = "Look first."
    state, kept = MemoryStore(), [ServerSpec("a", Named("a"))]
    said = []
    for _ in range(2):
        async with served(kept, state=state) as (supervisor, front):
            heard = await front.told(modern=modern, server="a")
            said.append(await front.introduction("a", modern=modern))
            assert await front.list(server="a", modern=modern) == ["look"]
            assert trio.current_time() == 0
            await supervisor.wait_connected("a")
            assert heard == []
    assert said[0] == said[1]
    assert said[1]["instructions"] == "Look first."
    assert trio.current_time() == 4


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("search", [True, False])
async def test_who_has_extensions_is_told_of_those_that_servers_have_when_they_come(autojump_clock, modern, search):
    """What is not in an introduction is missing for a session. Others wait for lists alone."""
    slow, later = late(3), late(20)
    for server in (slow, later):
        server.capabilities |= APPS
    async with served([spec(slow, "a"), spec(script(), "b")], search=search) as (_, front):
        assert "extensions" not in (await front.introduction(None, modern=modern))["capabilities"]
        assert trio.current_time() == 0
        assert (await front.introduction(None, modern=modern, able=APPS))["capabilities"]["extensions"] == (
            APPS["extensions"]
        )
        assert trio.current_time() == 3
    async with served([spec(later, "a")], search=search) as (_, front):
        assert "extensions" not in (await front.introduction(None, modern=modern, able=APPS))["capabilities"]
        assert trio.current_time() == 13


async def test_a_server_that_may_come_later_holds_up_nothing(autojump_clock):
    """What has settled has: lazy and disabled servers, those that failed, wait or lack authorisation."""
    specs = [
        spec(late(30), "lazy", lazy=True),
        spec(late(30), "disabled", enabled=False),
        spec(script(Life(refuses="no", usable=False)), "failed"),
        spec(script(Life(refuses="no"), Life(connects_after=30)), "waiting"),
        spec(script(Life(refuses="no", needs_auth=True)), "unauthorised"),
        spec(late(1), "fine"),
    ]
    async with served(specs) as (_, front):
        assert await front.list() == ["fine_look"]
        assert trio.current_time() == 1


async def test_who_may_not_use_a_server_does_not_wait_for_it(autojump_clock):
    async with served([spec(late(1), "a"), spec(late(5), "b")]) as (_, front):
        assert await front.list(access=Access(["a/*"])) == ["a_look"]
        assert trio.current_time() == 1
        assert await front.list(access=Access(["b/*"])) == ["b_look"]
        assert trio.current_time() == 5


async def test_a_server_that_is_taken_away_is_not_waited_for(autojump_clock):
    async with served([spec(late(1), "a"), spec(late(9), "b")]) as (supervisor, front), trio.open_nursery() as nursery:
        nursery.start_soon(partial(supervisor.remove_server, "b"))
        assert await front.list() == ["a_look"]
        assert trio.current_time() == 1


async def test_the_tools_of_a_search_are_there_at_once(autojump_clock):
    async with served([spec(late(3))], search=True) as (_, front):
        assert await front.list() == ["call_tool", "find_tools"]
        assert trio.current_time() == 0
        assert await front.list("prompts/list") == ["lab_hint"]
        assert trio.current_time() == 3


async def test_a_gateway_that_ends_holds_no_list_back(autojump_clock, caplog):
    async with served([spec(late(8))]) as (_, front), trio.open_nursery() as nursery:

        async def refused():
            with pytest.raises(JsonRpcError, match="the gateway is ending"):
                await front.list()

        nursery.start_soon(refused)
        await trio.testing.wait_all_tasks_blocked()
        await front.gateway.drain(5)
        assert trio.current_time() == 0
    assert not caplog.records, "nobody was missing when the time was over"


@pytest.mark.parametrize("modern", [True, False])
async def test_a_server_that_is_away_is_listed_as_it_was(autojump_clock, modern):
    """At /mcp/NAME too: its list was an error, with which a host has no tools."""
    server = script(Life(dies_after=5), Life(refuses="not yet"), Life(connects_after=3))
    async with served([spec(server)]) as (supervisor, front):
        await supervisor.wait_connected("lab")
        heard = await front.told(modern=modern, server="lab")
        states = set()
        for _ in range(20):
            for method in LISTS:
                assert len(await front.list(method, server="lab", modern=modern)) == 1
            states.add(supervisor.status()[0].state.value)
            await trio.sleep(1)
        assert states == {"connected", "waiting", "connecting"}
        assert heard == []
        assert trio.current_time() == 20


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("server", [None, "lab"])
async def test_an_outage_longer_than_the_ladder_takes_no_tools_away(autojump_clock, modern, server):
    """What `revive` brings back stays listed, and nobody is told that it has gone."""
    lives = [Life(dies_after=5), *[Life(refuses="away")] * 5, Life()]
    once = RestartPolicy(delays=(1,))
    async with served([spec(script(*lives), policy=once, revive=("on_call", 300))]) as (supervisor, front):
        await supervisor.wait_connected("lab")
        heard = await front.told(modern=modern, server=server)
        await trio.sleep_until(200)
        assert supervisor.status()[0].state.value == "failed"
        for method in LISTS:
            assert len(await front.list(method, server=server, modern=modern)) == 1
        await supervisor.wait_connected("lab")
        assert trio.current_time() == 908
        assert await front.list(server=server, modern=modern) == ["lab_look" if server is None else "look"]
        assert heard == []


@pytest.mark.parametrize("lives", [[Life(dies_after=5), Life(refuses="gone")], [Life(refuses="gone")]])
async def test_a_server_that_has_failed_for_good_is_not_listed(autojump_clock, lives):
    """Its client is told why."""
    async with served([spec(script(*lives), policy=RestartPolicy(delays=(1,)))]) as (_, front):
        await trio.sleep(10)
        assert await front.list() == []
        with pytest.raises(JsonRpcError, match=r"failed \(gone\); correct its command or settings"):
            await front.list(server="lab")


async def test_what_is_in_the_list_that_a_session_gets_is_no_news(autojump_clock):
    """Neither while it waits nor after: hosts that are told list once more."""
    async with served([spec(late(3), "a"), spec(late(5), "b"), spec(late(20), "c")]) as (_, front):
        session, heard = front.session()
        async with trio.open_nursery() as nursery:
            for method in LISTS:
                nursery.start_soon(partial(front.list, method, of=session))
        assert trio.current_time() == 10
        await trio.sleep(1)
        assert set(heard) == {"notifications/resources/list_changed"}  # resources and templates are two lists
        heard.clear()
        await trio.sleep(10)
        assert sorted(heard) == [f"notifications/{kind}/list_changed" for kind in ("prompts", "resources", "tools")]


async def test_what_comes_while_a_list_is_fetched_again_for_a_session_is_no_news(autojump_clock):
    """The list that it gets has that."""
    silent = script()
    silent.capabilities["tools"] = {"listChanged": False}
    async with served([spec(silent), spec(late(0.75), "late")], gate=0.25) as (supervisor, front):
        session, heard = front.session()
        assert await front.list(of=session) == ["lab_look"]
        await supervisor.call_tool("lab_look")  # from now on its list may be another
        assert await front.list(of=session) == ["lab_look", "late_look"]
        assert trio.current_time() == 1
        await trio.sleep(1)
        assert CHANGED not in heard


async def test_a_list_that_failed_leaves_its_client_to_be_told(autojump_clock):
    """It waited for what has come, and does not have it."""
    async with served([spec(late(3), "a"), spec(late(5), "b")]) as (_, front):
        session, heard = front.session()
        with trio.move_on_after(4):
            await front.list(of=session)
        assert heard.count(CHANGED) == 1
        await front.list(of=session)
        await trio.sleep(1)
        assert heard.count(CHANGED) == 2  # of b, which came in the moment of the list


async def test_what_changes_while_a_list_is_under_way_is_told_when_it_ends(autojump_clock):
    async with served([spec(late(0), "a"), spec(late(7), "b")], gate=2) as (supervisor, front):
        await trio.sleep(1)
        session, heard = front.session()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(front.list, of=session))
            nursery.start_soon(partial(front.list, of=session))
            await trio.sleep(0.5)
            await supervisor.remove_server("a")
            await trio.sleep(0.4)
            assert CHANGED not in heard
        assert trio.current_time() == 2
        await trio.sleep(4)
        assert CHANGED not in heard
        await trio.sleep(2)
        assert heard.count(CHANGED) == 1
