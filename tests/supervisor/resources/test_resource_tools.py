"""T18: a model lists and reads resources by two tools, there exactly while some server has any. Virtual time."""

import json

import pytest
import trio

from mcp_nursery.supervisor import Approval, NotApproved, RestartPolicy, open_supervisor
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.errors import ContestedResource, InvalidArguments, UnknownResource, UnknownServer
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.specs import nothing, spec

NAMES = ["list_mcp_resources", "read_mcp_resource"]


def says(text):
    async def function(arguments):
        await trio.lowlevel.checkpoint()
        return text

    return function


def library(**resources):
    return ScriptedServer(resources={uri.replace("_", ":/"): says(text) for uri, text in resources.items()})


def own(toolset):
    return [tool.name for tool in toolset.tools if tool.name in NAMES or tool.tool in NAMES]


async def allow(request):
    await trio.lowlevel.checkpoint()
    return Approval.ALLOW


async def test_they_are_there_while_a_server_has_resources_and_never_twice(autojump_clock):
    one, two = library(a_1="one"), library(b_1="two")
    policy = RestartPolicy(delays=[])
    async with open_supervisor([spec(ScriptedServer(), "plain")], gate=10, policy=policy) as supervisor:
        toolset = supervisor.as_toolset()
        assert own(toolset) == []
        await supervisor.add_server(spec(one, "one"))
        await supervisor.add_server(spec(two, "two"))
        before = toolset.tools
        with trio.fail_after(10):
            while not own(toolset):
                before = await toolset.changed(before)
        await trio.sleep(1)
        assert own(toolset) == NAMES
        assert [tool.name for tool in toolset.tools] == sorted(tool.name for tool in toolset.tools)
        assert {each["function"]["name"] for each in toolset.as_openai()} >= set(NAMES)
        one.crash()
        await trio.sleep(1)
        assert own(toolset) == NAMES
        two.crash()
        await trio.sleep(1)
        assert own(toolset) == []


async def test_they_are_there_for_a_server_that_has_templates_only(autojump_clock):
    server = ScriptedServer(resources={"note:/{x}": says("a note")})
    async with open_supervisor([spec(server)], gate=10, approve=allow) as supervisor:
        assert supervisor.resources == ()
        toolset = supervisor.as_toolset()
        assert own(toolset) == NAMES
        assert "a note" in (await toolset.run("read_mcp_resource", {"uri": "note:/7", "server": "lab"})).text


async def test_what_asks_a_server_says_that_it_wants_approval(autojump_clock):
    """Hosts that ask by themselves go by it: to list is to look at what is known, to read is not."""
    async with open_supervisor([spec(library(a_1="alpha"))], gate=10) as supervisor:
        tools = {tool.name: tool.requires_approval for tool in supervisor.as_toolset().tools if tool.name in NAMES}
        assert tools == {"list_mcp_resources": False, "read_mcp_resource": True}


async def test_a_model_lists_without_asking_and_reads_with_approval(autojump_clock):
    asked = []

    async def approve(request):
        await trio.lowlevel.checkpoint()
        asked.append((request.tool.server, request.tool.tool, dict(request.arguments)))
        return Approval.ALLOW

    server = library(a_1="alpha", a_2=b"\0\1")
    async with open_supervisor([spec(server), spec(library(b_1="b"), "other")], gate=10, approve=approve) as supervisor:
        toolset = supervisor.as_toolset()
        listed = await toolset.run("list_mcp_resources", {"server": "lab"})
        assert [json.loads(line)["uri"] for line in listed.result.full_text.splitlines()] == ["a:/1", "a:/2"]
        assert asked == []
        read = await toolset.run("read_mcp_resource", {"uri": "a:/1"})
        assert asked == [("lab", "read_mcp_resource", {"uri": "a:/1"})]
        assert read.text.splitlines()[1] == "alpha"
        assert 'server="lab"' in read.text
        assert 'trust="untrusted"' in read.text
        binary = await toolset.run("read_mcp_resource", {"uri": "a:/2", "server": "lab"})
        assert "4 characters of base64" in binary.text


async def test_a_link_in_a_result_is_read_from_the_server_that_gave_it(autojump_clock):
    server = ScriptedServer(resources={"a:/1": nothing, "secret:/{x}": says("linked")})
    async with open_supervisor([spec(server, "my lab")], gate=10, approve=allow) as supervisor:
        outcome = await supervisor.as_toolset().run("read_mcp_resource", {"uri": "secret:/7", "server": "my_lab"})
        assert "linked" in outcome.text


async def deny(request):
    await trio.lowlevel.checkpoint()
    return Approval.DENY


@pytest.mark.parametrize(
    ("rules", "approve", "error"),
    [(None, None, NotApproved), (ApprovalRules(denied=["lab/read_*"]), allow, NotApproved)],
)
async def test_a_read_that_nobody_allows_is_not_made(rules, approve, error, autojump_clock):
    server = library(a_1="alpha")
    async with open_supervisor([spec(server)], gate=10, approve=approve, approval_rules=rules) as supervisor:
        outcome = await supervisor.as_toolset().run("read_mcp_resource", {"uri": "a:/1"})
        assert isinstance(outcome.error, error)
        assert server.requests == []


@pytest.mark.parametrize("approve", [None, deny])
async def test_a_read_from_a_server_that_is_not_known_yet_is_made_only_when_somebody_allows_it(approve, autojump_clock):
    """The server lists what is asked for while the read waits for it."""
    late = ScriptedServer(Life(connects_after=5), resources={"late:/1": says("late")})
    async with open_supervisor([spec(library(a_1="alpha")), spec(late, "late")], approve=approve) as supervisor:
        await supervisor.wait_connected("lab")
        outcome = await supervisor.as_toolset().run("read_mcp_resource", {"uri": "late:/1"})
        assert isinstance(outcome.error, NotApproved)
        assert outcome.error.server == "late"
        assert late.requests == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, InvalidArguments),
        ({"uri": 7}, InvalidArguments),
        ({"uri": "a:/1", "more": "x"}, InvalidArguments),
        ({"uri": "c:/1"}, UnknownResource),
        ({"uri": "b:/1"}, ContestedResource),
        ({"uri": "a:/1", "server": "nobody"}, UnknownServer),
    ],
)
async def test_what_cannot_be_read_is_an_outcome(arguments, error, autojump_clock):
    greedy = ScriptedServer(resources={"b:/{+x}": says("beta")})
    specs = [spec(library(a_1="alpha", b_1="beta")), spec(greedy, "greedy")]
    async with open_supervisor(specs, gate=10, approve=allow) as supervisor:
        outcome = await supervisor.as_toolset().run("read_mcp_resource", arguments)
        assert isinstance(outcome.error, error)


async def test_no_tool_of_a_server_takes_their_names_and_they_take_none_of_the_host_s(autojump_clock):
    server = ScriptedServer(tools=dict.fromkeys(NAMES, nothing), resources={"a:/1": nothing})
    async with open_supervisor([spec(server)], gate=10, template="{tool}") as supervisor:
        assert not {tool.name for tool in supervisor.tools} & set(NAMES)
        assert {tool.name for tool in supervisor.as_toolset().tools} >= set(NAMES)
    async with open_supervisor([spec(server)], gate=10, reserved=NAMES) as supervisor:
        names = {tool.name for tool in supervisor.as_toolset().tools}
        assert not names & set(NAMES)
        assert len(names) == 4
