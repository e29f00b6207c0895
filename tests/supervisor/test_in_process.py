"""Real server objects of the SDK in this process."""

import time
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial

import pytest
import trio
import trio.testing
from mcp.server import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
from pydantic import BaseModel

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import (
    CallTimeout,
    ConnectionLost,
    InvalidArguments,
    InvalidResult,
    ServerDown,
    ServerError,
)
from mcp_nursery.supervisor import InProcessTransport, RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.approval import ApprovalRules

S = ServerState


def spec(server: object, name: str = "lab", **options) -> ServerSpec:
    return ServerSpec(name, InProcessTransport(server), **options)


class Sum(BaseModel):
    total: int


def lab(**options) -> MCPServer:
    server = MCPServer("laboratory", version="1.2", instructions="Wear goggles.", **options)

    @server.tool()
    async def add(a: int, b: int) -> Sum:  # not in a thread: virtual time would go on meanwhile
        return Sum(total=a + b)

    @server.tool()
    async def shout(text: str) -> str:
        return text.upper()

    @server.tool()
    async def fail() -> str:
        raise ValueError("no such luck")

    @server.tool()
    async def nap(seconds: float) -> str:
        await trio.sleep(seconds)
        return "rested"

    @server.tool()
    async def count(to: int, ctx: Context) -> str:
        for n in range(to):
            await trio.sleep(1)
            await ctx.report_progress(n + 1, to, f"step {n + 1}")
        return "counted"

    return server


def low_level(on_call_tool, **options) -> Server:
    async def on_list_tools(ctx, params):
        return ListToolsResult(tools=[Tool(name="work", input_schema={"type": "object"})])

    return Server("low", version="0.1", on_list_tools=on_list_tools, on_call_tool=on_call_tool, **options)


# -- context ----------------------------------------------------------------------------------------------------------

TRACE: ContextVar[str] = ContextVar("trace", default="none")


def traced() -> MCPServer:
    """Says in which context it runs."""

    @asynccontextmanager
    async def lifespan(_: MCPServer):
        yield TRACE.get()

    server = MCPServer("traced", lifespan=lifespan)

    @server.tool()
    async def context(ctx: Context) -> str:
        return f"{ctx.request_context.lifespan_context}, {TRACE.get()}"

    return server


@pytest.mark.parametrize("by", ["the host", "a callback"])
async def test_a_server_runs_in_the_context_of_the_block_whoever_adds_it(autojump_clock, by):
    """Otherwise what holds for one request or call would hold for a server that lives on after it."""

    async def add(*_report: object) -> None:
        TRACE.set("request")
        await supervisor.add_server(spec(traced(), "added"))

    TRACE.set("block")
    async with open_supervisor([spec(traced(), "first"), spec(lab())]) as supervisor:
        if by == "the host":
            await add()
        else:
            await supervisor.call_tool("mcp_lab_count", {"to": 1}, on_progress=add)
        kept = [spec(traced(), name) for name in ("first", "added", "loaded")]
        await supervisor.list_tools()
        await supervisor.reload(kept)
        await supervisor.list_tools()
        answers = [await supervisor.call_tool("context", server=name) for name in ("first", "added", "loaded")]
        await supervisor.reconnect("first")
        answers.append(await supervisor.call_tool("context", server="first"))
    assert [one.full_text for one in answers] == ["block, block"] * 4


# -- calls --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_what_is_said_not_to_be_sent_was_not_executed():
    """On a loop that is held up a call's time may be over at any of its steps; in real time, for it is about that."""
    ledger: list[str] = []

    async def work(ctx, params):
        ledger.append(params.arguments["n"])
        return CallToolResult(content=[])

    async def hold_up() -> None:
        while True:
            time.sleep(0.003)  # noqa: ASYNC251 - on purpose
            await trio.lowlevel.checkpoint()

    not_sent: list[int] = []
    async with open_supervisor([spec(low_level(work))]) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(hold_up)
        for n in range(150):
            try:
                await supervisor.call_tool("mcp_lab_work", {"n": n}, timeout=0.002 * (n % 6 + 1))
            except CallTimeout as timeout:
                if timeout.delivery == "not_sent":
                    not_sent.append(n)
        nursery.cancel_scope.cancel()
    assert not_sent
    assert not set(not_sent) & set(ledger)
    assert len(set(ledger)) == len(ledger)


