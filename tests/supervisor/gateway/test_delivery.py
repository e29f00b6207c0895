"""Whether a server may have acted: `data.delivery` of every error that a client of the gateway gets for its request. In
memory, virtual time; over HTTP one real server."""

import ast
import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing

from mcp_nursery.actors import errors
from mcp_nursery.actors.enums import Delivery, ServerState
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.supervisor import HttpTransport, ServerSpec, open_supervisor
from mcp_nursery.supervisor import gateway as gateway_package
from mcp_nursery.supervisor.control.protocol import ControlError
from mcp_nursery.supervisor.gateway import HttpLimits, gateway_callbacks, open_gateway, open_http
from mcp_nursery.supervisor.gateway.auth.principal import Refused
from mcp_nursery.supervisor.gateway.client_request import ClientRequest, failure_of
from mcp_nursery.supervisor.gateway.clients import ClientSession
from mcp_nursery.supervisor.gateway.views.view import One
from mcp_nursery.supervisor.orders import InvalidOrder, OrderRefused
from mcp_nursery.supervisor.storage.store import StoreUnreadable
from mcp_nursery.supervisor.testing import Refusal, ScriptedServer

from ...lab.gateway_clients import ENVELOPE, NEW, OLD, AskingServer
from ...lab.gateway_clients import served as asking
from ...lab.hostile_http import JSON, read_request
from ...lab.specs import spec
from ...lab.web_clients import BOTH, Exchange, by_name

NOT_SENT, UNKNOWN, ANSWERED = Delivery
CALL = {"server": "s", "tool": "t"}
SENT = CALL | {"incarnation": 1}


def rejected(data=None, delivery=ANSWERED, **more):
    return errors.ServerError(**SENT, code=502, message="no", data=data, delivery=delivery, **more)


def refused():
    error = errors.NotApproved("s", "u", "x")
    error.delivery = ANSWERED
    return error


EVERY_ERROR = [
    (errors.NurseryError("x"), NOT_SENT),
    (errors.ConfigError("x"), NOT_SENT),
    (errors.UnknownServer("x"), NOT_SENT),
    (errors.UnknownTool("x"), NOT_SENT),
    (errors.UnknownResource("x"), NOT_SENT),
    (errors.ContestedResource("x", ["a", "b"]), NOT_SENT),
    (errors.UnknownPrompt("x"), NOT_SENT),
    (errors.InvalidArguments("x"), NOT_SENT),
    (errors.NotApproved("s", "t", "x"), NOT_SENT),
    (refused(), ANSWERED),
    (errors.AuthorizationFailed("s", "x"), NOT_SENT),
    (errors.SupervisorClosed(), UNKNOWN),
    (errors.StartFailed("x", retriable=True), NOT_SENT),
    (errors.CallError("x", server="s"), NOT_SENT),
    (errors.CallError("x", server="s", delivery=UNKNOWN), UNKNOWN),
    (errors.ServerDown(server="s", state=ServerState.WAITING), NOT_SENT),
    (errors.ServerBusy(**SENT), NOT_SENT),
    (errors.ServerBusy(**SENT, delivery=UNKNOWN), UNKNOWN),
    (errors.InstancesTaken(server="s", most=1, retry_in=None), NOT_SENT),
    (errors.BreakerOpen(**CALL, failures=3, retry_in=1), NOT_SENT),
    *((errors.ConnectionLost("x", **SENT, delivery=each), each) for each in (NOT_SENT, UNKNOWN)),
    *((errors.CallTimeout(**SENT, timeout=1, delivery=each), each) for each in (NOT_SENT, UNKNOWN)),
    (rejected(), ANSWERED),
    (rejected({"why": 1}), ANSWERED),
    (rejected(delivery=UNKNOWN), UNKNOWN),
    (errors.InvalidResult("x", **SENT), ANSWERED),
    (errors.TaskLost("x", **SENT, task_id="t", status="working", said=None), UNKNOWN),
    (errors.UnknownTask("t"), NOT_SENT),
    (errors.SkillMismatch("size", expected="1", found="2", server="s", uri="x:/"), ANSWERED),
    (errors.SkillMismatch("unlisted", expected="x:/", found="x:/1", server="s", uri="x:/1"), NOT_SENT),
    (Refused(429, "x"), NOT_SENT),
    (StoreUnreadable("x"), NOT_SENT),
    (ControlError("x"), NOT_SENT),
    (InvalidOrder("x"), NOT_SENT),
    (OrderRefused("x"), NOT_SENT),
    (ZeroDivisionError(), NOT_SENT),
]


