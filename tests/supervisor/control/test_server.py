"""What a host says and does on its control socket, and what clients cannot do to it."""

import json
import math
import os
import re
import socket
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
import trio
import trio.testing
from attrs import evolve

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.protocol import PARSE_ERROR
from mcp_nursery.supervisor import (
    ConfigError,
    RestartPolicy,
    ServerDown,
    ServerSpec,
    StdioTransport,
    open_supervisor,
)
from mcp_nursery.supervisor.control import client, protocol, server
from mcp_nursery.supervisor.control.client import ControlClient
from mcp_nursery.supervisor.control.protocol import ControlError
from mcp_nursery.supervisor.control.sockets import connect, listening, names_of_hosts, path_of
from mcp_nursery.supervisor.errors import UnknownServer
from mcp_nursery.supervisor.events import (
    DefinitionChange,
    DefinitionsChanged,
    Lagged,
    Reloaded,
    SnapshotEvent,
    StateChanged,
)
from mcp_nursery.supervisor.status import Challenge, ServerStatus
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.specs import nothing, spec
from ..cli.test_lines import status

ME = str(os.getpid())
ONCE = RestartPolicy(delays=())


def worker():
    return ScriptedServer(tools={"work": nothing})


@asynccontextmanager
async def controlled(*specs, **options):
    """A supervisor, and a client of its socket."""
    with trio.fail_after(300):
        async with open_supervisor(specs, control=True, **options) as supervisor:
            yield supervisor, ControlClient(ME)


async def eventually(holds):
    with trio.fail_after(20):
        while not holds():  # noqa: ASYNC110 - what is done there sets no event of ours
            await trio.sleep(0.01)


@asynccontextmanager
async def raw():
    """A connection, and what is said on it."""
    async with trio.SocketStream(trio.socket.from_stdlib_socket(connect(path_of(ME)))) as stream:
        yield stream, protocol.Lines(stream, protocol.LONGEST_ANSWER)


def asked(method, request=1, **params):
    return json.dumps({"jsonrpc": "2.0", "id": request, "method": method, "params": params}).encode() + b"\n"


async def closed(lines):
    """Nothing more comes: that it is closed while something unread was there is a reset."""
    try:
        return await lines.next(begin=20) is None
    except trio.BrokenResourceError:
        return True


# -- what is said -------------------------------------------------------------------------------------------------


async def test_what_is_shown_is_what_the_supervisor_shows():
    failing = ScriptedServer(Life(refuses="no such thing"))
    async with controlled(spec(ScriptedServer(), "a"), spec(failing, "b", policy=ONCE)) as (supervisor, client):
        await supervisor.list_tools()
        said, shown = await client.status(), supervisor.status()
        assert [evolve(one, uptime=None) for one in said] == [evolve(one, uptime=None) for one in shown]
        assert said[1].error == "no such thing"
        assert [(tool.name, tool.server, tool.tool, tool.available) for tool in await client.tools("a")] == [
            (tool.name, tool.server, tool.tool, tool.available) for tool in supervisor.tools
        ]
        assert await client.tools("nobody") == ()
        assert (await client.statistics())["servers"] == 2
        assert await client.medians() == {}
        assert (await client.info()).servers == ("a", "b")


async def test_what_a_server_says_at_length_hides_nothing(monkeypatch):
    """Its descriptions take more than an answer may have."""
    monkeypatch.setattr(server, "LONGEST_ANSWER", 10_000)
    long = {"description": "x" * 9000}
    tools = dict.fromkeys(("one", "two", "three"), nothing)
    talker = ScriptedServer(tools=tools, declared=dict.fromkeys(tools, long))
    async with controlled(spec(talker, "talker"), spec(worker(), "other")) as (supervisor, client):
        await supervisor.list_tools()
        assert [tool.tool for tool in await client.tools("other")] == ["work"]
        assert {len(tool.description) for tool in await client.tools("talker")} == {protocol.LONGEST_DESCRIPTION}


async def test_the_figures_of_tools_are_asked_for():
    async with controlled(spec(worker(), "a")) as (supervisor, client):
        await supervisor.call_tool("work", server="a")
        assert list((await client.statistics())["by_server"]["a"]["by_tool"]) == ["work"]
        assert (await client.statistics(by_tool=False))["by_server"]["a"]["by_tool"] == {}
        assert list(await client.medians()) == ["a"]


