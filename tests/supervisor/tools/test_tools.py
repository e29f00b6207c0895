"""Tools as a host sees them, through a supervisor."""

import hashlib
import itertools
import re

import pytest
import trio
from mcp.server import Server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

from mcp_nursery.actors.errors import ConfigError, InvalidArguments, NotApproved, UnknownServer, UnknownTool
from mcp_nursery.supervisor import Approval, InProcessTransport, ServerSpec, open_supervisor
from mcp_nursery.supervisor.approval import ApprovalRequest, ApprovalRules
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.specs import nothing, spec


def scripted(*tools: str) -> ScriptedServer:
    return ScriptedServer(tools=dict.fromkeys(tools, nothing))


def paged(pages: dict[str | None, tuple[list[str], str | None]]) -> tuple[ServerSpec, list[str | None]]:
    """A server whose list has these pages, by cursor; and the cursors it was asked for."""
    asked: list[str | None] = []

    async def on_list_tools(ctx, params):
        cursor = None if params is None else params.cursor
        asked.append(cursor)
        tools, following = pages[cursor]
        listed = [Tool(name=name, input_schema={"type": "object"}) for name in tools]
        return ListToolsResult(tools=listed, next_cursor=following)

    async def on_call_tool(ctx, params):
        return CallToolResult(content=[TextContent(text=params.name)])

    server = Server("paged", on_list_tools=on_list_tools, on_call_tool=on_call_tool)
    return ServerSpec("lab", InProcessTransport(server)), asked


# -- pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pages", "asked", "tools"),
    [
        ({None: (["a"], None)}, [None], ["a"]),
        ({None: (["a"], "2"), "2": (["b"], None)}, [None, "2"], ["a", "b"]),
        ({None: (["a"], ""), "": (["b"], "3"), "3": (["c"], None)}, [None, "", "3"], ["a", "b", "c"]),
        ({None: ([], "2"), "2": (["b"], None)}, [None, "2"], ["b"]),
        ({None: (["a"], "2"), "2": (["b"], "2")}, [None, "2"], ["a", "b"]),
        ({None: (["a"], "2"), "2": (["b"], "3"), "3": (["c"], "2")}, [None, "2", "3"], ["a", "b", "c"]),
        ({None: (["a"], ""), "": (["b"], "")}, [None, ""], ["a", "b"]),
        ({None: ([], None)}, [None], []),
    ],
    ids=["one", "two", "empty cursor", "empty page", "loop of one", "loop of two", "empty loop", "no tools"],
)
async def test_all_pages(autojump_clock, pages, asked, tools):
    """T1: every page; an empty-string cursor is a cursor; a cursor loop ends."""
    one, cursors = paged(pages)
    async with open_supervisor([one], gate=10) as supervisor:
        assert [tool.tool for tool in supervisor.tools] == tools
        assert cursors == asked
        for name in tools:
            assert (await supervisor.call_tool(name, server="lab")).full_text == name


async def test_a_name_that_comes_twice(autojump_clock, caplog):
    """T1: counts once, the first, with a warning."""
    one, _ = paged({None: (["a", "b"], "2"), "2": (["a"], None)})
    async with open_supervisor([one], gate=10) as supervisor:
        assert [tool.tool for tool in supervisor.tools] == ["a", "b"]
    assert "dropped a tool named 'a': the server has another tool of that name" in caplog.text


async def test_a_server_that_invents_cursors_for_ever(autojump_clock):
    """T1: the list ends."""
    count = itertools.count()

    async def on_list_tools(ctx, params):
        n = next(count)
        return ListToolsResult(tools=[Tool(name=f"t{n}", input_schema={"type": "object"})], next_cursor=str(n))

    server = Server("endless", on_list_tools=on_list_tools)
    async with open_supervisor([ServerSpec("lab", InProcessTransport(server))], gate=100) as supervisor:
        assert supervisor.status()[0].tool_count == 1000


