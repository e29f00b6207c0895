"""W13: requests of clients that meet a restart of their server are held. In memory, virtual time."""

from contextlib import asynccontextmanager

import pytest
import trio
from mcp_types import INTERNAL_ERROR

from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.supervisor import MemoryStore, open_supervisor
from mcp_nursery.supervisor.gateway import gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import ClientSession
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.gateway_clients import ENVELOPE, NEW, OLD
from ...lab.specs import nothing, spec

REQUESTS = {
    "tools/call": {"name": "work"},
    "prompts/get": {"name": "greet"},
    "resources/read": {"uri": "note://a"},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "greet"},
        "argument": {"name": "who", "value": ""},
    },
    "tools/list": {},
    "vendor/method": {},
}


async def note(_arguments):
    return "text"


def scripted(*lives):
    return ScriptedServer(
        *lives,
        tools={"work": nothing},
        prompts={"greet": note},
        resources={"note://a": note},
        completions={"who": ["you"]},
    )


@asynccontextmanager
async def served(server, state=None, hold=20, **options):
    """Those who ask a gateway: `ask(method, modern=…, view=…, told=…)`."""
    async with (
        open_supervisor(
            [spec(server, **options)], callbacks=gateway_callbacks(), state=state or MemoryStore(), template="{tool}"
        ) as supervisor,
        open_gateway(supervisor, hold=hold) as gateway,
        trio.open_nursery() as nursery,
    ):
        session = ClientSession(print, nursery, "lab")

        async def ask(method, *, modern=True, view="lab", told=None):
            async def notify(_method, params):
                told.append(params)

            meta = (ENVELOPE if modern else {}) | ({} if told is None else {"progressToken": 7})
            params = REQUESTS[method]
            asked = ClientRequest(1, method, params, meta, notify, principal="ann", session=None if modern else session)
            return await gateway.answer(asked, gateway.view(view), NEW if modern else OLD)

        yield ask
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("method", REQUESTS)
async def test_a_request_of_any_kind_is_held(autojump_clock, method, modern):
    server = scripted(Life(dies_after=31, modern=modern), Life(modern=modern, connects_after=1))
    async with served(server) as ask:
        await trio.sleep(32)
        if method == "vendor/method":
            with pytest.raises(JsonRpcError, match="Method not found"):  # by the server
                await ask(method, modern=modern)
        else:
            assert not (await ask(method, modern=modern)).get("isError")
        if method == "tools/list":
            assert (server.starts, trio.current_time()) == ([0], 32), "what is known is listed at once"
        else:
            assert (server.starts, trio.current_time()) == ([0, 32], 33)


@pytest.mark.parametrize("view", ["lab", None])
@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read"])
async def test_its_client_is_told(autojump_clock, method, view, modern):
    """Also where the eras differ, and the gateway holds the call for its client's answers."""
    told = []
    server = scripted(Life(dies_after=1, modern=not modern), Life(refuses="no"), Life(modern=not modern))
    async with served(server) as ask:
        await trio.sleep(2)
        await ask(method, modern=modern, view=view, told=told)
        assert trio.current_time() == 1 + 2 + 5
    assert told == [
        {"progressToken": 7, "progress": progress, "message": f"restarting, attempt {attempt} of 4"}
        for progress, attempt in ((-3, 2), (-2, 3))
    ]


@pytest.mark.parametrize("hold", [20, 4, 0])
async def test_it_is_held_no_longer_than_it_may_be(autojump_clock, hold):
    async with served(scripted(Life(dies_after=1), Life(mute=True)), hold=hold) as ask:
        await trio.sleep(1.5)
        with pytest.raises(JsonRpcError) as refused:
            await ask("prompts/get")
        assert trio.current_time() == 1.5 + hold
        assert (refused.value.code, refused.value.data["delivery"]) == (INTERNAL_ERROR, "not_sent")
        assert refused.value.data["state"] == ("connecting" if hold else "waiting")


async def test_a_server_that_was_never_connected_is_waited_for_as_long(autojump_clock):
    """Its tools are known from an earlier run."""
    store = MemoryStore()
    async with served(scripted(), state=store):
        await trio.sleep(1)
    began = trio.current_time()
    server = scripted(Life(refuses="no"), Life(refuses="no"), Life())
    async with served(server, state=store) as ask:
        assert not (await ask("tools/call")).get("isError")
        assert [at - began for at in server.starts] == [0, 2, 7]


@pytest.mark.parametrize("view", ["lab", None])
async def test_a_tool_that_is_not_known_yet_is_waited_for_as_long(autojump_clock, view):
    """A session that another gateway has begun knows it, and this one had to start its server a second time."""
    server = scripted(Life(refuses="no"), Life())
    async with served(server) as ask:
        await trio.sleep(1)
        assert not (await ask("tools/call", view=view)).get("isError")
        assert (server.starts, trio.current_time()) == ([0, 2], 2)


async def test_the_instance_of_a_session_meets_no_gap_either(autojump_clock):
    server = scripted(Life(), Life(dies_after=31), Life())
    async with served(server, instances="session") as ask:
        await trio.sleep(1)
        assert not (await ask("tools/call", modern=False)).get("isError")
        await trio.sleep(31.5)
        assert not (await ask("tools/call", modern=False)).get("isError")
        assert server.starts == [0, 1, 32.5]
