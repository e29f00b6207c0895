"""K8: a supervisor uses the servers of another, with names, filters, approval and limits of its own. Virtual time."""

import json
import logging
from functools import partial

import pytest
import trio
import trio.testing
from mcp_types import ElicitResult, ErrorData

from mcp_nursery.supervisor import (
    Approval,
    BorrowedServer,
    CallTimeout,
    ConfigError,
    ConnectionLost,
    MemoryStore,
    NotApproved,
    RestartPolicy,
    ServerDown,
    ServerSpec,
    UnknownTool,
    open_supervisor,
)
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.errors import SupervisorClosed, UnknownServer
from mcp_nursery.supervisor.events import BreakerChanged, ResourceUpdated, ServerRemoved, StateChanged, ToolsChanged
from mcp_nursery.supervisor.testing import Ask, Life, ScriptedServer

from ...lab.specs import SERVERS, Named, WithEnvironment, hang, lasting, nothing, spec, states, status


async def allow(request):
    await trio.lowlevel.checkpoint()
    return Approval.ALLOW


def names(supervisor):
    return [tool.name for tool in supervisor.tools]


async def test_the_borrower_has_names_filters_approval_and_limits_of_its_own(autojump_clock):
    server = ScriptedServer(tools={"read": nothing, "write": nothing, "secret": nothing, "sleep": hang})
    other = ScriptedServer()
    async with open_supervisor([spec(server, deny=["secret"]), spec(other, "other")], gate=10, approve=allow) as parent:
        borrowed = BorrowedServer("lab", deny=["write"], call_timeout=3, max_result_chars=2)
        async with open_supervisor(
            borrow=parent,
            servers=[borrowed],
            template="{tool}",
            reserved=["read"],
            approval_rules=ApprovalRules(allowed=["lab/sleep"]),
        ) as child:
            assert [tool.tool for tool in child.tools] == ["read", "sleep"]
            assert child.tools[0].name.startswith("read_")
            assert child.tool("sleep").name == "sleep"
            assert names(parent) == ["mcp_lab_read", "mcp_lab_sleep", "mcp_lab_write", "mcp_other_echo"]
            assert states(child) == {"lab": "connected"}
            assert status(child).tool_count == 2
            result = await child.call_tool("read", server="lab")
            assert result.text.splitlines()[1] == "do"
            for hidden in ("write", "secret"):
                with pytest.raises(UnknownTool):
                    await child.call_tool(hidden, server="lab")
            with pytest.raises(UnknownServer):
                await child.call_tool("echo", server="other")
            with pytest.raises(NotApproved):
                await child.tools[0]()
            began = trio.current_time()
            with pytest.raises(CallTimeout):
                await child.tool("sleep")()
            assert trio.current_time() - began == 3
            assert [tool for _, tool, _ in server.calls] == ["read", "sleep"]
            assert not (await parent.tools[0]()).is_error
        assert states(parent) == {"lab": "connected", "other": "connected"}
        assert len(server.starts) == 1
        assert not server.ends


async def test_all_servers_are_borrowed_by_default_and_nothing_is_shown_of_later_ones(autojump_clock):
    async with (
        open_supervisor([spec(ScriptedServer(), name) for name in "ab"], gate=10) as parent,
        open_supervisor(borrow=parent) as child,
    ):
        assert names(child) == names(parent) == ["mcp_a_echo", "mcp_b_echo"]
        await parent.add_server(spec(ScriptedServer(), "c"))
        await parent.wait_connected("c")
        assert names(child) == ["mcp_a_echo", "mcp_b_echo"]


