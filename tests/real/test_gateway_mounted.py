"""The gateway under a path of another application on Trio, which knows its users by itself. Real sockets."""

import sys
from contextlib import asynccontextmanager
from http import HTTPStatus

import httpx2
import pytest
import trio
from hypercorn.config import Config
from hypercorn.middleware.dispatcher import TrioDispatcherMiddleware  # the other one would make a loop of asyncio
from hypercorn.trio import serve
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from mcp_nursery.supervisor import ServerSpec, StdioTransport, open_supervisor
from mcp_nursery.supervisor.gateway import (
    Access,
    Principal,
    Refused,
    gateway_callbacks,
    open_gateway,
    open_http,
)

from ..lab.processes import LAB
from .test_gateway_access import BOTH, INITIALIZE, all_there

pytestmark = pytest.mark.slow

USERS = {"ann": None, "bob": ["lab/echo"]}


async def by_header(scope):
    """Who a request is of, as this application knows it."""
    name = dict(scope["headers"]).get(b"x-user", b"").decode()
    if name not in USERS:
        raise Refused(HTTPStatus.UNAUTHORIZED, "who are you?")
    return Principal(name, Access(USERS[name]))


async def hello(request):
    return PlainTextResponse("hello")


def in_starlette(application):
    return Starlette(routes=[Route("/hello", hello), Mount("/tools", application)])


def in_dispatcher(application):
    """One that takes the prefix off the path itself."""
    return TrioDispatcherMiddleware({"/tools": application, "/": Starlette(routes=[Route("/hello", hello)])})


MOUNTS = {"starlette": in_starlette, "dispatcher": in_dispatcher}


@asynccontextmanager
async def mounted(how, **options):
    """Where the other application is."""
    lab = ServerSpec("lab", StdioTransport(sys.executable, ["-I", "-S", str(LAB)]))
    config, ended = Config(), trio.Event()
    config.bind, config.graceful_timeout = ["127.0.0.1:0"], 0.1
    async with (
        open_supervisor([lab], callbacks=gateway_callbacks(), template="{server}_{tool}") as supervisor,
        open_gateway(supervisor) as gateway,
        open_http(gateway, **options) as application,
        trio.open_nursery() as nursery,
    ):

        async def run(task_status):
            await serve(MOUNTS[how](application), config, shutdown_trigger=ended.wait, task_status=task_status)

        (place,) = await nursery.start(run)
        yield place, application
        ended.set()


@asynccontextmanager
async def client_of(place, user):
    async with (
        httpx2.AsyncClient(timeout=60, headers={"x-user": user}) as http,
        Client(streamable_http_client(f"{place}/tools/mcp", http_client=http), mode="legacy") as client,
    ):
        yield client


@pytest.mark.parametrize("how", MOUNTS)
async def test_it_serves_under_a_path_the_users_that_its_host_knows(how):
    with trio.fail_after(60):
        async with mounted(how, authenticate=by_header) as (place, application), httpx2.AsyncClient(timeout=60) as http:
            assert (await http.get(f"{place}/hello")).text == "hello"
            assert (await http.get(f"{place}/tools/healthz")).text == "ok"
            refused = await http.post(f"{place}/tools/mcp", headers=BOTH | {"x-user": "eve"}, json=INITIALIZE)
            assert (refused.status_code, refused.text) == (401, "who are you?")
            async with client_of(place, "ann") as ann, client_of(place, "bob") as bob:
                await all_there(ann, {"lab_echo", "lab_crash"})
                assert await all_there(bob, {"lab_echo"}) == {"lab_echo"}
                assert (await bob.call_tool("lab_echo", {"text": "x"})).content[0].text == "x"
                with pytest.raises(MCPError, match="lab_crash"):
                    await bob.call_tool("lab_crash", {})
            begun = await http.post(f"{place}/tools/mcp", headers=BOTH | {"x-user": "ann"}, json=INITIALIZE)
            session = BOTH | {"mcp-session-id": begun.headers["mcp-session-id"]}
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            statuses = [
                (await http.post(f"{place}/tools/mcp", headers=session | {"x-user": user}, json=ping)).status_code
                for user in ("bob", "ann")
            ]
            assert statuses == [404, 200]
            application.end_clients(lambda client: client is not None and client.name == "ann")
            ended = await http.post(f"{place}/tools/mcp", headers=session | {"x-user": "ann"}, json=ping)
            assert ended.status_code == 404
