"""Extensions of the protocol through the gateway: what both sides are told of them, and where their requests go."""

import json
import sys
from contextlib import asynccontextmanager

import pytest
import trio

from mcp_nursery.actors.extensions import APPS, SKILLS, TASK_CHANGED, TASKS
from mcp_nursery.actors.messages import ACKNOWLEDGED
from mcp_nursery.supervisor import HttpTransport, ServerSpec, StdioTransport
from mcp_nursery.supervisor.gateway.upstream import task_streams
from mcp_nursery.supervisor.gateway.views.shown_uris import qualify

from ..lab import PROGRAMS
from ..lab.gateways import served
from ..lab.raw_clients import NEW, OLD, answer_in, http_client, piped_client, request
from ..lab.scripted_http import ScriptedHttp

pytestmark = pytest.mark.slow

VENDOR = "com.example/x"
MINE = {APPS: {"mimeTypes": ["text/html;profile=mcp-app"], "more": 1}, TASKS: {}, VENDOR: {"deep": [1]}}
"""What the client declares."""
TICK = "notifications/com.example/tick"
METHODS = ("skills/list", "skills/get", "resources/directory/read", "tasks/get", "com.example/do")


class Scripted:
    """A server with these extensions, which answers all requests of extensions with its name."""

    def __init__(self, folder, name, version, declared, **options):
        script, self._log = folder / f"{name}.json", folder / f"{name}.log"
        complete = {"resultType": "complete"} if version == NEW else {}
        answers = {method: [_result({"who": name} | complete)] for method in METHODS}
        answers["subscriptions/listen"] = [
            _about_stream(ACKNOWLEDGED, notifications={"taskIds": ["1"]}),
            _about_stream(TASK_CHANGED, taskId="1", status="completed", result={"who": name}),
        ]
        facts = {"capabilities": {"tools": {}, "extensions": declared}}
        if version == NEW:
            caching = {"ttlMs": 0, "cacheScope": "private"} | complete
            answers["server/discover"] = [_result({"supportedVersions": [NEW], **facts, **caching})]
        else:
            info = {"serverInfo": {"name": name, "version": "1"}}
            answers["initialize"] = [_result({"protocolVersion": OLD, **info, **facts})]
        task = {"resultType": "task", "taskId": "1"} if TASKS in declared else {}
        calls = {"do": [_result({"content": [], **complete, **task})]}
        script.write_text(json.dumps({"pages": [[_TOOL]], "calls": calls, "answers": answers}))
        command = [str(PROGRAMS / "stdio_scripted.py"), version, str(script), str(self._log)]
        self.spec = ServerSpec(name, StdioTransport(sys.executable, command), **options)

    def read(self, method):
        """The parameters of the messages with this method that it has read."""
        read = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [each.get("params") for each in read if each.get("method") == method]

    def told(self, method):
        """The extensions that each request of this method has declared to it."""
        params = self.read(method)
        if method == "initialize":
            return [each["capabilities"].get("extensions") for each in params]
        return [each["_meta"]["io.modelcontextprotocol/clientCapabilities"].get("extensions") for each in params]


_TOOL = {"name": "do", "inputSchema": {"type": "object"}}


def _result(result):
    return f'{{"jsonrpc":"2.0","id":$ID,"result":{json.dumps(result)}}}'


def _about_stream(method, **params):
    params = json.dumps(params | {"_meta": {"io.modelcontextprotocol/subscriptionId": 0}}).replace(": 0", ": $ID")
    return f'{{"jsonrpc":"2.0","method":"{method}","params":{params}}}'


