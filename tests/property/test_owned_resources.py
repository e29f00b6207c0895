"""P8: what a client of all servers reads by a URI is what the server that showed it says, or an error. Virtual time.

Two servers claim URIs and templates in any order, also those that look like the other's as it is shown, and change
their minds; they die, are stopped and removed, and come back.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import define, field
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.actors.transports.base import StreamConnector
from mcp_nursery.supervisor import MemoryStore, RestartPolicy, ServerSpec, Supervisor, open_supervisor
from mcp_nursery.supervisor.gateway import Gateway, gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import ClientSession
from mcp_nursery.supervisor.resources import ResourceTemplate
from mcp_nursery.supervisor.testing import run_virtual

from ..lab.gateway_clients import ENVELOPE, NEW, OLD, as_read
from ..lab.talker import Talker

pytestmark = pytest.mark.slow

UPDATED = "notifications/resources/updated"
NAMING = {f"mcp-server://{name}/{uri}": [name, uri] for name in "ab" for uri in ("note://1", "ui://1", "{+x}")}
NAMING |= {f"ui://{name}+1": [name, "ui://1"] for name in "ab"}
"""The server that a URI names, and the server's own URI."""
CLAIMS = [
    *("note://1", "note://{x}", "{+x}", "ui://1", "UI://1", "ui://{+x}", "https://1", "", "\x00"),
    *NAMING,
    *(uri for name in "ab" for uri in (f"ui://{name}%2B1", f"MCP-SERVER://{name}/note://1")),
]
ACTS = ["claim", "claim", "claim", "die", "stop", "start", "remove", "add"]
PLANS = st.lists(
    st.tuples(st.sampled_from(ACTS), st.sampled_from("ab"), st.lists(st.sampled_from(CLAIMS), max_size=4, unique=True)),
    min_size=2,
    max_size=8,
)


@define(eq=False)
class Claimer:
    """A server that lists what the test says, and reads whatever it is asked for. It is its own transport."""

    name: str
    claims: list[str] = field(factory=list)
    listed: list[str] = field(factory=list)
    """Its claims when it was asked for them last."""
    process: "Process | None" = None
    kind = "scripted"

    def connector(self, *, close_grace):
        return Connector(self)

    def entries(self, kind, *, template):
        """What it says of each: whose it is, and how it writes it itself."""
        return [
            {kind: uri, "name": uri or "empty", "description": json.dumps([self.name, uri])}
            for uri in self.claims
            if ("{" in uri) is template
        ]

    def answer(self, method, params):  # noqa: PLR0911
        match method:
            case "initialize":
                can = {"tools": {}, "resources": {"listChanged": True, "subscribe": True}}
                return {"protocolVersion": OLD, "capabilities": can, "serverInfo": {"name": self.name, "version": "1"}}
            case "tools/list":
                tool = {"name": "show", "inputSchema": {"type": "object"}, "_meta": {"ui": {"resourceUri": "ui://1"}}}
                return {"tools": [tool]}
            case "resources/list":
                self.listed = self.claims
                return {"resources": self.entries("uri", template=False)}
            case "resources/templates/list":
                return {"resourceTemplates": self.entries("uriTemplate", template=True)}
            case "resources/read":
                return {"contents": [{"uri": params["uri"], "text": json.dumps([self.name, params["uri"]])}]}
            case "tools/call":
                return {"content": [{"type": "resource_link", "name": "x", "uri": uri} for uri in self.claims]}
        return {}

    def say(self, method, **params):
        if self.process is not None:
            self.process.say(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())


class Process(Talker):
    def __init__(self, server):
        super().__init__()
        self.server = server
        self.ended = False

    def take(self, message):
        if "id" in message:
            result = self.server.answer(message["method"], message.get("params") or {})
            self.say(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())

    def die(self):
        self.ended = True
        self._news.unpark_all()

    async def read(self):
        while not self._said and not self.ended:
            await self._news.park()
        batch = list(self._said)
        self._said.clear()
        return batch


@define
class Connector(StreamConnector):
    server: Claimer

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Process, None]:
        self.server.process = Process(self.server)
        yield self.server.process
        self.server.process = None


async def act_on(supervisor, server, act, claims):
    name, known = server.name, {one.name for one in supervisor.status()}
    match act:
        case "claim":
            server.claims = claims
            server.say("notifications/resources/list_changed")
        case "die" if server.process is not None:
            server.process.die()
        case "stop" if name in known:
            await supervisor.stop_server(name)
        case "start" if name in known:
            await supervisor.start_server(name)
        case "remove" if name in known:
            await supervisor.remove_server(name)
        case "add" if name not in known:
            await supervisor.add_server(spec_of(server))


