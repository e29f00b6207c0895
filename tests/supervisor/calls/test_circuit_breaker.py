"""G11: a server that is connected and does not answer is called no more for a while. The clock is virtual."""

import logging
from functools import partial

import pytest
import trio

from mcp_nursery.actors.enums import ListKind
from mcp_nursery.actors.errors import (
    BreakerOpen,
    CallTimeout,
    ConfigError,
    ConnectionLost,
    NurseryError,
    ServerBusy,
    ServerDown,
    ServerError,
)
from mcp_nursery.actors.mailbox import Mailbox
from mcp_nursery.actors.outcomes import Answered, Busy, Dropped, Expired, Loss, Malformed, Rejected, Unlisted, Unrouted
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.supervisor import Call, RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.decisions.circuit_breaker import BreakerStatus, judge
from mcp_nursery.supervisor.events import BreakerChanged
from mcp_nursery.supervisor.spec import CircuitBreaker
from mcp_nursery.supervisor.testing import Ask, Life, Refusal, ScriptedServer, report_progress

from ...lab.asking import User, dumped, form
from ...lab.callers import Peer
from ...lab.specs import hang, lasting, nothing, status

FAILS = ConnectionLost, CallTimeout


async def refuse(arguments):
    raise Refusal(503, "no", None)


async def break_down(arguments):
    raise RuntimeError("isError")


def lab(*lives, **more):
    tools = {"hang": hang, "work": nothing, "refuse": refuse, "break": break_down, **more}
    return ScriptedServer(*lives, tools=tools, annotations={"again": {"readOnlyHint": True}})


def spec(server, name="lab", **options):
    return ServerSpec(name, server.transport, **options)


async def call(supervisor, tool, server="lab", **options):
    try:
        return await supervisor.call_tool(tool, server=server, **options)
    except NurseryError as error:
        return error


async def time_out(supervisor, times=3, server="lab"):
    for _ in range(times):
        assert type(await call(supervisor, "hang", server, timeout=1)) is CallTimeout


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"failures": 0}, "whole number >= 1"),
        ({"failures": 2.5}, "whole number >= 1"),
        ({"failures": True}, "whole number >= 1"),
        ({"failures": "3"}, "whole number >= 1"),
        ({"open_for": 0}, "finite seconds > 0"),
        ({"open_for": float("inf")}, "finite seconds > 0"),
        ({"open_for": float("nan")}, "finite seconds > 0"),
    ],
)
def test_settings_that_cannot_work(settings, problem):
    with pytest.raises(ValueError, match=problem):
        CircuitBreaker(**settings)


def test_it_is_on_unless_it_is_switched_off():
    assert spec(lab()).breaker == CircuitBreaker(failures=3, open_for=300)
    assert spec(lab(), breaker=None).breaker is None
    with pytest.raises(ConfigError, match=r"lab.*breaker.*CircuitBreaker or None, not 3"):
        spec(lab(), breaker=3)


@pytest.mark.parametrize(
    ("waited", "heard", "verdict"),
    [(0.5, False, False), (60, False, False), (0.49, False, None), (0, False, None), (60, True, None)],
)
def test_what_a_time_that_is_over_says_of_a_server(waited, heard, verdict):
    """Nothing, if the server had hardly any, or is known to have worked on the request."""
    assert judge(Expired(), sent=True, waited=waited, heard=heard) is verdict
    assert judge(Expired(), sent=False, waited=waited, heard=heard) is None


@pytest.mark.parametrize(
    ("outcome", "sent", "verdict"),
    [
        (Answered({}), True, True),
        (Answered({"isError": True}), True, True),
        (Malformed("nonsense"), True, True),
        (Rejected(-32602, "no"), True, True),
        (Rejected(503, "a JSON-RPC error with a code of its own"), True, True),
        (Rejected(404, "HTTP 404", status=404), True, True),
        (Rejected(500, "HTTP 500", status=500), True, False),
        (Dropped("gone"), True, False),
        (Dropped("HTTP 503", status=503), True, False),
        (Expired(), True, False),
        (Expired(), False, None),
        (Loss("it died"), True, None),
        (Busy(), False, None),
        (Unrouted(), False, None),
        (Unlisted(), False, None),
        (None, True, None),
    ],
)
def test_what_an_outcome_says_of_a_server(outcome, sent, verdict):
    assert judge(outcome, sent=sent) is verdict