async def test_a_borrower_of_a_borrower_gets_no_more_than_that_has(autojump_clock):
    server = ScriptedServer(tools=dict.fromkeys(["read", "write", "list"], nothing))
    async with (
        open_supervisor([spec(server)], gate=10) as parent,
        open_supervisor(borrow=parent, servers=[BorrowedServer("lab", allow=["read", "write"])]) as child,
    ):
        async with open_supervisor(borrow=child, servers=[BorrowedServer("lab", allow=["read", "list"])]) as last:
            assert names(last) == ["mcp_lab_read"]
            assert (await last.call_tool("mcp_lab_read")).full_text == "done"
            server.crash()
            await trio.sleep(0.5)
            assert states(last) == {"lab": "waiting"}
            await last.wait_connected("lab")
            assert names(last) == ["mcp_lab_read"]
        assert names(child) == ["mcp_lab_read", "mcp_lab_write"]


async def test_a_call_starts_a_server_as_the_lender_s_own_does(autojump_clock):
    """One that failed and is revived by calls, and one whose next start is due later; also two borrowers away."""
    tired = ScriptedServer(Life(refuses="no"), Life())
    waiting = ScriptedServer(Life(dies_after=1), Life())
    specs = [
        spec(tired, "tired", revive="on_call", policy=RestartPolicy(delays=())),
        spec(waiting, "waiting", policy=RestartPolicy(delays=(100,))),
    ]
    async with (
        open_supervisor(specs, gate=10) as parent,
        open_supervisor(borrow=parent) as child,
        open_supervisor(borrow=child) as last,
    ):
        await trio.sleep(2)
        assert states(last) == {"tired": "failed", "waiting": "waiting"}
        began = trio.current_time()
        assert not (await last.call_tool("echo", server="tired")).is_error
        assert not (await last.call_tool("echo", server="waiting", when_down="reconnect")).is_error
        assert trio.current_time() == began
        assert (len(tired.starts), len(waiting.starts)) == (2, 2)


async def test_a_borrower_s_search_finds_what_it_has(autojump_clock):
    """By names of its own; what it has not is not called by another way either."""
    server = ScriptedServer(tools=dict.fromkeys(["send_mail", "send_money"], nothing))
    async with (
        open_supervisor([spec(server), spec(ScriptedServer(tools={"send_fax": nothing}), "fax")], gate=10) as parent,
        open_supervisor(
            borrow=parent, servers=[BorrowedServer("lab", deny=["*money"])], template="{tool}", approve=allow
        ) as child,
    ):
        toolset = child.as_toolset(search=True)
        found = await toolset.run("find_tools", {"query": "send"})
        assert [json.loads(line)["name"] for line in found.result.full_text.splitlines()] == ["send_mail"]
        assert not (await toolset.run("call_tool", {"name": "send_mail"})).is_error
        for hidden in ("send_money", "send_fax", "mcp_lab_send_mail", "mcp_lab_send_money"):
            assert isinstance((await toolset.run("call_tool", {"name": hidden})).error, UnknownTool)
        with pytest.raises(UnknownTool):
            await child.request("lab", "tools/call", {"name": "send_money", "arguments": {}})
        assert len(server.calls) == 1


async def test_a_look_at_lists_that_are_too_old_has_them_fetched_again(autojump_clock):
    server = ScriptedServer()
    async with open_supervisor([spec(server)], gate=10) as parent, open_supervisor(borrow=parent) as child:
        await trio.sleep(1000)
        server.tools["more"] = nothing
        assert len(child.tools) == 1
        await trio.testing.wait_all_tasks_blocked()
        assert len(child.tools) == 2


async def test_what_a_breaker_does_is_heard_however_far_away(autojump_clock):
    async with (
        open_supervisor([spec(ScriptedServer(tools={"hang": hang}))], gate=10) as parent,
        open_supervisor(borrow=parent) as child,
        open_supervisor(borrow=child) as last,
        last.events() as events,
    ):
        for supervisor in (parent, child, last):
            with pytest.raises(CallTimeout):
                await supervisor.call_tool("hang", server="lab", timeout=1)
        with trio.fail_after(1):
            while not isinstance(await events.receive(), BreakerChanged):
                pass


