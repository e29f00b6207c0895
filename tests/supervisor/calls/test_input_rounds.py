"""A server that asks in the middle of a call: who is asked what, how often, and what the call comes to."""

import json
import logging
from contextvars import Context, copy_context
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from mcp_types import (
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ErrorData,
    TextContent,
    ToolUseContent,
)

from mcp_nursery.supervisor import (
    Call,
    CallError,
    CallTimeout,
    InvalidResult,
    ServerError,
    ServerSpec,
    open_supervisor,
)
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.testing import Ask, Life, Refusal, ScriptedServer, report_progress, run_virtual

from ...lab.asking import (
    ACCEPT,
    DECLINE,
    DISMISS,
    User,
    asking,
    dumped,
    form,
    pages,
    refusing,
    run,
    sampling,
    spec,
)

# -- questions and answers ----------------------------------------------------------------------------------------


def test_a_form_is_filled_in_and_the_call_goes_on():
    """P4, R9: the callback is told who asks and what; the server gets the answer and its own state back."""
    user = User()
    result = run(server := asking(form()), elicit=user)
    assert json.loads(result.full_text) == {"q0": {"action": "accept", "content": {"name": "Ann"}}}
    (message,) = user.asked
    assert (message.server, message.tool, message.params.message) == ("lab", "work", "who?")
    assert isinstance(message.params, ElicitRequestFormParams)
    assert server.calls == [(1, "work", {"n": 1})] * 2


def test_a_page_to_visit_is_offered_too():
    """P4: elicitation in URL mode."""
    page = {"method": "elicitation/create", "params": {"mode": "url", "message": "pay", "url": "https://pay.example"}}
    user = User(ACCEPT)
    assert json.loads(run(asking(page), elicit=user).full_text) == {"q0": {"action": "accept"}}
    assert isinstance(user.asked[0].params, ElicitRequestURLParams)


@pytest.mark.parametrize("answer", [DECLINE, DISMISS])
def test_a_form_that_is_declined_is_an_answer_for_the_server(answer):
    """P4: it is the server's business what follows."""
    assert json.loads(run(asking(form()), elicit=User(answer)).full_text) == {"q0": {"action": answer.action}}


def test_a_model_is_asked_with_and_without_tools():
    """P4: sampling, with tools."""
    tool = {"name": "add", "inputSchema": {"type": "object"}}
    plain = CreateMessageResult(role="assistant", content=TextContent(type="text", text="hm"), model="m")
    using = CreateMessageResultWithTools(
        role="assistant", content=[ToolUseContent(type="tool_use", id="1", name="add", input={})], model="m"
    )
    model = User(plain, using)
    answers = json.loads(run(asking(sampling(), sampling(tools=[tool])), sample=model).full_text)
    assert answers["q0"]["content"]["text"] == "hm"
    assert answers["q1"]["content"][0]["name"] == "add"
    assert [message.params.tools is None for message in model.asked] == [True, False]


def test_questions_of_one_round_come_one_after_another():
    """R9: each may be a person."""
    user = User(after=2)
    run(asking(form("a"), form("b"), form("c")), elicit=user)
    assert [message.params.message for message in user.asked] == ["a", "b", "c"]
    assert user.times == [0, 2, 4]


# -- no answer ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (form(), "the server asked for input: Elicitation not supported"),
        (sampling(), "the server asked for input: Sampling not supported"),
    ],
)
def test_without_a_callback_the_server_is_refused(request_, words):
    """P4: as the SDK's own client does it, and the call is not sent again."""
    error = run(server := asking(request_))
    assert isinstance(error, ServerError)
    assert (error.code, error.message, error.delivery) == (-32600, words, "answered")
    assert len(server.calls) == 1


def test_a_callback_may_refuse():
    """R9: with an error of its own; questions after it are not asked."""
    user = User(ErrorData(code=-1, message="not now", data={"when": "later"}))
    error = run(asking(form(), form()), elicit=user)
    assert (error.code, error.message, error.data) == (-1, "the server asked for input: not now", {"when": "later"})
    assert len(user.asked) == 1