def spec_of(server):
    return ServerSpec(server.name, server, policy=RestartPolicy(delays=[1, 1]))


def expand(template, value):
    return template.replace("{x}", value).replace("{+x}", value)


def claims(server, uri):
    """True if the server lists the URI, has a template that it matches, or its tool has that page."""
    templates = (ResourceTemplate(server.name, each, None, available=True) for each in server.listed if "{" in each)
    return uri in (*server.listed, "ui://1") or any(each.matches(uri) for each in templates)


@define(eq=False)
class Watcher:
    """A client that remembers what it was ever shown, and by whom."""

    supervisor: Supervisor
    gateway: Gateway
    session: ClientSession | None
    shown: dict[str, list[str]] = field(factory=dict)
    """By each URI: the server, and its own URI."""

    async def ask(self, method, *, server=None, **params):
        meta, version = (ENVELOPE, NEW) if self.session is None else ({}, OLD)
        incoming = ClientRequest(1, method, params, meta, unheard, principal="ann", session=self.session)
        return as_read(await self.gateway.answer(incoming, self.gateway.view(server), version))

    async def read(self, uri, *, server=None):
        """The server that answers, and what it was asked for; None: nobody does."""
        try:
            [contents] = (await self.ask("resources/read", server=server, uri=uri))["contents"]
        except JsonRpcError:
            return None
        return json.loads(contents["text"])

    def note(self, uri, *whose):
        assert self.shown.setdefault(uri, list(whose)) == list(whose)

    async def look(self, servers):
        for each in (await self.ask("resources/list"))["resources"]:
            self.note(each["uri"], *json.loads(each["description"]))
        for each in (await self.ask("resources/templates/list"))["resourceTemplates"]:
            name, own = json.loads(each["description"])
            for value in ("1", "b/1", "ui://1", "mcp-server://b/note://1"):
                self.note(expand(each["uriTemplate"], value), name, expand(own, value))
        for tool in (await self.ask("tools/list"))["tools"]:
            name = tool["name"][0]
            self.note(tool["_meta"]["ui"]["resourceUri"], name, "ui://1")
            result = await self.ask("tools/call", name=tool["name"])
            if not result.get("isError"):  # it may be away
                for own, link in zip(servers[name].claims, result["content"], strict=True):
                    if link["uri"] != "https://1":
                        self.note(link["uri"], name, own)

    async def check(self, servers):
        known = [one.name for one in self.supervisor.status()]
        for uri, (name, own) in self.shown.items():
            found = await self.read(uri)
            assert found in (None, [name, own])
            if name in known:
                assert found == await self.read(own, server=name)
        for uri in CLAIMS:
            found = await self.read(uri)
            if uri in NAMING:
                assert found in (None, NAMING[uri])
            elif found is not None:
                assert [[name, uri] for name in known if claims(servers[name], uri)] == [found]
                assert not uri.startswith("https")


async def unheard(method, params):
    await trio.lowlevel.checkpoint()


async def play(plan, modern):
    servers = {name: Claimer(name) for name in "ab"}
    told: list[str] = []
    async with (
        open_supervisor(
            [spec_of(server) for server in servers.values()],
            template="{server}_{tool}",
            callbacks=gateway_callbacks(),
            state=MemoryStore(),
        ) as supervisor,
        open_gateway(supervisor, hold=0) as gateway,
        trio.open_nursery() as nursery,
    ):
        session = ClientSession(lambda said: told.append(said.params["uri"]) if said.params else None, nursery)
        watcher = Watcher(supervisor, gateway, None if modern else session)
        for name in servers:
            await supervisor.wait_connected(name)
            await Watcher(supervisor, gateway, session).ask("resources/subscribe", uri=f"mcp-server://{name}/note://1")
        for act, name, new in plan:
            await act_on(supervisor, servers[name], act, new)
            await trio.sleep(5)
            await watcher.look(servers)
            await watcher.check(servers)
            told.clear()
            servers[name].say(UPDATED, uri="note://1")
            await trio.sleep(5)
            assert set(told) <= {f"mcp-server://{name}/note://1"}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "modern"])
def test_nobody_answers_for_what_another_has_shown(modern):
    @given(PLANS)
    @example([("claim", "a", ["note://1"]), ("claim", "b", ["note://1", "mcp-server://a/note://1"]), ("die", "a", [])])
    @example([("claim", "a", ["note://{x}"]), ("claim", "b", ["{+x}"]), ("remove", "a", [])])
    def check(plan):
        run_virtual(lambda: play(plan, modern))

    check()
