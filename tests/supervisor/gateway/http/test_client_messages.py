"""What a client may say over HTTP, and what it is answered. In memory, virtual time."""

import json
import time
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import pytest
import trio
import trio.testing

from mcp_nursery.actors.limits import MOST_VALUES
from mcp_nursery.supervisor import MemoryStore, open_supervisor
from mcp_nursery.supervisor.gateway import HttpLimits, SessionKeys, gateway_callbacks, open_gateway, open_http
from mcp_nursery.supervisor.gateway.auth.principal import Principal
from mcp_nursery.supervisor.gateway.http import client_messages
from mcp_nursery.supervisor.testing import Life, Refusal, ScriptedServer

from ....lab.gateway_clients import CAN, ENVELOPE, NEW, OLD, AskingServer
from ....lab.gateway_clients import served as serving
from ....lab.specs import spec
from ....lab.web_clients import BOTH, Exchange, by_name

POST = {"host": "localhost", "content-type": "application/json", "accept": BOTH}
ANN = {"authorization": "Bearer Ann"}
PING = {"id": 1, "method": "ping"}
SLEEP = {"id": 2, "method": "tools/call", "params": {"name": "sleep", "arguments": {}}}
LIST = {"id": 3, "method": "tools/list", "params": {"_meta": ENVELOPE}}
HELLO = {
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": OLD, "capabilities": CAN, "clientInfo": {"name": "raw", "version": "1"}},
}
LISTEN = {
    "id": 4,
    "method": "subscriptions/listen",
    "params": {"notifications": {"toolsListChanged": True}, "_meta": ENVELOPE},
}
NOTICE = {"method": "notifications/initialized"}


def modern(message, **headers):
    """The headers of a request without a session."""
    return {"mcp-protocol-version": NEW, "mcp-method": message["method"]} | headers


class Web:
    """What speaks to the application, and hears what it says."""

    def __init__(self, application, nursery, gateway=None):
        self.application = application
        self.gateway = gateway
        self._nursery = nursery
        self.heard = []

    def begin(self, message, *lines, verb="POST", path="/mcp/lab", **headers):
        """One request, that goes on."""
        if isinstance(message, dict):
            message = json.dumps({"jsonrpc": "2.0", **message}).encode()
        headers = POST | {name.replace("_", "-"): value for name, value in headers.items()}
        own = [(name.encode(), value.encode()) for name, value in headers.items() if value is not None]
        exchange = Exchange(message or b"", self.heard.append)
        scope = {"type": "http", "method": verb, "path": path, "headers": [*own, *lines]}
        self._nursery.start_soon(exchange.run, self.application, scope)
        return exchange

    async def say(self, message, *lines, **how):
        """One request, to its end."""
        exchange = self.begin(message, *lines, **how)
        await exchange.ended.wait()
        return exchange

    async def status(self, message, *lines, **how):
        return (await self.say(message, *lines, **how)).status

    async def opened(self, **headers):
        """The headers of a new session."""
        session = (await self.say(HELLO, **headers)).session
        return headers | {"mcp-session-id": session, "mcp-protocol-version": OLD}


async def echo(arguments):
    await trio.lowlevel.checkpoint()
    return "a word"


async def sleep(arguments):
    await trio.sleep(100)
    return "rested"


async def refuse(arguments):
    await trio.lowlevel.checkpoint()
    raise Refusal(-32000, "no", {"why": "x" * 40_000})


async def fails():
    await trio.lowlevel.checkpoint()
    raise OSError


@asynccontextmanager
async def served(
    *, authenticate=by_name, keys=None, of_server=None, capabilities=None, state=None, of_script=None, **limits
):
    """A server with tools, and who speaks to the gateway in front of it."""
    marked = {"inputSchema": {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "A"}}}}
    server = ScriptedServer(
        tools={"echo": echo, "sleep": sleep, "refuse": refuse}, declared={"echo": marked}, **(of_script or {})
    )
    server.capabilities.update(capabilities or {})
    async with (
        open_supervisor(
            [spec(server, **(of_server or {}))], gate=10, callbacks=gateway_callbacks(), state=state or MemoryStore()
        ) as supervisor,
        open_gateway(supervisor, session_keys=keys) as gateway,
        open_http(gateway, authenticate=authenticate, limits=HttpLimits(**limits)) as application,
        trio.open_nursery() as nursery,
    ):
        await supervisor.wait_connected("lab")
        yield server, Web(application, nursery, gateway)
        nursery.cancel_scope.cancel()


