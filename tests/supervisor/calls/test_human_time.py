"""The time of a server and the time of a person who is asked in the middle of a call. Times are exact: the clock is
virtual."""

import json
import logging
from functools import partial

import pytest
import trio
import trio.testing
from mcp_types import CreateMessageResult, TextContent

from mcp_nursery.actors.errors import CallTimeout, ServerError
from mcp_nursery.actors.limits import unanswered
from mcp_nursery.supervisor import Call, ServerSpec, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks

from ...lab.asking import User, asking, form, sampling
from ...lab.callers import Peer, outcome_of

RAISED_BY = "(call_timeout, callSeconds in a file, serve --timeout or MCP_TOOL_TIMEOUT gives it more)"
CANCELLED = {"action": "cancel"}


class Requesting(Peer):
    """A server of the handshake era: asks by requests in the middle of its latest call, and answers after that."""

    def __init__(self, nursery, question, works):
        super().__init__(self.begin)
        self.nursery, self.question, self.works = nursery, question, works
        self.calls = []

    def begin(self, peer, message):
        if message["method"] == "tools/call":
            self.calls.append(message)
            self.send(id=f"q{len(self.calls)}", **self.question)

    def take(self, message):
        super().take(message)
        if "method" not in message:
            self.nursery.start_soon(self.finish, message.get("result", message.get("error")))

    async def finish(self, said):
        await trio.sleep(self.works)
        for call in self.calls:
            self.answer(call, {"content": [{"type": "text", "text": json.dumps(said)}]})


def server(era, nursery, works, question=None):
    """The transport of a server that asks once, and then works for some seconds."""
    question = question or form()
    if era == "requests":
        return Requesting(nursery, question, works)

    async def then(answers):
        await trio.sleep(works)
        return json.dumps(answers["q0"])

    return asking(question, then=then).transport


eras = pytest.mark.parametrize("era", ["requests", "rounds"])


async def progress(*report):
    raise AssertionError("there was none")


async def by_fan_out(supervisor, **options):
    async with supervisor.fan_out([Call("work", server="lab", **options)]) as outcomes:
        (outcome,) = [each async for each in outcomes]
    if outcome.error is not None:
        raise outcome.error
    return outcome.result


async def by_call(supervisor, **options):
    return await supervisor.call_tool("work", server="lab", **options)


ways = pytest.mark.parametrize(
    ("way", "options"),
    [(by_call, {}), (by_call, {"on_progress": progress}), (by_call, {"idle_timeout": 4.5}), (by_fan_out, {})],
    ids=["alone", "with progress", "with an idle limit", "fan-out"],
)


@eras
@ways
async def test_the_limit_of_the_configuration_counts_the_server_alone(autojump_clock, nursery, era, way, options):
    """R4: it stands still while a form is open, and goes on after that."""
    for works, fails in ((4, False), (6, True)):
        user = User(after=100)
        spec = ServerSpec("lab", server(era, nursery, works), call_timeout=5)
        async with open_supervisor([spec], callbacks=Callbacks(elicit=user), gate=10) as supervisor:
            began = trio.current_time()
            outcome = await outcome_of(partial(way, supervisor, **options))
            if not fails:
                assert json.loads(outcome.full_text)["action"] == "accept"
                assert trio.current_time() - began == 100 + works
                continue
            assert isinstance(outcome, CallTimeout)
            idle = options.get("idle_timeout")
            assert trio.current_time() - began == 100 + (idle or 5)
            assert (f"no progress for {idle} s" if idle else f"no answer within 5 s {RAISED_BY}") in str(outcome)


@eras
@ways
async def test_the_limit_of_the_caller_counts_everything(autojump_clock, nursery, era, way, options):
    """R4: also the time of a person; the error names no setting, because it is none."""
    user = User(after=100)
    spec = ServerSpec("lab", server(era, nursery, 1), call_timeout=50)
    async with open_supervisor([spec], callbacks=Callbacks(elicit=user), gate=10) as supervisor:
        began = trio.current_time()
        outcome = await outcome_of(partial(way, supervisor, timeout=7, **options))
        assert isinstance(outcome, CallTimeout)
        assert str(outcome) == ("lab: work: no answer within 7 s")
        assert trio.current_time() - began == 7


