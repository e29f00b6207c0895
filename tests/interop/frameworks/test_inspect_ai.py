"""The tools of supervised servers in Inspect AI, on both of its backends: each cell of its column in
docs/howto/frameworks.md."""

import gc
import re
from pathlib import Path

import anyio
import psutil
import pytest
import trio
from inspect_ai import Task, eval_async
from inspect_ai.approval import ApprovalPolicy, auto_approver
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import ContentAudio, ContentImage, tool

from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.integrations.inspect_ai import mcp_nursery_tools

from .elsewhere import ALLOWED, agent, approving, supervised_elsewhere, supervised_here

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),  # Inspect's, and so is this
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
]

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "frameworks.md").read_text()
OPENED = {"asyncio": supervised_elsewhere, "trio": supervised_here}


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    """Inspect writes its logs here."""
    monkeypatch.setenv("INSPECT_LOG_DIR", str(tmp_path))
    yield
    gc.collect()  # what it leaves open is found here, and no test of others warned of it


@pytest.fixture(params=OPENED)
def backend(request, monkeypatch):
    monkeypatch.setenv("INSPECT_ASYNC_BACKEND", request.param)
    return request.param


def asks_for(*calls):
    """A model that makes these calls, a message each, and then says that it is done."""

    def answer(messages, tools, tool_choice, config):
        offered.append({each.name: each.description for each in tools})
        made = sum(isinstance(message, ChatMessageTool) for message in messages)
        if made == len(calls):
            output = ModelOutput.from_content("mockllm/model", "done")
        else:
            output = ModelOutput.for_tool_call("mockllm/model", *calls[made])
        output.usage = ModelUsage()  # else tokens are counted, by a table that is fetched
        return output

    offered = []
    return get_model("mockllm/model", custom_outputs=answer, memoize=False), offered


def evaluated(backend, *calls, options=ALLOWED, samples=1, times=1, settings=None, of_eval=None):
    """The samples' logs."""
    model, offered = asks_for(*calls)

    async def main():
        with anyio.fail_after(60):
            async with OPENED[backend](**options) as supervisor:

                @tool
                def kill():
                    async def execute():
                        """Kill the server."""
                        await supervisor.kill()
                        return "killed"

                    return execute

                @tool
                def wait():
                    async def execute():
                        """Wait for the server."""
                        await supervisor.wait_connected()
                        return "connected"

                    return execute

                @tool
                def learned():
                    async def execute():
                        """Wait until the server has learned."""
                        await supervisor.learned("mcp_agent_learned")
                        return "learned"

                    return execute

                source = mcp_nursery_tools(supervisor, **(settings or {}))
                tools = use_tools(source, *(each() for each in (kill, wait, learned)))
                task = Task(
                    dataset=[Sample(input="go") for _ in range(samples)],
                    solver=[tools, generate()] * times,
                )
                (log,) = await eval_async(task, model=model, ctl_server=False, **(of_eval or {}))
                return log

    log = anyio.run(main, backend=backend)
    assert log.status == "success", log.error
    return log.samples, offered


def returns(sample):
    return [message for message in sample.messages if isinstance(message, ChatMessageTool)]


def facts(sample):
    return [event.data for event in sample.events if event.event == "info" and event.source == "mcp-nursery"]


def test_a_sample_outlives_its_server(backend):
    pid = ("mcp_agent_pid", {})
    (sample,), _ = evaluated(backend, pid, ("kill", {}), pid, ("wait", {}), pid, settings={"hold": 0})
    before, _, down, _, after = returns(sample)
    assert 'trust="untrusted"' in before.text
    assert down.error.type == "unknown"
    assert "restarts in" in down.error.message
    assert after.error is None
    assert after.text != before.text
    assert [each["incarnation"] for each in facts(sample)] == [1, None, 2]
    assert [each["delivery"] for each in facts(sample)] == ["answered", "not_sent", "answered"]


def test_a_call_that_meets_a_restart_is_held(backend):
    """W13"""
    pid = ("mcp_agent_pid", {})
    (sample,), _ = evaluated(backend, pid, ("kill", {}), pid)
    assert [each["incarnation"] for each in facts(sample)] == [1, 2]


def test_all_samples_share_one_server(backend):
    samples, _ = evaluated(backend, ("mcp_agent_pid", {}), samples=4)
    assert len({returns(sample)[0].text for sample in samples}) == 1