def request_of(text):
    return b'{"jsonrpc":"2.0","method":"ping",' + text + b"}"


IN_SESSION = {
    "a request": (200, PING, {}),
    "one of a charset": (200, PING, {"content-type": "Application/JSON; charset=utf-8"}),
    "a client that takes all": (200, PING, {"accept": "*/*"}),
    "one that takes both kinds": (200, PING, {"accept": "application/*;q=0.5, Text/*"}),
    "an id that is text": (200, request_of(b'"id":"7"'), {}),
    "an unknown method": (200, {"id": 1, "method": "nothing"}, {}),
    "a notification": (202, NOTICE, {}),
    "an answer that nobody waits for": (202, {"id": "ask-1", "result": {}}, {}),
    "an error that nobody waits for": (202, {"id": "ask-1", "error": {"code": 1, "message": "no"}}, {}),
    "a form": (400, PING, {"content-type": "text/plain"}),
    "no kind": (400, PING, {"content-type": None}),
    "a client that takes no events": (406, PING, {"accept": "application/json"}),
    "one that takes nothing": (406, PING, {"accept": None}),
    "no session": (400, PING, {"mcp-session-id": None}),
    "an unknown session": (404, PING, {"mcp-session-id": "x"}),
    "another client's": (404, PING, {"authorization": "Bearer Bob"}),
    "the session of another server": (404, PING, {"path": "/mcp"}),
    "no JSON": (400, b"{", {}),
    "a batch": (400, b"[" + request_of(b'"id":1') + b"]", {}),
    "two at once": (400, b"[" + request_of(b'"id":1') + b"," + request_of(b'"id":2') + b"]", {}),
    "nothing": (400, b"", {}),
    "a number": (400, b"5", {}),
    "none": (400, b"null", {}),
    "an empty batch": (400, b" []", {}),
    "more values than anybody needs": (400, request_of(b'"id":1,"params":[' + b"0," * MOST_VALUES + b"0]"), {}),
    "an id that is true": (400, request_of(b'"id":true'), {}),
    "an id that is null": (400, request_of(b'"id":null'), {}),
    "an id with a fraction": (400, request_of(b'"id":1.5'), {}),
    "no method": (400, {"id": 1}, {}),
    "a method that is none": (400, {"id": 1, "method": 5}, {}),
    "another verb": (405, b"", {"verb": "PUT"}),
    "a stream for who takes none": (406, b"", {"verb": "GET", "accept": "application/json"}),
    "a stream of no session": (400, b"", {"verb": "GET", "mcp-session-id": None}),
}

ALONE = {
    "a request": (200, LIST, {}),
    "a notification": (202, NOTICE, {}),
    "a notification of a version that nobody has": (400, NOTICE, {"mcp-protocol-version": "2030-01-01"}),
    "a version that nobody has": (400, LIST, {"mcp-protocol-version": "2030-01-01"}),
    "an unknown method": (404, {"id": 1, "method": "nothing", "params": {"_meta": ENVELOPE}}, {}),
    "another method than it says": (400, LIST, {"mcp-method": "tools/call"}),
    "no envelope": (400, {"id": 1, "method": "tools/list"}, {}),
    "an answer": (400, {"id": 1, "result": {}}, {"mcp-method": None}),
    "a stream": (405, b"", {"verb": "GET"}),
    "the end of a session": (405, b"", {"verb": "DELETE"}),
}


async def test_what_is_taken_in_a_session(autojump_clock):
    async with served() as (_, web):
        session = await web.opened(**ANN)
        said = {name: await web.status(body, **(session | how)) for name, (_, body, how) in IN_SESSION.items()}
        assert said == {name: status for name, (status, _, _) in IN_SESSION.items()}
        assert (await web.say(b"", verb="PUT", **session)).headers[b"allow"] == b"GET, POST, DELETE"
        assert await web.status(b"", verb="DELETE", **session) == 200
        assert await web.status(PING, **session) == 404


