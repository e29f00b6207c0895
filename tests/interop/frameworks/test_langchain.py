"""The tools of supervised servers in LangChain and LangGraph: each cell of their column in docs/howto/frameworks.md."""

import asyncio
import json

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

from mcp_nursery.supervisor.integrations.langchain import supervised_tools

from .elsewhere import ALLOWED, approving, cancelled_while_asked, supervised_elsewhere

pytestmark = pytest.mark.slow


def asks_for(*calls):
    """A model that makes these calls, a message each, and then says that it is done."""
    messages = [
        AIMessage("", tool_calls=[{"name": f"mcp_agent_{name}", "args": arguments, "id": f"call-{at}"}])
        for at, (name, arguments) in enumerate(calls)
    ]
    return GenericFakeChatModel(messages=iter([*messages, AIMessage("done")]))


def graph(model, tools, *, before_tools=None, **options):
    """An agent: a model, its tools, and what is done between the two."""

    async def ask(state):
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def nothing(state):
        return {}

    made = StateGraph(MessagesState)
    made.add_node("model", ask)
    made.add_node("between", before_tools or nothing)
    made.add_node("tools", ToolNode(tools))
    made.add_edge(START, "model")
    made.add_conditional_edges("model", tools_condition, {"tools": "between", END: END})
    made.add_edge("between", "tools")
    made.add_edge("tools", "model")
    return made.compile(**options)


def returns(state):
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


async def answered(*calls, options=ALLOWED, between=None, **settings):
    async with asyncio.timeout(60), supervised_elsewhere(**options) as supervisor:
        tools = await supervised_tools(supervisor, **settings)

        async def before_tools(state):
            await between(supervisor, len(returns(state)))
            return {}

        agent = graph(asks_for(*calls), tools, before_tools=before_tools if between else None)
        return returns(await agent.ainvoke({"messages": [("user", "go")]}))


def test_a_graph_outlives_its_server():
    async def between(supervisor, made):
        if made == 1:
            await supervisor.kill()
        if made == 2:
            await supervisor.wait_connected()

    before, down, after = asyncio.run(answered(("pid", {}), ("pid", {}), ("pid", {}), between=between, hold=0))
    assert 'trust="untrusted"' in before.content
    assert (before.status, before.artifact["incarnation"]) == ("success", 1)
    assert down.status == "error"
    assert "restarts in" in down.content
    assert down.artifact["delivery"] == "not_sent"
    assert (after.status, after.artifact["incarnation"]) == ("success", 2)
    assert after.content != before.content


def test_a_call_that_meets_a_restart_is_held():
    """W13"""

    async def between(supervisor, made):
        if made == 1:
            await supervisor.kill()

    before, after = asyncio.run(answered(("pid", {}), ("pid", {}), between=between))
    assert [each.artifact["incarnation"] for each in (before, after)] == [1, 2]


def test_structured_content_is_in_the_artifact():
    (message,) = asyncio.run(answered(("weather", {})))
    assert message.artifact["structured"] == {"degrees": 20}
    assert '{"degrees": 20}' in message.content


def test_an_artifact_can_be_saved():
    (message,) = asyncio.run(answered(("weather", {})))
    assert json.loads(json.dumps(message.artifact)) == message.artifact


def test_pictures_are_content_blocks_and_sounds_are_named():
    (message,) = asyncio.run(answered(("picture", {})))
    text, *media = message.content_blocks
    assert "a dot" in text["text"]
    assert "audio/wav" in text["text"]
    assert [(each["type"], each["mime_type"]) for each in media] == [("image", "image/png")]


def test_media_that_are_no_base64_are_left_out():
    (message,) = asyncio.run(answered(("torn", {})))
    assert "3; their data is no base64" in message.content


def test_progress_names_its_tool():
    told = []

    async def on_progress(*said):
        told.append(said)

    asyncio.run(answered(("count", {}), on_progress=on_progress))
    assert told == [("mcp_agent_count", 1.0, 2.0, "step 1"), ("mcp_agent_count", 2.0, 2.0, "step 2")]


def test_a_tool_that_says_it_failed_is_an_error_message():
    (message,) = asyncio.run(answered(("fail", {})))
    assert message.status == "error"
    assert "it did not work" in message.content
    assert message.artifact["delivery"] == "answered"


def test_a_lost_call_says_that_the_server_may_have_acted():
    (message,) = asyncio.run(answered(("die", {})))
    assert message.status == "error"
    assert "The tool may have acted" in message.content
    assert (message.artifact["error"], message.artifact["delivery"]) == ("ConnectionLost", "unknown")


def test_arguments_may_have_the_names_that_langchain_uses():
    (message,) = asyncio.run(answered(("config", {"config": "a", "self": "b"})))
    assert '{"config": "a", "self": "b"}' in message.content


def test_what_a_server_learns_is_among_the_tools_that_are_asked_for_again():
    async def main():
        async with asyncio.timeout(60), supervised_elsewhere(**ALLOWED) as supervisor:
            first = {tool.name: tool for tool in await supervised_tools(supervisor)}
            await first["mcp_agent_learn"].ainvoke({})
            await supervisor.learned("mcp_agent_learned")
            return first, {tool.name: tool for tool in await supervised_tools(supervisor)}

    first, again = asyncio.run(main())
    assert again.keys() - first.keys() == {"mcp_agent_learned"}
    assert "in other words" in again["mcp_agent_weather"].description


def test_nobody_to_ask_is_an_error_message():
    (message,) = asyncio.run(answered(("pid", {}), options={}))
    assert message.status == "error"
    assert (message.artifact["error"], message.artifact["delivery"]) == ("NotApproved", "not_sent")


def test_approve_is_asked():
    asked, approve = approving()
    (message,) = asyncio.run(answered(("echo", {"text": "hi"}), options={"approve": approve}))
    assert asked == [("mcp_agent_echo", {"text": "hi"})]
    assert message.status == "success"


def test_an_interrupt_goes_before():
    def ask_a_person(state):
        interrupt(state["messages"][-1].tool_calls)
        return {}

    async def main():
        async with asyncio.timeout(60), supervised_elsewhere(**ALLOWED) as supervisor:
            tools = await supervised_tools(supervisor)
            agent = graph(asks_for(("pid", {})), tools, before_tools=ask_a_person, checkpointer=InMemorySaver())
            config = {"configurable": {"thread_id": "1"}}
            stopped = await agent.ainvoke({"messages": [("user", "go")]}, config)
            assert returns(stopped) == []
            return returns(await agent.ainvoke(Command(resume="yes"), config))

    (message,) = asyncio.run(main())
    assert message.status == "success"


def test_a_graph_that_is_cancelled_takes_its_call_back():
    async def begin(supervisor):
        agent = graph(asks_for(("pid", {})), await supervised_tools(supervisor))
        return await agent.ainvoke({"messages": [("user", "go")]})

    assert asyncio.run(cancelled_while_asked(begin)) == ["mcp_agent_pid"]


def test_a_call_without_a_tool_call_gives_the_content():
    async def main():
        async with asyncio.timeout(60), supervised_elsewhere(**ALLOWED) as supervisor:
            tools = {tool.name: tool for tool in await supervised_tools(supervisor)}
            with pytest.raises(NotImplementedError, match="mcp_agent_pid is asynchronous: use ainvoke"):
                tools["mcp_agent_pid"].invoke({})
            return await tools["mcp_agent_echo"].ainvoke({"text": "hi"})

    assert "\nhi\n" in asyncio.run(main())
