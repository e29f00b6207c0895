"""Who is told that a list has changed, and how often. Virtual time."""

from contextlib import asynccontextmanager

import trio
import trio.testing

from mcp_nursery.actors.protocol import SUBSCRIPTION_ID_META_KEY
from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.gateway import Access, gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import ClientSession
from mcp_nursery.supervisor.gateway.notifications import BURST
from mcp_nursery.supervisor.testing import ScriptedServer

from ...lab.gateway_clients import ENVELOPE, NEW
from ...lab.specs import nothing, spec

TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"


class Clients:
    """Who listens, by name: what each of them is told."""

    def __init__(self, supervisor, gateway, nursery):
        self.supervisor, self.gateway, self.nursery = supervisor, gateway, nursery
        self.heard = {}

    def session(self, name, server=None, allow=None):
        told = self.heard[name] = []
        session = ClientSession(lambda said: told.append(said.method), self.nursery, server, Access(allow))
        self.gateway.news.enter(session)
        return session

    def listener(self, name, server=None, allow=None, **wanted):
        told, view = self.heard.setdefault(name, []), self.gateway.view(server, Access(allow))

        async def tell(method, params):
            await trio.lowlevel.checkpoint()
            assert params["_meta"] == {SUBSCRIPTION_ID_META_KEY: name}
            told.append(method)

        incoming = ClientRequest(name, "subscriptions/listen", {"notifications": wanted}, dict(ENVELOPE), tell, name)
        scope = trio.CancelScope()

        async def listen():
            with scope:
                await self.gateway.answer(incoming, view, NEW)

        self.nursery.start_soon(listen)
        return scope

    async def news(self):
        """What all have heard by now, but for who has heard nothing."""
        await trio.sleep(1)
        heard = {name: list(told) for name, told in self.heard.items() if told}
        for told in self.heard.values():
            told.clear()
        return heard


@asynccontextmanager
async def opened(**how):
    scripts = {name: ScriptedServer(prompts={}) for name in "ab"}
    async with (
        open_supervisor(
            [spec(each, name=name) for name, each in scripts.items()], gate=10, callbacks=gateway_callbacks()
        ) as supervisor,
        open_gateway(supervisor, **how) as gateway,
        trio.open_nursery() as nursery,
    ):
        await supervisor.list_tools()
        await trio.sleep(1)

        async def change(name, kind="tools"):
            there = getattr(scripts[name], kind)
            there[f"more{len(there)}"] = nothing
            await getattr(supervisor, f"list_{kind}")(refresh=True)

        yield Clients(supervisor, gateway, nursery), change
        nursery.cancel_scope.cancel()


async def test_who_sees_a_server_is_told_once_of_a_burst(autojump_clock):
    async with opened() as (clients, change):
        clients.session("all")
        clients.session("of a", "a")
        clients.session("of b", "b")
        clients.session("may use a", allow=["a/*"])
        clients.session("may use b", allow=["b/*"])
        clients.listener("tools", toolsListChanged=True, promptsListChanged=False)
        clients.listener("prompts of a", "a", promptsListChanged=True)
        clients.listener("tools, may use b", allow=["b/*"], toolsListChanged=True)
        begun = await clients.news()
        assert set(begun) == {"tools", "prompts of a", "tools, may use b"}
        assert set(map(tuple, begun.values())) == {("notifications/subscriptions/acknowledged",)}
        for _ in range(3):
            await change("a")
        assert await clients.news() == {name: [TOOLS] for name in ["all", "of a", "may use a", "tools"]}
        await change("a", "prompts")
        assert await clients.news() == {name: [PROMPTS] for name in ["all", "of a", "may use a", "prompts of a"]}
        await change("a")
        await change("b")
        everybody = ["all", "of a", "of b", "may use a", "may use b", "tools", "tools, may use b"]
        assert await clients.news() == {name: [TOOLS] for name in everybody}


async def test_with_search_other_lists_are_news_as_ever(autojump_clock):
    async with opened(search=True) as (clients, change):
        clients.session("all")
        clients.session("of a", "a")
        await trio.sleep(1)
        await change("a")
        await change("a", "prompts")
        assert await clients.news() == {"all": [PROMPTS], "of a": [PROMPTS]}


async def test_what_had_changed_before_a_client_came_is_no_news_and_after_it_went_nobody_hears(autojump_clock):
    async with opened() as (clients, change):
        first = clients.session("first")
        await trio.sleep(BURST)
        await change("a")
        await trio.sleep(BURST / 2)
        clients.session("second")
        scope = clients.listener("third", toolsListChanged=True)
        heard = await clients.news()
        assert (heard["first"], heard.get("second")) == ([TOOLS], None)
        assert heard["third"] == ["notifications/subscriptions/acknowledged"]
        clients.gateway.news.leave(first)
        assert first.ended
        scope.cancel()
        await change("a")
        assert await clients.news() == {"second": [TOOLS]}
        assert not clients.gateway.news._listeners
