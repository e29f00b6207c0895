"""Sessions of clients of the MCP SDK that go on when their gateway is killed and started again, and at another replica:
real processes and sockets."""

import json
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from urllib.parse import urlsplit

import httpx2
import pytest
import trio
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from mcp_nursery.supervisor.gateway.auth.bearer_tokens import add_token

from ..lab import PROGRAMS
from ..lab.gateways import served_over_http
from ..lab.processes import LAB
from ..lab.raw_clients import OLD, http_client, opened, request

pytestmark = pytest.mark.slow

LAB_COMMAND = ["--", sys.executable, "-I", "-S", str(LAB)]


def at(url):
    """The options of a gateway that takes the place of another."""
    return "--http", urlsplit(url).netloc


async def echoed(client, text):
    return (await client.call_tool("echo", {"text": text})).content[0].text


async def kill(process):
    process.send_signal(signal.SIGKILL)
    await process.wait()


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_goes_on_when_its_gateway_was_killed_and_is_started_again(mode):
    """W6: also when it was asked for nothing but a key of its own. What a client of 2026-07-28 has is no session."""
    with trio.fail_after(120):
        async with (
            served_over_http(*LAB_COMMAND) as (first, url),
            Client(url, mode=mode) as client,
            AsyncExitStack() as stack,
        ):
            process = first
            assert await echoed(client, "one") == "one"
            for text in ("two", "three"):
                await kill(process)
                process, _ = await stack.enter_async_context(served_over_http(*at(url), *LAB_COMMAND))
                assert await echoed(client, text) == text


async def test_without_a_key_a_session_ends_with_its_gateway():
    with trio.fail_after(120):
        async with (
            served_over_http("--no-resume", *LAB_COMMAND) as (process, url),
            Client(url, mode="legacy") as client,
        ):
            assert await echoed(client, "one") == "one"
            await kill(process)
            async with served_over_http(*at(url), "--no-resume", *LAB_COMMAND):
                with pytest.raises(MCPError):
                    await echoed(client, "two")


class Balancer:
    """A proxy that sends each connection to the next of those behind it."""

    def __init__(self, *behind):
        self.behind = [urlsplit(url).port for url in behind]
        self.taken = dict.fromkeys(self.behind, 0)

    @asynccontextmanager
    async def open(self):
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(partial(trio.serve_listeners, self._serve, [listener]))
            yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
            nursery.cancel_scope.cancel()

    async def _serve(self, client):
        self.behind.append(self.behind.pop(0))
        port = self.behind[0]
        self.taken[port] += 1
        async with client, await trio.open_tcp_stream("127.0.0.1", port) as server, trio.open_nursery() as nursery:
            nursery.start_soon(self._pump, client, server, nursery.cancel_scope)
            nursery.start_soon(self._pump, server, client, nursery.cancel_scope)

    @staticmethod
    async def _pump(source, sink, scope):
        try:
            async for data in source:
                await sink.send_all(data)
        except trio.BrokenResourceError:
            pass  # one of the two was killed
        scope.cancel()


async def test_a_session_is_at_every_replica_and_outlives_the_one_where_it_began(tmp_path, monkeypatch):
    """They have nothing in common but the files of keys and tokens. The second knows a key more."""
    tokens, first, second = (tmp_path / name for name in ("tokens.toml", "first", "second"))
    token = add_token(tokens, "ann")
    keys = ["the key of today, which is long enough", "the key of tomorrow, which is long enough"]
    first.write_text("\n".join(keys[:1]))
    second.write_text("\n".join(keys))
    for file in (first, second):
        file.chmod(0o600)
    served = partial(served_over_http, "--token-file", str(tokens), "--replica-key")
    headers = {"authorization": f"Bearer {token}", "connection": "close"}  # each request is a connection of its own
    with trio.fail_after(120):
        async with served(str(first), *LAB_COMMAND) as (process, one):
            monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
            async with served(str(second), *LAB_COMMAND) as (_, two):
                balancer = Balancer(one, two)
                async with (
                    balancer.open() as url,
                    httpx2.AsyncClient(headers=headers, timeout=60) as http,
                    Client(streamable_http_client(url, http_client=http), mode="legacy") as client,
                ):
                    for number in range(6):
                        assert await echoed(client, str(number)) == str(number)
                    assert all(balancer.taken.values())
                    await kill(process)
                    balancer.behind.remove(urlsplit(one).port)
                    for number in range(3):
                        assert await echoed(client, str(number)) == str(number)


@pytest.mark.parametrize("how", ["restart", "replica"])
async def test_subscriptions_go_on_where_a_session_does(tmp_path, monkeypatch, database, how):
    """At the gateway that is started again with its state file, and at a replica with the same database."""
    note = tmp_path / "note"
    note.write_text("one")
    key = tmp_path / "key"
    key.write_text("a key that is long enough for ids")
    key.chmod(0o600)
    library = [sys.executable, str(PROGRAMS / "nursery_library.py"), "stdio"]
    state = ["--state", str(tmp_path / "state.sqlite3") if how == "restart" else database]
    options = [*state, "--replica-key", str(key), "--env", f"NOTE={note}", "--", *library]
    with trio.fail_after(120):
        async with AsyncExitStack() as stack:
            process, url = await stack.enter_async_context(served_over_http(*options))
            client = await opened(await stack.enter_async_context(http_client(url, OLD)), OLD)
            for number, uri in enumerate(("note://file", "note://today"), 2):
                (said,) = await client.ask(request(OLD, number, "resources/subscribe", uri=uri))
                assert "result" in json.loads(said)
            await client.ask(request(OLD, 4, "resources/unsubscribe", uri="note://today"))
            if how == "restart":
                await kill(process)
                await stack.enter_async_context(served_over_http(*at(url), *options))
            else:
                monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
                _, there = await stack.enter_async_context(served_over_http(*options))
                await kill(process)
                session, client = client.session, await stack.enter_async_context(http_client(there, OLD))
                client.session = session
            nursery = await stack.enter_async_context(trio.open_nursery())
            await nursery.start(client.listen)
            await client.until(updated)  # it may have changed meanwhile
            client.unasked.clear()
            for number in count(5):  # until the server has begun to listen
                await client.ask(request(OLD, number, "tools/call", name="write", arguments={"text": "two"}))
                with trio.move_on_after(0.2):
                    await client.until(updated)
                    break
            nursery.cancel_scope.cancel()


def updated(message):
    return message.get("method") == "notifications/resources/updated" and message["params"] == {"uri": "note://file"}


async def test_a_session_that_was_ended_at_one_replica_goes_on_at_no_other(tmp_path, database):
    key = tmp_path / "key"
    key.write_text("a key that is long enough for ids")
    key.chmod(0o600)
    options = ["--state", database, "--replica-key", str(key), *LAB_COMMAND]
    with trio.fail_after(120):
        async with (
            served_over_http(*options) as (_, one),
            served_over_http(*options) as (_, two),
            http_client(one, OLD) as client,
            http_client(two, OLD) as there,
        ):
            await opened(client, OLD)
            there.session = client.session
            await there.ask(request(OLD, 2, "ping"))
            async with trio.open_nursery() as nursery:  # its stream there ends
                await nursery.start(there.listen)
                await client.end()
            with pytest.raises(AssertionError):
                await there.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')
