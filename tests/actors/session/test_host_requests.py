"""What a server may ask of the host, on a wire: what is offered, who answers, and what it sees of a failure."""

import logging
from pathlib import Path

import pytest
import trio
from mcp_types import CreateMessageResult, ElicitResult, ErrorData, InputRequiredResult, TextContent
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.account import Account
from mcp_nursery.actors.callbacks import Callbacks, CurrentRoots, Host
from mcp_nursery.actors.enums import Delivery, Era
from mcp_nursery.actors.limits import CostLimits
from mcp_nursery.actors.messages import Question, Round
from mcp_nursery.actors.outcomes import Answered, Loss, Rejected, Unlisted, Unsendable
from mcp_nursery.actors.reply import ReplySlot

from ...lab.sessions import MUTE, answers, connection, discovery, greeting, listing, refuses
from ...lab.tool_requests import tool_request
from ...lab.wire_peer import GONE, no_progress, notice, request, result

MODERN = {"server_discover": answers(discovery()), "tools_list": listing("work"), "tools_call": MUTE}
OLD = {"initialize": answers(greeting()), "tools_list": listing("work"), "tools_call": MUTE}
FORM = {"message": "who?", "requestedSchema": {"type": "object", "properties": {}}}
PAGE = {"mode": "url", "message": "pay", "url": "https://pay.example", "elicitationId": "e1"}
TURN = {"messages": [{"role": "user", "content": {"type": "text", "text": "hm?"}}], "maxTokens": 5}
ELICITATION = {"form": {}, "url": {}}
SAID = CreateMessageResult(role="assistant", content=TextContent(type="text", text="hm"), model="m")


async def accept(_message):
    await trio.lowlevel.checkpoint()
    return ElicitResult(action="accept", content={"name": "Ann"})


async def sample(_message):
    await trio.lowlevel.checkpoint()
    return SAID


async def ignore(_message):
    await trio.lowlevel.checkpoint()


def host(**callbacks):
    return Host("lab", Callbacks(**callbacks))


async def ready(opening, era):
    await opening.handshake(era)
    await opening.list_tools()


def replies(lab):
    return {message["id"]: message for message in lab.heard if "method" not in message}


OFFERS = [
    ({}, {}),
    ({"elicit": accept}, {"elicitation": ELICITATION}),
    ({"sample": sample}, {"sampling": {"tools": {}}}),
    ({"log": ignore}, {}),
    ({"roots": ["/work"]}, {"roots": {"listChanged": True}}),
    ({"elicit": accept, "sample": sample}, {"elicitation": ELICITATION, "sampling": {"tools": {}}}),
]


@pytest.mark.parametrize(("callbacks", "capabilities"), OFFERS)
async def test_what_there_is_a_callback_for_is_offered(callbacks, capabilities):
    """P4: and nothing else, in either era."""
    async with connection(host(**callbacks), **OLD) as (lab, opening):
        await ready(opening, Era.HANDSHAKE)
        assert lab.heard_of("initialize")[0]["params"]["capabilities"] == capabilities
    async with connection(host(**callbacks), **MODERN) as (lab, opening):
        await ready(opening, Era.MODERN)
        opening.submit([tool_request("k", "work", None, {}, ReplySlot())])
        meta = lab.heard_of("tools/call")[0]["params"]["_meta"]
        assert meta["io.modelcontextprotocol/clientCapabilities"] == capabilities
        assert meta.get("io.modelcontextprotocol/logLevel") == ("info" if "log" in callbacks else None)


# before 2026-07-28: requests of the server


async def asked(method, params, **callbacks):
    """The reply to a request of the server's."""
    async with connection(host(**callbacks), **OLD) as (lab, opening):
        await ready(opening, Era.HANDSHAKE)
        lab.say(request("s1", method, params))
        await wait_all_tasks_blocked()
        return replies(lab)["s1"]


@pytest.mark.parametrize("params", [FORM, PAGE])
async def test_an_older_server_asks_by_a_request(params):
    """P4: form and URL; nobody knows which call it is about."""
    seen = []

    async def elicit(message):
        seen.append(message)
        return await accept(message)

    reply = await asked("elicitation/create", params, elicit=elicit)
    assert reply["result"] == {"action": "accept", "content": {"name": "Ann"}}
    (message,) = seen
    assert (message.server, message.tool, message.params.message) == ("lab", None, params["message"])
    assert message.params.mode == params.get("mode", "form")


async def test_an_older_server_samples_by_a_request():
    """P4."""
    assert (await asked("sampling/createMessage", TURN, sample=sample))["result"]["content"]["text"] == "hm"


async def by_server(message):
    await trio.lowlevel.checkpoint()
    return ["/work/it's", f"file:///of/{message.server}"]


async def forbid(_message):
    await trio.lowlevel.checkpoint()
    return ErrorData(code=-1, message="not today")