def subclasses(kind):
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def request(method="tools/call"):
    return ClientRequest(1, method, {}, {}, print, principal="ann")


@pytest.mark.parametrize(("error", "delivery"), EVERY_ERROR, ids=lambda each: type(each).__name__)
async def test_each_error_says_whether_the_server_may_have_acted(error, delivery):
    await trio.lowlevel.checkpoint()
    assert failure_of(request(), error).data["delivery"] == delivery.value


def test_no_error_is_left_out():
    known = {type(each) for each, _ in EVERY_ERROR}
    unknown = {each for each in subclasses(errors.NurseryError) - known if not each.__name__.startswith("_")}
    assert [each for each in unknown if not each.__module__.startswith("mcp_nursery.supervisor.cli")] == []


@pytest.mark.parametrize(("error", "delivery"), EVERY_ERROR, ids=lambda each: type(each).__name__)
async def test_what_a_server_has_begun_is_not_undone_by_what_was_not_sent(error, delivery):
    await trio.lowlevel.checkpoint()
    begun = request()
    begun.delivery = UNKNOWN
    assert failure_of(begun, error).data["delivery"] == (ANSWERED if delivery is ANSWERED else UNKNOWN).value


@pytest.mark.parametrize(
    ("error", "data"),
    [
        (errors.ServerDown(server="s", state=ServerState.WAITING, retry_in=7.5), {"state": "waiting", "retryIn": 7.5}),
        (errors.ServerDown(server="s", state=ServerState.FAILED), {"state": "failed"}),
        (errors.InstancesTaken(server="s", most=1, retry_in=7.5), {"retryIn": 7.5}),
        (errors.InstancesTaken(server="s", most=1, retry_in=None), {}),
        (errors.BreakerOpen(**CALL, failures=3, retry_in=7.5), {"retryIn": 7.5}),
        (errors.BreakerOpen(**CALL, failures=3, retry_in=0), {}),  # while another call tries
        (errors.ConnectionLost("x", **SENT, delivery=NOT_SENT, retry_in=7.5), {"retryIn": 7.5}),
        (rejected({"a": 1}, NOT_SENT, retry_in=7.5), {"retryIn": 7.5, "a": 1}),
        (rejected({"retryIn": 1}, NOT_SENT, retry_in=7.5), {"retryIn": 1}),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_an_error_says_when_its_server_can_be_asked_again(error, data):
    await trio.lowlevel.checkpoint()
    assert failure_of(request(), error).data == {"delivery": "not_sent"} | data


@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize(("data", "said"), [(None, {}), ("", {}), ("text", {"about": "text"}), ({"a": 1}, {"a": 1})])
def test_a_refusal_of_the_gateway_has_the_delivery_of_the_request(delivery, data, said):
    refused = request()
    refused.delivery = delivery
    assert failure_of(refused, JsonRpcError(-1, "x", data)).data == said | {"delivery": delivery.value}


def test_what_a_server_says_about_delivery_is_passed_on():
    """It is a gateway itself, and knows more of the server behind it."""
    assert failure_of(request(), rejected({"delivery": "unknown", "a": 1})).data == {"delivery": "unknown", "a": 1}


@pytest.mark.parametrize("data", [["a"], "text", 7, False])
def test_data_of_a_server_that_is_no_object_is_passed_on_as_it_came(data):
    assert failure_of(request(), rejected(data)).data == data


def test_every_error_that_the_gateway_writes_has_data():
    """All others go through `failure_of`, or `codec.refusal`, which puts `not_sent` there."""
    for file in sorted(Path(gateway_package.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "codec.error":
                said = ast.unparse(node.args[3])
                assert said in ("said.data", "ANSWERED", "WAS_ANSWERED"), f"{file}:{node.lineno}"


# -- behind the gateway ------------------------------------------------------------------------------------------------


async def refuse(arguments):
    await trio.lowlevel.checkpoint()
    raise Refusal(-32050, "not today")


async def done(arguments):
    await trio.lowlevel.checkpoint()


async def hang(arguments):
    await trio.sleep(1000)


HELLO = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


@asynccontextmanager
async def over_http(*specs, **limits):
    """`say(message)` of a client of the gateway in front of these servers, and the gateway's servers."""
    async with (
        open_supervisor(specs, gate=10, callbacks=gateway_callbacks()) as supervisor,
        open_gateway(supervisor) as gateway,
        open_http(gateway, authenticate=by_name, limits=HttpLimits(**limits)) as application,
        trio.open_nursery() as nursery,
    ):
        for each in specs:
            await supervisor.wait_connected(each.name)

        async def say(message, **headers):
            if isinstance(message, dict):
                message = json.dumps({"jsonrpc": "2.0", "id": 1, **message}).encode()
            sent = {"host": "localhost", "content-type": "application/json", "accept": BOTH} | headers
            lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in sent.items()]
            exchange = Exchange(message, lambda _: None)
            scope = {"type": "http", "method": "POST", "path": "/mcp/lab", "headers": lines}
            nursery.start_soon(exchange.run, application, scope)
            await exchange.ended.wait()
            return exchange

        async def in_session(message):
            session = (await say({"method": "initialize", "params": HELLO})).session
            return await say(message, mcp_session_id=session, mcp_protocol_version=OLD)

        async def modern(message):
            params = message.get("params", {}) | {"_meta": ENVELOPE}
            headers = {"mcp_protocol_version": NEW, "mcp_method": message["method"]}
            headers |= {"mcp_name": params["name"]} if "name" in params else {}
            return await say(message | {"params": params}, **headers)

        yield say, in_session, modern
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("status", "more", "data"),
    [
        *((status, b"", {"delivery": "unknown"}) for status in (502, 503, 504)),
        (503, b"retry-after: 60\r\n", {"delivery": "unknown", "retryIn": 60}),
        (429, b"retry-after: 60\r\n", {"delivery": "answered", "retryIn": 60}),
    ],
)
async def test_a_status_of_a_server_s_gateway_keeps_its_delivery(status, more, data):
    """The call was carried out, as far as anybody knows. A real server over HTTP."""
    calls = []

    async def serve(stream):
        async with stream:
            head, body = await read_request(stream)
            message = json.loads(body) if head.startswith(b"POST") else {}
            result = {
                "initialize": {
                    "protocolVersion": OLD,
                    "capabilities": {"tools": {}},
                    "serverInfo": HELLO["clientInfo"],
                },
                "tools/list": {"tools": [{"name": "commit", "inputSchema": {"type": "object"}}]},
            }.get(message.get("method"))
            if message.get("method") == "tools/call":
                calls.append(message)
                said = b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n%sconnection: close\r\n\r\n"
                await stream.send_all(said % (status, more))
                return
            said = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}).encode() if result else b""
            head = b"200 OK" if said else b"404 No"
            head += b"\r\ncontent-type: %s\r\ncontent-length: %d" % (JSON, len(said))
            await stream.send_all(b"HTTP/1.1 " + head + b"\r\nconnection: close\r\n\r\n" + said)

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        lab = ServerSpec("lab", HttpTransport(url), protocol="handshake")
        async with over_http(lab) as (_, in_session, modern):
            for number, ask in enumerate((in_session, modern), 1):
                error = (await ask({"method": "tools/call", "params": {"name": "commit"}})).last["error"]
                assert (error["code"], error["data"], len(calls)) == (status, data, number)
        nursery.cancel_scope.cancel()


