"""Calls through the gateway that a rule denies, allows or wants asked about. Virtual time."""

import json
from contextlib import asynccontextmanager

import pytest
import trio

from mcp_nursery.actors.extensions import APPS, TASKS
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.supervisor import Approval, MemoryStore, ServerSpec, open_supervisor
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.gateway import gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import ClientSession
from mcp_nursery.supervisor.gateway.upstream.ask_client import MOST_SHOWN
from mcp_nursery.supervisor.testing import Ask, Life, ScriptedServer

from ....lab.asking import form
from ....lab.specs import SERVERS, Named, spec

FORMS = {"elicitation": {"form": {}}}
YES = {"action": "accept", "content": {"allow": True}}
ASKED = ApprovalRules(denied=["lab/drop"], always_ask=["lab/push"], allowed=["*"])
ALLOWED = ApprovalRules(allowed=["*"])
NEW, OLD = Life(modern=True), Life(modern=False)

eras = pytest.mark.parametrize("life", [NEW, OLD], ids=["newer server", "older server"])


async def done(arguments):
    await trio.lowlevel.checkpoint()
    return json.dumps(arguments)


def server(life=NEW):
    return ScriptedServer(life, tools={"push": done, "look": done, "drop": done})


async def unheard(method, params):
    raise AssertionError


def newer(name="push", given=None, *, principal="ann", capabilities=FORMS, **more):
    """A call of a client of 2026-07-28."""
    params = {"name": name, "arguments": {"to": "main"} if given is None else given} | more
    envelope = {"protocolVersion": "2026-07-28", "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{key}": value for key, value in envelope.items()}
    return ClientRequest(1, "tools/call", params, meta, unheard, principal=principal, capabilities=capabilities)


class User:
    """Of a client of the handshake era, who says the same to whatever is asked."""

    def __init__(self, says):
        self.says = says
        self.asked = []

    async def ask(self, method, params):
        await trio.lowlevel.checkpoint()
        self.asked.append((method, params))
        if isinstance(self.says, Exception):
            raise self.says
        if self.says is None:
            await trio.sleep_forever()
        return self.says

    def call(self, nursery, name="push", given=None):
        session = ClientSession(print, nursery, "lab")
        incoming = newer(name, given)
        incoming.meta.clear()
        incoming.session, incoming.ask = session, self.ask
        return incoming


class Opened:
    def __init__(self, script, supervisor, gateway):
        self.script, self.supervisor, self.gateway = script, supervisor, gateway

    async def answer(self, incoming, view="lab"):
        version = "2026-07-28" if incoming.modern else "2025-11-25"
        return await self.gateway.answer(incoming, self.gateway.view(view), version)

    async def text(self, incoming, view="lab"):
        result = await self.answer(incoming, view)
        return result.get("isError", False), result["content"][0]["text"]

    @property
    def calls(self):
        return [(tool, arguments) for _, tool, arguments in self.script.calls]


@asynccontextmanager
async def opened(life=NEW, *, rules=ASKED, approve=None, instances="shared", **more):
    """A gateway in front of a scripted server."""
    script = server(life)
    async with (
        open_supervisor(
            [spec(script, instances=instances)],
            gate=10,
            approval_rules=rules,
            approve=approve,
            callbacks=gateway_callbacks(),
            template="{server}_{tool}",
        ) as supervisor,
        open_gateway(supervisor, **more) as gateway,
    ):
        yield Opened(script, supervisor, gateway)


@eras
async def test_rules_that_deny_and_allow_hold(autojump_clock, life):
    async with opened(life, search=True) as lab:
        for view, prefix in (("lab", ""), (None, "lab_")):
            for name, arguments in ((f"{prefix}drop", {}), ("call_tool", {"name": f"{prefix}drop"})):
                failed, text = await lab.text(newer(name, arguments), view)
                assert failed
                assert "lab: drop: not approved: denied" in text
        assert lab.calls == []
        assert await lab.text(newer("look", {})) == (False, "{}")


@eras
async def test_a_newer_client_is_asked_by_the_answer(autojump_clock, life):
    async with opened(life) as lab:
        first = await lab.answer(newer())
        assert first["resultType"] == "input_required"
        [(key, asked)] = first["inputRequests"].items()
        assert asked["method"] == "elicitation/create"
        lines = asked["params"]["message"].splitlines()
        assert lines == ["Allow this call?", "server: lab", "tool: push", 'arguments: {"to": "main"}']
        form = asked["params"]["requestedSchema"]
        assert (form["properties"]["allow"]["type"], form["properties"]["allow"]["default"]) == ("boolean", False)
        assert form["required"] == ["allow"]
        assert lab.calls == []
        again = newer(requestState=first["requestState"], inputResponses={key: YES})
        assert await lab.text(again) == (False, '{"to": "main"}')
        assert lab.calls == [("push", {"to": "main"})]