async def test_what_is_taken_without_one(autojump_clock):
    async with served() as (_, web):
        for name, (status, body, how) in ALONE.items():
            method = body["method"] if isinstance(body, dict) and "method" in body else "none"
            assert await web.status(body, **(modern({"method": method}) | how)) == status, name
        assert (await web.say(b"", verb="GET", **modern(LIST))).headers[b"allow"] == b"POST"
        twice = await web.say(LIST, (b"mcp-method", b"tools/list"), **modern(LIST))
        assert (twice.status, twice.last["error"]["code"]) == (400, -32020)


async def test_a_header_that_repeats_an_argument_says_the_same(autojump_clock):
    async with served() as (server, web):
        call = {"id": 1, "method": "tools/call"}
        call["params"] = {"name": "echo", "arguments": {"a": "x"}, "_meta": ENVELOPE}
        said = partial(web.status, call, **modern(call, mcp_name="echo"))
        assert [await said(mcp_param_a=value) for value in ("x", "y", "é", "=?base64?é?=")] == [200, 400, 400, 400]
        assert await said(mcp_param_a="x", mcp_name="=?base64?é?=") == 400
        assert [tool for _, tool, _ in server.calls] == ["echo"]


@pytest.mark.parametrize(
    ("named", "code"),
    [("a b", -32021), ("=?base64?YSBi?=", -32021), (None, -32021), ("a", -32020), ("=?base64?é?=", -32020)],
)
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_header_that_repeats_the_id_of_a_task_says_the_same(method, named, code, autojump_clock):
    """Only then is it a fault that the client has not declared the extension."""
    async with served() as (_, web):
        asked = {"id": 1, "method": method, "params": {"taskId": "a b", "_meta": ENVELOPE}}
        said = await web.say(asked, **modern(asked, mcp_name=named))
        assert (said.status, said.last["error"]["code"]) == (400, code)


async def test_a_session_has_one_stream_at_once(autojump_clock):
    """And lives as long as that."""
    async with served(idle=60) as (_, web):
        session = await web.opened()
        first = web.begin(b"", verb="GET", **session)
        await trio.sleep(3600)
        assert await web.status(b"", verb="GET", **session) == 409
        first.gone.set()
        await first.ended.wait()
        second = web.begin(b"", verb="GET", **session)
        await trio.sleep(3600)
        second.gone.set()
        await trio.sleep(61)
        assert (first.status, second.status) == (200, 200)
        assert await web.status(PING, **session) == 404


async def test_what_is_under_way_ends_with_its_session(autojump_clock):
    async with served() as (server, web):
        session = await web.opened()
        stream, call = web.begin(b"", verb="GET", **session), web.begin(SLEEP, **session)
        await trio.sleep(1)
        assert await web.status(b"", verb="DELETE", **session) == 200
        for each in (stream, call):
            await each.ended.wait()
        assert (stream.status, call.status, call.last, len(server.cancelled)) == (200, 404, None, 1)
        assert stream.is_whole


@pytest.mark.parametrize("how", ["its client ends it", "it is idle", "its client is ended", "the gateway ends"])
async def test_a_subscription_ends_with_its_session(autojump_clock, how):
    script = {"resources": {"note://a": echo}}
    subscribe = {"id": 7, "method": "resources/subscribe", "params": {"uri": "note://a"}}
    async with served(idle=60, of_script=script, capabilities={"resources": {"subscribe": True}}) as (_, web):
        headers = await web.opened()
        assert await web.status(subscribe, **headers) == 200
        (session,) = web.application._sessions._open.values()
        assert list(session.client.subscribed) == ["note://a"]
        if how == "its client ends it":
            assert await web.status(b"", verb="DELETE", **headers) == 200
        elif how == "it is idle":
            await trio.sleep(62)
        elif how == "its client is ended":
            web.application.end_clients(lambda _: True)
        else:
            web.application.close()
        await trio.testing.wait_all_tasks_blocked()
        assert (session.client.subscribed, session.has_ended) == ({}, True)
        assert web.application.clients().sessions == ()
        assert await web.status(PING, **headers) == 404


async def test_no_session_outlives_its_application(autojump_clock):
    async with (
        open_supervisor([spec(ScriptedServer())], callbacks=gateway_callbacks(), state=MemoryStore()) as supervisor,
        open_gateway(supervisor) as gateway,
        trio.open_nursery() as nursery,
    ):
        async with open_http(gateway) as application:
            web = Web(application, nursery)
            assert await web.status(NOTICE, **await web.opened()) == 202
            (session,) = application._sessions._open.values()
        assert session.client.ended