async def test_calls(autojump_clock):
    """T16: text, structured content, `isError`, duration."""
    async with open_supervisor([spec(lab())]) as supervisor:
        result = await supervisor.call_tool("mcp_lab_add", {"a": 2, "b": 3})
        assert (result.structured, result.is_error, result.server, result.tool) == ({"total": 5}, False, "lab", "add")
        assert (await supervisor.call_tool("mcp_lab_shout", {"text": "hey"})).full_text == "HEY"
        failed = await supervisor.call_tool("mcp_lab_fail")
        assert failed.is_error
        assert failed.full_text == "Error executing tool fail"  # the SDK keeps the rest to itself
        assert (await supervisor.call_tool("mcp_lab_nap", {"seconds": 3})).duration == 3
        counts = supervisor.status()[0].calls
        assert (counts.done, counts.failed) == (4, 0)


async def test_a_low_level_server(autojump_clock):
    """L1: it works as an `MCPServer` does; its JSON-RPC errors are `ServerError`."""
    from mcp.shared.exceptions import MCPError

    async def on_call_tool(ctx, params):
        if params.arguments:
            raise MCPError(-32050, "not today", {"why": "rain"})
        return CallToolResult(content=[TextContent(text="done")])

    async with open_supervisor([spec(low_level(on_call_tool))]) as supervisor:
        assert (await supervisor.call_tool("mcp_lab_work")).full_text == "done"
        with pytest.raises(ServerError) as caught:
            await supervisor.call_tool("mcp_lab_work", {"a": 1})
        assert (caught.value.code, caught.value.message, caught.value.data) == (-32050, "not today", {"why": "rain"})
        assert caught.value.delivery == "answered"


def nested(levels: int) -> object:
    value: object = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("data", [{"n": 10**5000}, nested(5000), {(1, 2): 3}], ids=["integer", "nested", "keys"])
async def test_what_nobody_can_write_down_of_an_error(autojump_clock, data):
    """T14: an object of this process may raise with anything: it is a `ServerError` all the same, and a text."""
    from mcp.shared.exceptions import MCPError

    async def on_call_tool(ctx, params):
        raise MCPError(-32050, "not today", data)

    rules = ApprovalRules(allowed=["lab/*"])
    async with open_supervisor([spec(low_level(on_call_tool))], approval_rules=rules) as supervisor:
        with pytest.raises(ServerError, match="not today"):
            await supervisor.call_tool("mcp_lab_work")
        assert "not today" in await supervisor.as_toolset().call("mcp_lab_work")


@pytest.mark.parametrize("value", [nested(300), object(), "\ud800"], ids=["nested", "object", "surrogate"])
async def test_what_the_sdk_cannot_send_is_an_error_of_that_call(autojump_clock, value):
    """L1: not the end of the server, and not of the supervisor."""

    async def on_call_tool(ctx, params):
        return CallToolResult(content=[TextContent(text="done")])

    async with open_supervisor([spec(low_level(on_call_tool))]) as supervisor:
        with pytest.raises(InvalidArguments, match="cannot be sent as JSON"):
            await supervisor.call_tool("work", server="lab", meta={"x": value})
        assert (await supervisor.call_tool("work", server="lab")).incarnation == 1


async def test_progress(autojump_clock):
    """R5: in order, before the result; it resets the idle timeout and not the hard cap."""
    seen: list[object] = []

    async def note(progress, total, message) -> None:
        seen.append((trio.current_time(), progress, total, message))

    async with open_supervisor([spec(lab())]) as supervisor:
        result = await supervisor.call_tool("mcp_lab_count", {"to": 3}, on_progress=note, idle_timeout=1.5)
        assert seen == [(1, 1, 3, "step 1"), (2, 2, 3, "step 2"), (3, 3, 3, "step 3")]
        assert (result.full_text, result.duration) == ("counted", 3)
        with pytest.raises(CallTimeout, match=r"no answer within 2\.5 s"):
            await supervisor.call_tool("mcp_lab_count", {"to": 5}, idle_timeout=1.5, timeout=2.5)


@pytest.mark.parametrize("how", ["scope", "timeout"])
async def test_a_cancel_reaches_the_tool(autojump_clock, how):
    """R6, Q16: the tool's own task is cancelled; the server goes on."""
    ended: list[float] = []

    async def on_call_tool(ctx, params):
        try:
            await trio.sleep_forever()
        finally:
            ended.append(trio.current_time())

    async with open_supervisor([spec(low_level(on_call_tool))]) as supervisor:
        if how == "scope":
            with trio.move_on_after(2):
                await supervisor.call_tool("mcp_lab_work")
        else:
            with pytest.raises(CallTimeout) as caught:
                await supervisor.call_tool("mcp_lab_work", timeout=2)
            assert caught.value.delivery == "unknown"
        assert trio.current_time() == 2
        await trio.testing.wait_all_tasks_blocked()
        assert ended == [2]
        assert (supervisor.status()[0].state, supervisor.status()[0].incarnation) == (S.CONNECTED, 1)