@pytest.mark.parametrize(
    ("roots", "told"),
    [
        (["/work", Path("/a b")], ["file:///work", "file:///a%20b"]),
        ([], []),
        (by_server, ["file:///work/it%27s", "file:///of/lab"]),
        (CurrentRoots(["/work"]), ["file:///work"]),
    ],
    ids=["fixed", "none", "a function", "of a supervisor"],
)
async def test_an_older_server_asks_for_roots_by_a_request(roots, told):
    """P3."""
    reply = await asked("roots/list", None, roots=roots)
    assert [root["uri"] for root in reply["result"]["roots"]] == told


async def test_roots_may_be_refused():
    """P3."""
    assert (await asked("roots/list", None, roots=forbid))["error"] == {"code": -1, "message": "not today"}


async def test_a_new_server_asks_for_roots_in_its_answer():
    """P3: as for any input."""
    wanted = {"resultType": "input_required", "inputRequests": {"r": {"method": "roots/list"}}, "requestState": "s"}
    question = InputRequiredResult.model_validate(wanted).input_requests["r"]
    async with connection(host(roots=["/work"]), **MODERN) as (_, opening):
        await ready(opening, Era.MODERN)
        said = await opening.answer(Question("work", "r", question, ReplySlot()))
        assert said.result == {"roots": [{"uri": "file:///work"}]}


CHANGED = "notifications/roots/list_changed"


@pytest.mark.parametrize(
    ("era", "callbacks", "told"),
    [(Era.HANDSHAKE, {"roots": ()}, 1), (Era.HANDSHAKE, {}, 0), (Era.MODERN, {"roots": ()}, 0)],
)
async def test_who_hears_that_roots_have_changed(era, callbacks, told):
    """P3: the protocol of 2026-07-28 has no such thing, and who was offered no roots has no use for it."""
    async with connection(host(**callbacks), **(OLD if era is Era.HANDSHAKE else MODERN)) as (lab, opening):
        await ready(opening, era)
        await opening.announce_roots()
        await wait_all_tasks_blocked()
        assert len(lab.heard_of(CHANGED)) == told


@pytest.mark.parametrize(
    ("method", "params", "words"),
    [
        ("elicitation/create", FORM, "Elicitation not supported"),
        ("sampling/createMessage", TURN, "Sampling not supported"),
        ("roots/list", None, "List roots not supported"),
    ],
)
async def test_without_a_callback_a_request_is_refused(method, params, words):
    """P4: as the SDK refuses it."""
    assert (await asked(method, params, log=ignore))["error"] == {"code": -32600, "message": words}


async def test_a_callback_may_refuse():
    """P4: with an error of its own."""

    async def elicit(_message):
        return ErrorData(code=-7, message="not now")

    assert (await asked("elicitation/create", FORM, elicit=elicit))["error"] == {"code": -7, "message": "not now"}


@pytest.mark.parametrize("outcome", [ValueError("secret"), "accept", None])
async def test_a_callback_that_fails_is_an_error_for_the_server_and_a_line_for_the_log(outcome, caplog):
    """P4: the connection lives, and the server learns nothing of the host's insides."""

    async def elicit(_message):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    reply = await asked("elicitation/create", FORM, elicit=elicit)
    assert reply["error"]["code"] == -32603
    assert "secret" not in reply["error"]["message"]
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()[:5]) == (logging.ERROR, "lab: ")


async def test_a_server_may_take_its_question_back():
    """P4: the callback ends, and there is no reply."""
    ended = []

    async def elicit(_message):
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    async with connection(host(elicit=elicit), **OLD) as (lab, opening):
        await ready(opening, Era.HANDSHAKE)
        lab.say(request("s1", "elicitation/create", FORM))
        await wait_all_tasks_blocked()
        assert ended == []
        lab.say(notice("notifications/cancelled", {"requestId": "s1"}))
        await wait_all_tasks_blocked()
        assert (ended, replies(lab)) == ([True], {})


async def test_a_callback_that_does_not_end_hides_no_loss(autojump_clock):
    """R3: calls learn of the loss at once, though the callback takes its time over its cancellation."""

    async def elicit(_message):
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    sent = tool_request("k", "work", None, {}, ReplySlot())
    async with connection(host(elicit=elicit), **OLD) as (lab, opening):
        await ready(opening, Era.HANDSHAKE)
        opening.submit([sent])
        lab.say(request("s1", "elicitation/create", FORM))
        await wait_all_tasks_blocked()
        before = trio.current_time()
        lab.end(GONE)
        assert isinstance(await sent.slot.wait(no_progress), Loss)
        assert (await opening.lost()).pending == 1
        assert trio.current_time() == before


# logs


def log_line(n, level="info"):
    return notice("notifications/message", {"level": level, "data": n, "logger": "l"})