class Asking:
    """A client that declares extensions."""

    def __init__(self, client, version):
        self._client, self._version, self._number = client, version, 1

    async def open(self):
        able = {"extensions": MINE}
        if self._version == NEW:
            return (await self("server/discover"))["result"]
        about = {"protocolVersion": OLD, "capabilities": able, "clientInfo": {"name": "raw", "version": "1"}}
        said = answer_in(await self._client.ask(request(OLD, 1, "initialize", **about)), 1)
        await self._client.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')
        return said["result"]

    async def __call__(self, method, on_frame=None, **params):
        self._number += 1
        message = json.loads(request(self._version, self._number, method, **params))
        if self._version == NEW:
            message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = {"extensions": MINE}
        return answer_in(await self._client.ask(json.dumps(message), on_frame), self._number)

    async def who(self, method, **params):
        """The server that has answered, or the code and the message of the error."""
        said = await self(method, **params)
        return said["result"]["who"] if "result" in said else (said["error"]["code"], said["error"]["message"])


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_all_servers_as_one_have_the_extensions_of_each_and_route_their_requests(tmp_path, version):
    extensions = {
        "a": {SKILLS: {"directoryRead": True, "same": [1], "other": 1}, VENDOR: {}},
        "b": {SKILLS: {"same": [1], "other": 2}},
        "c": {TASKS: {}},
        "d": {},
    }
    servers = [Scripted(tmp_path, name, version, said) for name, said in extensions.items()]
    async with served([each.spec for each in servers]) as (_, url), http_client(url, version) as client:
        ask = Asking(client, version)
        with trio.fail_after(60):
            union = (await ask.open())["capabilities"]["extensions"]
            assert union == {SKILLS: {"same": [1], "directoryRead": True}, VENDOR: {}, TASKS: {}}
            for name in "ab":
                assert await ask.who("skills/get", uri=qualify(name, "skill://x/SKILL.md")) == name
            assert await ask.who("resources/directory/read", uri=qualify("a", "skill://x")) == "a"
            assert await ask.who("resources/directory/read", uri="skill://x") == "a"
            lacking = (-32601, "{} does not have this method")
            refused = await ask.who("resources/directory/read", uri=qualify("b", "skill://x"))
            assert refused == (lacking[0], lacking[1].format("b"))
            assert await ask.who("skills/get", uri=qualify("d", "x:y")) == (lacking[0], lacking[1].format("d"))
            code, why = await ask.who("skills/get", uri="skill://x/SKILL.md")
            assert code == -32602
            assert all(qualify(name, "skill://x/SKILL.md") in why for name in "ab")
            task = (await ask("tools/call", name="c_do"))["result"]["taskId"]
            assert await ask.who("tasks/get", taskId=task) == "c"
            assert await ask.who("com.example/do", what=1) == "a"
            assert await ask.who("com.example/do", uri="a:b") == "a"


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_tasks_of_several_servers_are_told_apart(tmp_path, version):
    """But a server of the handshake era that several clients share is not told of tasks."""
    some, more = ({TASKS: {}}, {TASKS: {}, APPS: {}})
    servers = {name: Scripted(tmp_path, name, version, said) for name, said in (("a", some), ("b", more))}
    async with (
        served([each.spec for each in servers.values()]) as (gateway, url),
        http_client(url, version) as client,
        http_client(f"{url}/a", version) as client_of_one,
    ):
        ask, ask_one = Asking(client, version), Asking(client_of_one, version)
        with trio.fail_after(60):
            assert (await ask.open())["capabilities"]["extensions"] == {APPS: {}, TASKS: {}}
            assert (await ask.who("tasks/get", taskId="1"))[0] == -32602
            for name in "ab":
                task = (await ask("tools/call", name=f"{name}_do"))["result"]["taskId"]
                assert await ask.who("tasks/get", taskId=task) == name
            assert servers["a"].read("tasks/get")[0]["taskId"] == "1"
            assert (await ask.who("com.example/do"))[0] == -32601
            assert (await ask_one.open())["capabilities"]["extensions"] == some
            assert (await ask_one.who("tasks/get", taskId="1"))[0] == -32602
            task = (await ask_one("tools/call", name="do"))["result"]["taskId"]
            assert await ask_one.who("tasks/get", taskId=task) == "a"
            task = (await ask("tools/call", name="b_do"))["result"]["taskId"]
            if version == NEW:
                assert servers["a"].told("tools/call") == [MINE, MINE]
                await gateway.supervisor.remove_server("b")
                assert (await ask.who("tasks/get", taskId=task))[0] == -32602
                assert (await ask("server/discover"))["result"]["capabilities"]["extensions"] == some
            else:
                offered = {APPS: {"mimeTypes": ["text/html;profile=mcp-app"]}, SKILLS: {}}
                assert servers["a"].told("initialize") == [offered]


@pytest.mark.parametrize("front", ["stdio", "http"])
async def test_a_stream_follows_tasks_of_several_servers(tmp_path, front):
    servers = [Scripted(tmp_path, name, NEW, {TASKS: {}}) for name in "ab"]
    heard, enough = [], trio.CancelScope()

    async def hear(frame):
        heard.append(json.loads(frame))
        if len(heard) == 3:
            enough.cancel()

    async with (
        served([each.spec for each in servers]) as (gateway, url),
        client_of(front, gateway, url, NEW, None) as client,
    ):
        ask = Asking(client, NEW)
        with trio.fail_after(60):
            tasks = {name: (await ask("tools/call", name=f"{name}_do"))["result"]["taskId"] for name in "ab"}
            with enough:
                await ask("subscriptions/listen", hear, notifications={"taskIds": [*tasks.values()]})
    acknowledged, *changed = (each["params"] for each in heard)
    assert sorted(acknowledged["notifications"]["taskIds"]) == sorted(tasks.values())
    assert {each["result"]["who"]: each["taskId"] for each in changed} == tasks