@eras
@pytest.mark.parametrize(
    "says",
    [
        {"action": "decline"},
        {"action": "decline", "content": {"allow": True}},
        {"action": "cancel"},
        {"action": "accept", "content": {"allow": False}},
        {"action": "accept", "content": {"allow": "true"}},
        {"action": "accept", "content": {}},
    ],
)
async def test_whoever_does_not_say_yes_says_no(autojump_clock, life, says):
    async with opened(life) as lab, trio.open_nursery() as nursery:
        first = await lab.answer(newer())
        [key] = first["inputRequests"]
        failed, text = await lab.text(newer(requestState=first["requestState"], inputResponses={key: says}))
        assert failed
        assert "lab: push: not approved: the user of its client has not allowed it" in text
        user = User(says)
        assert await lab.text(user.call(nursery)) == (True, text)
        assert len(user.asked) == 1
        assert lab.calls == []


@eras
async def test_an_older_client_is_asked_by_a_request(autojump_clock, life):
    async with opened(life) as lab, trio.open_nursery() as nursery:
        user = User(YES)
        assert await lab.text(user.call(nursery)) == (False, '{"to": "main"}')
        [(method, params)] = user.asked
        assert method == "elicitation/create"
        assert params["message"].startswith("Allow this call?\nserver: lab\ntool: push\n")
        assert lab.calls == [("push", {"to": "main"})]


async def test_a_client_that_fails_to_ask_has_not_agreed(autojump_clock):
    async with opened() as lab, trio.open_nursery() as nursery:
        failed, text = await lab.text(User(JsonRpcError(-32603, "no screen")).call(nursery))
        assert failed
        assert "its client could not ask: no screen" in text
        assert lab.calls == []


async def test_nobody_answers_in_time(autojump_clock):
    async with opened(answer_within=60) as lab, trio.open_nursery() as nursery:
        began = trio.current_time()
        failed, text = await lab.text(User(None).call(nursery))
        assert failed
        assert "nobody has answered within 60 s" in text
        assert trio.current_time() - began == 60
        first = await lab.answer(newer())
        await trio.sleep(61)
        late = newer(requestState=first["requestState"], inputResponses=dict.fromkeys(first["inputRequests"], YES))
        assert (await lab.answer(late))["resultType"] == "input_required"  # it is asked again
        assert lab.calls == []


@eras
@pytest.mark.parametrize("state", [None, "invented", ""])
async def test_an_approval_cannot_be_invented(autojump_clock, life, state):
    async with opened(life) as lab:
        said = {} if state is None else {"requestState": state}
        for key in ("approval", "1"):
            forged = newer(**said, inputResponses={key: YES})
            if life is OLD and state is not None:
                with pytest.raises(JsonRpcError, match="unknown or expired requestState"):
                    await lab.answer(forged)
            else:
                assert (await lab.answer(forged))["resultType"] == "input_required"
        assert lab.calls == []


@eras
async def test_an_approval_is_of_one_call_of_one_principal(autojump_clock, life):
    async with opened(life) as lab:
        first = await lab.answer(newer(given={"to": 1}))
        state, answers = first["requestState"], dict.fromkeys(first["inputRequests"], YES)
        for other in (
            newer(given={"to": 2}, requestState=state, inputResponses=answers),
            newer("drop", given={"to": 1}, requestState=state, inputResponses=answers),
            newer(given={"to": 1}, requestState=state, inputResponses=answers, principal="bob"),
        ):
            with pytest.raises(JsonRpcError, match="not that of this request"):
                await lab.answer(other)
        assert lab.calls == []
        true = newer(given={"to": True}, requestState=state, inputResponses=answers)  # equal to 1, to Python
        await lab.answer(true)
        assert [(tool, json.dumps(given)) for tool, given in lab.calls] == [
            ("push", '{"to": 1}')
        ]  # what was asked about
        again = await (
            lab.answer(newer(given={"to": 1}, requestState=state, inputResponses=answers))
            if life is NEW
            else used(lab, state, answers)
        )
        assert again["resultType"] == "input_required"
        assert len(lab.calls) == 1


async def used(lab, state, answers):
    with pytest.raises(JsonRpcError, match="unknown or expired"):
        await lab.answer(newer(given={"to": 1}, requestState=state, inputResponses=answers))
    return await lab.answer(newer(given={"to": 1}))


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {"url": {}}}, {"elicitation": "yes"}])
@pytest.mark.parametrize("unattended", ["allow", "deny"])
@eras
async def test_a_client_that_cannot_be_asked(autojump_clock, life, capabilities, unattended):
    async with opened(life, unattended=unattended) as lab:
        failed, text = await lab.text(newer(capabilities=capabilities))
        if unattended == "allow":
            assert (failed, text) == (False, '{"to": "main"}')
        else:
            assert failed
            assert "it has to be asked about, and its client cannot be asked" in text
        assert len(lab.calls) == (unattended == "allow")


@pytest.mark.parametrize("taken", [{}, {"form": {}}, {"form": {}, "url": {}}])
async def test_a_client_that_takes_forms_is_asked(autojump_clock, taken):
    """It need not say that they are forms."""
    async with opened() as lab:
        assert (await lab.answer(newer(capabilities={"elicitation": taken})))["resultType"] == "input_required"
        assert lab.calls == []


