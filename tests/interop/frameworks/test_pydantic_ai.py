"""The tools of supervised servers in pydantic-ai: each cell of its column in docs/howto/frameworks.md."""

import asyncio

import pytest
from pydantic_ai import Agent, BinaryContent, DeferredToolRequests, DeferredToolResults, ToolFailed
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import WrapperToolset

from mcp_nursery.supervisor import ConnectionLost
from mcp_nursery.supervisor.integrations.pydantic_ai import SupervisedToolset

from .elsewhere import ALLOWED, approving, cancelled_while_asked, supervised_elsewhere

pytestmark = pytest.mark.slow


def asks_for(*calls, seen=None):
    """A model that makes these calls, a message each, and then says the last answer."""
    left = list(calls)

    async def answer(messages, info):
        if seen is not None:
            seen.append((messages, info))
        if not left:
            return ModelResponse([TextPart(returns(messages)[-1].model_response_str())])
        call = left.pop(0)
        name, arguments = (await call()) if callable(call) else call
        return ModelResponse([ToolCallPart(f"mcp_agent_{name}", arguments)])

    return FunctionModel(answer)


def returns(messages):
    return [
        part
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


async def answered(*calls, seen=None, options=ALLOWED, **settings):
    async with asyncio.timeout(60), supervised_elsewhere(**options) as supervisor:
        agent = Agent(asks_for(*calls, seen=seen), toolsets=[SupervisedToolset(supervisor, **settings)])
        return returns((await agent.run("go")).all_messages())


def test_a_run_outlives_its_server():
    async def main():
        async with asyncio.timeout(60), supervised_elsewhere(**ALLOWED) as supervisor:

            async def kill():
                await supervisor.kill()
                return "pid", {}

            async def wait():
                await supervisor.wait_connected()
                return "pid", {}

            agent = Agent(asks_for(("pid", {}), kill, wait), toolsets=[SupervisedToolset(supervisor, hold=0)])
            return returns((await agent.run("go")).all_messages())

    before, down, after = asyncio.run(main())
    assert 'trust="untrusted"' in before.content
    assert before.metadata["incarnation"] == 1
    assert down.outcome == "failed"
    assert "restarts in" in down.content
    assert after.metadata["incarnation"] == 2
    assert after.content != before.content


def test_a_call_that_meets_a_restart_is_held():
    """W13"""

    async def main():
        async with asyncio.timeout(60), supervised_elsewhere(**ALLOWED) as supervisor:

            async def kill():
                await supervisor.kill()
                return "pid", {}

            agent = Agent(asks_for(("pid", {}), kill), toolsets=[SupervisedToolset(supervisor)])
            return returns((await agent.run("go")).all_messages())

    assert [each.metadata["incarnation"] for each in asyncio.run(main())] == [1, 2]


def test_the_test_model_calls_every_tool_it_is_given():
    async def main():
        async with asyncio.timeout(60), supervised_elsewhere(**ALLOWED) as supervisor:
            toolset = SupervisedToolset(supervisor).filtered(lambda ctx, tool: tool.metadata["tool"] in ("pid", "echo"))
            return returns((await Agent(TestModel(), toolsets=[toolset]).run("go")).all_messages())

    assert [(part.tool_name, part.outcome) for part in asyncio.run(main())] == [
        ("mcp_agent_echo", "success"),
        ("mcp_agent_pid", "success"),
    ]


def test_structured_content_is_metadata_and_text():
    (part,) = asyncio.run(answered(("weather", {})))
    assert part.metadata["structured"] == {"degrees": 20}
    assert '{"degrees": 20}' in part.content


def test_pictures_and_sounds_are_binary_content():
    (part,) = asyncio.run(answered(("picture", {})))
    text, *media = part.content
    assert "a dot" in text
    assert all(isinstance(each, BinaryContent) for each in media)
    assert [each.media_type for each in media] == ["image/png", "audio/wav", "audio/midi"]
    assert media[0].data.startswith(b"\x89PNG")


def test_media_that_are_no_base64_do_not_end_the_run():
    (part,) = asyncio.run(answered(("torn", {})))
    assert "a dot" in part.content
    assert "3; their data is no base64" in part.content


def test_progress_names_its_tool():
    told = []

    async def on_progress(*said):
        told.append(said)

    asyncio.run(answered(("count", {}), on_progress=on_progress))
    assert told == [("mcp_agent_count", 1.0, 2.0, "step 1"), ("mcp_agent_count", 2.0, 2.0, "step 2")]


def test_a_tool_that_says_it_failed_is_a_failed_result():
    (part,) = asyncio.run(answered(("fail", {})))
    assert part.outcome == "failed"
    assert "it did not work" in part.content


def test_a_lost_call_says_that_the_server_may_have_acted():
    """The model reads it, and a toolset around this one has the error."""
    errors = []

    class Watched(WrapperToolset):
        async def call_tool(self, *args):
            try:
                return await super().call_tool(*args)
            except ToolFailed as failed:
                errors.append(failed.__cause__)
                raise

    async def main():
        async with asyncio.timeout(60), supervised_elsewhere(**ALLOWED) as supervisor:
            agent = Agent(asks_for(("die", {})), toolsets=[Watched(SupervisedToolset(supervisor))])
            return returns((await agent.run("go")).all_messages())

    (part,) = asyncio.run(main())
    assert part.outcome == "failed"
    assert "The tool may have acted" in part.content
    (error,) = errors
    assert isinstance(error, ConnectionLost)
    assert error.delivery == "unknown"


def test_a_run_sees_what_a_server_learns_meanwhile():
    seen = []

    async def main():
        async with asyncio.timeout(60), supervised_elsewhere(**ALLOWED) as supervisor:

            async def known():
                await supervisor.learned("mcp_agent_learned")
                return "pid", {}

            model = asks_for(("learn", {}), known, ("learned", {}), seen=seen)
            return returns((await Agent(model, toolsets=[SupervisedToolset(supervisor)]).run("go")).all_messages())

    *_, learned = asyncio.run(main())
    offered = [{tool.name: tool.description for tool in info.function_tools} for _, info in seen]
    assert ["mcp_agent_learned" in names for names in (offered[0], offered[2])] == [False, True]
    assert "in other words" in offered[2]["mcp_agent_weather"]
    assert learned.outcome == "success"


def test_nobody_to_ask_is_an_answer():
    (part,) = asyncio.run(answered(("pid", {}), options={}))
    assert part.outcome == "failed"
    assert "NotApproved" in part.content


def test_approve_is_asked():
    asked, approve = approving()
    (part,) = asyncio.run(answered(("echo", {"text": "hi"}), options={"approve": approve}))
    assert asked == [("mcp_agent_echo", {"text": "hi"})]
    assert part.outcome == "success"


def test_the_approval_of_the_framework_goes_before():
    async def main():
        async with asyncio.timeout(60), supervised_elsewhere(**ALLOWED) as supervisor:
            toolset = SupervisedToolset(supervisor).approval_required()
            agent = Agent(asks_for(("pid", {})), toolsets=[toolset], output_type=[str, DeferredToolRequests])
            first = await agent.run("go")
            (call,) = first.output.approvals
            assert returns(first.all_messages()) == []
            allowed = DeferredToolResults(approvals={call.tool_call_id: True})
            again = await agent.run(message_history=first.all_messages(), deferred_tool_results=allowed)
            return returns(again.all_messages())

    (part,) = asyncio.run(main())
    assert part.outcome == "success"


@pytest.mark.parametrize("given", [True, False])
def test_instructions_are_the_preamble(given):
    seen = []
    asyncio.run(answered(("pid", {}), seen=seen, instructions=given))
    assert ("Use pid first." in (seen[0][1].instructions or "")) is given


def test_a_run_that_is_cancelled_takes_its_call_back():
    async def begin(supervisor):
        return await Agent(asks_for(("pid", {})), toolsets=[SupervisedToolset(supervisor)]).run("go")

    assert asyncio.run(cancelled_while_asked(begin)) == ["mcp_agent_pid"]