@pytest.mark.parametrize("drains", [False, True])
async def test_a_client_that_is_ended_is_told_that_its_call_may_have_acted(autojump_clock, drains):
    """No 503 or 401, with which a balancer, or a client with another token, would have it done a second time."""
    async with served() as (server, web):
        ann, bob = await web.opened(**ANN), await web.opened(authorization="Bearer Bob")
        call, other = web.begin(SLEEP, **ann), web.begin(SLEEP, **bob)
        await trio.sleep(1)
        if drains:
            await web.gateway.drain(0)
        web.application.end_clients(lambda client: client.name == "Ann")
        await call.ended.wait()
        assert (call.status, other.ended.is_set(), len(server.cancelled)) == (200, False, 1)
        assert call.last["error"]["data"] == {"delivery": "unknown"}
        assert await web.status(PING, **ann) == 404
        await other.ended.wait()
        assert "result" in other.last


async def test_a_request_while_the_gateway_ends_may_be_made_elsewhere(autojump_clock):
    """Nothing was done for it, and a balancer can tell; what is under way goes on."""
    async with served() as (_, web):
        session = await web.opened()
        call = web.begin(SLEEP, **session)
        await trio.sleep(1)
        await web.gateway.drain(0)
        for message, headers in ((PING, session), (LIST, modern(LIST)), (HELLO, {})):
            refused = await web.say(message, **headers)
            assert (refused.status, refused.headers[b"retry-after"]) == (503, b"1")
            assert "takes no more requests" in refused.last["error"]["message"]
        await call.ended.wait()
        assert (call.status, "result" in call.last) == (200, True)


async def test_requests_are_kept_within_a_bound(autojump_clock):
    """Of each client, and of all; what is small always comes through."""
    async with served(kept=150_000, kept_of_client=60_000) as (_, web):
        large = SLEEP | {"params": {"name": "sleep", "arguments": {"a": "x" * 40_000}, "_meta": ENVELOPE}}
        small = SLEEP | {"params": SLEEP["params"] | {"_meta": ENVELOPE}}
        headers = modern(SLEEP, mcp_name="sleep")
        calls = [web.begin(large, authorization="Bearer Ann", **headers)]
        await trio.sleep(1)
        assert await web.status(large, authorization="Bearer Ann", **headers) == 429
        calls.append(web.begin(small, authorization="Bearer Ann", **headers))
        calls += [web.begin(large, authorization=f"Bearer {name}", **headers) for name in ("Bob", "Cid")]
        await trio.sleep(1)
        refused = await web.say(large, authorization="Bearer Dan", **headers)
        assert (refused.status, refused.headers[b"retry-after"]) == (503, b"1")
        for call in calls:
            await call.ended.wait()
            assert call.status == 200
        assert await web.status(large, authorization="Bearer Dan", **headers) == 200


async def test_requests_count_for_what_they_keep_when_they_are_parsed(autojump_clock):
    """Empty lists keep twenty times what they take on the wire: 128 requests of 4 MiB would have kept 2 GiB."""
    async with served(kept_of_client=600_000) as (_, web):
        lists = SLEEP | {"params": {"name": "sleep", "arguments": {"a": [[]] * 3_000}, "_meta": ENVELOPE}}
        headers = modern(SLEEP, mcp_name="sleep", authorization="Bearer Ann")
        call = web.begin(lists, **headers)
        await trio.sleep(1)
        assert 390_000 < web.application.kept["requests"] < 600_000
        assert await web.status(lists, **headers) == 429
        await call.ended.wait()
        assert (call.status, web.application.kept) == (200, {})


async def test_errors_that_nobody_reads_are_kept_within_a_bound(autojump_clock):
    """Their data may be as large as any result."""
    async with served(kept_of_client=60_000) as (_, web):
        params = {"name": "refuse", "arguments": {}, "_meta": ENVELOPE}
        headers = modern(SLEEP, mcp_name="refuse", authorization="Bearer Ann")
        calls = []
        for number in (1, 2):
            calls.append(web.begin({"id": number, "method": "tools/call", "params": params}, **headers))
            calls[-1].may_read = trio.Event()
            await trio.sleep(1)
        assert 40_000 < web.application.kept["answers"] < 50_000
        for call in calls:
            call.may_read.set()
            await call.ended.wait()
        whole, lost = (call.last["error"] for call in calls)
        assert (whole["code"], whole["message"], len(whole["data"]["why"])) == (-32000, "no", 40_000)
        assert lost["message"] == "the answer is lost: too much waits to be read"
        assert (lost["code"], lost["data"]) == (-32000, {"delivery": "answered"})
        assert web.application.kept == {}