@pytest.mark.parametrize("script", [OLD, MODERN])
async def test_logs_come_in_order(script):
    """P4: in both eras."""
    seen = []

    async def log(message):
        await trio.lowlevel.checkpoint()
        seen.append(message)

    async with connection(host(log=log), **script) as (lab, opening):
        await ready(opening, Era.HANDSHAKE if script is OLD else Era.MODERN)
        lab.say(*[log_line(n) for n in range(100)])
        await wait_all_tasks_blocked()
    assert [message.params.data for message in seen] == list(range(100))
    assert {(message.server, message.tool) for message in seen} == {("lab", None)}


async def test_the_level_is_the_hosts_to_choose():
    """P4."""
    async with connection(host(log=ignore, log_level="debug"), **MODERN) as (lab, opening):
        await ready(opening, Era.MODERN)
        assert lab.heard_of("tools/list")[0]["params"]["_meta"]["io.modelcontextprotocol/logLevel"] == "debug"


@pytest.mark.parametrize(("declared", "asked"), [({}, None), ({"logging": {}}, "warning")])
async def test_without_a_callback_only_what_has_a_log_is_asked_for_it(declared, asked):
    """And what a server says unasked is heard, in either era."""
    heard = []

    class Logger:
        level = "warning"

        async def take(self, params):
            heard.append(params.data)

    offered = Host("lab", Callbacks(), logger=Logger())
    modern = MODERN | {"server_discover": answers(discovery(capabilities={"tools": {}, **declared}))}
    for script, era in ((modern, Era.MODERN), (OLD, Era.HANDSHAKE)):
        async with connection(offered, **script) as (lab, opening):
            await ready(opening, era)
            opening.submit([tool_request("k", "work", None, {}, ReplySlot())])
            lab.say(log_line(7, "error"))
            await wait_all_tasks_blocked()
        for method in ("tools/list", "tools/call"):
            meta = lab.heard_of(method)[0].get("params", {}).get("_meta", {})
            assert meta.get("io.modelcontextprotocol/logLevel") == (asked if era is Era.MODERN else None)
    assert heard == [7, 7]


async def test_a_slow_log_callback_holds_up_nobody_and_its_backlog_is_bounded(caplog):
    """P4: a call goes on, and so do questions; what is too much is dropped and said so."""
    seen, go_on = [], trio.Event()

    async def log(message):
        seen.append(message.params.data)
        await go_on.wait()

    async with connection(host(log=log, elicit=accept), **OLD | {"tools_call": answers({"content": []})}) as both:
        lab, opening = both
        await ready(opening, Era.HANDSHAKE)
        lab.say(log_line(0))
        await wait_all_tasks_blocked()
        for n in range(1, 1031, 103):
            lab.say(*[log_line(n + more) for more in range(103)])
            await wait_all_tasks_blocked()
        sent = tool_request("k", "work", None, {}, ReplySlot())
        opening.submit([sent])
        lab.say(request("s1", "elicitation/create", FORM))
        await wait_all_tasks_blocked()
        assert isinstance(sent.slot.outcome, Answered)
        assert "result" in replies(lab)["s1"]
        assert seen == [0]
        go_on.set()
        await wait_all_tasks_blocked()
    assert seen == list(range(1025))
    assert [record.getMessage() for record in caplog.records] == [
        "lab: the log callback is too slow; dropped 1 messages"
    ]


async def test_log_messages_that_wait_for_a_slow_callback_have_a_budget_of_bytes():
    """P4: the same that they have while they wait for the session."""
    seen, go_on = [], trio.Event()

    async def log(message):
        seen.append(message.params.data)
        await go_on.wait()

    account = Account()
    slow = Host("lab", Callbacks(log=log), CostLimits(kept=100_000), account=account)
    async with connection(slow, **OLD) as (lab, opening):
        await ready(opening, Era.HANDSHAKE)
        for letter in "abcde":
            lab.say(log_line(letter * 40_000))
            await wait_all_tasks_blocked()
        assert 80_000 < account.kept["notices"] <= 100_000
        go_on.set()
        await wait_all_tasks_blocked()
        assert [data[0] for data in seen] == ["a", "b", "c"]
        assert account.kept == {}


async def test_a_log_callback_that_raises_gets_the_next_line_too(caplog):
    """P4."""
    seen = []

    async def log(message):
        seen.append(message.params.data)
        raise ValueError

    async with connection(host(log=log), **OLD) as (lab, opening):
        await ready(opening, Era.HANDSHAKE)
        lab.say(log_line(1), log_line(2))
        await wait_all_tasks_blocked()
    assert seen == [1, 2]
    assert [record.getMessage() for record in caplog.records] == ["lab: the log callback raised"] * 2


# rounds


def questions(**requests):
    return InputRequiredResult.model_validate({"inputRequests": requests}).input_requests