# -- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "tool", "template", "name"),
    [
        ("time", "get_current_time", "mcp_{server}_{tool}", "mcp_time_get_current_time"),
        ("time", "get_current_time", "mcp__{server}__{tool}", "mcp__time__get_current_time"),
        ("time", "get_current_time", "{tool}", "get_current_time"),
        ("git", "git_status", "mcp_{server}_{tool}", "mcp_git_status"),
        ("git", "git_status", "{tool}", "git_status"),
        ("my server", "do it", "mcp_{server}_{tool}", r"mcp_my_server_do_it_[0-9a-f]{8}"),
        ("lab", "größe", "mcp_{server}_{tool}", r"mcp_lab_gr_e_[0-9a-f]{8}"),
        ("lab", "日本", "mcp_{server}_{tool}", r"mcp_lab_tool_[0-9a-f]{8}"),
        ("lab", "x" * 100, "mcp_{server}_{tool}", r"mcp_lab_x{47}_[0-9a-f]{8}"),
    ],
)
async def test_public_names(autojump_clock, server, tool, template, name):
    """T2: template, cleaning, cutting, the doubled prefix; the server is called by its raw name."""
    peer = scripted(tool)
    async with open_supervisor([spec(peer, server)], template=template) as supervisor:
        [one] = supervisor.tools
        assert re.fullmatch(name, one.name)
        assert len(one.name) <= 64
        result = await supervisor.call_tool(one.name)
        assert (result.server, result.tool) == (server, tool)
        assert peer.calls == [(1, tool, {})]


async def test_cut_names_stay_apart(autojump_clock):
    """T2, Q27: two tools that are the same in their first 64 characters are two."""
    peer = scripted("x" * 80 + "a", "x" * 80 + "b")
    async with open_supervisor([spec(peer)]) as supervisor:
        first, second = supervisor.tools
        assert first.name != second.name
        await supervisor.call_tool(first.name)
        await supervisor.call_tool(second.name)
        assert {tool for _, tool, _ in peer.calls} == {first.tool, second.tool}


@pytest.mark.parametrize("order", list(itertools.permutations((0.0, 0.5, 1.0))))
async def test_names_do_not_depend_on_the_order_of_connecting(autojump_clock, order):
    """T3, T4, Q27: for every order of connecting the list is the same, and calls go where they went."""
    tools = {"a": ["b_c", "c"], "a_b": ["c"], "x y": ["c"]}
    servers = {
        name: ScriptedServer(Life(connects_after=after), tools=dict.fromkeys(own, nothing))
        for (name, own), after in zip(tools.items(), order, strict=True)
    }
    seen: dict[str, tuple[str, str]] = {}
    async with open_supervisor([spec(one, name) for name, one in servers.items()], gate=0) as supervisor:
        for moment in (0.25, 0.75, 1.25):
            await trio.sleep_until(moment)
            for tool in supervisor.tools:
                assert seen.setdefault(tool.name, (tool.server, tool.tool)) == (tool.server, tool.tool)
        final = [tool.name for tool in supervisor.tools]
        assert final == sorted(final)
        assert len(final) == len(set(final)) == 4
        digest = hashlib.sha256("\n".join(final).encode()).hexdigest()
        known = test_names_do_not_depend_on_the_order_of_connecting.__dict__.setdefault("digest", digest)
        assert digest == known
        for name, (server, tool) in seen.items():
            result = await supervisor.call_tool(name)
            assert (result.server, result.tool) == (server, tool)


async def test_a_server_added_later_takes_over_no_name(autojump_clock):
    """T3: what a name meant before, it never means of another server."""
    async with open_supervisor([spec(scripted("c"), "a_b")]) as supervisor:
        assert [tool.name for tool in supervisor.tools] == ["mcp_a_b_c"]
        await supervisor.add_server(spec(scripted("b_c"), "a"))
        await supervisor.wait_connected("a")
        with pytest.raises(UnknownTool):
            await supervisor.call_tool("mcp_a_b_c")
        assert (await supervisor.call_tool("c", server="a_b")).server == "a_b"
        assert (await supervisor.call_tool("b_c", server="a")).server == "a"