async def test_the_lender_s_secrets_are_not_shown_to_who_is_asked(autojump_clock):
    asked = []

    async def approve(request):
        await trio.lowlevel.checkpoint()
        asked.append(request.redacted)
        return Approval.ALLOW

    server = WithEnvironment(ScriptedServer(), {"KEY": "a-secret-of-the-lender"})
    async with (
        open_supervisor([ServerSpec("lab", server)], gate=10) as parent,
        open_supervisor(borrow=parent, approve=approve) as child,
        open_supervisor(borrow=child, approve=approve) as last,
    ):
        for supervisor in (child, last):
            await supervisor.tools[0]({"text": "a-secret-of-the-lender"})
    assert asked == [{"text": "[REDACTED:config]"}] * 2


async def test_a_borrower_that_has_ended_is_not_kept(autojump_clock):
    async with open_supervisor([spec(ScriptedServer())], gate=10) as parent:
        for _ in range(3):
            async with open_supervisor(borrow=parent):
                pass
        assert not parent._servers.dependents
        assert not parent._servers.registry.borrowed


async def test_what_becomes_of_a_server_is_seen_in_the_same_step(autojump_clock, caplog):
    caplog.set_level(logging.INFO)
    server = ScriptedServer(Life(), Life(refuses="gone"), tools={"read": nothing})
    policy = RestartPolicy(delays=[2.0])
    async with (
        open_supervisor([spec(server)], gate=10, policy=policy) as parent,
        open_supervisor(borrow=parent, template="x_{tool}") as child,
        child.events() as events,
    ):
        with trio.fail_after(100):
            server.crash()
            seen = []
            async for event in events:
                seen.append(event)
                if isinstance(event, StateChanged):
                    assert states(child) == states(parent)
                    assert len(child.tools) == len(parent.tools)
                if status(child).state == "failed" and isinstance(event, ToolsChanged):
                    break
        assert [each.new for each in seen if isinstance(each, StateChanged)] == ["waiting", "connecting", "failed"]
        assert next(each for each in seen if isinstance(each, ToolsChanged)).removed == ("x_read",)
        with pytest.raises(ServerDown):
            await child.call_tool("x_read")
    lines = [record.message for record in caplog.records if "connected -> waiting" in record.message]
    assert len(lines) == 1


async def test_a_server_that_is_removed_is_taken_back_and_comes_no_more(autojump_clock):
    async with (
        open_supervisor([spec(ScriptedServer(), name) for name in "ab"], gate=10) as parent,
        open_supervisor(borrow=parent) as child,
        child.events() as events,
    ):
        await parent.remove_server("a")
        assert names(child) == ["mcp_b_echo"]
        with trio.fail_after(1):
            async for event in events:
                if isinstance(event, ServerRemoved):
                    break
        assert event.server == "a"
        await parent.add_server(spec(ScriptedServer(), "a"))
        await parent.wait_connected("a")
        assert names(child) == ["mcp_b_echo"]
        with pytest.raises(UnknownServer):
            await child.call_tool("echo", server="a")


async def test_a_changed_spec_is_seen_through_the_same_filter(autojump_clock):
    server = ScriptedServer(tools=dict.fromkeys(["read", "write", "list"], nothing))
    async with (
        open_supervisor([spec(server)], gate=10) as parent,
        open_supervisor(borrow=parent, servers=[BorrowedServer("lab", deny=["list"])]) as child,
    ):
        await parent.reload([spec(server, deny=["write"])])
        await parent.wait_connected("lab")
        assert names(parent) == ["mcp_lab_list", "mcp_lab_read"]
        assert names(child) == ["mcp_lab_read"]