async def test_three_in_a_row_open_it_and_one_call_probes(autojump_clock, caplog):
    caplog.set_level(logging.INFO)
    server = lab()
    async with open_supervisor([spec(server)]) as supervisor, supervisor.events() as events:
        await time_out(supervisor)
        assert trio.current_time() == 3
        error = await call(supervisor, "work", when_down="wait", resend="always")
        assert type(error) is BreakerOpen
        assert (error.server, error.tool, error.delivery) == ("lab", "work", "not_sent")
        assert (error.failures, error.retry_in, trio.current_time()) == (3, 300, 3)
        assert "circuit breaker is open: 3 calls in a row failed; one may try in 300.0 s" in str(error)
        assert status(supervisor).breaker == BreakerStatus("open", 3, 300)
        assert len(server.calls) == 3

        await trio.sleep(299.5)
        assert type(await call(supervisor, "work")) is BreakerOpen
        await trio.sleep(0.5)
        await time_out(supervisor, times=1)
        assert status(supervisor).breaker == BreakerStatus("open", 4, 300), "open for a fresh while"

        await trio.sleep(300)
        assert (await supervisor.call_tool("work", server="lab")).full_text == "done"
        assert status(supervisor).breaker is None
        await time_out(supervisor, times=2)
        assert status(supervisor).breaker is None, "counted from the beginning"

        told = [event async for event in _some(events)]
        assert [event for event in told if isinstance(event, BreakerChanged)] == [
            BreakerChanged("lab", "open", 3, 300, 3),
            BreakerChanged("lab", "half_open", 3, 0, 303),
            BreakerChanged("lab", "open", 4, 300, 304),
            BreakerChanged("lab", "half_open", 4, 0, 604),
            BreakerChanged("lab", "closed", 0, None, 604),
        ]
    said = [one.getMessage() for one in caplog.records if "breaker" in one.getMessage()]
    assert said == [
        "lab: 3 calls in a row failed; its circuit breaker is open for 300 s",
        "lab: 4 calls in a row failed; its circuit breaker is open for 300 s",
        "lab: its circuit breaker is closed",
    ]


@pytest.mark.parametrize("tool", ["work", "refuse", "break"])
async def test_any_answer_begins_the_row_anew(autojump_clock, tool):
    async with open_supervisor([spec(lab())]) as supervisor:
        for _ in range(3):
            await time_out(supervisor, times=2)
            await call(supervisor, tool)
        assert status(supervisor).breaker is None


async def test_what_says_nothing_neither_counts_nor_begins_the_row_anew(autojump_clock):
    server = lab()
    small = spec(server, max_in_flight=1, mailbox_size=1)
    async with open_supervisor([small, spec(lab(Life(refuses="no")), "down")]) as supervisor:
        await time_out(supervisor, times=2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(call, supervisor, "hang"))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(partial(call, supervisor, "hang"))
            await trio.testing.wait_all_tasks_blocked()
            assert type(await call(supervisor, "work")) is ServerBusy
            nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(5):
            assert type(await call(supervisor, "work", timeout=0)) is CallTimeout
            assert type(await call(supervisor, "work", "down")) is ServerDown
        assert [one.breaker for one in supervisor.status()] == [None, None]
        await time_out(supervisor, times=1)
        assert status(supervisor).breaker == BreakerStatus("open", 3, 300)


async def test_a_stream_of_notifications_says_nothing(autojump_clock):
    """Many streams end at once where a proxy ends them."""
    server = lab(Life(modern=True))
    async with open_supervisor([spec(server)], gate=10) as supervisor:
        server.hang()
        for _ in range(5):
            with pytest.raises(CallTimeout):
                await supervisor.request("lab", "subscriptions/listen", {"notifications": {}}, timeout=2)
        assert status(supervisor).breaker is None
        await time_out(supervisor, times=3)
        assert status(supervisor).breaker == BreakerStatus("open", 3, 300)


@pytest.mark.parametrize("options", [{"timeout": 2}, {"idle_timeout": 2}, {"timeout": 2, "on_progress": nothing}])
async def test_every_timeout_counts(autojump_clock, options):
    async with open_supervisor([spec(lab())]) as supervisor:
        for _ in range(3):
            assert type(await call(supervisor, "hang", **options)) is CallTimeout
        assert status(supervisor).breaker is not None