@pytest.mark.parametrize("answer", [ValueError("oops"), None, "accept", CreateMessageResult.model_construct()])
def test_a_callback_that_fails_costs_its_call_only(answer, caplog):
    """P4: logged, and an error for that call; the connection lives on."""

    async def main() -> None:
        server = asking(form())
        async with open_supervisor([spec(server)], callbacks=Callbacks(elicit=User(answer, ACCEPT))) as supervisor:
            with pytest.raises(ServerError, match="the host's callback") as caught:
                await supervisor.call_tool("work", server="lab")
            assert caught.value.code == -32603
            assert (await supervisor.call_tool("work", server="lab")).full_text == '{"q0": {"action": "accept"}}'
            assert supervisor.status()[0].incarnation == 1

    run_virtual(main)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


# -- rounds -------------------------------------------------------------------------------------------------------


def many_rounds(rounds: int, *requests: dict[str, Any], **options: Any) -> ScriptedServer:
    """Asks so often before it answers."""
    left = rounds

    async def work(_) -> object:
        nonlocal left
        if left == 0:
            return "done"
        left -= 1
        return Ask({f"q{n}": request for n, request in enumerate(requests)}, work)

    return ScriptedServer(tools={"work": work}, **options)


def test_ten_rounds_and_not_one_more():
    """R9: `input_required` at most 10 rounds."""
    user = User()
    assert run(many_rounds(10, form()), elicit=user).full_text == "done"
    assert len(user.asked) == 10
    user = User()
    error = run(server := many_rounds(11, form()), elicit=user)
    assert isinstance(error, InvalidResult)
    assert "after 10 rounds" in str(error)
    assert (len(user.asked), len(server.calls)) == (10, 11)


def test_a_round_without_questions_waits_a_little_longer_each_time():
    """R9: 0.05 s, doubled up to 0.25."""
    result = run(many_rounds(5))
    assert (result.full_text, result.duration) == ("done", 0.05 + 0.1 + 0.2 + 0.25 + 0.25)


def test_a_question_makes_the_next_wait_short_again():
    """R9: as the SDK does it."""
    kinds = [{}, {}, {"q": form()}, {}]

    async def work(_) -> object:
        return Ask(kinds.pop(0), work) if kinds else "done"

    result = run(ScriptedServer(tools={"work": work}), elicit=User())
    assert result.duration == pytest.approx(0.05 + 0.1 + 0.05)


def test_a_question_that_is_none_is_a_bad_result():
    """R9: neither questions nor state."""

    async def work(arguments) -> object:
        return Ask({"q": {"method": "nonsense/ask"}}, dumped)

    error = run(server := ScriptedServer(tools={"work": work}), elicit=User())
    assert isinstance(error, InvalidResult)
    assert "not a request for input" in str(error)
    assert len(server.calls) == 1


# -- time and cancellation ----------------------------------------------------------------------------------------


async def timed_out(server: ScriptedServer, user: User, **options: Any) -> tuple[CallError, float]:
    async with open_supervisor([spec(server)], callbacks=Callbacks(elicit=user)) as supervisor:
        with pytest.raises(CallTimeout) as caught:
            await supervisor.call_tool("work", server="lab", **options)
        at = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert supervisor.status()[0].calls.in_flight == 0
        return caught.value, at


def test_the_deadline_is_of_the_whole_call():
    """R4, R9: rounds do not extend it, and the callback ends with it."""
    user = User(after=2)
    error, at = run_virtual(partial(timed_out, server := many_rounds(9, form()), user, timeout=5))
    assert (at, error.delivery) == (5, "unknown")
    assert (len(user.asked), user.gave_up) == (3, 1)
    assert server.cancelled == []  # nothing was in flight


def test_a_deadline_between_two_rounds():
    """R9: the server has answered only that it goes on, so whether it has acted is unknown."""
    error, at = run_virtual(partial(timed_out, server := many_rounds(9), User(), timeout=0.1))
    assert (at, error.delivery, error.incarnation) == (0.1, "unknown", 1)
    assert (len(server.calls), server.cancelled) == (2, [])