async def test_lazy_servers_are_started_by_the_borrower_s_calls_and_lists(autojump_clock):
    servers = [ScriptedServer(), ScriptedServer()]
    specs = [spec(server, name, lazy=True) for server, name in zip(servers, "ab", strict=True)]
    async with open_supervisor(specs) as parent, open_supervisor(borrow=parent, servers=["a", "b"]) as child:
        assert child.tools == ()
        assert (await child.call_tool("mcp_a_echo")).full_text == "{}"
        assert [tool.name for tool in await child.list_tools("b", refresh=True)] == ["mcp_b_echo"]
        assert states(parent) == {"a": "connected", "b": "connected"}
        await trio.sleep(301)
        assert states(child) == {"a": "idle", "b": "idle"}


async def test_a_call_of_the_borrower_keeps_its_server_from_being_idle(autojump_clock):
    server = ScriptedServer(tools={"work": lasting(400)})
    async with open_supervisor([spec(server, lazy=True)]) as parent, open_supervisor(borrow=parent) as child:
        assert (await child.call_tool("mcp_lab_work")).full_text == "done"


async def test_only_who_keeps_servers_may_change_them(autojump_clock):
    async with open_supervisor([spec(ScriptedServer())], gate=10) as parent, open_supervisor(borrow=parent) as child:
        for change in (
            lambda: child.reconnect("lab"),
            lambda: child.stop_server("lab"),
            lambda: child.start_server("lab"),
            lambda: child.remove_server("lab"),
            lambda: child.add_server(spec(ScriptedServer(), "more")),
            lambda: child.reload([]),
            lambda: child.set_roots([]),
            lambda: child.accept_change(None),
        ):
            with pytest.raises(ConfigError, match="only the supervisor that keeps them can change them"):
                await change()
        assert status(child).incarnation == 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"policy": RestartPolicy()}, "policy"),
        ({"state": MemoryStore()}, "state"),
        ({"pins": "block"}, "pins"),
        ({"drain": 1.0}, "drain"),
        ({"roots": ["/"]}, "roots"),
        ({"config_or_specs": []}, "config_or_specs"),
        ({"callbacks": Callbacks(roots=["/"])}, "callbacks"),
        ({"servers": ["lab", "lab"]}, "servers"),
        ({"servers": ["lab", 7]}, "name"),
    ],
)
async def test_what_is_the_lender_s_affair_is_refused(options, field, autojump_clock):
    async with open_supervisor([spec(ScriptedServer())], gate=10) as parent:
        with pytest.raises(ConfigError) as caught:
            async with open_supervisor(borrow=parent, **options):
                raise AssertionError
        assert caught.value.field == field


async def test_there_must_be_servers_or_a_lender(autojump_clock):
    for options in ({}, {"servers": ["lab"], "config_or_specs": []}, {"borrow": "lab"}):
        with pytest.raises(ConfigError):
            async with open_supervisor(**options):
                raise AssertionError
    async with open_supervisor([spec(ScriptedServer())], gate=10) as parent:
        with pytest.raises(UnknownServer, match="did you mean 'lab'"):
            async with open_supervisor(borrow=parent, servers=["lap"]):
                raise AssertionError
    with pytest.raises(SupervisorClosed):
        async with open_supervisor(borrow=parent):
            raise AssertionError