# -- approval -----------------------------------------------------------------------------------------------------

CASES = [
    # denied, always ask, allowed, remembered -> asked?, allowed?
    (denied, always, allowed, remembered)
    for denied in (False, True)
    for always in (False, True)
    for allowed in (False, True)
    for remembered in (False, True)
]


async def test_what_is_denied_was_never_agreed_to(autojump_clock):
    async with open_supervisor([spec(scripted("work"))]) as supervisor:
        tool = supervisor.tool("mcp_lab_work")
        for remembered in (False, True):
            assert ApprovalRules(denied=["lab/*"]).decide(tool, remembered=remembered) is Approval.DENY


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("says", list(Approval))
async def test_who_decides(autojump_clock, case, says):
    """T8: denied > always-ask > allowed > ask; a denial never touches the server."""
    denied, always, allowed, remembered = case
    peer = scripted("work")
    asked: list[ApprovalRequest] = []
    answers = iter([Approval.ALLOW_ALWAYS, says] if remembered and not denied else [says])

    async def approve(request: ApprovalRequest) -> Approval:
        await trio.lowlevel.checkpoint()
        asked.append(request)
        return next(answers)

    globs = ("mcp_lab_*",)
    rules = ApprovalRules(
        denied=globs if denied else (), always_ask=globs if always else (), allowed=globs if allowed else ()
    )
    async with open_supervisor([spec(peer)], approve=approve, approval_rules=rules) as supervisor:
        tool = supervisor.tool("mcp_lab_work")
        assert tool.requires_approval
        if remembered and not denied:
            if allowed and not always:
                answers = iter([says])  # a standing permission: nobody was asked, so nothing is remembered
            else:
                await tool()
        before, calls = len(asked), len(peer.calls)
        expect_ask = not denied and (always or not (allowed or remembered))
        expect_call = not denied and (says is not Approval.DENY if expect_ask else True)
        if expect_call:
            assert (await tool({"n": 1})).full_text == "done"
        else:
            with pytest.raises(NotApproved, match="lab: work: not approved: denied"):
                await tool({"n": 1})
        assert len(asked) - before == int(expect_ask)
        assert len(peer.calls) - calls == int(expect_call)


async def test_nobody_to_ask(autojump_clock):
    """T8: without `approve` a model's call is refused; the host's own call is the host's decision."""
    peer = scripted("work")
    async with open_supervisor([spec(peer)]) as supervisor:
        with pytest.raises(NotApproved, match="approve="):
            await supervisor.tool("mcp_lab_work")()
        assert peer.calls == []
        assert (await supervisor.call_tool("mcp_lab_work")).full_text == "done"


async def test_a_standing_permission_needs_nobody(autojump_clock):
    """T8: allowed by rule without an `approve`."""
    rules = ApprovalRules(allowed=("mcp_lab_re*",), denied=("mcp_lab_remove",))
    async with open_supervisor([spec(scripted("read", "remove", "write"))], approval_rules=rules) as supervisor:
        assert (await supervisor.tool("mcp_lab_read")()).full_text == "done"
        for name in ("mcp_lab_remove", "mcp_lab_write"):
            with pytest.raises(NotApproved):
                await supervisor.tool(name)()


async def test_what_is_asked(autojump_clock):
    """T8, T9: the tool, the arguments as they would be sent, and a form that is fit for logs."""
    asked: list[ApprovalRequest] = []

    async def approve(request: ApprovalRequest) -> Approval:
        asked.append(request)
        return Approval.ALLOW

    async with open_supervisor([spec(scripted("work"))], approve=approve) as supervisor:
        given = {"zone": "UTC", "deep": [{"n": 1, "token": "also"}], "b": True}
        await supervisor.tool("mcp_lab_work")(given)
        [request] = asked
        assert (request.tool.server, request.tool.tool) == ("lab", "work")
        assert request.arguments == given
        assert request.redacted == {"zone": "UTC", "deep": [{"n": 1, "token": "[REDACTED:secret]"}], "b": True}
        assert "also" not in repr(request)


