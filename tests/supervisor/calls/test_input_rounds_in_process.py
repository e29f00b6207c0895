"""Server objects of the SDK in this process that ask the host in the middle of a call."""

import json
from typing import Annotated, Any

import pytest
import trio
import trio.testing
from mcp.server import Server
from mcp.server.mcpserver import AcceptedElicitation, Context, Elicit, ElicitationResult, MCPServer, Resolve, Sample
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp_types import (
    CallToolResult,
    CreateMessageResult,
    ElicitRequestURLParams,
    ElicitResult,
    ErrorData,
    InputRequiredResult,
    ListToolsResult,
    SamplingMessage,
    TextContent,
    Tool,
)
from pydantic import BaseModel

from mcp_nursery.supervisor import Call, ConnectionLost, InProcessTransport, ServerError, ServerSpec, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks

from .test_input_rounds import ACCEPT, DECLINE, User, form


class Name(BaseModel):
    name: str


async def ask_name() -> Elicit[Name]:
    return Elicit("who?", Name)


async def ask_model() -> Sample:
    return Sample([SamplingMessage(role="user", content=TextContent(type="text", text="hm?"))], max_tokens=5)


def lab() -> MCPServer:
    server = MCPServer("lab")

    @server.tool()
    async def greet(name: Annotated[ElicitationResult[Name], Resolve(ask_name)], ctx: Context) -> str:
        await ctx.report_progress(1)
        return f"hello {name.data.name}" if isinstance(name, AcceptedElicitation) else "hello"

    @server.tool()
    async def think(thought: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
        return f"{thought.model} thinks"

    @server.tool()
    async def talk(ctx: Context) -> str:
        for number in range(3):
            await ctx.session.send_log_message("info", number)
        return "talked"

    return server


def spec(server: object) -> ServerSpec:
    return ServerSpec("lab", InProcessTransport(server))


def low_level(on_call_tool) -> Server:
    async def on_list_tools(ctx, params):
        return ListToolsResult(tools=[Tool(name="work", input_schema={"type": "object"})])

    return Server("low", version="0.1", on_list_tools=on_list_tools, on_call_tool=on_call_tool)


def text(words: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=words)])


async def test_forms_and_models(autojump_clock):
    """P4, R9: with progress in a later round."""
    seen: list[float] = []

    async def on_progress(progress, total, message) -> None:
        seen.append(progress)

    user = User(after=5)
    model = User(CreateMessageResult(role="assistant", content=TextContent(type="text", text="hm"), model="m"))
    async with open_supervisor([spec(lab())], callbacks=Callbacks(elicit=user, sample=model)) as supervisor:
        greeted = await supervisor.call_tool("greet", server="lab", on_progress=on_progress, idle_timeout=1)
        assert (greeted.full_text, greeted.duration, seen) == ("hello Ann", 5, [1])
        assert (await supervisor.call_tool("think", server="lab")).full_text == "m thinks"
        assert [(one.server, one.tool) for one in (*user.asked, *model.asked)] == [("lab", "greet"), ("lab", "think")]
        outcomes = await supervisor.gather([Call("greet", server="lab"), Call("think", server="lab")])
        assert [outcome.full_text for outcome in outcomes] == ["hello Ann", "m thinks"]


@pytest.mark.filterwarnings("ignore:The logging capability is deprecated")
async def test_a_slow_log_callback_does_not_hold_up_the_server(autojump_clock):
    """P4: in this process the SDK has the server itself wait for its client's callbacks."""
    seen: list[tuple[float, int]] = []

    async def log(message) -> None:
        await trio.sleep(5)
        seen.append((trio.current_time(), message.params.data))

    async with open_supervisor([spec(lab())], callbacks=Callbacks(log=log)) as supervisor:
        assert (await supervisor.call_tool("talk", server="lab")).duration == 0
        await trio.sleep(20)
    assert seen == [(5, 0), (10, 1), (15, 2)]


@pytest.mark.parametrize("value", [object(), "\ud800"], ids=["object", "surrogate"])
async def test_an_answer_of_the_host_without_a_json_form(autojump_clock, value):
    """P4: the call fails, and nothing else does."""
    model = User(
        CreateMessageResult(
            role="assistant", content=TextContent(type="text", text="hm"), model="m", _meta={"x": value}
        )
    )
    async with open_supervisor([spec(lab())], callbacks=Callbacks(sample=model)) as supervisor:
        with pytest.raises(ServerError, match="the host's callback returned no answer"):
            await supervisor.call_tool("think", server="lab")
        assert (await supervisor.call_tool("talk", server="lab")).incarnation == 1


async def test_refused_and_declined(autojump_clock):
    """P4, R9: an error of the callback's own is the call's; a declined form is the server's business."""
    user = User(ErrorData(code=-1, message="not now"), DECLINE)
    async with open_supervisor([spec(lab())], callbacks=Callbacks(elicit=user)) as supervisor:
        with pytest.raises(ServerError, match="not now"):
            await supervisor.call_tool("greet", server="lab")
        assert (await supervisor.call_tool("greet", server="lab")).full_text == "hello"


async def test_a_page_must_be_visited_first(autojump_clock):
    """R9: -32042."""
    calls = 0

    async def on_call_tool(ctx, params):
        nonlocal calls
        calls += 1
        if calls == 1:
            page = ElicitRequestURLParams(message="log in", url="https://a.example", elicitation_id="1")
            raise UrlElicitationRequiredError([page])
        return text("welcome")

    async with open_supervisor([spec(low_level(on_call_tool))], callbacks=Callbacks(elicit=User(ACCEPT))) as supervisor:
        assert (await supervisor.call_tool("work", server="lab")).full_text == "welcome"


async def test_the_arguments_come_again_with_the_answers(autojump_clock):
    """R9: and the server's state, byte for byte."""
    heard: list[Any] = []

    async def on_call_tool(ctx, params):
        heard.append((params.arguments, params.input_responses, params.request_state))
        if len(heard) == 1:
            return InputRequiredResult.model_validate({"inputRequests": {"q": form()}, "requestState": 'ä"\\ '})
        return text(json.dumps(params.arguments))

    async with open_supervisor([spec(low_level(on_call_tool))], callbacks=Callbacks(elicit=User())) as supervisor:
        result = await supervisor.call_tool("work", {"n": 2**70}, server="lab")
        assert result.full_text == json.dumps({"n": 2**70})
    answer = ElicitResult(action="accept", content={"name": "Ann"})
    assert heard == [({"n": 2**70}, None, None), ({"n": 2**70}, {"q": answer}, 'ä"\\ ')]


async def test_giving_up_and_stopping(autojump_clock):
    """R6, R9: the callback ends with the call; a stop ends it too, and begins no further round."""
    user = User(after=60)
    async with (
        open_supervisor([spec(lab())], callbacks=Callbacks(elicit=user)) as supervisor,
        trio.open_nursery() as nursery,
    ):
        with trio.move_on_after(2):
            await supervisor.call_tool("greet", server="lab")
        await trio.testing.wait_all_tasks_blocked()
        assert (trio.current_time(), user.gave_up) == (2, 1)

        async def stop() -> None:
            await trio.sleep(1)
            await supervisor.stop_server("lab", drain=30)

        nursery.start_soon(stop)
        with pytest.raises(ConnectionLost, match="stopped"):
            await supervisor.call_tool("greet", server="lab")
        assert trio.current_time() == 3
    assert user.gave_up == 2