async def test_the_lender_s_end_ends_the_borrower(autojump_clock):
    """What waits is told, what is read ends, and what is asked for later is refused."""
    server = ScriptedServer(tools={"sleep": hang}, resources={"a:/1": nothing})
    down = ScriptedServer(Life(mute=True))
    ended = {}

    async def call(name, made):
        try:
            await made()
        except Exception as error:
            ended[name] = type(error)

    async with trio.open_nursery() as nursery:
        opened, over = trio.Event(), trio.Event()

        async def borrow():
            async with open_supervisor(borrow=parent, gate=0) as child:
                toolset = child.as_toolset()
                nursery.start_soon(call, "sent", lambda: child.call_tool("mcp_lab_sleep"))
                nursery.start_soon(call, "waiting", lambda: child.call_tool("echo", server="down"))
                nursery.start_soon(call, "listing", child.list_tools)
                nursery.start_soon(call, "connected", lambda: child.wait_connected("down"))
                nursery.start_soon(call, "changed", lambda: toolset.changed(toolset.tools))
                async with child.subscribe("a:/1", server="lab") as updates, child.events() as events:
                    await trio.testing.wait_all_tasks_blocked()
                    opened.set()
                    async for _ in updates:
                        pass
                    async for _ in events:
                        pass
                assert child.tools == ()
                assert len(child.status()) == 2
                await call("later", lambda: child.call_tool("mcp_lab_sleep"))
                with pytest.raises(SupervisorClosed):
                    child.fan_out([])
            over.set()

        async with open_supervisor([spec(server), spec(down, "down")], gate=1) as parent:
            nursery.start_soon(borrow)
            await opened.wait()
        with trio.fail_after(1):
            await over.wait()
    assert ended.pop("sent") is ConnectionLost  # as for a call of the lender's own
    assert ended == dict.fromkeys(["waiting", "listing", "connected", "changed", "later"], SupervisorClosed)


async def test_the_borrower_s_end_tells_who_waits_and_leaves_what_was_sent(autojump_clock):
    server = ScriptedServer(Life(connects_after=20), tools={"work": lasting(5)})
    outcomes = []

    async def call():
        try:
            outcomes.append((await child.call_tool("work", server="lab")).full_text)
        except Exception as error:
            outcomes.append(type(error))

    async with open_supervisor([spec(server)], gate=0) as parent, trio.open_nursery() as nursery:
        async with open_supervisor(borrow=parent, gate=0) as child:
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        assert outcomes == [SupervisorClosed]
        async with open_supervisor(borrow=parent, gate=30) as child:
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(6)
        assert outcomes[1:] == ["done"]
        assert child.tools == ()
        assert states(parent) == {"lab": "connected"}


async def test_news_of_resources_come_to_the_borrower_and_end_with_it(autojump_clock):
    server = ScriptedServer(resources={"a:/1": nothing})
    server.capabilities["resources"] = {"subscribe": True}
    news = []

    async def follow(child, task_status=trio.TASK_STATUS_IGNORED):
        async with child.subscribe("a:/1") as updates:
            task_status.started()
            async for update in updates:
                news.append(update)
            news.append("over")

    async with open_supervisor([spec(server)], gate=10) as parent, trio.open_nursery() as nursery:
        async with open_supervisor(borrow=parent) as child, child.events() as events:
            assert [resource.uri for resource in child.resources] == ["a:/1"]
            await nursery.start(follow, child)
            await trio.sleep(1)
            await server.notify("notifications/resources/updated", {"uri": "a:/1"})
            await trio.sleep(1)
            assert [update.uri for update in news] == ["a:/1"]
            with trio.fail_after(1):
                while not isinstance(await events.receive(), ResourceUpdated):
                    pass
            assert (await child.read_resource("a:/1")).full_text == "done"
        await trio.testing.wait_all_tasks_blocked()
        assert news[1:] == ["over"]