def test_statuses_and_events_come_back_as_they_were():
    challenge = Challenge("invalid_token", "a b", "https://x.example")
    event = StateChanged("a", 1, None, ServerState.NEEDS_AUTH, "no", 1, 4, 0.5, None, 3.0, challenge)
    change = DefinitionChange("a", "t", '{"title":"x"}', '{"title":"y"}')
    odd = {"name": "x", "nan": math.nan, "big": 2**80, "half": "\ud800"}
    shown = status(ServerState.CONNECTED, server_info=odd)
    said = protocol.value_of(ServerStatus, json.loads(protocol.encode(protocol.document(shown))))
    assert said == evolve(shown, server_info={**odd, "nan": None, "half": "?"})
    with pytest.raises(ControlError, match="does not understand"):
        protocol.value_of(ServerStatus, {"name": "x"})
    for each in (
        event,
        DefinitionsChanged("a", (change,), True, 1.0),
        Reloaded(("a",), (), ("b", "c"), (), 1.0),
        Lagged(3),
    ):
        assert protocol.event_of(json.loads(protocol.encode(protocol.event_document(each)))) == each


async def test_commands():
    """L8, L9: each does what the method of a supervisor does, and is answered when that is done."""
    async with controlled(spec(ScriptedServer())) as (supervisor, client):
        await supervisor.wait_connected("lab")
        await client.give_order("stop", server="lab")
        assert supervisor.status()[0].state is ServerState.STOPPED
        await client.give_order("start", server="lab")
        await supervisor.wait_connected("lab")
        await client.give_order("reconnect", server="lab")
        assert supervisor.status()[0].incarnation == 3
        event = await client.give_order("reload", restart=True)
        assert event.changed == ("lab",)
        assert (await client.give_order("reload")).untouched == ("lab",)


@pytest.mark.parametrize(
    ("request_line", "answer"),
    [
        (
            b'{"jsonrpc":"2.0","id":1,"method":"tools","params":{"server":"b"}}',
            b'{"jsonrpc":"2.0","id":1,"result":[]}',
        ),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"stop","params":{"server":"lab"}}',
            b'{"jsonrpc":"2.0","id":1,"result":null}',
        ),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"reload"}',
            b'{"jsonrpc":"2.0","id":1,"result":{"added":[],"changed":[],"removed":[],"untouched":["lab"],"at":0.0,'
            b'"untrusted":[],"event":"Reloaded"}}',
        ),
        (
            b'{"jsonrpc":"2.0","id":"a","method":"start","params":{"server":"x"}}',
            b'{"jsonrpc":"2.0","id":"a","error":{"code":-32000,"message":"no server named \'x\'",'
            b'"data":{"type":"UnknownServer","server":"x","near":[]}}}',
        ),
    ],
)
async def test_the_bytes_of_a_request_and_of_its_answer(request_line, answer, autojump_clock):
    """Hosts and commands of other versions read the same."""
    async with controlled(spec(ScriptedServer())) as (supervisor, _), raw() as (stream, lines):
        await supervisor.wait_connected("lab")
        await stream.send_all(request_line + b"\n")
        said = await lines.next()
        assert re.sub(rb'"at":[0-9.e-]+', b'"at":0.0', said) == answer


async def test_errors_are_those_of_the_supervisor(tmp_path):
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"gone": {"command": "/nowhere/at-all"}}}))
    with trio.fail_after(30):
        async with open_supervisor(file, control=True):
            client = ControlClient(ME)
            with pytest.raises(UnknownServer, match="no server named 'gome'; did you mean 'gone'"):
                await client.give_order("stop", server="gome")
            with pytest.raises(ServerDown, match="the server is failed") as caught:
                await client.give_order("reconnect", server="gone")
            assert caught.value.state is ServerState.FAILED
            assert "/nowhere/at-all" in caught.value.error
            file.write_text("{")
            with pytest.raises(ConfigError, match=r"servers\.json: not JSON"):
                await client.give_order("reload")