REFUSED = {
    "no JSON": b"{",
    "a batch": b"[]",
    "no request": b'{"jsonrpc":"2.0","id":1}',
    "no session": {"method": "ping"},
    "one that has ended": ({"method": "ping"}, {"mcp_session_id": "gone"}),
    "a version of nobody": ({"method": "ping"}, {"mcp_protocol_version": "2030-01-01"}),
    "another name than in the headers": ({"method": "ping"}, {"mcp_protocol_version": NEW, "mcp_method": "tools/list"}),
}


@pytest.mark.parametrize("said", REFUSED.values(), ids=REFUSED.keys())
async def test_a_refused_message_was_not_sent(said, autojump_clock):
    async with over_http(spec(ScriptedServer())) as (say, _, _):
        message, headers = said if isinstance(said, tuple) else (said, {})
        assert (await say(message, **headers)).last["error"]["data"]["delivery"] == "not_sent"


@pytest.mark.parametrize(
    ("message", "delivery"),
    [
        ({"method": "nothing"}, "answered"),  # by the server
        ({"method": "tools/call", "params": {"name": "hang", "arguments": 7}}, "not_sent"),
        ({"method": "tools/call", "params": {"name": "hang"}}, "unknown"),  # until the gateway's own limit
        ({"method": "tools/call", "params": {"name": "refuse"}}, "answered"),
    ],
)
async def test_a_request_that_fails_says_how_far_it_came(message, delivery, autojump_clock):
    script = ScriptedServer(tools={"hang": hang, "refuse": refuse})
    async with over_http(spec(script), request_seconds=5) as (_, in_session, modern):
        for ask in (in_session, modern):
            assert (await ask(message)).last["error"]["data"]["delivery"] == delivery