async def test_callers_with_no_patience_open_it_for_nobody(autojump_clock):
    """Their server answers within 50 ms."""
    server = lab(work=lasting(0.05))
    async with open_supervisor([spec(server)]) as supervisor:
        for options in ({"timeout": 0.01}, {"idle_timeout": 0.01}):
            for _ in range(20):
                assert type(await call(supervisor, "work", **options)) is CallTimeout
        results = await supervisor.gather([Call("work", server="lab", timeout=0.01)] * 20)
        assert {type(one) for one in results} == {CallTimeout}
        assert status(supervisor).breaker is None
        assert len(server.calls) == 60
        assert (await supervisor.call_tool("work", server="lab")).full_text == "done"


async def test_a_call_that_waited_for_its_turn_has_not_waited_for_its_server(autojump_clock):
    """One at a time, each answered within 0.9 s: those that are sent at last have no time left."""
    server = lab(work=lasting(0.9))
    async with open_supervisor([spec(server, max_in_flight=1)]) as supervisor:
        async with trio.open_nursery() as nursery:
            for _ in range(9):
                nursery.start_soon(partial(call, supervisor, "work", timeout=1))
                await trio.sleep(0.05)
        assert len(server.calls) > 3
        assert status(supervisor).breaker is None


async def test_a_probe_with_no_patience_makes_room_for_the_next(autojump_clock, caplog):
    server = lab(work=lasting(0.05))
    async with open_supervisor([spec(server)]) as supervisor:
        await time_out(supervisor)
        await trio.sleep(300)
        assert type(await call(supervisor, "work", timeout=0.01)) is CallTimeout
        assert status(supervisor).breaker == BreakerStatus("open", 3, 0)
        assert sum("breaker is open" in one.getMessage() for one in caplog.records) == 1, "nothing new was found out"
        assert (await supervisor.call_tool("work", server="lab")).full_text == "done"
        assert status(supervisor).breaker is None


async def test_a_probe_that_its_server_has_lost_holds_up_the_others_for_a_while(autojump_clock):
    """It has no time limit. Its answer counts whenever it comes."""
    async with open_supervisor([spec(lab(late=lasting(650)))]) as supervisor, trio.open_nursery() as nursery:
        await time_out(supervisor)
        await trio.sleep(300)
        nursery.start_soon(partial(call, supervisor, "late"))
        await trio.sleep(299)
        assert type(await call(supervisor, "work")) is BreakerOpen
        await trio.sleep(1)
        assert type(await call(supervisor, "hang", timeout=1)) is CallTimeout
        assert status(supervisor).breaker == BreakerStatus("open", 4, 300)
        await trio.sleep(300)
        nursery.start_soon(partial(call, supervisor, "hang"))
        await trio.sleep(299)
        assert status(supervisor).breaker is None, "the first one was answered"
        nursery.cancel_scope.cancel()


async def test_a_probe_that_its_server_does_not_read_has_failed(autojump_clock):
    """One at a time: three time out, each when it had its turn, and a fourth has it for ever."""
    async with open_supervisor([spec(lab(), max_in_flight=1)]) as supervisor, trio.open_nursery() as nursery:
        for seconds in (1, 2, 3, 10_000):
            nursery.start_soon(partial(call, supervisor, "hang", timeout=seconds))
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(303)
        assert status(supervisor).breaker == BreakerStatus("open", 3, 0)
        assert type(await call(supervisor, "work", timeout=1)) is CallTimeout
        assert status(supervisor).breaker == BreakerStatus("open", 4, 300)
        nursery.cancel_scope.cancel()


async def test_progress_says_that_the_server_works(autojump_clock):
    """It is no failure that it does not get done in time; where the progress is not wanted, nobody hears of it."""

    async def long(arguments):
        for done in range(1000):
            await trio.sleep(5)
            await report_progress(done)

    async with open_supervisor([spec(lab(long=long))]) as supervisor:
        for options in ({"on_progress": nothing_of}, {"idle_timeout": 6}):
            for _ in range(5):
                assert type(await call(supervisor, "long", timeout=60, **options)) is CallTimeout
        assert status(supervisor).breaker is None
        for _ in range(3):
            assert type(await call(supervisor, "long", timeout=60)) is CallTimeout
        assert status(supervisor).breaker is not None