async def test_always_is_for_one_definition(autojump_clock):
    """T8: ALLOW_ALWAYS ends when the definition changes, on whichever object the call is made."""
    peer = scripted("work", "other")
    asked: list[str] = []

    async def approve(request: ApprovalRequest) -> Approval:
        asked.append(request.tool.definition_hash)
        return Approval.ALLOW_ALWAYS

    async with open_supervisor([spec(peer)], approve=approve) as supervisor:
        old = supervisor.tool("mcp_lab_work")
        await old()
        await old()
        await supervisor.tool("mcp_lab_work")()
        assert len(asked) == 1
        await supervisor.tool("mcp_lab_other")()
        assert len(asked) == 2
        await supervisor.reconnect("lab")  # the same definition: still allowed
        await supervisor.tool("mcp_lab_work")()
        assert len(asked) == 2
        peer.annotations = {"work": {"destructiveHint": True}}
        await supervisor.list_tools(refresh=True)
        new = supervisor.tool("mcp_lab_work")
        await new()
        assert asked[2:] == [new.definition_hash]


async def test_an_old_tool_does_not_speak_for_a_new_definition(autojump_clock):
    """T8: a host that kept the Tool of before is asked again, for what the server now has under that name."""
    peer = scripted("work")
    asked: list[str] = []

    async def approve(request: ApprovalRequest) -> Approval:
        asked.append(request.tool.definition_hash)
        return Approval.ALLOW_ALWAYS

    async with open_supervisor([spec(peer)], approve=approve) as supervisor:
        old = supervisor.tool("mcp_lab_work")
        await old()
        peer.annotations = {"work": {"destructiveHint": True}}
        await supervisor.list_tools(refresh=True)
        calls = len(peer.calls)
        try:
            await old()
        except NotApproved:
            assert len(peer.calls) == calls
        else:
            assert asked[1:] == [supervisor.tool("mcp_lab_work").definition_hash]


async def test_a_definition_that_changes_while_it_is_asked_about(autojump_clock):
    """T8: nobody has agreed to what it is now; the next call is asked about anew."""
    peer = scripted("work")
    peer.annotations = {"work": {"readOnlyHint": True}}

    async def approve(request: ApprovalRequest) -> Approval:
        if request.tool.hints.read_only:
            peer.annotations = {"work": {"destructiveHint": True}}
            await supervisor.list_tools(refresh=True)
        return Approval.ALLOW_ALWAYS

    async with open_supervisor([spec(peer)], approve=approve) as supervisor:
        tool = supervisor.tool("mcp_lab_work")
        with pytest.raises(NotApproved, match="its definition changed while it was asked about"):
            await tool()
        assert peer.calls == []
        assert (await tool()).full_text == "done"


async def test_always_is_for_one_transport(autojump_clock):
    """T8: ALLOW_ALWAYS says nothing of another server of that name, whose tools have the same definitions."""
    first, second, asked = scripted("work"), scripted("work"), []

    async def approve(request: ApprovalRequest) -> Approval:
        asked.append(trio.current_time())
        return Approval.ALLOW_ALWAYS

    async with open_supervisor([spec(first)], approve=approve) as supervisor:
        tool = supervisor.tool("mcp_lab_work")
        for peer, options in ((first, {}), (first, {"max_in_flight": 1}), (second, {}), (second, {}), (first, {})):
            await supervisor.reload([spec(peer, **options)])
            await trio.sleep(1)
            await tool()
        assert asked == [1, 3, 5]
        assert (len(first.calls), len(second.calls)) == (3, 2)