async def test_events_until_the_host_ends():
    async with trio.open_nursery() as nursery:
        heard, ready = [], trio.Event()

        async def hear():
            async with ControlClient(ME).events() as events:
                ready.set()
                heard.extend([event async for event in events])

        async with controlled(spec(ScriptedServer())) as (supervisor, _):
            await supervisor.wait_connected("lab")
            nursery.start_soon(hear)
            await ready.wait()
            await supervisor.reconnect("lab")
    states = [event.new for event in heard if isinstance(event, StateChanged)]
    assert [state for state in states if state != "connecting"] == ["connected", "stopped"]


async def test_an_event_that_is_too_large_was_missed(monkeypatch):
    monkeypatch.setattr(server, "_LARGEST_EVENT", 100)
    large = DefinitionsChanged("lab", (DefinitionChange("lab", "t", "x" * 60, "y" * 60),), False, 1.0)
    async with controlled(spec(ScriptedServer())) as (supervisor, client):
        await supervisor.wait_connected("lab")
        async with client.events() as events:
            supervisor._servers.events.publish(large)
            heard = []
            async for event in events:
                heard.append(event)
                if isinstance(event, SnapshotEvent) and Lagged(1) in heard:
                    break
    assert large not in heard


NOISY = """
import sys, json
for n in range(30):
    print("line", n, "SECRET-VALUE", file=sys.stderr)
sys.stderr.flush()
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        info = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {}}
        result = {**info, "serverInfo": {"name": "x", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
        print("greeted", "SECRET-VALUE", file=sys.stderr, flush=True)
"""


def noisy(**settings):
    transport = StdioTransport(sys.executable, args=["-I", "-S", "-c", NOISY], env={"KEY": "SECRET-VALUE"})
    return ServerSpec("noisy", transport, protocol="handshake", **settings)


async def test_stderr_across_a_restart():
    """What was written last, then what is written, without secrets."""
    async with controlled(noisy()) as (supervisor, client):
        await supervisor.wait_connected("noisy")
        async with client.stderr("noisy", follow=True) as lines:
            assert [await lines.receive() for _ in range(2)][-1].startswith("line ")
            while await lines.receive() != "greeted [REDACTED:config]":
                pass
            await supervisor.reconnect("noisy")
            assert [await lines.receive() for _ in range(31)] == [
                *(f"line {n} [REDACTED:config]" for n in range(30)),
                "greeted [REDACTED:config]",
            ]
        async with client.stderr("noisy") as lines:
            last = [line async for line in lines]
        assert last[-1] == "greeted [REDACTED:config]"
        assert len(last) == 20
        with pytest.raises(UnknownServer):
            async with client.stderr("nosy"):
                pass


async def test_following_ends_with_the_server():
    async with controlled(spec(ScriptedServer())) as (supervisor, client), client.stderr("lab", follow=True) as lines:
        await supervisor.remove_server("lab")
        assert [line async for line in lines] == []


async def test_a_host_whose_folder_was_removed(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    async with controlled() as (_, client):
        assert (await client.info()).folder == "a folder that was removed"


async def test_without_control_there_is_no_socket():
    async with open_supervisor([]):
        assert names_of_hosts() == []
    with pytest.raises(ControlError, match=f"host {ME} is not running"):
        await ControlClient(ME).status()
    with pytest.raises(ConfigError, match="field 'control': must be True or False"):
        async with open_supervisor([], control="yes"):
            pass


# -- what clients may not do --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", -32700),
        (b"[1]", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 60_000, -32700),
        (b"x" * 70_000, -32700),
        (b'{"jsonrpc":"2.0","method":"status"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"status","params":[1]}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"exec"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"accept"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"stop"}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"stop","params":{"server":["a"]}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"reload","params":{"restart":1}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"stderr","params":{"server":"x"}}', -32000),
    ],
)
async def test_what_makes_no_sense_is_told_so(line, code):
    async with controlled(), raw() as (stream, lines):
        await stream.send_all(line + b"\n")
        answer = json.loads(await lines.next())
        assert answer["error"]["code"] == code
        assert await closed(lines)


async def test_a_line_without_end_is_not_waited_for():
    async with controlled(), raw() as (stream, lines):
        await stream.send_all(b"x" * (protocol.LONGEST_REQUEST + 1))
        assert json.loads(await lines.next(begin=protocol.MESSAGE_TIMEOUT / 2))["error"]["code"] == PARSE_ERROR
        assert await closed(lines)