async def test_a_session_that_nobody_uses_ends(autojump_clock):
    """A request under way uses it, whichever others have ended meanwhile."""
    async with served(idle=60) as (_, web):
        session = await web.opened()
        call = web.begin(SLEEP, **session)
        await trio.sleep(10)
        assert await web.status(PING, **session) == 200
        await call.ended.wait()
        assert "result" in call.last
        for seconds, status in ((59, 200), (59, 200), (61, 404)):
            await trio.sleep(seconds)
            assert await web.status(PING, **session) == status


class Counts(trio.abc.Instrument):
    """A number after each step of a task."""

    def __init__(self, count):
        self._count = count
        self.all = []

    def after_task_step(self, task):
        self.all.append(self._count())


async def test_sessions_that_end_together_end_one_a_turn_and_log_levels_are_looked_at_once(autojump_clock, monkeypatch):
    """For each, all servers would be looked at, and all sessions for each of these."""
    async with served(idle=60, capabilities={"logging": {}}) as (_, web):
        for level in ["error"] * 20 + ["warning"]:
            session = await web.opened()
            await web.say({"id": 2, "method": "logging/setLevel", "params": {"level": level}}, **session)
        await trio.sleep(30)
        assert await web.status(PING, **session) == 200
        looked = []
        news = web.gateway.news
        monkeypatch.setattr(news, "_names", lambda names=news._names: looked.append(1) or names())
        counts = Counts(lambda: len(web.application.clients().sessions))
        trio.lowlevel.add_instrument(counts)
        await trio.sleep(40)
        trio.lowlevel.remove_instrument(counts)
        assert (counts.all[0], counts.all[-1]) == (21, 1)
        assert max(before - after for before, after in pairwise(counts.all)) == 1
        assert 1 <= len(looked) <= 3


@pytest.mark.parametrize("waits", ["hello", "check_request"])
async def test_a_session_that_ends_while_it_begins_is_nobodys(waits, autojump_clock, monkeypatch):
    """In the very step in which what it waits for is there."""
    async with served(keys=SessionKeys([b"k" * 32])) as (_, web):
        where = type(web.gateway.view("lab")) if waits == "hello" else client_messages
        real, there = getattr(where, waits), trio.Event()

        async def wait(*of):
            await there.wait()
            return await real(*of)

        monkeypatch.setattr(where, waits, wait)
        call = web.begin(HELLO)
        await trio.testing.wait_all_tasks_blocked()
        there.set()
        web.application.end_clients(lambda _: True)
        await call.ended.wait()
        assert (call.status, call.last) == (401, None)
        assert web.application.clients().sessions == ()
        assert not web.gateway.news._sessions


async def test_a_session_counts_from_its_welcome_to_its_end(autojump_clock):
    """Clients that nobody knows are not told apart, so no limit of one holds for them."""
    async with served(sessions=2, sessions_of_client=1) as (_, web):
        for _ in range(3):
            assert "error" in (await web.say(HELLO | {"params": {}})).last
        sessions = [await web.opened() for _ in range(2)]
        assert await web.status(HELLO) == 503
        assert await web.status(b"", verb="DELETE", **sessions[0]) == 200
        await web.opened(**ANN)
        assert await web.status(b"", verb="DELETE", **sessions[1]) == 200
        assert await web.status(HELLO, **ANN) == 429


async def test_who_opens_a_session_brings_none(autojump_clock):
    async with served() as (_, web):
        session = await web.opened()
        assert "error" in (await web.say(HELLO, **(session | {"mcp-session-id": "x"}))).last
        assert await web.status(PING, **session) == 200


async def test_a_body_has_its_size_and_its_time(autojump_clock):
    """Who goes before all of it is there asks for nothing."""
    body = request_of(b'"id":1')
    async with served(body=len(body), body_seconds=5) as (_, web):
        assert await web.status(body) == 400  # no session
        assert await web.status(body + b" ") == 413
        slow, gone = web.begin(b""), web.begin(b"")
        for exchange in (slow, gone):
            exchange._body.clear()
        gone.gone.set()
        await trio.sleep(4)
        assert (slow.ended.is_set(), gone.ended.is_set(), gone.status) == (False, True, None)
        await slow.ended.wait()
        assert slow.status == 408