@pytest.mark.parametrize("answer", [Approval.ALLOW, Approval.ALLOW_ALWAYS, Approval.DENY])
async def test_a_server_that_is_replaced_while_it_is_asked_about(autojump_clock, answer):
    """T8: the person is asked again about the new one, which has a tool of the same definition."""
    first, second, asked = scripted("work"), scripted("work"), []

    async def approve(request: ApprovalRequest) -> Approval:
        asked.append(request.tool.server)
        if len(asked) == 1:
            await supervisor.reload([spec(second)])
            await trio.sleep(1)
            return answer
        return Approval.DENY

    async with open_supervisor([spec(first)], approve=approve) as supervisor:
        with pytest.raises(NotApproved, match="denied"):
            await supervisor.tool("mcp_lab_work")()
        assert len(asked) == (1 if answer is Approval.DENY else 2)
        assert first.calls == second.calls == []


async def test_a_server_that_is_removed_while_it_is_asked_about(autojump_clock):
    """T8: nobody is asked about it again."""
    asked = []

    async def approve(request: ApprovalRequest) -> Approval:
        asked.append(request.tool.server)
        await supervisor.remove_server("lab")
        return Approval.ALLOW

    async with open_supervisor([spec(scripted("work"))], approve=approve) as supervisor:
        with pytest.raises(UnknownServer):
            await supervisor.tool("mcp_lab_work")()
        assert asked == ["lab"]


async def test_a_tool_that_is_renamed_while_it_is_asked_about(autojump_clock):
    """T2, T8: whatever its public name is by then, the call goes to the tool that was agreed to."""
    peer = scripted("c")

    async def approve(request: ApprovalRequest) -> Approval:
        await supervisor.add_server(spec(scripted("b_c"), "a"))
        await supervisor.wait_connected("a")
        return Approval.ALLOW

    async with open_supervisor([spec(peer, "a_b")], approve=approve) as supervisor:
        tool = supervisor.tool("mcp_a_b_c")
        assert (await tool()).server == "a_b"
        assert supervisor.tool(supervisor.tools[0].name).name != tool.name
        assert len(peer.calls) == 1


async def test_rules_on_the_servers_own_names(autojump_clock):
    """T8, T17: a public name may begin as another server's do; `server/tool` is nobody else's."""
    one, other = scripted("hub_steal", "hub/steal"), scripted("read", "a/b")
    rules = ApprovalRules(allowed=["git_hub/*"], denied=["git_hub/a/?"])
    async with open_supervisor([spec(one, "git"), spec(other, "git_hub")], approval_rules=rules) as supervisor:
        tools = {(tool.server, tool.tool): tool for tool in supervisor.tools}
        assert tools["git", "hub_steal"].name.startswith("mcp_git_hub_steal")
        assert (await tools["git_hub", "read"]()).full_text == "done"
        for refused in (("git", "hub_steal"), ("git", "hub/steal"), ("git_hub", "a/b")):
            with pytest.raises(NotApproved):
                await tools[refused]()
    assert one.calls == []


@pytest.mark.parametrize("wrong", [{"denied": "mcp_*"}, {"always_ask": "mcp_*"}, {"allowed": "mcp_lab_*"}])
def test_one_glob_is_no_list_of_globs(wrong):
    """T8: its letters would be, and `*` allows everything."""
    with pytest.raises(ConfigError, match="put it in brackets"):
        ApprovalRules(**wrong)


@pytest.mark.parametrize("wrong", [{"reserved": "search"}, {"reserved": ["search"], "override": "search"}])
async def test_one_name_is_no_list_of_names(wrong):
    """T17: nothing would be reserved, or all of it be given up."""
    with pytest.raises(ConfigError, match="put it in brackets"):
        async with open_supervisor([], **wrong):
            raise AssertionError("entered")