async def test_a_line_that_comes_whole_and_is_too_long_is_refused(autojump_clock):
    ours, theirs = (trio.SocketStream(each) for each in trio.socket.socketpair())
    async with ours, theirs:
        lines = protocol.Lines(ours, 100)
        await theirs.send_all(b"x" * 100 + b"\n" + b"x" * 101 + b"\n")
        assert await lines.next() == b"x" * 100
        with pytest.raises(ControlError, match="more than 100 bytes"):
            await lines.next()


async def test_half_a_line_is_waited_for_ten_seconds(autojump_clock):
    """By either end, however long it waits for one to begin."""
    ours, theirs = (trio.SocketStream(each) for each in trio.socket.socketpair())
    async with ours, theirs:
        await theirs.send_all(b"{")
        began = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            await protocol.Lines(ours, 100).next(begin=math.inf)
        assert began + 10 <= trio.current_time() < began + 11


async def test_a_host_that_talks_nonsense():
    """What tells nothing is passed over; what is no JSON is told so."""
    ours, theirs = (trio.SocketStream(each) for each in trio.socket.socketpair())
    async with ours, theirs:
        heard = client.Notifications(protocol.Lines(ours, 1000), lambda: ControlError("x"), lambda said: said["line"])
        await theirs.send_all(b'{"params": [1]}\n{"params": null}\n{"params": {"line": "a"}}\n7\n')
        assert await heard.receive() == "a"
        with pytest.raises(ControlError, match="not a JSON object"):
            await heard.receive()


async def test_a_connection_has_one_request(autojump_clock):
    """What comes after it ends the connection, whether or not the request is answered by then."""
    async with controlled(spec(ScriptedServer(Life(closes_after=3)))) as (supervisor, _):
        await supervisor.wait_connected("lab")
        began = trio.current_time()
        async with raw() as (stream, lines):
            await stream.send_all(asked("stop", server="lab"))
            await trio.testing.wait_all_tasks_blocked()
            await stream.send_all(asked("host"))
            assert await closed(lines)
        assert trio.current_time() < began + 1
        async with raw() as (stream, lines):
            await stream.send_all(asked("host", "first"))
            assert json.loads(await lines.next())["id"] == "first"
            assert await closed(lines)
        assert trio.current_time() < began + 1


async def test_who_says_nothing_is_let_go(autojump_clock):
    """Ten seconds before its request, or within it."""
    async with controlled():
        for said in (b"", b'{"jsonrpc"'):
            async with raw() as (stream, lines):
                began = trio.current_time()
                await stream.send_all(said)
                assert await closed(lines)
                assert began + 10 <= trio.current_time() < began + 11


async def test_who_goes_while_it_waits_gives_up(autojump_clock):
    """Only waiting is given up: what was told to a server is done."""
    async with controlled(spec(ScriptedServer(Life(closes_after=3)))) as (supervisor, _):
        await supervisor.wait_connected("lab")
        async with raw() as (stream, _):
            await stream.send_all(asked("stop", server="lab"))
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(5)
        assert supervisor.status()[0].state is ServerState.STOPPED


async def test_who_goes_is_noticed_whatever_it_said_before():
    """Its place is free again, also if the server that it follows writes nothing."""
    async with controlled(spec(ScriptedServer())) as (supervisor, _):
        async with raw() as (stream, lines):
            await stream.send_all(asked("stderr", server="lab", follow=True))
            assert b'"result":null' in await lines.next()
            assert supervisor._servers.stderr._open
        await eventually(lambda: not supervisor._servers.stderr._open)


async def test_who_asks_and_does_not_listen_is_let_go():
    async with controlled(), raw() as (stream, lines):
        await stream.send_all(asked("events") + asked("host"))
        with suppress(trio.BrokenResourceError), trio.fail_after(5):
            while await lines.next(begin=math.inf) is not None:
                pass


