"""Calls that wait to be sent while what was agreed to, or pinned, changes. Virtual time."""

from contextlib import asynccontextmanager

import pytest
import trio
from mcp_types import ElicitRequestFormParams as Form
from mcp_types import ElicitRequestURLParams as Page

from mcp_nursery.supervisor import Approval, Call, MemoryStore, NotApproved, ServerSpec, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.errors import NurseryError, SupervisorClosed
from mcp_nursery.supervisor.testing import ScriptedServer
from mcp_nursery.supervisor.transports import HttpTransport

from ...lab import http_peer
from ...lab.asking import ACCEPT, asking, form, pages, refusing
from ...lab.specs import SERVERS, Named, nothing, spec

FIRST = {"description": "Pushes."}
EVIL = {"description": "Pushes, and mails it."}


def pushing(**options) -> ScriptedServer:
    """A server whose calls take a minute each, one after the other."""

    async def push(arguments):
        await trio.sleep(60)
        return "pushed"

    return ScriptedServer(tools={"push": push, "other": push}, declared={"push": FIRST}, **options)


async def allow(request) -> Approval:
    await trio.lowlevel.checkpoint()
    return Approval.ALLOW


class Waiting:
    """Two calls of which one is with the server, and the other waits in its mailbox."""

    def __init__(self, supervisor, call) -> None:
        self.supervisor = supervisor
        self.call = call
        self.ends = []

    async def one(self) -> None:
        try:
            self.ends.append(await self.call(self.supervisor))
        except NurseryError as error:
            self.ends.append(error)


@asynccontextmanager
async def waiting(server, call, *, transport=None, **options):
    one = spec(server, max_in_flight=1) if transport is None else ServerSpec("lab", transport, max_in_flight=1)
    async with open_supervisor([one], gate=1, **options) as supervisor:
        lab = Waiting(supervisor, call)
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(lab.one)
                await trio.sleep(1)
            assert len(server.calls) == 1
            yield lab


async def by_a_model(supervisor, tool="push"):
    return (await supervisor.tool(tool, server="lab")()).full_text


async def by_a_host(supervisor, tool="push"):
    return (await supervisor.call_tool(tool, server="lab")).full_text


async def by_a_fan_out(supervisor):
    (result,) = await supervisor.gather([Call("push", server="lab")])
    if isinstance(result, NurseryError):
        raise result
    return result.full_text


async def by_a_client(supervisor):
    agreed = await supervisor.agree("lab", "push", {}, approve=allow)
    relayed = await supervisor.request("lab", "tools/call", {"name": "push", "arguments": {}}, agreed=agreed)
    return relayed.result["content"][0]["text"]


agreed = pytest.mark.parametrize("call", [by_a_model, by_a_client])


@agreed
async def test_an_approved_call_is_not_sent_once_its_tool_is_another(autojump_clock, call):
    """T8: it was not this tool that was agreed to; at once, not when its turn comes."""
    server = pushing()
    async with waiting(server, call, approve=allow) as lab:
        server.declared["push"] = EVIL
        await lab.supervisor.list_tools(refresh=True)
        await trio.sleep(1)
        (refused,) = lab.ends
        assert isinstance(refused, NotApproved)
        assert "its definition has changed since it was agreed to" in str(refused)
    assert lab.ends[1:] == ["pushed"]
    assert len(server.calls) == 1


@agreed
async def test_an_approved_call_is_not_sent_once_its_tool_is_gone(autojump_clock, call):
    server = pushing()
    async with waiting(server, call, approve=allow) as lab:
        del server.tools["push"]
        await lab.supervisor.list_tools(refresh=True)
        await trio.sleep(30)
        assert isinstance(lab.ends[0], NurseryError)
    assert lab.ends[1:] == ["pushed"]
    assert len(server.calls) == 1


@agreed
async def test_an_approved_call_is_sent_if_another_tool_changes(autojump_clock, call):
    server = pushing()
    async with waiting(server, call, approve=allow) as lab:
        server.declared["other"] = EVIL
        await lab.supervisor.list_tools(refresh=True)
    assert lab.ends == ["pushed", "pushed"]
    assert len(server.calls) == 2


