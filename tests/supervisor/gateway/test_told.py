"""What becomes of requests that fail, and of those that come while the gateway ends. In memory, virtual time."""

from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing
from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND, REQUEST_TIMEOUT

from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.supervisor import NotApproved, ServerDown, open_supervisor
from mcp_nursery.supervisor.cli.failures import message_of
from mcp_nursery.supervisor.errors import BreakerOpen, error_content
from mcp_nursery.supervisor.gateway import gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest, to_client_error
from mcp_nursery.supervisor.gateway.clients import ClientSession
from mcp_nursery.supervisor.status import ServerState
from mcp_nursery.supervisor.testing import Life, Refusal, ScriptedServer

from ...lab.gateway_clients import AskingServer
from ...lab.gateway_clients import served as asking
from ...lab.specs import spec

OLD, NEW = "2025-11-25", "2026-07-28"


async def hang(arguments):
    await trio.sleep(arguments.get("seconds", 1000))
    return "at last"


async def refuse(arguments):
    await trio.lowlevel.checkpoint()
    raise Refusal(-32050, "not today", {"why": "rain"})


async def tell(method, params):
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {"state": ServerState.FAILED, "error": "no such command"},
            "notes: the server is failed (no such command); correct its command or settings where it is configured, "
            "then start it again from there",
        ),
        (
            {"state": ServerState.FAILED, "revived_by_calls": True},
            "notes: the server is failed; the next call of one of its tools starts it again",
        ),
        ({"state": ServerState.FAILED, "retry_in": 200}, "notes: the server is failed, restarts in 200.0 s"),
        ({"state": ServerState.STOPPED}, "notes: the server is stopped; start the gateway again"),
        (
            {"state": ServerState.NEEDS_AUTH, "error": "HTTP 401 Unauthorized; mcp-nursery login notes"},
            "notes: the server is needs_auth (HTTP 401 Unauthorized; mcp-nursery login notes)",
        ),
        ({"state": ServerState.WAITING, "retry_in": 2}, "notes: the server is waiting, restarts in 2.0 s"),
    ],
)
def test_a_client_s_user_is_told_what_he_can_do(facts, said):
    """He has no program that could reconnect a server."""
    assert to_client_error(ServerDown(server="notes", **facts)).message == said
    assert "reconnect" not in error_content(ServerDown(server="notes", **facts))


def test_who_cannot_begin_is_not_told_to_call():
    """There is no tool that he could call."""
    error = ServerDown(server="notes", state=ServerState.FAILED, revived_by_calls=True, retry_in=300)
    assert to_client_error(error, begun=False).message == (
        "notes: the server is failed, restarts in 300.0 s; correct its command or settings where it is configured, "
        "then start it again from there"
    )


def test_a_client_s_user_is_told_nothing_of_the_library():
    errors = [
        BreakerOpen(server="s", tool="t", failures=3, retry_in=2),
        NotApproved("s", "t", "nobody to ask", advice="open_supervisor was given no approve="),
    ]
    for error in errors:
        for words in (to_client_error(error).message, error_content(error), message_of(error)):
            assert error.advice
            assert error.advice not in words


@asynccontextmanager
async def served(*lives, gate=10, connected=True, hold=20, **options):
    """A gateway, and `ask(method, **params)` of a client."""
    script = ScriptedServer(*lives, tools={"hang": hang, "refuse": refuse}, prompts={"hang": hang})
    async with (
        open_supervisor([spec(script, **options)], gate=gate, callbacks=gateway_callbacks()) as supervisor,
        open_gateway(supervisor, hold=hold) as gateway,
        trio.open_nursery() as nursery,
    ):
        if connected:
            await supervisor.wait_connected("lab")

        async def ask(method, *, modern=True, **params):
            session = None if modern else ClientSession(print, nursery, "lab")
            meta = {"io.modelcontextprotocol/protocolVersion": NEW} if modern else {}
            meta |= {"io.modelcontextprotocol/clientCapabilities": {}} if modern else {}
            incoming = ClientRequest(1, method, params, meta, tell, principal="ann", session=session)
            return await gateway.answer(incoming, gateway.view("lab"), NEW if modern else OLD)

        yield script, gateway, ask
        nursery.cancel_scope.cancel()


