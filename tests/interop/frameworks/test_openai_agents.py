"""The tools of supervised servers in OpenAI Agents: each cell of its column in docs/howto/frameworks.md."""

import asyncio
import json

import pytest
from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
from agents.items import ToolCallOutputItem
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from mcp_nursery.supervisor.integrations.openai_agents import SupervisedMCPServer, function_tools

from .elsewhere import ALLOWED, approving, cancelled_while_asked, supervised_elsewhere

pytestmark = pytest.mark.slow

UNTRACED = RunConfig(tracing_disabled=True)


class Scripted(Model):
    """Makes these calls, a turn each, and then says that it is done. What may be awaited comes before its call."""

    def __init__(self, *calls):
        self.left, self.offered = list(calls), []

    async def get_response(self, *args, tools, **kwargs):
        self.offered.append({tool.name: tool.description for tool in tools})
        at = len(self.offered)
        if not self.left:
            text = ResponseOutputText(annotations=[], text="done", type="output_text")
            said = ResponseOutputMessage(
                id=f"m{at}", content=[text], role="assistant", status="completed", type="message"
            )
            return ModelResponse([said], Usage(), None)
        call = self.left.pop(0)
        name, arguments = (await call()) if callable(call) else call
        wish = ResponseFunctionToolCall(
            arguments=json.dumps(arguments), call_id=f"c{at}", name=f"mcp_agent_{name}", type="function_call"
        )
        return ModelResponse([wish], Usage(), None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


def returns(result):
    return [item for item in result.new_items if isinstance(item, ToolCallOutputItem)]


def text_of(item):
    output = item.output[0] if isinstance(item.output, list) else item.output
    return output["text"]


async def run(model, **tools):
    agent = Agent("agent", model=model, **tools)
    return await Runner.run(agent, "go", run_config=UNTRACED)


async def answered(*calls, options=ALLOWED, **settings):
    async with asyncio.timeout(60), supervised_elsewhere(**options) as supervisor:
        server = SupervisedMCPServer(supervisor, **settings)
        return returns(await run(Scripted(*calls), mcp_servers=[server]))


def test_a_run_outlives_its_server():
    async def main():
        async with asyncio.timeout(60), supervised_elsewhere(**ALLOWED) as supervisor:

            async def kill():
                await supervisor.kill()
                return "pid", {}

            async def wait():
                await supervisor.wait_connected()
                return "pid", {}

            server = SupervisedMCPServer(supervisor, hold=0)
            await server.connect()
            done = returns(await run(Scripted(("pid", {}), kill, wait), mcp_servers=[server]))
            await server.cleanup()
            return done

    before, down, after = asyncio.run(main())
    assert 'trust="untrusted"' in text_of(before)
    assert "restarts in" in text_of(down)
    assert text_of(after) != text_of(before)
    assert [each.custom_data["incarnation"] for each in (before, down, after)] == [1, None, 2]
    assert [each.custom_data["delivery"] for each in (before, down, after)] == ["answered", "not_sent", "answered"]


def test_a_call_that_meets_a_restart_is_held():
    """W13"""

    async def main():
        async with asyncio.timeout(60), supervised_elsewhere(**ALLOWED) as supervisor:

            async def kill():
                await supervisor.kill()
                return "pid", {}

            return returns(await run(Scripted(("pid", {}), kill), mcp_servers=[SupervisedMCPServer(supervisor)]))

    assert [each.custom_data["incarnation"] for each in asyncio.run(main())] == [1, 2]


def test_function_tools_are_the_same_tools():
    async def main():
        async with asyncio.timeout(60), supervised_elsewhere(**ALLOWED) as supervisor:
            tools = await function_tools(SupervisedMCPServer(supervisor))
            return returns(await run(Scripted(("echo", {"text": "hi"})), tools=tools))

    (item,) = asyncio.run(main())
    assert "\nhi\n" in text_of(item)
    assert item.custom_data["tool"] == "echo"


def test_structured_content_is_custom_data():
    (item,) = asyncio.run(answered(("weather", {})))
    assert item.custom_data["structured"] == {"degrees": 20}
    assert '{"degrees": 20}' in text_of(item)


def test_pictures_are_outputs_and_sounds_are_named():
    (item,) = asyncio.run(answered(("picture", {})))
    text, *media = item.output
    assert "audio/wav" in text["text"]
    assert [(each["type"], each["image_url"][:22]) for each in media] == [("image", "data:image/png;base64,")]


def test_media_that_are_no_base64_are_left_out():
    (item,) = asyncio.run(answered(("torn", {})))
    assert "3; their data is no base64" in text_of(item)
    assert "image_url" not in repr(item.output)


def test_progress_names_its_tool():
    told = []

    async def on_progress(*said):
        told.append(said)

    asyncio.run(answered(("count", {}), on_progress=on_progress))
    assert told == [("mcp_agent_count", 1.0, 2.0, "step 1"), ("mcp_agent_count", 2.0, 2.0, "step 2")]


def test_a_tool_that_says_it_failed_is_an_output():
    (item,) = asyncio.run(answered(("fail", {})))
    assert "it did not work" in text_of(item)
    assert item.custom_data["is_error"]
    assert item.custom_data["delivery"] == "answered"


def test_a_lost_call_says_that_the_server_may_have_acted():
    (item,) = asyncio.run(answered(("die", {})))
    assert "The tool may have acted" in text_of(item)
    assert (item.custom_data["error"], item.custom_data["delivery"]) == ("ConnectionLost", "unknown")


def test_a_run_sees_what_a_server_learns_meanwhile():
    async def main():
        async with asyncio.timeout(60), supervised_elsewhere(**ALLOWED) as supervisor:

            async def known():
                await supervisor.learned("mcp_agent_learned")
                return "pid", {}

            model = Scripted(("learn", {}), known, ("learned", {}))
            return model.offered, returns(await run(model, mcp_servers=[SupervisedMCPServer(supervisor)]))

    offered, (*_, learned) = asyncio.run(main())
    assert ["mcp_agent_learned" in names for names in (offered[0], offered[2])] == [False, True]
    assert "in other words" in offered[2]["mcp_agent_weather"]
    assert not learned.custom_data["is_error"]


def test_nobody_to_ask_is_an_output():
    (item,) = asyncio.run(answered(("pid", {}), options={}))
    assert (item.custom_data["error"], item.custom_data["delivery"]) == ("NotApproved", "not_sent")


def test_approve_is_asked():
    asked, approve = approving()
    (item,) = asyncio.run(answered(("echo", {"text": "hi"}), options={"approve": approve}))
    assert asked == [("mcp_agent_echo", {"text": "hi"})]
    assert "hi" in text_of(item)


def test_the_approval_of_the_framework_goes_before():
    async def main():
        async with asyncio.timeout(60), supervised_elsewhere(**ALLOWED) as supervisor:
            server = SupervisedMCPServer(supervisor, require_approval="always")
            agent = Agent("agent", model=Scripted(("pid", {})), mcp_servers=[server])
            first = await Runner.run(agent, "go", run_config=UNTRACED)
            (wish,) = first.interruptions
            assert returns(first) == []
            state = first.to_state()
            state.approve(wish)
            return returns(await Runner.run(agent, state, run_config=UNTRACED))

    (item,) = asyncio.run(main())
    assert not item.custom_data["is_error"]


def test_a_run_that_is_cancelled_takes_its_call_back():
    async def begin(supervisor):
        return await run(Scripted(("pid", {})), mcp_servers=[SupervisedMCPServer(supervisor)])

    assert asyncio.run(cancelled_while_asked(begin)) == ["mcp_agent_pid"]


def test_prompts_are_those_of_all_servers():
    async def main():
        async with asyncio.timeout(60), supervised_elsewhere(**ALLOWED) as supervisor:
            server = SupervisedMCPServer(supervisor)
            listed = await server.list_prompts()
            return listed.prompts, await server.get_prompt(listed.prompts[0].name, {"topic": "rain"})

    (prompt,), filled = asyncio.run(main())
    assert prompt.name == "mcp_agent_summarise"
    assert filled.messages[0].content.text == "Summarise rain."