async def nothing_of(progress, total, message):
    await trio.lowlevel.checkpoint()


async def test_whatever_is_asked_of_the_server(autojump_clock):
    """Resources, prompts and completions are calls too, and so are those of a model."""
    server = ScriptedServer(
        tools={"hang": hang}, resources={"note://a": hang}, prompts={"greet": hang}, completions={"who": ["you"]}
    )
    rules = ApprovalRules(allowed=["*"])
    async with open_supervisor([spec(server, call_timeout=1)], approval_rules=rules) as supervisor:
        prompt = supervisor.prompts[0]
        ways = (
            partial(supervisor.read_resource, "note://a"),
            partial(supervisor.get_prompt, "mcp_lab_greet"),
            partial(supervisor.call_tool, "mcp_lab_hang"),
        )
        for way in ways:
            with pytest.raises(CallTimeout):
                await way()
        for way in (*ways, partial(supervisor.complete, prompt, "who")):
            with pytest.raises(BreakerOpen):
                await way()
        (outcome,) = await supervisor.gather([Call("mcp_lab_hang")])
        assert type(outcome) is BreakerOpen
        shown = await supervisor.as_toolset().run("mcp_lab_hang", {})
        assert type(shown.error) is BreakerOpen


async def test_a_fan_out_opens_it_and_finds_it_open(autojump_clock):
    server = lab()
    async with open_supervisor([spec(server), spec(lab(), "calm")]) as supervisor:
        calls = [Call("hang", server="lab", timeout=1)] * 20 + [Call("work", server="calm")] * 5
        results = await supervisor.gather(calls, limit=7)
        assert [type(one).__name__ for one in results] == [
            *["CallTimeout"] * 7,
            *["BreakerOpen"] * 13,
            *["ToolResult"] * 5,
        ], "those under way when it opened had been sent"
        assert len(server.calls) == 7
        assert status(supervisor, "calm").breaker is None

        await trio.sleep(300)
        results = await supervisor.gather([Call("work", server="lab")] * 20)
        assert [type(one).__name__ for one in results].count("BreakerOpen") == 19
        results = await supervisor.gather([Call("work", server="lab")] * 20)
        assert {type(one).__name__ for one in results} == {"ToolResult"}


async def test_fifty_callers_and_one_probe(autojump_clock):
    server = lab()
    async with open_supervisor([spec(server)]) as supervisor:
        await time_out(supervisor)
        await trio.sleep(300)
        outcomes = []

        async def caller():
            outcomes.append(type(await call(supervisor, "hang", timeout=5)).__name__)

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(caller)
        assert outcomes == ["BreakerOpen"] * 49 + ["CallTimeout"]
        assert len(server.calls) == 4
        assert status(supervisor).breaker == BreakerStatus("open", 4, 300)


class Raising(dict[str, object]):
    """A mapping of the caller's that cannot be read."""

    def items(self):
        raise ZeroDivisionError


async def test_a_probe_that_its_caller_made_wrong_makes_room_for_the_next(autojump_clock):
    server = lab()
    async with open_supervisor([spec(server)]) as supervisor:
        await time_out(supervisor)
        await trio.sleep(300)
        made = Call("work", server="lab", meta=Raising(a=1))
        with pytest.raises(ZeroDivisionError):
            await supervisor.call_tool("work", server="lab", meta=made.meta)
        assert (await supervisor.call_tool("work", server="lab")).full_text == "done"
        with pytest.raises(ZeroDivisionError):
            await supervisor.gather([made])
        assert supervisor.statistics().calls.in_flight == 0


async def test_a_cancelled_probe_makes_room_for_the_next(autojump_clock):
    server = lab()
    async with open_supervisor([spec(server)]) as supervisor:
        await time_out(supervisor)
        await trio.sleep(300)
        with trio.move_on_after(2):
            await call(supervisor, "hang")
        assert status(supervisor).breaker == BreakerStatus("open", 3, 0)
        assert (await call(supervisor, "work")).full_text == "done"
        assert status(supervisor).breaker is None