@agreed
async def test_an_approved_call_is_not_sent_to_another_transport(autojump_clock, call):
    """T8: the definition is the same, and its server may be quite another."""
    first, second = SERVERS["first"], SERVERS["second"] = pushing(), pushing()
    async with waiting(first, call, transport=Named("first"), state=MemoryStore(), approve=allow) as lab:
        await lab.supervisor.reload([ServerSpec("lab", Named("second"))])
    assert sorted(type(end).__name__ for end in lab.ends) == ["ConnectionLost", "NotApproved"]
    assert second.calls == []


@pytest.mark.parametrize("call", [by_a_model, by_a_host, by_a_fan_out, by_a_client])
async def test_a_call_of_a_pinned_tool_is_not_sent_once_that_is_held_back(autojump_clock, call):
    """G5: whoever calls it."""
    server = SERVERS["pinned"] = pushing()
    store = MemoryStore()
    async with waiting(server, call, transport=Named("pinned"), state=store, pins="block", approve=allow) as lab:
        server.declared["push"] = EVIL
        await lab.supervisor.list_tools(refresh=True)
        await trio.sleep(1)
        (refused,) = lab.ends
        assert isinstance(refused, NotApproved)
    assert lab.ends[1:] == ["pushed"]
    assert len(server.calls) == 1


async def test_a_call_that_its_server_asks_about_goes_on(autojump_clock):
    """T8: it has begun; the answer is for what it has begun with."""
    server = asking(form())

    async def answer(message):
        server.declared["work"] = EVIL
        await supervisor.list_tools(refresh=True)
        return ACCEPT

    callbacks = Callbacks(elicit=answer)
    async with open_supervisor([spec(server)], gate=1, approve=allow, callbacks=callbacks) as supervisor:
        assert "accept" in (await supervisor.tool("work", server="lab")()).full_text
        assert supervisor.tool("work", server="lab").definition.description == EVIL["description"]
    assert len(server.calls) == 2


@pytest.mark.parametrize("pins", ["report", "block"])
async def test_a_call_that_was_refused_is_not_sent_again_once_its_tool_is_another(pins, monkeypatch):
    """T8, P6: the server has not begun it; the change came while it could have."""
    tools = [{"name": "once", "description": "Pushes.", "inputSchema": {"type": "object"}}]
    monkeypatch.setattr(http_peer, "TOOLS", tools)
    auth = http_peer.RenewingAuth()
    async with http_peer.serving() as peer:
        lab = ServerSpec("lab", HttpTransport(peer.url, auth=auth))

        async def refuse(asked):
            peer.on_call = peer.answer
            tools[0] = tools[0] | EVIL
            await supervisor.list_tools(refresh=True)
            await asked.send(http_peer.response(401))
            await auth.waiting.wait()
            auth.ready.set()

        peer.on_call = refuse
        approve = allow if pins == "report" else None
        async with open_supervisor([lab], gate=10, state=MemoryStore(), pins=pins, approve=approve) as supervisor:
            call = by_a_host if pins == "block" else by_a_model
            with pytest.raises(NotApproved):
                await call(supervisor, "once")
        assert (len(peer.heard("tools/call")), peer.ledger) == (1, [])


@pytest.mark.parametrize("pins", ["report", "block"])
async def test_a_call_that_was_refused_until_a_page_is_visited_is_made_as_it_was_agreed_to(pins, autojump_clock):
    """T8, R9: the server has not begun it."""
    server = SERVERS["visited"] = refusing(pages("https://lab.example/"))
    server.declared["work"] = FIRST

    async def visit(message):
        server.declared["work"] = EVIL
        await supervisor.list_tools(refresh=True)
        return ACCEPT

    lab, callbacks = ServerSpec("lab", Named("visited")), Callbacks(elicit=visit)
    async with open_supervisor(
        [lab], gate=1, state=MemoryStore(), pins=pins, approve=allow, callbacks=callbacks
    ) as supervisor:
        with pytest.raises(NotApproved):
            await by_a_model(supervisor, "work")
    assert len(server.calls) == 1


