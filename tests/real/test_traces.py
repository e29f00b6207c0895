"""The trace that a server is told of is the one in which it is connected and called, and a child of the host's."""

import json
import sys

import pytest
import trio
from opentelemetry.trace import format_span_id, format_trace_id

from mcp_nursery.supervisor import Call, MemoryStore, ServerSpec, StdioTransport

from ..lab import PROGRAMS
from ..lab.processes import lab, supervised
from ..lab.recording import Recording

SDKS = PROGRAMS / "tapped_server.py"

pytestmark = pytest.mark.slow


def spelled(span):
    """As `traceparent` spells it, without the flags."""
    return f"00-{format_trace_id(span.context.trace_id)}-{format_span_id(span.context.span_id)}"


def heard(traceparent):
    return traceparent.rpartition("-")[0]


async def test_a_server_of_the_sdk_reports_the_trace_of_each_call(tmp_path):
    recording = Recording()
    spec = ServerSpec("sdk", StdioTransport(sys.executable, [str(SDKS), str(tmp_path / "log")]))
    async with supervised(spec, state=MemoryStore(), **recording.providers) as supervisor:
        with recording.tracer.start_as_current_span("host") as host:
            results = [await supervisor.call_tool("mcp_sdk_echoes_meta", timeout=30)]
            results += await supervisor.gather([Call("mcp_sdk_echoes_meta")] * 2)
        results.append(await supervisor.call_tool("mcp_sdk_echoes_meta"))
    spans = recording.named("tools/call echoes_meta")
    assert {heard(json.loads(result.full_text)["traceparent"]) for result in results} == set(map(spelled, spans))
    *children, alone = sorted(spans, key=lambda span: span.start_time)
    assert {span.parent.span_id for span in children} == {host.get_span_context().span_id}
    assert alone.parent is None
    assert {span.attributes["network.transport"] for span in spans} == {"pipe"}


async def test_a_server_is_told_in_which_trace_it_is_connected(journal):
    """And of that of a later connect, and of no other."""
    recording = Recording()
    async with supervised(lab(journal=journal), state=MemoryStore(), **recording.providers) as supervisor:
        with recording.tracer.start_as_current_span("host"):
            await supervisor.reconnect("lab")
    connects = recording.named("connect lab")
    assert [span.attributes["mcp_nursery.incarnation"] for span in connects] == [1, 2]
    assert list(map(heard, journal.details("list"))) == list(map(spelled, connects))
    assert all(span.parent is None for span in connects)


SCRIPT = """
import trio
from mcp.server.mcpserver import MCPServer
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mcp_nursery.supervisor import InProcessTransport, MemoryStore, ServerSpec, open_supervisor

finished, reader = InMemorySpanExporter(), InMemoryMetricReader()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(finished))
metrics.set_meter_provider(MeterProvider([reader]))
server = MCPServer("lab")
server.tool(name="work")(lambda: "done")

async def main():
    async with open_supervisor([ServerSpec("lab", InProcessTransport(server))], state=MemoryStore()) as supervisor:
        await supervisor.call_tool("mcp_lab_work", timeout=60)

trio.run(main)
spans = {span.context.span_id: span for span in finished.get_finished_spans()}
for span in spans.values():
    print(span.name, span.kind.name, "in", spans[span.parent.span_id].name if span.parent else None)
print("calls" if "mcp_nursery.calls" in reader.get_metrics_data().to_json() else "no metrics")
"""


async def test_the_providers_of_the_process():
    """Nothing is given to the supervisor. The SDK's own spans, of a server of this process, are children of ours."""
    done = await trio.run_process([sys.executable, "-c", SCRIPT], capture_stdout=True)
    lines = done.stdout.decode().splitlines()
    assert lines.pop() == "calls"
    assert set(lines) >= {
        "connect lab CLIENT in None",
        "server/discover SERVER in connect lab",
        "tools/list SERVER in connect lab",
        "tools/call work CLIENT in None",
        "tools/call work SERVER in tools/call work",
    }