async def test_an_answer_to_an_earlier_call_closes_it(autojump_clock):
    """It was sent before the breaker opened: the server answers, so it is called again."""
    wakes = trio.Event()

    async def slow(arguments):
        await wakes.wait()
        return "at last"

    async with open_supervisor([spec(lab(slow=slow))]) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(partial(call, supervisor, "slow"))
        await time_out(supervisor)
        assert status(supervisor).breaker is not None
        wakes.set()
        await trio.testing.wait_all_tasks_blocked()
        assert status(supervisor).breaker is None
        assert (await call(supervisor, "work")).full_text == "done"


async def test_a_late_failure_prolongs_nothing(autojump_clock):
    async with open_supervisor([spec(lab())]) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(partial(call, supervisor, "hang", timeout=100))
        await time_out(supervisor)
        await trio.sleep(200)
        assert status(supervisor).breaker == BreakerStatus("open", 3, 100)


async def test_a_server_that_asks_has_answered(autojump_clock):
    """The probe's server wants input: nobody else has to wait for what the user says."""
    user = User(after=1000)

    async def ask(arguments):
        return Ask({"who": form()}, dumped)

    server = lab(Life(modern=True), ask=ask)
    async with open_supervisor([spec(server)], callbacks=Callbacks(elicit=user)) as supervisor:
        await time_out(supervisor)
        await trio.sleep(300)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(call, supervisor, "ask"))
            await trio.sleep(1)
            assert len(user.asked) == 1
            assert (await call(supervisor, "work")).full_text == "done"
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["reconnect", "crash", "stop and start"])
async def test_another_connection_begins_with_a_closed_one(autojump_clock, how):
    server = lab()
    async with open_supervisor([spec(server, policy=RestartPolicy(delays=(2,)))]) as supervisor:
        await time_out(supervisor)
        async with supervisor.events() as events:
            if how == "reconnect":
                await supervisor.reconnect("lab")
            elif how == "crash":
                server.crash()
                await trio.testing.wait_all_tasks_blocked()
                assert status(supervisor).breaker is None, "it is down: that is another matter"
            else:
                await supervisor.stop_server("lab")
                await supervisor.start_server("lab")
            told = [event async for event in _some(events)]
            assert [event.state for event in told if isinstance(event, BreakerChanged)] == ["closed"]
        assert (await call(supervisor, "work", when_down="wait")).incarnation == 2
        await time_out(supervisor, times=2)
        assert status(supervisor).breaker is None


async def _some(events):
    with trio.move_on_after(1):
        async for event in events:
            yield event


async def test_what_becomes_of_calls_of_an_earlier_connection_does_not_count(autojump_clock):
    """Those that were still to time out are lost with their connection; no row goes on from one to the next."""
    server = lab()
    async with open_supervisor([spec(server, policy=RestartPolicy(delays=(2, 2)))]) as supervisor:
        for _ in range(2):
            await time_out(supervisor, times=2)
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(partial(call, supervisor, "hang", resend="never"))
                await trio.testing.wait_all_tasks_blocked()
                server.crash()
            await supervisor.wait_connected("lab")
        assert status(supervisor).breaker is None


async def test_a_request_to_an_earlier_connection_says_nothing_of_this_one(autojump_clock):
    async with open_supervisor([spec(lab())]) as supervisor:
        await supervisor.reconnect("lab")
        for incarnation in (1, 2):
            for _ in range(3):
                slot = ReplySlot()
                slot.route(incarnation, Mailbox(1))
                slot.mark_sent()
                slot.expire()
                supervisor._servers.breakers.settle(object(), "lab", slot)
            assert (status(supervisor).breaker is None) == (incarnation == 1)


async def test_switched_off(autojump_clock):
    server = lab()
    async with open_supervisor([spec(server, breaker=None)]) as supervisor:
        await time_out(supervisor, times=20)
        assert status(supervisor).breaker is None
        assert len(server.calls) == 20


async def test_other_settings(autojump_clock):
    once = CircuitBreaker(failures=1, open_for=7)
    async with open_supervisor([spec(lab(), breaker=once), spec(lab(), "other")]) as supervisor:
        await time_out(supervisor, times=1)
        assert (await call(supervisor, "work")).retry_in == 7
        await trio.sleep(7)
        assert (await call(supervisor, "work")).full_text == "done"
        assert not isinstance(await call(supervisor, "refuse", "other"), BreakerOpen)


