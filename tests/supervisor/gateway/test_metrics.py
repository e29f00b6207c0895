"""Figures as Prometheus reads them: what calls came to, by server. Virtual time."""

import pytest
import trio
import trio.testing
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from mcp_nursery.actors.errors import CallTimeout
from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.gateway.metrics import MetricFamily, exposition
from mcp_nursery.supervisor.testing import ScriptedServer

from ...lab.specs import spec


async def rest(arguments):
    await trio.sleep(arguments["seconds"])
    return "rested"


def figures_of(supervisor):
    """Values by name and labels, but for the server."""
    text = exposition(supervisor.status(), supervisor.statistics(by_tool=False)).decode()
    families = text_string_to_metric_families(text)
    of_servers = [family for family in families if family.name.startswith("mcp_nursery_server_")]
    samples = [each for family in of_servers for each in family.samples]
    assert {each.labels.pop("server") for each in samples} == {'a"b'}
    return {(each.name.removeprefix("mcp_nursery_server_"), *each.labels.values()): each.value for each in samples}


async def test_what_calls_came_to(autojump_clock):
    server = ScriptedServer(tools={"rest": rest})
    async with open_supervisor([spec(server, name='a"b', call_timeout=10)]) as supervisor:
        await supervisor.wait_connected('a"b')

        async def call(seconds):
            await supervisor.call_tool("rest", {"seconds": seconds}, server='a"b')

        for seconds in (2, 2, 4):
            await call(seconds)
        with pytest.raises(CallTimeout):
            await call(20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, 5)
            await trio.sleep(1)
            figures = figures_of(supervisor)
        assert figures == {
            ("connected",): 1,
            ("requests",): 1,
            ("results_total",): 3,
            ("restarts_total",): 0,
            ("unchecked_results_total",): 0,
            ("failures_total", "unknown", "CallTimeout"): 1,
            ("latency_seconds", "0.5"): pytest.approx(2, rel=0.04),
            ("latency_seconds", "0.95"): pytest.approx(4, rel=0.04),
            ("latency_seconds", "0.99"): pytest.approx(4, rel=0.04),
        }
        text = exposition([], supervisor.statistics(), {"answers": 5, "news": 7}).decode()
        assert 'mcp_nursery_gateway_kept_bytes{kind="answers"} 5.0' in text
        assert 'mcp_nursery_gateway_kept_bytes{kind="news"} 7.0' in text
        server.crash()
        await trio.testing.wait_all_tasks_blocked()
        assert figures_of(supervisor)["connected",] == 0
        await trio.sleep(10)
        figures = figures_of(supervisor)
        assert (figures["connected",], figures["restarts_total",]) == (1, 1)


@pytest.mark.parametrize("value", [0, True, 1.5, 123456, 1e-7])
@pytest.mark.parametrize("labels", [{}, {"server": 'a"\\b\nc', "kind": "é{}, "}])
def test_the_text_is_that_of_the_client_of_prometheus(labels, value):
    class Registry:
        def collect(self):
            for each in (CounterMetricFamily("some", "About it.", labels=list(labels)), gauge):
                each.add_metric(list(labels.values()), value)
                yield each

    gauge = GaugeMetricFamily("other", "Of two lines?", labels=list(labels))
    ours = [
        MetricFamily("counter", "some_total", "About it.", list(labels)),
        MetricFamily("gauge", "other", "Of two lines?", list(labels)),
    ]
    for family in ours:
        family.add(list(labels.values()), value)
    written = "".join(family.text() for family in ours)
    assert written == generate_latest(Registry()).decode()
