"""What the host listens with may fail: no call does, and no server is lost."""

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from mcp_nursery.supervisor import Call, MemoryStore, open_supervisor
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.specs import nothing, spec


class Raising(SpanProcessor):
    def __init__(self, at):
        self.at = at
        self.error = type(f"FaultAt{at.title()}", (Exception,), {})

    def on_start(self, span, parent_context=None):
        if self.at == "start":
            raise self.error("planted")

    def on_end(self, span):
        if self.at == "end":
            raise self.error("planted")


def raising_meter():
    provider = MeterProvider()

    class Fault:
        def add(self, *_):
            raise RuntimeError("planted")

        record = add

    meter = provider.get_meter("x")
    meter.create_counter = meter.create_histogram = lambda *_, **__: Fault()
    provider.get_meter = lambda *_, **__: meter
    return provider


@pytest.mark.parametrize("at", ["start", "end", "meter"])
async def test_a_provider_that_raises_fails_nothing(at, autojump_clock, caplog):
    tracer = TracerProvider()
    tracer.add_span_processor(Raising(at))
    providers = {"meter_provider": raising_meter()} if at == "meter" else {"tracer_provider": tracer}
    server = ScriptedServer(Life(), Life(), tools={"work": nothing})
    async with open_supervisor([spec(server)], state=MemoryStore(), **providers) as supervisor:
        result = await supervisor.call_tool("mcp_lab_work", {})
        assert not result.is_error
        (outcome,) = await supervisor.gather([Call("mcp_lab_work")])
        assert not outcome.is_error
        server.crash()
        await supervisor.reconnect("lab")
        await supervisor.call_tool("mcp_lab_work", {})
    assert caplog.text.count("told less") == 1, "it is logged, and not at each call"
