"""What is traced and measured of calls, one by one and in bulk."""

import json

import pytest
import trio
from mcp.server.mcpserver import Context, MCPServer
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from mcp_nursery.supervisor import (
    Call,
    CallTimeout,
    ConnectionLost,
    InProcessTransport,
    MemoryStore,
    RestartPolicy,
    ServerDown,
    ServerError,
    ServerSpec,
    UnknownTool,
    open_supervisor,
)
from mcp_nursery.supervisor.errors import UnknownPrompt, UnknownResource
from mcp_nursery.supervisor.testing import Ask, Life, Refusal, ScriptedServer

from ...lab.recording import Recording, events_of
from ...lab.specs import WithEnvironment, hang, nothing, spec
from ...lab.tasks import WORKING, TaskServer, done

NAME = "tools/call work"


async def failing(arguments):
    raise ValueError("of its own making")


async def refusing(arguments):
    raise Refusal(arguments["code"], "no")


async def recorded(use, tool=nothing, lives=(), **options):
    """What was told of a supervisor that was used."""
    recording = Recording()
    server = ScriptedServer(*lives, tools={"work": tool})
    async with open_supervisor([spec(server, **options)], state=MemoryStore(), **recording.providers) as supervisor:
        await use(supervisor)
    return recording


async def test_a_call(autojump_clock):
    recording = await recorded(lambda supervisor: supervisor.call_tool("mcp_lab_work", {"key": "value"}))
    span = recording.span(NAME)
    assert span.kind is SpanKind.CLIENT
    assert span.status.status_code is StatusCode.UNSET
    common = {
        "mcp_nursery.server": "lab",
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2026-07-28",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "work",
    }
    assert dict(span.attributes) == {
        **common,
        "mcp_nursery.incarnation": 1,
        "mcp_nursery.delivery": "answered",
        "mcp_nursery.outcome": "ok",
        "jsonrpc.request.id": span.attributes["jsonrpc.request.id"],
    }
    assert events_of(span) == [
        {"mcp_nursery.attempt": 1, "mcp_nursery.incarnation": 1, "mcp_nursery.delivery": "answered"}
    ]
    assert recording.values("mcp_nursery.calls", "mcp_nursery.outcome", "mcp_nursery.delivery") == {
        ("ok", "answered"): 1
    }
    [point] = recording.points("mcp.client.operation.duration")
    assert dict(point.attributes) == common
    assert point.explicit_bounds == (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


async def test_a_call_that_becomes_a_task(autojump_clock):
    """Each request about the task is of the call's trace, and whether it is over can be counted."""
    recording, server, seen = Recording(), TaskServer(), []

    async def look(task):
        seen.append(supervisor.statistics().by_server["lab"].tasks)
        return server.as_answer(task, WORKING)

    server.steps = (look, done())
    traces = []
    asked = server.answers["tasks/get"]

    async def get(params):
        traces.append(params["_meta"]["traceparent"].split("-")[1:3])
        return await asked(params)

    server.answers["tasks/get"] = get
    async with open_supervisor([spec(server)], state=MemoryStore(), **recording.providers) as supervisor:
        with recording.tracer.start_as_current_span("host"):
            await supervisor.call_tool("mcp_lab_work")
            with pytest.raises(CallTimeout):
                await supervisor.call_tool("mcp_lab_work", timeout=0.5)
        assert seen == [{"working": 1}]
        assert supervisor.statistics().by_server["lab"].tasks == {"working": 0, "completed": 1, "given_up": 1}
        assert supervisor.statistics().calls.tasks == 0
    first, _ = recording.named(NAME)
    assert traces == [[format_trace_id(first.context.trace_id), format_span_id(first.context.span_id)]] * 2
    said = [event.attributes["mcp_nursery.status"] for event in first.events if event.name == "mcp_nursery.task"]
    assert said == ["working", "completed"]
    assert recording.values("mcp_nursery.tasks", "mcp_nursery.server", "mcp_nursery.status") == {
        ("lab", "working"): 0,
        ("lab", "completed"): 1,
        ("lab", "given_up"): 1,
    }


def reporting():
    server = MCPServer("lab")

    @server.tool()
    def work(ctx: Context) -> str:
        return json.dumps(dict(ctx.request_context.meta))

    return server


async def test_its_parent_is_the_callers_span_and_its_server_is_told_of_its_own():
    """Also where calls are made in bulk, or one needs a task of its own."""
    recording, told = Recording(), []

    async def progress(*_):
        pass

    lab = ServerSpec("lab", InProcessTransport(reporting()))
    async with open_supervisor([lab], gate=60, state=MemoryStore(), **recording.providers) as supervisor:
        with recording.tracer.start_as_current_span("host"):
            told.append(await supervisor.call_tool("mcp_lab_work", meta={"traceparent": "forged"}))
            bulk = [Call("mcp_lab_work"), Call("mcp_lab_work", on_progress=progress)]
            told += await supervisor.gather(bulk, limit=1)
    host, calls = recording.span("host"), recording.named(NAME)
    assert len(calls) == 3
    assert {span.parent.span_id for span in calls} == {host.context.span_id}
    trace = format_trace_id(host.context.trace_id)
    expected = {f"00-{trace}-{format_span_id(span.context.span_id)}" for span in calls}
    assert {json.loads(result.full_text)["traceparent"].rpartition("-")[0] for result in told} == expected


async def cancelled(supervisor):
    with trio.move_on_after(2):
        await supervisor.call_tool("mcp_lab_work")


def raises(kind, **call):
    async def use(supervisor):
        with pytest.raises(kind):
            await supervisor.call_tool("mcp_lab_work", **call)

    return use


ENDS = {
    "isError": (lambda s: s.call_tool("mcp_lab_work"), {"tool": failing}, "tool_error", "tool_error", "answered"),
    "code": (raises(ServerError, arguments={"code": -32602}), {"tool": refusing}, "-32602", "error", "answered"),
    "any code": (raises(ServerError, arguments={"code": 7}), {"tool": refusing}, "7", "error", "answered"),
    "lost": (
        raises(ConnectionLost),
        {"tool": hang, "lives": [Life(dies_after=3)]},
        "ConnectionLost",
        "error",
        "unknown",
    ),
    "timeout": (raises(CallTimeout, timeout=2), {"tool": hang}, "CallTimeout", "error", "unknown"),
    "cancelled": (cancelled, {"tool": hang}, None, "cancelled", "unknown"),
    "down": (
        raises(ServerDown),
        {"lives": [Life(refuses="no")], "policy": RestartPolicy(delays=())},
        "ServerDown",
        "error",
        "not_sent",
    ),
}


@pytest.mark.parametrize("end", ENDS)
async def test_how_a_call_ends(autojump_clock, end):
    """By type and delivery; who gives a call up has made no error."""
    use, options, error, outcome, delivery = ENDS[end]
    recording = await recorded(use, **options)
    [span] = recording.named("tools/call" if end == "down" else NAME)
    found = [span.attributes.get(name) for name in ("error.type", "mcp_nursery.outcome", "mcp_nursery.delivery")]
    assert found == [error, outcome, delivery]
    assert span.status.status_code is (StatusCode.UNSET if error is None else StatusCode.ERROR)
    assert span.status.description is None
    assert len(events_of(span)) == (end != "down")
    measured = "_OTHER" if error == "7" else error
    names = ("mcp_nursery.outcome", "mcp_nursery.delivery", "error.type")
    assert recording.values("mcp_nursery.calls", *names) == {(outcome, delivery, measured): 1}
    assert recording.values("mcp.client.operation.duration", "error.type") == {(measured,): 1}


async def test_each_attempt_is_an_event(autojump_clock):
    """A call that is sent again after a loss is one span, and counts once."""
    attempts = []

    async def work(arguments):
        attempts.append(1)
        await trio.sleep(1 if len(attempts) > 1 else 60)
        return "done"

    recording = await recorded(
        lambda supervisor: supervisor.call_tool("mcp_lab_work", resend="always", when_down="wait"),
        work,
        [Life(dies_after=3), Life()],
    )
    span = recording.span(NAME)
    assert [tuple(event.values()) for event in events_of(span)] == [
        (1, "unknown", "ConnectionLost", 1),
        (2, "answered", 2),
    ]
    assert recording.values("mcp_nursery.calls", "mcp_nursery.outcome") == {("ok",): 1}
    [point] = recording.points("mcp.client.operation.duration")
    assert point.sum == pytest.approx(3 + 2 + 1)


async def test_only_tools_of_the_catalogue_are_named(autojump_clock):
    """A model that makes names up makes no further time series."""

    async def use(supervisor):
        for number in range(3):
            with pytest.raises(UnknownTool):
                await supervisor.call_tool(f"made_up_{number}")
        assert all(isinstance(each, UnknownTool) for each in await supervisor.gather([Call("a"), Call("b")]))

    recording = await recorded(use)
    assert len(recording.named("tools/call")) == 5
    assert "made_up" not in recording.everything()
    assert recording.values("mcp_nursery.calls", "error.type", "mcp_nursery.delivery") == {
        ("UnknownTool", "not_sent"): 5
    }


async def test_requests_that_are_about_no_tool(autojump_clock):
    """A prompt is named as a tool is; a URI, which is one of any number and may hold a secret, is not."""

    async def text(arguments):
        return "done"

    recording, uri = Recording(), "file:///hunter2?key=hunter2"
    server = ScriptedServer(resources={uri: text}, prompts={"greet": text}, completions={"name": ["Ann"]})
    async with open_supervisor([spec(server)], state=MemoryStore(), **recording.providers) as supervisor:
        await supervisor.read_resource(uri)
        with pytest.raises(UnknownResource):
            await supervisor.read_resource("file:///hunter3")
        await supervisor.get_prompt("mcp_lab_greet")
        with pytest.raises(UnknownPrompt):
            await supervisor.get_prompt("hunter2")
    names = ["resources/read", "resources/read", "prompts/get greet", "prompts/get"]
    assert [span.name for span in recording.spans[:4]] == ["connect lab", *names[:3]]
    assert sorted(span.name for span in recording.spans[1:]) == sorted(names)
    assert recording.span("prompts/get greet").attributes["gen_ai.prompt.name"] == "greet"
    assert recording.values("mcp_nursery.calls", "mcp.method.name", "error.type") == {
        ("resources/read", None): 1,
        ("resources/read", "UnknownResource"): 1,
        ("prompts/get", None): 1,
        ("prompts/get", "UnknownPrompt"): 1,
    }
    assert "hunter" not in recording.everything()
    assert "gen_ai.operation.name" not in recording.named("resources/read")[0].attributes


async def test_questions_in_the_middle_are_of_one_attempt(autojump_clock):
    async def then(answers):
        return "done"

    async def asking(arguments):
        return Ask({}, then)

    recording = await recorded(lambda supervisor: supervisor.call_tool("mcp_lab_work"), asking)
    assert [event["mcp_nursery.attempt"] for event in events_of(recording.span(NAME))] == [1]


async def test_a_fan_out(autojump_clock):
    """A call lasts until its answer is there, whenever that is read; what is taken back is cancelled."""

    async def work(arguments):
        await trio.sleep(arguments["seconds"])
        return "done"

    async def use(supervisor):
        calls = [Call("mcp_lab_work", {"seconds": seconds}) for seconds in (1, 3, 60)]
        async with supervisor.fan_out(calls, until=2) as outcomes:
            await trio.sleep(10)
            assert [outcome.ok async for outcome in outcomes] == [True, True]

    recording = await recorded(use, work)
    assert sorted(span.attributes["mcp_nursery.outcome"] for span in recording.named(NAME)) == ["cancelled", "ok", "ok"]
    assert recording.values("mcp_nursery.calls", "mcp_nursery.outcome") == {("ok",): 2, ("cancelled",): 1}
    assert recording.points("mcp.client.operation.duration")[0].sum == pytest.approx(1 + 3 + 10)


async def test_a_tool_named_by_a_secret(autojump_clock):
    """What its server was given is as secret in a name as anywhere."""
    recording, secret = Recording(), "hunter2-hunter2"
    server = ScriptedServer(tools={secret: nothing})
    lab = ServerSpec("lab", WithEnvironment(server, {"TOKEN": secret}))
    async with open_supervisor([lab], state=MemoryStore(), **recording.providers) as supervisor:
        await supervisor.call_tool(secret, server="lab")
    assert recording.named("tools/call [REDACTED:config]")
    assert secret not in recording.everything()


async def test_one_provider_does(autojump_clock):
    """Metrics without traces, and traces without metrics."""
    for kind in ("tracer_provider", "meter_provider"):
        recording = Recording()
        server = ScriptedServer(tools={"work": nothing})
        provider = {kind: recording.providers[kind]}
        async with open_supervisor([spec(server)], state=MemoryStore(), **provider) as supervisor:
            await supervisor.call_tool("mcp_lab_work")
        assert len(recording.named(NAME)) == (kind == "tracer_provider")
        assert len(recording.points("mcp_nursery.calls")) == (kind == "meter_provider")