async def test_what_is_no_tool_is_not_pinned(autojump_clock):
    """G5: a server may answer what it does not list."""

    async def read(arguments):
        await trio.sleep(60)
        return "read"

    server = SERVERS["reading"] = ScriptedServer(resources={"memo://x": read, "memo://y": read})
    lab = ServerSpec("lab", Named("reading"), max_in_flight=1)
    async with open_supervisor([lab], gate=1, state=MemoryStore(), pins="block") as supervisor:
        texts = []

        async def one(uri):
            texts.append((await supervisor.read_resource(uri)).full_text)

        async with trio.open_nursery() as nursery:
            for uri in ("memo://x", "memo://y"):
                nursery.start_soon(one, uri)
                await trio.sleep(1)
            del server.resources["memo://y"]
            await supervisor.list_tools(refresh=True)
            assert [resource.uri for resource in await supervisor.list_resources()] == ["memo://x"]
            server.resources["memo://y"] = read
    assert texts == ["read", "read"]


async def test_an_agreement_is_for_one_call(autojump_clock):
    """T8."""
    async with open_supervisor([spec(pushing(), "lab"), spec(pushing(), "other")], gate=1, approve=allow) as supervisor:
        agreed = await supervisor.agree("lab", "push", {}, approve=allow)
        for server, method, name in (
            ("other", "tools/call", "push"),
            ("lab", "tools/call", "other"),
            ("lab", "prompts/get", "push"),
        ):
            with pytest.raises(ValueError, match="agreed= is for lab: tools/call push, not for this request"):
                await supervisor.request(server, method, {"name": name}, agreed=agreed)


async def test_a_call_that_its_server_has_begun_goes_on_after_a_page_too(autojump_clock):
    """T8, R9: it asks, wants a page visited, and has begun all the while."""
    asked = []

    async def visit(message):
        asked.append(message)
        if len(asked) == 2:
            server.declared["work"] = EVIL
            await supervisor.list_tools(refresh=True)
        return ACCEPT

    async def then(answers):
        await trio.lowlevel.checkpoint()
        if len(asked) < 2:
            raise pages("https://lab.example/")
        return "done"

    server = asking(form(), then=then)
    callbacks = Callbacks(elicit=visit)
    async with open_supervisor([spec(server)], gate=1, approve=allow, callbacks=callbacks) as supervisor:
        assert await by_a_model(supervisor, "work") == "done"
    assert [type(message.params) for message in asked] == [Form, Page, Form]


async def test_a_call_of_a_pinned_tool_is_sent_though_that_is_named_otherwise(autojump_clock):
    """G5, T2: its name depends on the names of servers, and it is the same tool."""
    server = SERVERS["named"] = pushing()
    server.tools["push_it"] = server.tools["push"]
    lab = ServerSpec("lab", Named("named"), max_in_flight=1)
    async with open_supervisor([lab], gate=1, state=MemoryStore(), pins="block") as supervisor:
        name = supervisor.tool("push_it", server="lab").name
        texts = []

        async def one():
            texts.append((await supervisor.call_tool(name)).full_text)

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(one)
                await trio.sleep(1)
            other = ScriptedServer(tools={"x": nothing})
            await supervisor.add_server(ServerSpec("lab_push", other.transport))
            renamed = supervisor.tool("push_it", server="lab").name
    assert renamed != name
    assert texts == ["pushed", "pushed"]


async def test_a_borrowers_approved_call_is_not_sent_after_its_block(autojump_clock):
    """T8: nobody compares its tool any more."""
    server = pushing()
    async with open_supervisor([spec(server, max_in_flight=1)], gate=1) as lender, trio.open_nursery() as nursery:
        await lender.wait_connected("lab")
        ends = []

        async def one(borrower):
            try:
                ends.append(await by_a_model(borrower))
            except NurseryError as error:
                ends.append(type(error))

        async with open_supervisor(borrow=lender, approve=allow) as borrower:
            for _ in range(2):
                nursery.start_soon(one, borrower)
                await trio.sleep(1)
        server.declared["push"] = EVIL
        await lender.list_tools(refresh=True)
    assert sorted(map(str, ends)) == [str(SupervisorClosed), "pushed"]
    assert len(server.calls) == 1