async def test_a_bug_of_ours_says_so_too(autojump_clock, monkeypatch):
    def fails(*_):
        raise ZeroDivisionError

    async with over_http(spec(ScriptedServer(tools={"echo": done}))) as (_, in_session, _):
        monkeypatch.setattr(One, "filter_result", fails)
        error = (await in_session({"method": "tools/call", "params": {"name": "echo"}})).last["error"]
        assert (error["message"], error["data"]) == ("Internal error", {"delivery": "answered"})


@pytest.mark.parametrize(
    ("answer", "known"), [({"roots": []}, True), ({"action": "decline"}, False)], ids=["wrong answer", "wrong state"]
)
async def test_a_held_call_may_have_acted_when_its_client_comes_back_wrongly(autojump_clock, answer, known):
    server, call = AskingServer(), {"name": "work", "arguments": {"who": "Ann"}}
    async with asking(server) as (_, _, make, nursery):
        ann, asked = make("Ann", session=False), []

        async def begin():
            asked.append(await ann.request("tools/call", **call))

        nursery.start_soon(begin)
        (await server.called("Ann")).ask("Ann")
        await trio.sleep(1)
        (key,) = asked[0]["inputRequests"]
        state = asked[0]["requestState"] if known else "of nobody"
        with pytest.raises(JsonRpcError) as refused:
            await ann.request("tools/call", **call, inputResponses={key: answer}, requestState=state)
        assert ("requestState" in refused.value.message) is not known
        assert refused.value.data == {"delivery": "unknown"}


async def test_a_call_in_the_middle_of_its_questions_was_begun(autojump_clock):
    """An older client, whose newer server has asked, cannot be asked."""
    server = AskingServer("modern")
    async with (
        open_supervisor([server.spec()], callbacks=gateway_callbacks()) as supervisor,
        open_gateway(supervisor) as gateway,
        trio.open_nursery() as nursery,
    ):
        await supervisor.wait_connected("lab")
        session = ClientSession(print, nursery, "lab")

        async def cannot(*_):
            await trio.lowlevel.checkpoint()
            raise JsonRpcError(-32601, "no such thing here")

        asked = ClientRequest(
            1, "tools/call", {"name": "work", "arguments": {"who": "Ann"}}, {}, print, principal="a", session=session
        )
        asked.ask, asked.capabilities = cannot, {"elicitation": {}}
        caught = []

        async def call():
            with pytest.raises(JsonRpcError) as refused:
                await gateway.answer(asked, gateway.view("lab"), OLD)
            caught.append(refused.value)

        nursery.start_soon(call)
        process = await server.called("Ann")
        process.ask("Ann")
        await trio.testing.wait_all_tasks_blocked()
        assert (caught[0].message, caught[0].data) == ("no such thing here", {"delivery": "unknown"})
        nursery.cancel_scope.cancel()