async def test_nobody_is_asked_about_what_cannot_be_sent(autojump_clock):
    """T8, T15: bad arguments fail before the question."""

    async def approve(request: ApprovalRequest) -> Approval:
        raise AssertionError("asked")

    async with open_supervisor([spec(scripted("work"))], approve=approve) as supervisor:
        with pytest.raises(InvalidArguments):
            await supervisor.tool("mcp_lab_work")(["no", "object"])  # type: ignore[arg-type]


async def test_an_approve_that_raises(autojump_clock):
    """T8: its error is the caller's, and the server is untouched."""
    peer = scripted("work")

    async def approve(request: ApprovalRequest) -> Approval:
        raise LookupError("the dialog was closed")

    async with open_supervisor([spec(peer)], approve=approve) as supervisor:
        with pytest.raises(LookupError, match="dialog"):
            await supervisor.tool("mcp_lab_work")()
        assert peer.calls == []


@pytest.mark.parametrize("answer", [None, True, "", "yes", 1])
async def test_an_answer_that_is_none(autojump_clock, answer):
    """T8: anything but an Approval is no permission."""
    peer = scripted("work")

    async def approve(request: ApprovalRequest):
        return answer

    async with open_supervisor([spec(peer)], approve=approve) as supervisor:
        with pytest.raises(TypeError, match=r"approve= returned .*, not an Approval; nothing was called"):
            await supervisor.tool("mcp_lab_work")()
        assert peer.calls == []


# -- arguments and results ----------------------------------------------------------------------------------------


async def test_arguments_as_a_model_api_gives_them(autojump_clock):
    """T15: as a text of JSON, of some; the error says what to do."""
    async with open_supervisor([spec(scripted("work"))]) as supervisor:
        with pytest.raises(InvalidArguments, match="an object, not str: decode the JSON first"):
            await supervisor.call_tool("mcp_lab_work", '{"n": 1}')  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [[], "x", 3, object()])
async def test_arguments_are_an_object(autojump_clock, arguments):
    """T15: a clear error that is a TypeError too; nothing was sent, no server was started."""
    peer = scripted("work")
    async with open_supervisor([spec(peer, lazy=True)]) as supervisor:
        with pytest.raises(InvalidArguments, match=f"object, not {type(arguments).__name__}"):
            await supervisor.call_tool("work", arguments, server="lab")
        with pytest.raises(TypeError):
            await supervisor.call_tool("work", arguments, server="lab")
        assert (peer.starts, peer.calls) == ([], [])


async def test_result_facts(autojump_clock):
    """T16: duration by the clock, waiting included; server, the server's own name of the tool, incarnation."""

    async def work(arguments) -> object:
        await trio.sleep(2.5)
        return {"n": 1}

    peer = ScriptedServer(Life(connects_after=1), tools={"work": work})
    async with open_supervisor([spec(peer)], gate=0) as supervisor:
        result = await supervisor.call_tool("mcp_lab_work")
        assert (result.duration, result.server, result.tool, result.incarnation) == (3.5, "lab", "work", 1)
        await supervisor.reconnect("lab")
        result = await supervisor.call_tool("mcp_lab_work")
        assert (result.duration, result.incarnation, result.structured) == (2.5, 2, {"n": 1})
        assert (result.full_text, result.is_error) == ('{"n": 1}', False)


async def test_a_tool_made_by_hand_cannot_be_called(autojump_clock):
    """T8: a description only."""
    from attrs import evolve

    async with open_supervisor([spec(scripted("work"))]) as supervisor:
        with pytest.raises(TypeError, match="description only"):
            await evolve(supervisor.tool("mcp_lab_work"), invoke=None)()


async def test_a_bad_template_names_itself(autojump_clock):
    """T2: the error says which and why."""
    with pytest.raises(ConfigError, match=r"'\{server\}'.*\{tool\} once"):
        async with open_supervisor([], template="{server}"):
            pass