@pytest.mark.parametrize("limit", [(10, 11), (None, 601), (0, 5001)])
@eras
async def test_a_person_who_does_not_answer(autojump_clock, nursery, era, limit, caplog):
    """P4: the server is told that the user has dismissed the question, and the log which setting gives more time."""
    user, (seconds, elapsed) = User(after=5000), limit
    spec = ServerSpec("lab", server(era, nursery, 1), call_timeout=5, human_timeout=seconds)
    async with open_supervisor([spec], callbacks=Callbacks(elicit=user), gate=10) as supervisor:
        began = trio.current_time()
        said = json.loads((await by_call(supervisor)).full_text)
        assert trio.current_time() - began == elapsed
        warned = [each.message for each in caplog.records if each.levelno == logging.WARNING]
        if seconds == 0:
            assert (said["action"], warned) == ("accept", [])
        else:
            assert said == CANCELLED
            assert warned == [f"lab: its question is cancelled: {unanswered(elapsed - 1)}"]
            assert user.gave_up == 1


@eras
async def test_a_model_that_does_not_answer(autojump_clock, nursery, era):
    """P4: the protocol has no answer for that, so it is an error that names the setting."""
    user = User(CreateMessageResult(role="assistant", content=TextContent(type="text", text="hm"), model="m"), after=99)
    spec = ServerSpec("lab", server(era, nursery, 1, sampling()), call_timeout=5, human_timeout=10)
    async with open_supervisor([spec], callbacks=Callbacks(sample=user), gate=10) as supervisor:
        outcome = await outcome_of(partial(by_call, supervisor))
        said = outcome.message if isinstance(outcome, ServerError) else json.loads(outcome.full_text)["message"]
        assert said.endswith(unanswered(10))


async def test_all_calls_of_a_connection_stand_still(autojump_clock, nursery):
    """R4: a request of the handshake era names no call. One that comes while the question is open stands still, too."""
    user = User(after=100)
    peer = server("requests", nursery, 4)
    spec = ServerSpec("lab", peer, call_timeout=5)
    async with open_supervisor([spec], callbacks=Callbacks(elicit=user), gate=10) as supervisor:
        began, ended = trio.current_time(), []

        async def call(after):
            await trio.sleep(after)
            await by_call(supervisor)
            ended.append(trio.current_time() - began)

        async with trio.open_nursery() as callers:
            callers.start_soon(call, 0)
            await trio.testing.wait_all_tasks_blocked()
            peer.handle = lambda peer, message: peer.calls.append(message)  # it asks no more
            callers.start_soon(call, 50)
        assert ended == [104, 104]


async def test_two_questions_at_once(autojump_clock, nursery):
    """R4: the time goes on once both have their answers."""
    answers = []

    def take(peer, message):
        if message["method"] == "tools/call":
            peer.calls.append(message)
            nursery.start_soon(ask, peer)

    async def ask(peer):
        peer.send(id="first", **form())
        await trio.sleep(50)
        peer.send(id="second", **form())

    class AskingTwice(Requesting):
        async def finish(self, said):
            answers.append(trio.current_time() - began)
            if len(answers) == 2:
                await super().finish(said)

    peer = AskingTwice(nursery, form(), works=4)
    peer.handle = take
    callbacks = Callbacks(elicit=User(after=100))
    async with open_supervisor([ServerSpec("lab", peer, call_timeout=5)], callbacks=callbacks, gate=10) as supervisor:
        began = trio.current_time()
        await by_call(supervisor)
        assert (answers, trio.current_time() - began) == ([100, 150], 154)


async def test_a_question_ends_with_its_connection(autojump_clock, nursery):
    """R4: the time goes on when its server is lost, or a server could hold a call for ever."""
    user = User(after=1000)
    peer = server("requests", nursery, 1)
    spec = ServerSpec("lab", peer, call_timeout=5)
    async with open_supervisor([spec], callbacks=Callbacks(elicit=user), gate=10) as supervisor:
        began = trio.current_time()

        async def lose():
            await trio.sleep(30)
            peer.handle = lambda peer, message: None
            await supervisor.reconnect("lab")

        nursery.start_soon(lose)
        outcome = await outcome_of(partial(by_call, supervisor, resend="always"))
        assert isinstance(outcome, CallTimeout)
        assert trio.current_time() - began == 35