async def test_a_request_has_its_time(autojump_clock):
    async with served(request_seconds=50, body_seconds=5) as (server, web):
        session = await web.opened()
        began = trio.current_time()
        said = await web.say(SLEEP, **session)
        assert "no answer within 50 s" in said.last["error"]["message"]
        assert trio.current_time() - began == 50
        assert len(server.cancelled) == 1
        assert await web.status(PING, **session) == 200


async def test_what_a_client_takes_back_has_no_answer(autojump_clock):
    async with served() as (server, web):
        session = await web.opened()
        call = web.begin(SLEEP, **session)
        await trio.sleep(1)
        for request_id, ended in (("2", False), (3, False), (2, True)):
            notice = {"method": "notifications/cancelled", "params": {"requestId": request_id}}
            assert await web.status(notice, **session) == 202
            await trio.sleep(1)
            assert call.ended.is_set() == ended
        assert (call.status, call.last, len(server.cancelled)) == (202, None, 1)


async def test_a_client_that_waits_hears_that_somebody_is_there(autojump_clock):
    """One that has its answer soon gets a document, and nobody listens to it any more."""
    async with served() as (_, web):
        session = await web.opened()
        waits, soon = web.begin(SLEEP, **session), [await web.say(PING, **session) for _ in range(3)]
        await waits.ended.wait()
        kinds = [each.headers[b"content-type"] for each in (waits, *soon)]
        assert kinds == [b"text/event-stream"] + [b"application/json"] * 3
        assert [each.reads for each in soon] == [1, 1, 1]
        assert waits.last["result"]


def sleeping():
    """A call without a session, and its headers."""
    call = SLEEP | {"params": SLEEP["params"] | {"_meta": ENVELOPE}}
    return call, modern(call, mcp_name="sleep")


async def test_without_a_session_a_call_ends_with_the_client_that_waits_for_it(autojump_clock, caplog):
    """2026-07-28: "The server MUST treat a client disconnect as cancellation of that request." Also with one that
    cannot be listened to."""
    async with served() as (server, web):
        call, headers = sleeping()
        gone, broken = web.begin(call, **headers), web.begin(call, **headers)
        receive, broken._receive = broken._receive, lambda: fails() if broken.reads else receive()
        await trio.testing.wait_all_tasks_blocked()
        gone.gone.set()
        await trio.sleep(1)
        assert gone.ended.is_set()
        assert broken.ended.is_set()
        assert len(server.cancelled) == 2
        assert "cannot be attended to" in caplog.text


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", OLD])
async def test_in_a_session_a_call_goes_on_without_the_client_that_waits_for_it(autojump_clock, version):
    """ "Disconnection SHOULD NOT be interpreted as the client cancelling its request." It counts as long as it goes on,
    and its answer is lost."""
    async with served(requests_of_client=1) as (server, web):
        session = await web.opened(**ANN) | {"mcp-protocol-version": version}
        call = web.begin(SLEEP, **session)
        await trio.sleep(1)
        call.gone.set()
        await trio.sleep(98)
        assert await web.status(PING, **session) == 429
        assert not call.ended.is_set()
        await trio.sleep(2)
        assert (call.ended.is_set(), call.last, server.cancelled) == (True, None, [])
        assert await web.status(PING, **session) == 200


async def test_such_a_call_can_be_taken_back(autojump_clock):
    async with served() as (server, web):
        session = await web.opened()
        call = web.begin(SLEEP, **session)
        await trio.sleep(1)
        call.gone.set()
        await trio.sleep(1)
        assert await web.status({"method": "notifications/cancelled", "params": {"requestId": 2}}, **session) == 202
        await trio.sleep(1)
        assert (call.ended.is_set(), len(server.cancelled)) == (True, 1)


@pytest.mark.parametrize("limits", [{"request_seconds": 50}, {"request_seconds": None, "idle": 49}])
async def test_such_a_call_ends_with_its_time_and_with_its_session(autojump_clock, limits):
    """Which is idle, though the call goes on."""
    async with served(**limits) as (server, web):
        session = await web.opened()
        call = web.begin(SLEEP, **session)
        await trio.sleep(1)
        call.gone.set()
        await trio.sleep(48)
        assert not call.ended.is_set()
        await trio.sleep(3)
        assert (call.ended.is_set(), len(server.cancelled)) == (True, 1)
        assert len(web.application.clients().sessions) == ("idle" not in limits)