async def asks(arguments):
    await trio.lowlevel.checkpoint()
    params = {"message": "who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}

    async def then(answers):
        await trio.lowlevel.checkpoint()
        return str(answers["who"].get("content", answers["who"]["action"]))

    return Ask({"who": {"method": "elicitation/create", "params": params}}, then)


def answering(name, asked):
    async def elicit(message):
        await trio.lowlevel.checkpoint()
        asked.append((name, message.server, message.tool))
        return ElicitResult(action="accept", content={"name": name})

    return Callbacks(elicit=elicit)


async def test_a_question_in_a_call_comes_to_who_called(autojump_clock):
    """Where a server asks by the call itself, and the borrower has anybody to ask; else the lender's are asked."""
    asked = []
    server = ScriptedServer(tools={"ask": asks})
    async with open_supervisor([spec(server)], gate=10, callbacks=answering("parent", asked)) as parent:
        async with open_supervisor(borrow=parent, callbacks=answering("child", asked)) as child:
            assert "child" in (await child.call_tool("mcp_lab_ask")).full_text
        async with open_supervisor(borrow=parent) as child:
            assert "parent" in (await child.call_tool("mcp_lab_ask")).full_text
        assert "parent" in (await parent.call_tool("mcp_lab_ask")).full_text

        async def sample(message):
            raise AssertionError

        async with open_supervisor(borrow=parent, callbacks=Callbacks(sample=sample)) as child:
            with pytest.raises(Exception, match="this caller answers no such question"):
                await child.call_tool("mcp_lab_ask")
    assert asked == [("child", "lab", "ask"), ("parent", "lab", "ask"), ("parent", "lab", "ask")]


async def test_what_is_held_back_is_held_back_from_the_borrower(autojump_clock):
    store, server = MemoryStore(), ScriptedServer(tools={"add": nothing})
    SERVERS["held"], specs = server, [ServerSpec("lab", Named("held"))]
    async with open_supervisor(specs, gate=10, state=store, pins="block"):
        pass
    server.declared = {"add": {"description": "another"}}
    async with (
        open_supervisor(specs, gate=10, state=store, pins="block", approve=allow) as parent,
        open_supervisor(borrow=parent, template="{tool}", approve=allow) as child,
        child.events() as events,
    ):
        assert child.tools == ()
        toolset = child.as_toolset()
        assert isinstance((await toolset.run("add")).error, NotApproved)
        with pytest.raises(NotApproved):
            await child.call_tool("add", server="lab")
        await parent.accept_change(*child.definition_changes)
        assert not (await toolset.run("add")).is_error
        with trio.fail_after(1):
            while not isinstance(await events.receive(), ToolsChanged):
                pass


async def test_a_borrower_that_is_opened_while_servers_change_misses_nothing(autojump_clock):
    """The many tools of one server are named in turns, and meanwhile it dies and another is removed."""
    server = ScriptedServer(tools={f"tool_{n}": nothing for n in range(600)})
    async with open_supervisor([spec(server), spec(ScriptedServer(), "other")], gate=30) as parent:

        async def disturb():
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            server.crash()
            await parent.remove_server("other")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(disturb)
            async with open_supervisor(borrow=parent, gate=0) as child:
                await trio.testing.wait_all_tasks_blocked()
                assert states(child) == states(parent) == {"lab": "waiting"}
                assert names(child) == names(parent)
                await child.wait_connected("lab")
                assert {tool.available for tool in child.tools} == {True}
                assert len(child.tools) == 600


async def test_a_server_that_is_being_removed_is_borrowed_without_its_tools(autojump_clock):
    """It ends when a call of the lender's is done."""
    server = ScriptedServer(tools={"work": lasting(5)})
    async with open_supervisor([spec(server)], gate=10) as parent, trio.open_nursery() as nursery:
        nursery.start_soon(partial(parent.call_tool, "work", server="lab"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(partial(parent.remove_server, "lab", drain=60))
        await trio.testing.wait_all_tasks_blocked()
        async with open_supervisor(borrow=parent, servers=["lab"], gate=0) as child:
            assert child.tools == parent.tools == ()
            assert states(child) == states(parent) != {}
            await trio.sleep(6)
            assert states(child) == states(parent) == {}
            await parent.add_server(spec(server))
            await parent.wait_connected("lab")
            assert child.tools == (), "it is another"


async def test_a_refusal_is_no_crash(autojump_clock):
    async def refuse(message):
        await trio.lowlevel.checkpoint()
        return ErrorData(code=-1, message="not today")

    server = ScriptedServer(tools={"ask": asks})
    async with (
        open_supervisor([spec(server)], gate=10, callbacks=answering("parent", [])) as parent,
        open_supervisor(borrow=parent, callbacks=Callbacks(elicit=refuse)) as child,
    ):
        with pytest.raises(Exception, match="not today"):
            await child.call_tool("mcp_lab_ask")