@pytest.mark.slow
async def test_who_reads_nothing_holds_up_nobody(monkeypatch):
    """An endless stream to a client that takes none of it: the others are served, and it is let go."""
    monkeypatch.setattr(protocol, "MESSAGE_TIMEOUT", 1.0)
    big = "x" * 200_000
    async with controlled(spec(ScriptedServer())) as (supervisor, client), raw() as (stream, _):
        await supervisor.wait_connected("lab")
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await stream.send_all(asked("events"))
        await trio.testing.wait_all_tasks_blocked(0.05)
        for _ in range(20):
            change = DefinitionChange("lab", "t", big, big)
            supervisor._servers.events.publish(DefinitionsChanged("lab", (change,), False, 1.0))
        began = trio.current_time()
        assert await client.status()
        assert trio.current_time() - began < 0.5
        await eventually(lambda: not supervisor._servers.events._open)


async def test_so_many_may_follow_and_commands_find_a_place():
    async with controlled() as (_, client), trio.open_nursery() as nursery:
        following = []

        async def follow():
            async with client.events():
                following.append(True)
                await trio.sleep_forever()

        for _ in range(server.MOST_STREAMS):
            nursery.start_soon(follow)
        await eventually(lambda: len(following) == server.MOST_STREAMS)
        with pytest.raises(ControlError, match="16 clients follow events or logs already"):
            async with client.events():
                pass
        assert await client.status() == ()
        nursery.cancel_scope.cancel()


async def test_too_many_clients_wait_for_a_place():
    """More than there are places, all at once: each has its turn."""
    async with controlled() as (_, client), trio.open_nursery() as nursery:
        done = []

        async def ask():
            done.append(await client.status())

        for _ in range(server.MOST_CLIENTS * 4):
            nursery.start_soon(ask)
    assert done == [()] * server.MOST_CLIENTS * 4


@pytest.mark.parametrize("said", [b"", b'{"jsonrpc"'])
async def test_who_says_nothing_gives_way(autojump_clock, said):
    """60 of them held up a status for ten seconds."""
    async with controlled() as (_, client), AsyncExitStack() as silent:
        for _ in range(60):
            stream, _lines = await silent.enter_async_context(raw())
            await stream.send_all(said)
        began = trio.current_time()
        assert await client.status() == ()
        assert trio.current_time() < began + 1


async def test_who_waits_for_an_answer_does_not_give_way(autojump_clock, monkeypatch):
    monkeypatch.setattr(server, "MOST_CLIENTS", 2)
    async with controlled(spec(ScriptedServer(Life(closes_after=3)))) as (supervisor, client):
        await supervisor.wait_connected("lab")
        async with raw() as (stream, lines), raw():
            await stream.send_all(asked("stop", server="lab"))
            await trio.sleep(1)
            for _ in range(3):
                async with raw():
                    assert len(await client.status()) == 1
            assert json.loads(await lines.next())["result"] is None


async def test_who_asks_without_end_costs_so_much_at_most(autojump_clock, monkeypatch):
    """Each takes a place for a while, and there are so many."""
    monkeypatch.setattr(server, "MOST_CLIENTS", 2)
    async with controlled() as (_, client):
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(client.status)
        assert trio.current_time() >= began + 4 * server.LEAST_PAUSE


async def test_who_follows_no_more_leaves_a_place():
    async with controlled() as (_, client):
        for _ in range(server.MOST_STREAMS + 1):
            async with client.events():
                pass


async def test_an_answer_of_any_length_is_none(monkeypatch):
    monkeypatch.setattr(server, "LONGEST_ANSWER", 100)
    async with controlled(spec(worker(), "a")) as (_, client):
        with pytest.raises(ControlError, match="the answer takes more than"):
            await client.status()


async def test_a_host_that_does_not_respond(monkeypatch):
    monkeypatch.setattr(protocol, "MESSAGE_TIMEOUT", 0.2)
    with listening(), trio.fail_after(20), pytest.raises(ControlError, match=f"host {ME} does not respond"):
        await ControlClient(ME).info(within=0.2)


async def test_a_bug_in_serving_a_client_ends_no_host(monkeypatch, caplog):
    async def crash(*_):
        raise ZeroDivisionError

    monkeypatch.setitem(server._COMMANDS, "status", crash)
    async with controlled() as (_, client):
        with pytest.raises(ControlError, match="has ended"):
            await client.status()
        assert (await client.info()).name == ME
    assert "the control socket failed for a client" in caplog.text