def test_each_sample_may_have_a_server_of_its_own():
    """The solver of the page."""
    solvers = {}
    exec(re.search(r"<!-- file: own_instance.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)[1], solvers)
    model, _ = asks_for(("mcp_agent_pid", {}), ("mcp_agent_pid", {}))
    alive = []

    async def main():
        with anyio.fail_after(60):
            async with open_supervisor([agent()], **ALLOWED) as supervisor:
                task = Task(
                    dataset=[Sample(input="go") for _ in range(3)],
                    solver=solvers["generate_with_its_own"](supervisor, "agent"),
                )
                (log,) = await eval_async(task, model=model, ctl_server=False)
                pids = [{re.search(r"\d+", each.text)[0] for each in returns(sample)} for sample in log.samples]
                alive.extend(pid for each in pids for pid in each if psutil.pid_exists(int(pid)))
                return pids

    pids = trio.run(main)
    assert [len(each) for each in pids] == [1, 1, 1]
    assert len(set.union(*pids)) == 3
    assert alive == []


def test_structured_content_is_in_the_transcript(backend):
    (sample,), _ = evaluated(backend, ("mcp_agent_weather", {}))
    assert facts(sample)[0]["structured"] == {"degrees": 20}
    assert '{"degrees": 20}' in returns(sample)[0].text


def test_pictures_and_sounds_that_inspect_knows_are_content(backend):
    (sample,), _ = evaluated(backend, ("mcp_agent_picture", {}), of_eval={"log_images": True})
    _, picture, *sounds = returns(sample)[0].content
    assert isinstance(picture, ContentImage)
    assert [(type(each), each.format) for each in sounds] == [(ContentAudio, "wav")]


def test_media_that_are_no_base64_are_left_out(backend):
    (sample,), _ = evaluated(backend, ("mcp_agent_torn", {}), of_eval={"log_images": True})
    assert "3; their data is no base64" in returns(sample)[0].text
    assert isinstance(returns(sample)[0].content, str)


def test_progress_names_its_tool(backend):
    told = []

    async def on_progress(*said):
        told.append(said)

    evaluated(backend, ("mcp_agent_count", {}), settings={"on_progress": on_progress})
    assert told == [("mcp_agent_count", 1.0, 2.0, "step 1"), ("mcp_agent_count", 2.0, 2.0, "step 2")]


def test_a_tool_that_says_it_failed_is_an_error_of_the_call(backend):
    (sample,), _ = evaluated(backend, ("mcp_agent_fail", {}))
    assert "it did not work" in returns(sample)[0].error.message
    assert facts(sample)[0]["delivery"] == "answered"


def test_a_lost_call_says_that_the_server_may_have_acted(backend):
    (sample,), _ = evaluated(backend, ("mcp_agent_die", {}))
    assert "The tool may have acted" in returns(sample)[0].error.message
    assert facts(sample) == [
        {
            "server": "agent",
            "tool": "die",
            "incarnation": 1,
            "is_error": True,
            "error": "ConnectionLost",
            "delivery": "unknown",
            "structured": None,
        }
    ]


def test_the_next_solver_sees_what_a_server_learns_meanwhile(backend):
    _, offered = evaluated(backend, ("mcp_agent_learn", {}), ("learned", {}), times=2)
    assert ["mcp_agent_learned" in each for each in (offered[0], offered[-1])] == [False, True]
    assert "in other words" in offered[-1]["mcp_agent_weather"]


def test_nobody_to_ask_is_an_error_of_the_call(backend):
    (sample,), _ = evaluated(backend, ("mcp_agent_pid", {}), options={})
    assert "NotApproved" in returns(sample)[0].error.message
    assert facts(sample)[0]["delivery"] == "not_sent"


def test_approve_is_asked(backend):
    asked, approve = approving()
    (sample,), _ = evaluated(backend, ("mcp_agent_echo", {"text": "hi"}), options={"approve": approve})
    assert asked == [("mcp_agent_echo", {"text": "hi"})]
    assert "hi" in returns(sample)[0].text


def test_the_approval_of_inspect_goes_before(backend):
    policy = [ApprovalPolicy(auto_approver("reject"), "mcp_agent_*")]
    (sample,), _ = evaluated(backend, ("mcp_agent_pid", {}), of_eval={"approval": policy})
    assert returns(sample)[0].error.type == "approval"
    assert facts(sample) == []


def test_a_limit_of_the_sample_takes_its_call_back(backend):
    ended = []

    async def approve(request):
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(request.tool.name)

    (sample,), _ = evaluated(backend, ("mcp_agent_pid", {}), options={"approve": approve}, of_eval={"time_limit": 1})
    assert sample.limit.type == "time"
    assert ended == ["mcp_agent_pid"]


def test_a_long_result_keeps_its_marks(backend):
    long = "x" * 40_000
    (sample,), _ = evaluated(backend, ("mcp_agent_echo", {"text": long}))
    assert returns(sample)[0].text.endswith("</mcp_tool_output>")
    assert long in returns(sample)[0].text


def test_only_what_the_globs_fit(backend):
    _, offered = evaluated(backend, ("mcp_agent_pid", {}), settings={"tools": ["*_pid"]})
    assert offered[0].keys() == {"mcp_agent_pid", "kill", "wait", "learned"}


def test_what_inspect_has_no_words_for_goes_to_the_server(backend):
    (sample,), _ = evaluated(
        backend, ("mcp_agent_odd", {"any": [1], "more": 2}), ("mcp_agent_config", {"config": "a", "self": "b"})
    )
    odd, config = returns(sample)
    assert '{"any": [1], "more": 2}' in odd.text
    assert '{"config": "a", "self": "b"}' in config.text