def test_the_time_a_person_takes_is_not_the_servers_silence():
    """R4, R9: the idle limit holds for each round, and not for the callback."""

    async def silent(answers) -> object:
        await trio.sleep(4)
        return "done"

    user = User(after=60)
    error, at = run_virtual(partial(timed_out, server := asking(form(), then=silent), user, idle_timeout=3))
    assert (at, error.delivery) == (63, "unknown")
    assert (user.gave_up, len(server.cancelled)) == (0, 1)


def test_a_caller_that_gives_up_ends_the_callback():
    """R6, R9: the server is told of a request in flight, and only of that."""

    async def main(cancel_at: float, told: int, gave_up: int) -> None:
        async def slow(answers) -> object:
            await trio.sleep(2)
            return "done"

        user, server = User(after=2), asking(form(), then=slow)
        async with open_supervisor([spec(server)], callbacks=Callbacks(elicit=user)) as supervisor:
            with trio.move_on_at(cancel_at) as scope:
                await supervisor.call_tool("work", server="lab")
            assert scope.cancelled_caught
            await trio.testing.wait_all_tasks_blocked()
            assert (user.gave_up, len(server.cancelled)) == (gave_up, told)
            assert supervisor.status()[0].calls.in_flight == 0

    run_virtual(main, 1, 0, 1)
    run_virtual(main, 3, 1, 0)