async def test_a_stream_goes_on_though_its_server_ends_it_again_and_again(monkeypatch):
    """Over HTTP, as proxies end those that are silent for long."""
    monkeypatch.setattr(task_streams, "LISTEN_AGAIN", 0.01)
    monkeypatch.setattr(task_streams, "LONGEST_PAUSE", 0.01)
    complete = {"resultType": "complete"}
    caching = {"ttlMs": 0, "cacheScope": "private"} | complete
    hello = {"supportedVersions": [NEW], "capabilities": {"tools": {}, "extensions": {TASKS: {}}}, **caching}
    stream = [_about_stream(ACKNOWLEDGED, notifications={"taskIds": ["1"]}), _about_stream(TASK_CHANGED, taskId="1")]
    results = {
        "server/discover": hello,
        "tools/list": {"tools": [_TOOL], **caching},
        "tasks/get": {"taskId": "1", "status": "working", **complete},
    }
    answers = {method: [_result(result)] for method, result in results.items()}
    begin = [_result({"resultType": "task", "taskId": "1"})]
    script = ScriptedHttp({"calls": {"do": begin}, "answers": answers | {"subscriptions/listen": stream}})
    enough, heard = trio.CancelScope(), []

    async def hear(frame):
        heard.append(json.loads(frame))
        if sum('"subscriptions/listen"' in frame for frame in script.read) > 10:
            enough.cancel()

    async with trio.open_nursery() as nursery:
        server = ServerSpec("a", HttpTransport(await nursery.start(script.serve)))
        async with served([server]) as (_, url), http_client(url, NEW) as client:
            ask = Asking(client, NEW)
            with trio.fail_after(60):
                begun = (await ask("tools/call", name="a_do"))["result"]["taskId"]
                with enough:
                    await ask("subscriptions/listen", hear, notifications={"taskIds": [begun]})
            assert {each["params"]["taskId"] for each in heard[1:]} == {begun}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("own", [{SKILLS: {"a": 1}}, {}])
async def test_an_entry_says_what_its_server_is_told(tmp_path, version, own):
    server = Scripted(tmp_path, "a", version, {SKILLS: {}, APPS: {}}, extensions=own)
    opening = "server/discover" if version == NEW else "initialize"
    async with (
        served([server.spec], extensions={APPS: {}}) as (gateway, url),
        http_client(f"{url}/a", version) as client,
    ):
        ask = Asking(client, version)
        with trio.fail_after(60):
            await ask.open()
            await ask("tools/call", name="do")
        assert server.told(opening) == [own or None]
        assert gateway.supervisor.status_of("a").extensions == tuple(own)
        if version == NEW:
            assert server.told("tools/call") == [own or None]


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_a_host_says_what_its_servers_are_told(tmp_path, version):
    server = Scripted(tmp_path, "a", version, {SKILLS: {}, APPS: {"x": 1}})
    opening = "server/discover" if version == NEW else "initialize"
    host = {APPS: {"mimeTypes": []}, VENDOR: {}}
    async with served([server.spec], extensions=host) as (gateway, _):
        assert server.told(opening) == [host | ({TASKS: {}} if version == NEW else {})]
        assert gateway.supervisor.status_of("a").extensions == (APPS,)


@asynccontextmanager
async def client_of(front, gateway, url, version, server):
    """A client of this server, or of all of them."""
    if front == "stdio":
        async with piped_client(gateway, server) as client:
            yield client
    else:
        async with http_client(url if server is None else f"{url}/{server}", version) as client:
            yield client


@pytest.mark.parametrize("instances", ["shared", "session"])
@pytest.mark.parametrize(("front", "version"), [("stdio", OLD), ("stdio", NEW), ("http", OLD)])
async def test_a_notification_of_a_client_reaches_the_only_server_that_it_sees(tmp_path, front, version, instances):
    """Over HTTP the newer protocol has none."""
    server = Scripted(tmp_path, "a", version, {VENDOR: {}}, instances=instances)
    said = {"deep": [1, None], "_meta": {"more": 1}}

    def tick(**params):
        return json.dumps({"jsonrpc": "2.0", "method": TICK, "params": params})

    async with (
        served([server.spec]) as (gateway, url),
        client_of(front, gateway, url, version, None) as client_of_all,
        client_of(front, gateway, url, version, "a") as client,
    ):
        ask_all, ask = Asking(client_of_all, version), Asking(client, version)
        with trio.fail_after(60):
            await ask_all.open()
            await client_of_all.send(tick(of="all"))
            await ask_all("tools/call", name="a_do")
            await ask.open()
            await ask("tools/call", name="do")
            assert (await ask.who("notifications/cancelled", requestId="sneaked"))[0] == -32601
            for method in ("tools/call", "skills/get"):  # a server may not look for the id
                await client.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": {"name": "sneaked"}}))
            await client.send(tick(**said))
            while not server.read(TICK):
                await ask("tools/call", name="do")
    assert server.read(TICK) == [said]
    methods = ("tools/call", "skills/get", "notifications/cancelled")
    assert "sneaked" not in json.dumps([server.read(method) for method in methods])