async def test_such_a_call_does_not_end_its_session_twice(autojump_clock):
    """The session is idle from its last request on, whichever ends last."""
    async with served(idle=150) as (_, web):
        session = await web.opened()
        call = web.begin(SLEEP, **session)
        await trio.sleep(1)
        call.gone.set()
        await trio.sleep(80)
        other = web.begin(SLEEP, **session)  # from 81 to 181
        await trio.sleep(90)
        assert [each.requests for each in web.application.clients().sessions] == [1]
        await other.ended.wait()
        await trio.sleep(148)
        assert [each.requests for each in web.application.clients().sessions] == [0]
        await trio.sleep(3)
        assert web.application.clients().sessions == ()


async def test_nobody_who_has_gone_is_asked(autojump_clock):
    server = AskingServer()
    async with (
        serving(server) as (_, gateway, _, nursery),
        open_http(gateway, authenticate=by_name) as application,
    ):
        web = Web(application, nursery)
        work = {"id": 2, "method": "tools/call", "params": {"name": "work", "arguments": {"who": "Ann"}}}
        work["params"]["_meta"] = {"progressToken": 1}
        call = web.begin(work, **await web.opened())
        process = await server.called("Ann")
        await trio.sleep(1)
        call.gone.set()
        await trio.sleep(1)
        process.ask("Ann")
        await trio.sleep(1)
        assert "has gone" in process.answers["Ann"][0]["error"]["message"]
        process.answer("Ann")
        await call.ended.wait()
        assert process.cancelled == []


async def test_a_session_that_nobody_knows_is_not_opened(autojump_clock):
    """Its id is lost with the client that asked for it."""
    life = Life(connects_after=1000)
    async with (
        open_supervisor([spec(ScriptedServer(life))], gate=0, callbacks=gateway_callbacks()) as supervisor,
        open_gateway(supervisor) as gateway,
        open_http(gateway) as application,
        trio.open_nursery() as nursery,
    ):
        web = Web(application, nursery)
        hello = web.begin(HELLO)
        await trio.sleep(1)
        assert len(application.clients().sessions) == 1
        hello.gone.set()
        await trio.sleep(1)
        assert (hello.ended.is_set(), application.clients().sessions) == (True, ())
        nursery.cancel_scope.cancel()


async def test_so_many_requests_at_once(autojump_clock):
    """Of one client, and of all."""
    async with served(requests=4, requests_of_client=1) as (_, web):
        ann, bob, nobody = await web.opened(**ANN), await web.opened(authorization="Bearer Bob"), await web.opened()
        first = web.begin(SLEEP, **ann)
        await trio.sleep(1)
        refused = await web.say(PING, **ann)
        assert (refused.status, refused.headers[b"retry-after"]) == (429, b"1")
        assert await web.status(PING, **bob) == 200
        for _ in range(3):
            web.begin(SLEEP, **nobody)
        await trio.sleep(1)
        refused = await web.say(PING, **bob)
        assert (refused.status, refused.headers[b"retry-after"]) == (503, b"1")
        await first.ended.wait()
        assert await web.status(PING, **ann) == 200


async def test_streams_last_as_long_as_what_let_their_clients_in(autojump_clock):
    async def authenticate(scope):
        return Principal("Ann", expires=time.time() + 600)

    async with served(authenticate=authenticate, request_seconds=60) as (_, web):
        streams = [web.begin(b"", verb="GET", **await web.opened()), web.begin(LISTEN, **modern(LISTEN))]
        await trio.sleep(590)
        assert [(each.status, each.ended.is_set()) for each in streams] == [(200, False)] * 2
        await trio.sleep(20)
        assert all(each.ended.is_set() and each.is_whole for each in streams)
        assert streams[1].last["method"] == "notifications/subscriptions/acknowledged"


WORK = {"name": "work", "arguments": {"who": "Ann"}, "_meta": {"progressToken": 1}}


@asynccontextmanager
async def in_session(**limits):
    """A server that asks, a web in front of it, and the headers of a session."""
    server = AskingServer()
    async with (
        serving(server) as (_, gateway, _, nursery),
        open_http(gateway, limits=HttpLimits(**limits)) as application,
    ):
        web = Web(application, nursery)
        yield server, web, await web.opened()