async def told(ask, *args, **params):
    with pytest.raises(JsonRpcError) as refused:
        await ask(*args, **params)
    return refused.value


async def test_an_error_of_a_server_is_its_own(autojump_clock):
    async with served() as (_, _, ask):
        error = await told(ask, "tools/call", name="refuse")
        assert (error.code, error.message, error.data) == (-32050, "not today", {"why": "rain", "delivery": "answered"})


async def test_what_may_have_been_done_is_told(autojump_clock):
    """As an error of the protocol, or where there is one for that, as a result that the model reads."""
    async with served(call_timeout=5) as (_, _, ask):
        error = await told(ask, "prompts/get", name="hang")
        assert (error.code, error.data) == (REQUEST_TIMEOUT, {"delivery": "unknown"})
        for modern in (True, False):
            result = await ask("tools/call", name="hang", modern=modern)
            assert result["isError"]
            assert result.get("resultType") == ("complete" if modern else None)


async def test_when_to_try_again_is_told(autojump_clock):
    async with served(hold=0) as (script, _, ask), trio.open_nursery() as nursery:
        results, lost = [], []

        async def call():
            results.append(await ask("tools/call", name="hang"))

        async def get():
            lost.append(await told(ask, "vendor/method"))

        script.hang()
        nursery.start_soon(call)
        nursery.start_soon(get)
        await trio.testing.wait_all_tasks_blocked()
        script.crash()
        await trio.testing.wait_all_tasks_blocked()
        assert "The server restarts in 2 s." in results[0]["content"][0]["text"]
        assert lost[0].data == {"delivery": "unknown", "retryIn": 2}
        error = await told(ask, "prompts/get", name="hang")
        assert (error.code, error.data["state"], error.data["delivery"]) == (INTERNAL_ERROR, "waiting", "not_sent")
        assert 0 < error.data["retryIn"] <= 2


async def test_each_era_has_methods_of_its_own(autojump_clock):
    async with served() as (_, _, ask):
        assert (await told(ask, "logging/setLevel", level="info")).code == METHOD_NOT_FOUND
        assert (await told(ask, "subscriptions/listen", modern=False, notifications={})).code == METHOD_NOT_FOUND
        assert (await told(ask, "vendor/method")).code == METHOD_NOT_FOUND  # the server's word


async def test_it_drains(autojump_clock):
    """What is under way has its time, and a stream of news is no such thing."""
    async with served() as (_, gateway, ask), trio.open_nursery() as nursery:
        nursery.start_soon(partial(ask, "subscriptions/listen", notifications={"toolsListChanged": True}))
        for seconds in (3, 6):
            nursery.start_soon(partial(ask, "tools/call", name="hang", arguments={"seconds": seconds}))
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await gateway.drain(5)
        assert trio.current_time() - began == 5
        assert "takes no more requests" in (await told(ask, "ping")).message
        await gateway.drain(5)
        assert trio.current_time() - began == 6
        nursery.cancel_scope.cancel()


async def test_it_is_settled_when_first_attempts_are(autojump_clock):
    lives = Life(connects_after=3, dies_after=10), Life(connects_after=5)
    async with served(*lives, gate=0, connected=False) as (_, gateway, _):
        settled = []
        for _ in range(6):
            await trio.sleep(2.5)
            settled.append(gateway.is_settled)
        assert settled == [False] + [True] * 5


async def test_an_older_server_is_given_nothing_of_the_newer_protocol(autojump_clock):
    server = AskingServer()
    async with asking(server) as (_, _, make, nursery):
        ann, more = make("Ann", session=False), {"inputResponses": {"x": {"action": "accept", "content": {}}}}
        nursery.start_soon(partial(ann.request, "tools/call", name="work", arguments={"who": "Ann"}, **more))
        assert (await server.called("Ann")).answers == {}


@pytest.mark.parametrize("session", [True, False])
async def test_clients_that_nobody_knows_are_not_one(autojump_clock, session):
    server = AskingServer()
    async with asking(server, instances="single") as (_, _, make, nursery):
        clients = [make(name, session=session) for name in ("Ann", "Bob")]
        for client in clients:
            nursery.start_soon(client.work)
            process = await server.called(client.name)
        process.ask("Ann")
        await trio.sleep(1)
        assert "several clients" in process.answers["Ann"][0]["error"]["message"]