def test_a_person_who_thinks_holds_up_nobody():
    """P4, R10: other calls go on, even where the server takes one at a time."""

    async def main() -> None:
        async def quick(arguments) -> object:
            return "quick"

        server = asking(form())
        server.tools = {**server.tools, "quick": quick}
        user = User(after=60)
        async with (
            open_supervisor([spec(server, max_in_flight=1)], callbacks=Callbacks(elicit=user)) as supervisor,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(partial(supervisor.call_tool, "work", server="lab"))
            await trio.sleep(1)
            assert (await supervisor.call_tool("quick", server="lab")).duration == 0
            nursery.cancel_scope.cancel()

    run_virtual(main)


def test_progress_of_every_round_comes_in_order():
    """R5, R9: each round has a token of its own."""

    async def main() -> list[float]:
        seen: list[float] = []

        async def on_progress(progress, total, message) -> None:
            seen.append(progress)

        async def work(_) -> object:
            await report_progress(1)
            return Ask({"q": form()}, partial(later, copy_context()))

        async def later(first_round: Context, _) -> object:
            trio.lowlevel.spawn_system_task(report_progress, 9, context=first_round)  # under a token that has ended
            await trio.testing.wait_all_tasks_blocked()
            await report_progress(2)
            return "done"

        server = ScriptedServer(tools={"work": work})
        async with open_supervisor([spec(server)], callbacks=Callbacks(elicit=User())) as supervisor:
            result = await supervisor.call_tool("work", server="lab", on_progress=on_progress)
            assert result.full_text == "done"
        return seen

    assert run_virtual(main) == [1, 2]


# -- pages to visit first -----------------------------------------------------------------------------------------


def test_a_page_is_visited_and_the_call_sent_again():
    """R9: -32042; every page of the refusal, one after another."""
    user = User(ACCEPT, after=1)
    result = run(server := refusing(pages("https://a.example", "https://b.example")), elicit=user)
    assert (result.full_text, result.is_error, result.duration) == ("done", False, 2)
    assert [(message.tool, message.params.url) for message in user.asked] == [
        ("work", "https://a.example"),
        ("work", "https://b.example"),
    ]
    assert server.calls == [(1, "work", {"n": 1})] * 2


def test_a_page_is_offered_three_times_and_not_once_more():
    """R9: one more raises."""
    user = User(ACCEPT)
    assert run(refusing(*[pages("https://a.example")] * 3), elicit=user).full_text == "done"
    assert len(user.asked) == 3
    user = User(ACCEPT)
    error = run(server := refusing(*[pages("https://a.example")] * 4), elicit=user)
    assert isinstance(error, ServerError)
    assert (error.code, error.message, len(user.asked), len(server.calls)) == (-32042, "log in first", 3, 4)


@pytest.mark.parametrize(("answer", "did"), [(DECLINE, "declined"), (DISMISS, "dismissed")])
def test_a_page_that_is_declined_is_the_tools_answer(answer, did):
    """R9: a text for the model, and no success; the address stays out of it, and the call is not sent again."""
    user = User(answer)
    result = run(server := refusing(pages("https://a.example/?token=1", "https://b.example")), elicit=user)
    assert (result.is_error, result.incarnation) == (True, 1)
    assert result.full_text == f"The tool did nothing: the user {did} what it needs first: log in at 0"
    assert (len(user.asked), len(server.calls)) == (1, 1)


@pytest.mark.parametrize(
    "callbacks", [{}, {"sample": User()}, {"elicit": User(ErrorData(code=-1, message="no"))}, {"elicit": User(None)}]
)
def test_a_refusal_stands_where_nobody_can_be_asked(callbacks):
    """R9: as it came."""
    error = run(server := refusing(pages("https://a.example")), **callbacks)
    assert isinstance(error, ServerError)
    assert (error.code, error.message) == (-32042, "log in first")
    assert error.data["elicitations"][0]["url"] == "https://a.example"
    assert len(server.calls) == 1


@pytest.mark.parametrize("data", [None, [], {"elicitations": [{"url": 5}]}, {"elicitations": []}])
def test_a_refusal_that_names_no_page_stands(data):
    """R9: what cannot be offered is not, and sending the call again would change nothing."""
    user = User(ACCEPT)
    error = run(server := refusing(Refusal(-32042, "somewhere", data)), elicit=user)
    assert (error.code, user.asked, len(server.calls)) == (-32042, [], 1)


# -- many calls at once -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", [lambda: asking(form()), lambda: refusing(pages("https://a.example"))])
def test_calls_of_a_fan_out_may_be_asked_about(server):
    """R9: a call that needs a round goes on in a task of its own, and delays nobody."""

    async def main() -> None:
        other = ScriptedServer(tools={"work": dumped})
        specs = [spec(server()), ServerSpec("other", other.transport)]
        async with open_supervisor(specs, callbacks=Callbacks(elicit=User(after=5))) as supervisor:
            calls = [Call("work", server="lab"), Call("work", server="other")]
            async with supervisor.fan_out(calls) as outcomes:
                seen = [(outcome.index, outcome.ok, trio.current_time()) async for outcome in outcomes]
            assert seen == [(1, True, 0), (0, True, 5)]
            counts = supervisor.status()[0].calls
            assert (counts.in_flight, counts.done, counts.failed) == (0, 1, 0)

    run_virtual(main)


def test_a_fan_out_that_is_left_ends_the_callbacks():
    """R6, R9."""

    async def main() -> None:
        user, server = User(after=5), asking(form())
        async with open_supervisor([spec(server)], callbacks=Callbacks(elicit=user)) as supervisor:
            calls = [Call("work", server="lab", timeout=3), Call("work", server="lab")]
            async with supervisor.fan_out(calls) as outcomes:
                async for outcome in outcomes:
                    assert isinstance(outcome.error, CallTimeout)
                    assert trio.current_time() == 3
                    break
            await trio.testing.wait_all_tasks_blocked()
            assert (user.gave_up, server.cancelled) == (2, [])
            assert supervisor.status()[0].calls.in_flight == 0

    run_virtual(main)


def test_a_server_of_an_older_era_asks_for_nothing_by_a_result():
    """P7, R9: before 2026-07-28 there is no `resultType`."""
    user = User()
    result = run(asking(form(), lives=[Life(modern=False)]), elicit=user)
    assert result.full_text.startswith('[all of this result cannot be read: {"inputRequests": ')
    assert user.asked == []