async def test_the_error_for_a_model_and_for_logs(autojump_clock):
    async with open_supervisor([spec(lab(), breaker=CircuitBreaker(failures=1))]) as supervisor:
        await time_out(supervisor, times=1)
        error = await call(supervisor, "work")
        assert isinstance(error, BreakerOpen)
        from mcp_nursery.supervisor.errors import error_content

        said = error_content(error)
        assert "retryable: yes" in said
        assert "tried again in 300 s" in said
        counts = status(supervisor).calls
        assert (counts.in_flight, counts.done, counts.failed) == (0, 0, 2)
        assert isinstance(await call(supervisor, "refuse"), BreakerOpen)
        assert not isinstance(error, ServerError)


async def test_whoever_borrows_its_server_leaves_it_as_it_is(autojump_clock):
    async with open_supervisor([spec(lab())]) as lender:
        await time_out(lender)
        async with open_supervisor(borrow=lender, servers=["lab"]) as borrower:
            for supervisor in (lender, borrower):
                assert type(await call(supervisor, "work")) is BreakerOpen
        assert type(await call(lender, "work")) is BreakerOpen


class Lister(Peer):
    """Answers lists while it is told to, and no call."""

    lists = True
    asked = 0

    def __init__(self):
        super().__init__(lambda peer, call: None)

    def take(self, message):
        if message.get("method") == "tools/list":
            self.asked += 1
            if not self.lists:
                return
        super().take(message)


async def timed_list(supervisor):
    began = trio.current_time()
    await supervisor.list_tools("lab", refresh=True)
    return trio.current_time() - began


def lister(server, **options):
    return ServerSpec("lab", server, connect_timeout=20, **options)


async def test_nobody_waits_for_lists_of_a_server_whose_breaker_is_open(autojump_clock):
    """Each would take its whole time limit; what is known stays. A list that comes does not say that calls would."""
    server = Lister()
    async with open_supervisor([lister(server)]) as supervisor:
        await time_out_peer(supervisor)
        server.lists = False
        assert await timed_list(supervisor) == 0
        assert [tool.tool for tool in supervisor.tools] == ["work"]
        assert (server.asked, status(supervisor).breaker) == (1, BreakerStatus("open", 3, 300))
        await trio.sleep(300)
        assert await timed_list(supervisor) == 20
        server.lists = True
        assert await timed_list(supervisor) == 0
        assert (server.asked, status(supervisor).breaker) == (3, BreakerStatus("open", 3, 0))


async def time_out_peer(supervisor):
    for _ in range(3):
        assert type(await call(supervisor, "work", timeout=1)) is CallTimeout


async def test_nobody_waits_for_the_fourth_list_in_a_row_that_does_not_come(autojump_clock, caplog):
    """Until one may try again. Calls are not refused for that: a server may do what it cannot list."""
    server = Lister()
    async with open_supervisor([lister(server)]) as supervisor:
        server.lists = False
        assert [await timed_list(supervisor) for _ in range(5)] == [20, 20, 20, 0, 0]
        assert (server.asked, status(supervisor).breaker) == (4, None)
        await trio.sleep(300)
        assert [await timed_list(supervisor) for _ in range(2)] == [20, 0]
        await supervisor.refresh_old(ListKind.TOOLS)
        assert trio.current_time() == 380
        assert type(await call(supervisor, "work", timeout=1)) is CallTimeout
        server.lists = True
        await supervisor.reconnect("lab")
        assert await timed_list(supervisor) == 0
        assert server.asked == 7
    told = [record.getMessage() for record in caplog.records if "in a row" in record.getMessage()]
    assert told == [f"lab: {row} lists in a row did not come; nobody waits for one for 300 s" for row in (3, 4)]


async def test_a_list_that_comes_begins_the_row_anew(autojump_clock):
    server = Lister()
    async with open_supervisor([lister(server)]) as supervisor:
        for comes in (False, False, True, False, False, False):
            server.lists = comes
            assert await timed_list(supervisor) == (0 if comes else 20)
        assert server.asked == 7
        assert await timed_list(supervisor) == 0
        assert server.asked == 7


async def test_without_a_breaker_every_list_is_waited_for(autojump_clock):
    server = Lister()
    async with open_supervisor([lister(server, breaker=None)]) as supervisor:
        server.lists = False
        assert [await timed_list(supervisor) for _ in range(4)] == [20, 20, 20, 20]