async def test_an_output_schema_that_is_broken(autojump_clock):
    """T19: what a tool promises is checked here too."""

    async def on_list_tools(ctx, params):
        schema = {"type": "object", "required": ["n"]}
        return ListToolsResult(tools=[Tool(name="work", input_schema={"type": "object"}, output_schema=schema)])

    async def on_call_tool(ctx, params):
        return CallToolResult(content=[], structured_content={"m": 1})

    server = Server("low", on_list_tools=on_list_tools, on_call_tool=on_call_tool)
    async with open_supervisor([spec(server)]) as supervisor:
        with pytest.raises(InvalidResult, match="does not fit the output schema"):
            await supervisor.call_tool("mcp_lab_work")


async def test_many_at_once(autojump_clock):
    """Q19: they do not wait for each other; the limit holds."""
    running = most = 0

    async def on_call_tool(ctx, params):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1
        return CallToolResult(content=[])

    async with open_supervisor([spec(low_level(on_call_tool), max_in_flight=5)]) as supervisor:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(supervisor.call_tool, "mcp_lab_work")
        assert (trio.current_time(), most) == (4, 5)


# -- facts --------------------------------------------------------------------------------------------------------


async def test_handshake_facts(autojump_clock):
    """L16: what the server says of itself is in the status; what we say of ourselves reaches it."""
    from importlib.metadata import version

    seen: list[object] = []

    async def on_call_tool(ctx, params):
        seen.append(ctx.session.client_params)
        return CallToolResult(content=[])

    server = low_level(on_call_tool, instructions="Wear goggles.")
    async with open_supervisor([spec(server), spec(lab(), "other")]) as supervisor:
        await supervisor.call_tool("mcp_lab_work")
        one, other = supervisor.status()
        assert (one.server_info["name"], one.server_info["version"]) == ("low", "0.1")
        assert (one.instructions, one.transport, one.pid) == ("Wear goggles.", "in-process", None)
        assert one.protocol_version == "2026-07-28"
        assert (other.server_info["name"], other.server_info["version"]) == ("laboratory", "1.2")
        await supervisor.stop_server("lab")
        assert supervisor.status()[0].state is S.STOPPED
    [client] = seen
    assert (client.client_info.name, client.client_info.version) == ("mcp-nursery", version("mcp-nursery"))


# -- lives --------------------------------------------------------------------------------------------------------


async def test_a_lifespan_that_raises_at_the_start(autojump_clock):
    """L3: a failed start like any other: the ladder, then `failed`; each start enters the lifespan anew."""
    starts: list[float] = []

    @asynccontextmanager
    async def lifespan(server):
        starts.append(trio.current_time())
        raise RuntimeError("no database")
        yield

    async with open_supervisor([spec(lab(lifespan=lifespan))], gate=10) as supervisor:
        one = supervisor.status()[0]
        assert (trio.current_time(), one.state) == (0, S.WAITING)
        assert "no database" in one.error
        await trio.sleep(100)
        assert (starts, supervisor.status()[0].state) == ([0, 2, 7, 22], S.FAILED)


async def test_a_lifespan_that_hangs_at_the_start(autojump_clock):
    """Q10: the connect timeout bounds it."""

    @asynccontextmanager
    async def lifespan(server):
        await trio.sleep_forever()
        yield

    one = spec(lab(lifespan=lifespan), connect_timeout=3, policy=RestartPolicy(delays=()))
    async with open_supervisor([one], gate=100) as supervisor:
        assert trio.current_time() == 3
        assert supervisor.status()[0].state is S.FAILED
        late = "not connected within 3 s: no answer to server/discover (connect_timeout, or"
        assert supervisor.status()[0].error.startswith(late)


@pytest.mark.parametrize("act", ["stop", "close"])
async def test_a_lifespan_that_hangs_at_the_close(autojump_clock, act):
    """L10: bounded by one grace period; it is cancelled then."""
    cancelled: list[float] = []

    @asynccontextmanager
    async def lifespan(server):
        yield {}
        try:
            await trio.sleep_forever()
        finally:
            cancelled.append(trio.current_time())

    async with open_supervisor([spec(lab(lifespan=lifespan))]) as supervisor:
        if act == "stop":
            await supervisor.stop_server("lab")
            assert trio.current_time() == 2
    assert (trio.current_time(), cancelled) == (2, [2])