async def test_a_question_is_answered_as_json():
    """R9, P4: with the tool that asks."""
    seen = []

    async def elicit(message):
        seen.append((message.server, message.tool))
        return await accept(message)

    request_ = questions(q={"method": "elicitation/create", "params": FORM})["q"]
    async with connection(host(elicit=elicit), **MODERN) as (_, opening):
        await ready(opening, Era.MODERN)
        said = await opening.answer(Question("work", "q", request_, ReplySlot()))
        assert said == Answered({"action": "accept", "content": {"name": "Ann"}})
    assert seen == [("lab", "work")]


async def test_a_question_without_a_callback_is_refused():
    """R9, P4."""
    request_ = questions(q={"method": "sampling/createMessage", "params": TURN})["q"]
    async with connection(**MODERN) as (_, opening):
        await ready(opening, Era.MODERN)
        said = await opening.answer(Question("work", "q", request_, ReplySlot()))
        assert said == Rejected(-32600, "the server asked for input: Sampling not supported")


def again(tool="work", arguments=b'{"n":1}', meta=None, *, wants_progress=False, **more):
    return Round(tool_request("k", tool, arguments, meta or {}, ReplySlot(wants_progress=wants_progress)), **more)


async def test_a_round_is_the_call_with_what_the_server_wants():
    """R9: the shape on the wire, a new id and token, the stamp of the era."""
    one = again(meta={"mine": 1}, wants_progress=True, responses={"q": {"action": "accept"}}, state="abc")
    two = again(arguments=None, state="abc")
    async with connection(**MODERN) as (lab, opening):
        await ready(opening, Era.MODERN)
        opening.submit([one.call])
        opening.send_round(one)
        opening.send_round(two)
        await wait_all_tasks_blocked()
        first, second, third = lab.heard_of("tools/call")
        meta = second["params"].pop("_meta")
        assert second["params"] == {
            "name": "work",
            "arguments": {"n": 1},
            "inputResponses": {"q": {"action": "accept"}},
            "requestState": "abc",
        }
        assert second["id"] != first["id"]
        assert (meta.pop("progressToken"), meta.pop("mine")) == (second["id"], 1)
        assert "io.modelcontextprotocol/protocolVersion" in meta
        assert {key: third["params"][key] for key in third["params"] if key != "_meta"} == {
            "name": "work",
            "requestState": "abc",
        }
        lab.say(result(third["id"], {"content": []}))
        assert await two.slot.wait(no_progress) == Answered({"content": []})
        assert two.slot.codec.name == "work"


async def test_a_round_that_is_cancelled_tells_the_server_of_its_own_request():
    """R6, R9."""
    one = again(state="abc")
    async with connection(**MODERN) as (lab, opening):
        await ready(opening, Era.MODERN)
        opening.send_round(one)
        assert (opening.in_flight, one.slot.delivery) == (1, Delivery.UNKNOWN)
        one.slot.cancel()
        opening.cancel(one.slot)
        (told,) = lab.heard_of("notifications/cancelled")
        assert told["params"]["requestId"] == lab.heard_of("tools/call")[0]["id"]
        assert opening.in_flight == 0


async def test_a_round_goes_on_though_its_tool_is_listed_no_more():
    """R9: the server has begun the call, and is the one to say what becomes of it."""
    first = again()
    async with connection(**MODERN | {"tools_list": [listing("work"), listing("other")]}) as (lab, opening):
        await ready(opening, Era.MODERN)
        opening.submit([first.call])
        second = again(state="abc")
        second.slot.follow(first.slot)
        await opening.list_tools()
        opening.send_round(second)
        assert [message["params"]["name"] for message in lab.heard_of("tools/call")] == ["work", "work"]


async def test_a_round_that_cannot_be_sent():
    """R9: of a tool that nobody knows, of a value without JSON, over a connection that is lost."""
    gone, bad, late = again("old"), again(meta={"x": object()}), again()
    async with connection(**MODERN) as (lab, opening):
        await ready(opening, Era.MODERN)
        opening.send_round(gone)
        opening.send_round(bad)
        assert (gone.slot.outcome, gone.slot.delivery) == (Unlisted(), Delivery.NOT_SENT)
        assert isinstance(bad.slot.outcome, Unsendable)
        lab.end(GONE)
        await opening.lost()
        opening.send_round(late)
        assert late.slot.outcome == GONE
        assert lab.heard_of("tools/call") == []


async def test_an_unknown_request_of_the_server_is_not_found():
    """P3: it is told so."""
    script = OLD | {"tools_call": refuses(-1)}
    async with connection(**script) as (lab, opening):
        await ready(opening, Era.HANDSHAKE)
        lab.say(request("s1", "nonsense/ask"))
        await wait_all_tasks_blocked()
        assert replies(lab)["s1"]["error"]["code"] == -32601