async def test_where_nothing_was_said_of_approval_it_is_the_affair_of_the_host(autojump_clock):
    async with opened(rules=None, unattended="deny") as lab:
        assert await lab.text(newer("drop", {})) == (False, "{}")


async def test_the_approve_of_the_program_goes_before_the_client(autojump_clock):
    asked = []

    async def approve(request):
        await trio.lowlevel.checkpoint()
        asked.append(request.tool.tool)
        return Approval.DENY

    async with opened(approve=approve) as lab:
        failed, text = await lab.text(newer())
        assert failed
        assert "lab: push: not approved: denied" in text
        assert asked == ["push"]
        assert lab.calls == []


async def test_a_tool_that_is_not_listed_cannot_be_called_under_a_rule(autojump_clock):
    async with opened() as lab:
        failed, text = await lab.text(newer("push ", {}))
        assert failed
        assert "no tool named 'push '" in text
        assert lab.calls == []


async def test_a_definition_that_changes_while_somebody_thinks_was_not_agreed_to(autojump_clock):
    async with opened() as lab:
        first = await lab.answer(newer())
        lab.script.declared["push"] = {"description": "now does more"}
        await lab.supervisor.list_tools(refresh=True)
        answers = dict.fromkeys(first["inputRequests"], YES)
        failed, text = await lab.text(newer(requestState=first["requestState"], inputResponses=answers))
        assert failed
        assert "its definition changed while it was asked about" in text
        assert lab.calls == []


async def test_the_instance_of_a_session_may_declare_a_tool_otherwise(autojump_clock):
    """What is agreed to is what all clients are shown: the declaration of the main instance."""
    async with opened(OLD, instances="session") as lab, trio.open_nursery() as nursery:
        await lab.supervisor.wait_connected("lab")
        lab.script.declared["push"] = {"description": "pushes to this session's remote"}
        user = User(YES)
        assert await lab.text(user.call(nursery)) == (False, '{"to": "main"}')
        assert len(user.asked) == 1


class AskingServer:
    """A server of 2026-07-28 whose one tool asks before it works."""

    def __init__(self, name):
        self.script = SERVERS[name] = ScriptedServer(NEW, tools={"push": self.push})
        self.answers = []

    async def push(self, arguments):
        return Ask({"q": form()}, self.go_on)

    async def go_on(self, answers):
        await trio.lowlevel.checkpoint()
        self.answers.append(answers)
        return "pushed"


@asynccontextmanager
async def asked_meanwhile(change, instances):
    """A call of an older client, whose user is asked by a newer server: `change` is awaited before the user answers."""
    first = AskingServer("first")
    lab = ServerSpec("lab", Named("first"), instances=instances)
    async with (
        open_supervisor(
            [lab], gate=10, approval_rules=ALLOWED, callbacks=gateway_callbacks(), state=MemoryStore()
        ) as supervisor,
        open_gateway(supervisor) as gateway,
        trio.open_nursery() as nursery,
    ):
        user = User({"action": "accept", "content": {"name": "Ann"}})
        call = user.call(nursery)
        call.capabilities = FORMS

        async def ask(method, params):
            await change(first.script, supervisor)
            return await user.ask(method, params)

        call.ask = ask
        yield first, await Opened(first.script, supervisor, gateway).text(call)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("instances", ["shared", "session"])
async def test_a_call_that_its_server_has_begun_goes_on_if_its_definition_changes(instances, autojump_clock):
    async def change(script, supervisor):
        script.declared["push"] = {"description": "now does more"}
        await supervisor.list_tools(refresh=True)

    async with asked_meanwhile(change, instances) as (server, answer):
        assert answer == (False, "pushed")
        assert len(server.answers) == 1


@pytest.mark.parametrize("instances", ["shared", "session"])
async def test_no_other_server_gets_the_rest_of_a_call_that_was_agreed_to(instances, autojump_clock):
    other = AskingServer("other")

    async def change(script, supervisor):
        await supervisor.reload([ServerSpec("lab", Named("other"), instances=instances)])
        await supervisor.wait_connected("lab")

    async with asked_meanwhile(change, instances) as (server, (failed, text)):
        assert failed
        assert "its server is reached in another way" in text
        assert (server.answers, other.answers, other.script.calls) == ([], [], [])


async def test_what_is_asked_is_bounded_and_hides_nothing(autojump_clock):
    async with opened() as lab:
        token = "ghp_" + "a1B2" * 9
        first = await lab.answer(newer(given={"a\x1b[2J": "x\u202ey\nserver: other", "token": token}))
        [asked] = first["inputRequests"].values()
        message = asked["params"]["message"]
        assert len(message.splitlines()) == 4
        assert "\x1b" not in message
        assert "\u202e" not in message
        assert token not in message
        first = await lab.answer(newer(given={"a": "x" * 10 * MOST_SHOWN}))
        [asked] = first["inputRequests"].values()
        assert len(asked["params"]["message"]) < MOST_SHOWN + 200
        assert asked["params"]["message"].endswith("more characters that are not shown")


def test_servers_are_told_of_all_extensions_of_the_only_client():
    client = {"sampling": {}, "extensions": {APPS: {"x": 1}, TASKS: {}}}
    assert gateway_callbacks(client).declared == client