async def test_an_error_is_an_answer_of_a_client(autojump_clock):
    async with in_session() as (server, web, session):
        call = web.begin({"id": 2, "method": "tools/call", "params": WORK}, **session)
        process = await server.called("Ann")
        process.ask("Ann")
        await trio.testing.wait_all_tasks_blocked()
        asked = next(message for message in web.heard if message.get("method") == "elicitation/create")
        refusal = {"code": -1, "message": "not now"}
        assert await web.status({"id": asked["id"], "error": refusal}, **session) == 202
        await trio.testing.wait_all_tasks_blocked()
        assert process.answers["Ann"][0]["error"]["message"] == "not now"
        process.answer("Ann")
        await call.ended.wait()
        [kept] = web.application._sessions._open.values()
        assert (kept._requests, kept._asked) == ({}, {})  # of what is over


async def test_questions_and_progress_that_nobody_reads_are_kept_within_a_bound(autojump_clock):
    """A server that asks a client that does not read is told so, and progress is lost."""
    async with in_session(kept=75_000) as (server, web, session):
        calls = []
        for number, letter in enumerate("ab", 2):
            who = letter * 20_000
            work = WORK | {"arguments": {"who": who}}
            calls.append(web.begin({"id": number, "method": "tools/call", "params": work}, **session))
            calls[-1].may_read = trio.Event()
            process = await server.called(who)
            process.ask(who)
            await trio.sleep(1)
        assert web.application.kept.keys() == {"requests", "questions"}
        assert 20_000 < web.application.kept["questions"] < 30_000
        assert "too much waits to be read" in process.answers[who][0]["error"]["message"]
        process.progress(who)
        process.answer(who)
        await trio.sleep(1)
        calls[1].may_read.set()
        await calls[1].ended.wait()
        heard = [message for message in web.heard if message.get("id") == 3 or "method" in message]
        assert [message.get("error", {}).get("message") for message in heard] == [
            "the answer is lost: too much waits to be read"
        ]
        calls[0].may_read.set()
        await trio.sleep(1)
        assert web.heard[-1]["method"] == "elicitation/create"
        assert web.application.kept.keys() == {"requests"}


async def test_a_client_is_told_that_a_question_of_a_call_that_is_over_is_taken_back(autojump_clock):
    async with in_session() as (server, web, session):
        web.begin(b"", verb="GET", **session)
        call = web.begin({"id": 2, "method": "tools/call", "params": WORK}, **session)
        (await server.called("Ann")).ask("Ann")
        await trio.testing.wait_all_tasks_blocked()
        asked = next(message for message in web.heard if message.get("method") == "elicitation/create")
        web.heard.clear()
        await web.status({"method": "notifications/cancelled", "params": {"requestId": 2}}, **session)
        await call.ended.wait()
        await trio.testing.wait_all_tasks_blocked()
        taken_back = {"requestId": asked["id"], "reason": "the call is over"}
        assert web.heard == [{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": taken_back}]


async def test_a_session_that_listens_is_told_of_changes(autojump_clock):
    async with served() as (server, web):
        web.begin(b"", verb="GET", **await web.opened())
        await trio.sleep(1)
        server.tools["more"] = echo
        await web.gateway.supervisor.list_tools(refresh=True)
        await trio.sleep(1)
        assert web.heard[-1]["method"] == "notifications/tools/list_changed"


async def test_a_server_is_told_why_a_client_takes_a_call_back(autojump_clock):
    async with in_session() as (server, web, session):
        for request_id, reason in ((2, "too dear"), (3, 7), (4, None)):
            web.begin({"id": request_id, "method": "tools/call", "params": WORK}, **session)
            process = await server.called("Ann")
            cancelled = {"requestId": request_id} | ({} if reason is None else {"reason": reason})
            await web.status({"method": "notifications/cancelled", "params": cancelled}, **session)
            await trio.testing.wait_all_tasks_blocked()
            process.calls.clear()
        assert process.cancelled == ["too dear", "the caller gave up", "the caller gave up"]
        web.begin(b"", verb="GET", **session)
        process.say_json(method="notifications/message", params={"level": "error", "data": "perhaps of these"})
        await trio.testing.wait_all_tasks_blocked()
        assert web.heard[-1]["params"]["data"] == "perhaps of these"