async def test_a_lifespan_is_entered_and_left(autojump_clock):
    """L7: once each incarnation, never two at once."""
    log: list[str] = []

    @asynccontextmanager
    async def lifespan(server):
        log.append("in")
        yield {}
        await trio.sleep(1)
        log.append("out")

    async with open_supervisor([spec(lab(lifespan=lifespan))]) as supervisor:
        await supervisor.reconnect("lab")
        assert trio.current_time() == 1
        assert log == ["in", "out", "in"]
    assert log == ["in", "out", "in", "out"]


def mortal(dies_after: float):
    """A lifespan with a background task that fails."""

    @asynccontextmanager
    async def lifespan(server):
        async def background():
            await trio.sleep(dies_after)
            raise OSError("the disk is full")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(background)
            yield {}
            nursery.cancel_scope.cancel()

    return lifespan


async def test_the_end_of_a_server_is_noticed_while_idle(autojump_clock):
    """L6: nobody calls, and still it shows at once; then it is restarted."""
    async with open_supervisor([spec(lab(lifespan=mortal(5)))]) as supervisor:
        await trio.sleep(5.5)
        one = supervisor.status()[0]
        assert (one.state, one.retry_in) == (S.WAITING, 1.5)
        assert "the disk is full" in one.error
        await trio.sleep_until(7.5)
        assert (supervisor.status()[0].state, supervisor.status()[0].incarnation) == (S.CONNECTED, 2)


async def test_the_end_of_a_server_mid_call(autojump_clock):
    """R3: every pending call is lost at once, and says that the server may have acted."""
    async with open_supervisor([spec(lab(lifespan=mortal(5)))]) as supervisor:

        async def call():
            with pytest.raises(ConnectionLost) as caught:
                await supervisor.call_tool("mcp_lab_nap", {"seconds": 100})
            assert (trio.current_time(), caught.value.delivery, caught.value.incarnation) == (5, "unknown", 1)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(call)


async def test_a_tool_that_tries_to_end_the_host(autojump_clock):
    """Q4: a server object's SystemExit is that server's end: the host and the other servers go on."""

    async def on_call_tool(ctx, params):
        raise SystemExit(3)

    specs = [spec(low_level(on_call_tool)), spec(lab(), "other")]
    async with open_supervisor(specs) as supervisor:
        with pytest.raises(Exception, match="work") as caught:
            await supervisor.call_tool("mcp_lab_work")
        assert isinstance(caught.value, (ConnectionLost, ServerError))
        assert (await supervisor.call_tool("mcp_other_shout", {"text": "hey"})).full_text == "HEY"


async def test_no_server_object(autojump_clock):
    """L12: what is no server can never work: `failed`, with what was wanted."""
    async with open_supervisor([spec(object()), spec(lab(), "other")]) as supervisor:
        one = supervisor.status()[0]
        assert (one.state, one.retry_in) == (S.FAILED, None)
        assert "MCPServer" in one.error
        with pytest.raises(ServerDown):
            await supervisor.call_tool("work", server="lab")


async def test_one_object_under_two_names(autojump_clock):
    """L7: each has a connection of its own."""
    server = lab()
    async with open_supervisor([spec(server, "a"), spec(server, "b")]) as supervisor:
        await supervisor.stop_server("a")
        assert (await supervisor.call_tool("mcp_b_shout", {"text": "hey"})).full_text == "HEY"


@pytest.mark.slow
def test_cancelled_at_every_step():
    """Q30: cancelled at any moment of a start, a call and a reconnect: no error, nothing left."""
    for steps in range(15, 200, 7):

        async def host():
            async with open_supervisor([spec(lab())], gate=100) as supervisor:
                while True:
                    await supervisor.call_tool("mcp_lab_shout", {"text": "hey"})
                    await supervisor.reconnect("lab")

        async def main(steps=steps, host=host):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_calls_race_with_a_stop(autojump_clock):
    """L9: calls at every step of a stop have an outcome, and nothing crashes."""
    outcomes: list[str] = []
    async with open_supervisor([spec(lab())]) as supervisor:

        async def call():
            try:
                await supervisor.call_tool("shout", {"text": "hey"}, server="lab")
                outcomes.append("answered")
            except (ConnectionLost, ServerDown) as error:
                outcomes.append(type(error).__name__)

        for _ in range(20):
            await supervisor.start_server("lab")
            await supervisor.wait_connected("lab")
            with trio.fail_after(50):
                async with trio.open_nursery() as nursery:
                    for _ in range(5):
                        nursery.start_soon(call)
                        await trio.lowlevel.checkpoint()
                    nursery.start_soon(partial(supervisor.stop_server, "lab"))
                    for _ in range(5):
                        nursery.start_soon(call)
                        await trio.lowlevel.checkpoint()
    assert len(outcomes) == 200
