"""Remote servers nobody here wrote, each on a port of its own: found, called, restarted, left."""

import time
from contextlib import ExitStack, contextmanager

import pytest
import trio
from attrs import frozen

from mcp_nursery.supervisor import HttpTransport, RestartPolicy, ServerSpec, SseTransport, open_supervisor

from ..lab.remote import free_port
from ..lab.timely import in_time, timely
from . import installing
from .listening import listening

pytestmark = pytest.mark.interop

AT_ONCE = RestartPolicy(delays=[0.1] * 100)


@frozen
class Case:
    """How it is started on a port, and what to ask of it."""

    path: str
    server: str
    tool: str
    arguments: dict
    answer: str
    command: object

    def transport(self, port):
        make = SseTransport if self.path == "/sse" else HttpTransport
        return make(f"http://127.0.0.1:{port}{self.path}")


def everything(mode):
    def command(port):
        program = installing.npm_package("@modelcontextprotocol/server-everything@2026.8.31")
        return [*program, mode], {"PORT": str(port)}

    return command


def proxied(port):
    proxy = installing.python_with(PROXY).parent / "mcp-proxy"
    behind = installing.python_with("mcp-server-time==2026.10.19").parent / "mcp-server-time"
    return [str(proxy), "--port", str(port), "--host", "127.0.0.1", str(behind), "--", "--local-timezone", "UTC"], {}


PROXY = "mcp-proxy==0.13.0"
TIME = {"source_timezone": "UTC", "time": "12:30", "target_timezone": "Asia/Tokyo"}
ECHO = ("mcp-servers/everything", "echo", {"message": "ünïcode ✓"}, "Echo: ünïcode ✓")
CONVERTED = ("mcp-time", "convert_time", TIME, "T21:30:00+09:00")
CASES = {
    "everything over HTTP": Case("/mcp", *ECHO, everything("streamableHttp")),
    "everything over SSE": Case("/sse", *ECHO, everything("sse")),
    "mcp-proxy over HTTP": Case("/mcp", *CONVERTED, proxied),
    "mcp-proxy over SSE": Case("/sse", *CONVERTED, proxied),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@contextmanager
def running(case, port):
    """The server; skips where it cannot be installed, fails where it must be."""
    with installing.needed_by_test("one of them"):
        command, environment = case.command(port)
    with listening(command, environment, port):
        yield


@timely
async def test_it_is_called_and_found_again_after_a_restart(case):
    """P7, Q20: the tool answers, also on the connection after the server was killed and started again."""
    port = free_port()
    spec = ServerSpec("far", case.transport(port), policy=AT_ONCE)
    with trio.fail_after(240), ExitStack() as first, ExitStack() as second:
        first.enter_context(running(case, port))
        async with open_supervisor([spec]) as supervisor:
            await supervisor.wait_connected("far")
            (status,) = supervisor.status()
            assert (status.server_info["name"], status.protocol_version) == (case.server, "2025-11-25")
            assert case.answer in (await supervisor.call_tool(case.tool, case.arguments, server="far")).full_text
            first.close()
            second.enter_context(running(case, port))
            again = {"server": "far", "when_down": "wait", "resend": "always"}
            result = await supervisor.call_tool(case.tool, case.arguments, **again)
            assert case.answer in result.full_text
            assert result.incarnation > 1
            began = time.monotonic()
        in_time(time.monotonic() - began, 5)
