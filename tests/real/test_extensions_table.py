"""The table of extensions: in front of one server a host sees, and shows the server, the same through each front of a
gateway as directly, in both eras. What may differ stands in the table.

Gateways and servers are in this process, and speak over pipes and loopback. `test_lossless` and
`test_told_capabilities` have the processes.
"""

import json
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import frozen

from mcp_nursery.actors.extensions import APPS, OFFERED, SKILLS, TASKS
from mcp_nursery.supervisor import HttpTransport, ServerSpec
from mcp_nursery.supervisor.gateway import gateway_callbacks
from mcp_nursery.supervisor.gateway.views.shown_uris import qualify

from ..lab.gateways import served
from ..lab.raw_clients import NEW, OLD, answer_in, http_client, piped_client, request
from ..lab.scripted_http import ScriptedHttp
from ..lab.skills import GIT, entry, main
from .test_lossless import assert_same

VENDOR = "com.example/x"
PAGE, SKILL = "ui://view.html", f"{GIT}/SKILL.md"
SAID = {"deep": [1, None], "_meta": {"com.example/more": {"a": 1}}}
"""Members of a message that nobody knows."""
OF_GIT = entry(GIT, {"SKILL.md": main("git-workflow")}, more=1)
UI = {"ui": {"resourceUri": PAGE, "visibility": ["app"]}}
QUESTION = {"method": "com.example/ask", "params": SAID}
TASK = {"taskId": "t-1", "status": "input_required", "ttlMs": 1000, "new": [1]}
ALL_OF = {"tools/list": "tools", "skills/list": "skills"}
"""The entries in answers to lists, which `/mcp` makes of those of all servers."""


@frozen
class Extension:
    """An extension as a server and a host speak it."""

    identifier: str
    server: dict[str, Any]
    """The settings that the server declares."""
    host: dict[str, Any]
    """The settings that the host declares."""
    requests: tuple[tuple[str, dict[str, Any]], ...]
    """The requests of the host."""
    answers: dict[str, dict[str, Any]]
    """The results of the server, and errors with their code, by the method or by the tool that is called."""
    other: dict[str, Any] | None
    """The settings that another server at `/mcp` declares; None: it has no extension."""
    merged: dict[str, Any]
    """The settings that `/mcp` declares for both."""
    tools: tuple[dict[str, Any], ...] = ()
    """The tools of the server besides `do`, which a page calls by the names that the server has for them."""
    asks: bool = False
    """True if a call of `do` asks a question of the extension."""


TABLE = [
    Extension(
        APPS,
        server={"same": [1], "differs": 1},
        host={"mimeTypes": ["text/html;profile=mcp-app"], "more": 1},
        requests=(
            ("tools/list", {}),
            ("tools/call", {"name": "do", "arguments": {}}),
            ("resources/read", {"uri": PAGE}),
            ("tools/call", {"name": "refresh", "arguments": {"by": "page"}}),
        ),
        answers={
            "do": {"content": [], "_meta": {"ui": {"resourceUri": PAGE}, "ui/resourceUri": PAGE}},
            "refresh": {"content": [], "structuredContent": {"fresh": True}},
            "resources/read": {"contents": [{"uri": PAGE, "text": "<p>", "_meta": {"ui": {}}}]},
        },
        other={"same": [1], "differs": 2},
        merged={"same": [1]},
        tools=({"name": "refresh", "inputSchema": {"type": "object"}, "_meta": UI},),
    ),
    Extension(
        SKILLS,
        server={"directoryRead": True, "same": [1], "differs": 1},
        host={"more": [1]},
        requests=(
            ("skills/list", {}),
            ("skills/get", {"uri": SKILL}),
            ("resources/directory/read", {"uri": GIT}),
            ("resources/read", {"uri": SKILL}),
        ),
        answers={
            "skills/list": {"skills": [OF_GIT]},
            "skills/get": {"skill": OF_GIT, **SAID},
            "resources/directory/read": {"resources": [{"uri": SKILL, "name": "SKILL.md"}], **SAID},
            "resources/read": {"contents": [{"uri": SKILL, "text": main("git-workflow")}]},
        },
        other={"same": [1], "differs": 2},
        merged={"same": [1], "directoryRead": True},
    ),
    Extension(
        TASKS,
        server={"own": 1},
        host={"more": [1]},
        requests=(
            ("tools/call", {"name": "do", "arguments": {}}),
            ("tasks/get", {"taskId": "t-1"}),
            ("tasks/update", {"taskId": "t-1", "inputResponses": {"k": {"action": "accept"}}}),
            ("tasks/cancel", {"taskId": "t-1", "deep": [1, None]}),
        ),
        answers={
            "do": {"resultType": "task", **TASK},
            "tasks/get": {**TASK, "inputRequests": {"k": {"method": "elicitation/create", "params": SAID}}},
            "tasks/update": SAID,
            "tasks/cancel": {"code": -32602, "message": "no such task", "data": {"why": [1]}},
        },
        other={"differs": 2},
        merged={},
    ),
    Extension(
        VENDOR,
        server={"deep": {"a": [1, {}]}, "nothing": None},
        host={"deep": [1]},
        requests=(
            ("com.example/do", {"deep": [1, None], "uri": "x:y"}),
            ("tools/call", {"name": "do", "arguments": {}}),
            ("com.example/fail", {}),
        ),
        answers={
            "com.example/do": {"done": SAID},
            "com.example/fail": {"code": -32021, "message": "no", "data": {"requiredCapabilities": {"extensions": {}}}},
            "do": {"content": [], "com.example/more": SAID},
        },
        other=None,
        merged={"deep": {"a": [1, {}]}, "nothing": None},
        asks=True,
    ),
]


def script(extension, version, extensions, *, has_all=True):
    """What a server says that declares these extensions: see tests/lab/programs/stdio_scripted.py. `has_all`: it has
    also what it declares."""
    modern = version == NEW

    def said(answer):
        kind = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if modern else {}
        what = {"error": answer} if "code" in answer else {"result": kind | answer}
        return json.dumps({"jsonrpc": "2.0", "id": "$ID", **what}).replace('"$ID"', "$ID")

    able = {"capabilities": {"tools": {}, "resources": {}, "extensions": extensions}}
    opening = {"supportedVersions": [NEW]}
    if not modern:
        opening = {"protocolVersion": OLD, "serverInfo": {"name": "s", "version": "1"}}
    answers = {"server/discover" if modern else "initialize": opening | able, "tools/list": {"tools": []}}
    answers |= {"resources/list": {"resources": []}, "resources/templates/list": {"resourceTemplates": []}}
    if has_all:
        tools = [{"name": "do", "inputSchema": {"type": "object"}}, *extension.tools]
        answers |= {"tools/list": {"tools": tools}, **extension.answers}
    steps = {method: [said(answer)] for method, answer in answers.items()}
    if extension.asks and has_all and modern:
        steps["do"] = [said({"resultType": "input_required", "inputRequests": {"k": QUESTION}, "requestState": "s"})]
    elif extension.asks and has_all:
        steps["do"].insert(0, json.dumps({"jsonrpc": "2.0", "id": "q-1", **QUESTION}))
        steps["do"].insert(1, {"await": None})
    return {"calls": steps, "answers": steps}


class Host:
    """A host that declares the extension, and what it hears."""

    def __init__(self, client, version, extension, *, of_all=False):
        self._client, self._version, self._extension, self._of_all = client, version, extension, of_all
        self._able = {"extensions": {extension.identifier: extension.host}}
        self._task = TASK["taskId"]
        """The id of the task, as it is shown."""

    async def talk(self):
        """The extensions that the server declares, and all that comes for each request."""
        if self._version == OLD:
            about = {"protocolVersion": OLD, "capabilities": self._able, "clientInfo": {"name": "raw", "version": "1"}}
            opened = answer_in(await self._client.ask(request(OLD, 1, "initialize", **about)), 1)
            await self._client.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')
        else:
            opened = answer_in(await self._client.ask(self._frame(1, "server/discover", {})), 1)
        heard = []
        for number, (method, params) in enumerate(self._extension.requests, 2):
            frames = await self._client.ask(self._frame(number, method, params), self._answer)
            self._task = json.loads(frames[-1]).get("result", {}).get("taskId", self._task)
            heard.append([self._comparable(method, json.loads(self._own(text))) for text in frames])
        return opened["result"]["capabilities"]["extensions"], heard

    def _frame(self, number, method, params):
        if self._of_all and "uri" in params and method != "com.example/do":
            params = params | {"uri": qualify("one", params["uri"])}
        if self._of_all and params.get("name") == "do":
            params = params | {"name": "one_do"}
        if "taskId" in params:
            params = params | {"taskId": self._task}
        message = json.loads(request(self._version, number, method, **params))
        if self._version == NEW:
            message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = self._able
        return json.dumps(message)

    async def _answer(self, text):
        message = json.loads(text)
        if "id" in message and "method" in message:
            await self._client.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": SAID}))

    def _own(self, text):
        """A frame with the names, URIs and ids that the server has."""
        text = text.replace(self._task, TASK["taskId"])
        if self._of_all:
            for shown, own in (("mcp-server://one/", ""), ("ui://one+", "ui://"), ("one_", "")):
                text = text.replace(f'"{shown}', f'"{own}')
        return text

    def _comparable(self, method, message):
        message.pop("id", None)  # of one hop
        if "result" in message and method in ALL_OF:
            return sorted(message["result"][ALL_OF[method]], key=json.dumps)
        return message


@asynccontextmanager
async def scripted(scripts):
    """Servers with these scripts, and their URLs."""
    servers = [ScriptedHttp(each) for each in scripts]
    async with trio.open_nursery() as nursery:
        yield servers, [await nursery.start(server.serve) for server in servers]
        nursery.cancel_scope.cancel()


def read_by(server, extension):
    """The extensions that a server was told of first, and the messages of the host that it has read."""
    methods = {method for method, _ in extension.requests} - ALL_OF.keys()
    read, first = [], None
    for message in map(json.loads, server.read):
        if message.get("method") in methods or "method" not in message:
            read.append({key: value for key, value in message.items() if key != "id"})
        elif first is None:
            params = message["params"]
            first = params.get("capabilities") or params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    return first["extensions"], read


def with_delivery(heard):
    """The same with the member that a gateway adds to errors."""
    for message in (message for messages in heard for message in messages if "error" in message):
        message["error"]["data"]["delivery"] = "answered"
    return heard


@asynccontextmanager
async def client_of(front, gateway, url, version):
    if front == "serve --":
        async with piped_client(gateway, "one") as client:
            yield client
    else:
        async with http_client(url if front == "/mcp" else f"{url}/one", version) as client:
            yield client


@pytest.mark.parametrize("front", ["serve --", "/mcp/NAME", "/mcp"])
@pytest.mark.parametrize("version", [OLD, NEW], ids=["handshake", "per request"])
@pytest.mark.parametrize("extension", TABLE, ids=[each.identifier for each in TABLE])
async def test_a_host_sees_what_it_sees_directly(extension, version, front):
    host = {extension.identifier: extension.host}
    servers = [script(extension, version, {extension.identifier: extension.server})]
    callbacks, declared = gateway_callbacks(), extension.server
    if front == "serve --":
        callbacks = gateway_callbacks({"extensions": host})
    elif front == "/mcp":
        others = {} if extension.other is None else {extension.identifier: extension.other}
        servers.append(script(extension, version, others, has_all=False))
        declared = extension.merged
    with trio.fail_after(60):
        async with scripted(servers[:1]) as ([server], [url]), http_client(url, version) as client:
            direct = await Host(client, version, extension).talk()
            read = read_by(server, extension)
        async with (
            scripted(servers) as ([server, *_], urls),
            served(
                [ServerSpec(name, HttpTransport(url)) for name, url in zip(("one", "two"), urls, strict=False)],
                callbacks=callbacks,
            ) as (gateway, url),
            client_of(front, gateway, url, version) as client,
        ):
            through = await Host(client, version, extension, of_all=front == "/mcp").talk()
            read_through = read_by(server, extension)
    assert direct[0] == {extension.identifier: extension.server}
    assert through[0] == {extension.identifier: declared}
    assert_same(through[1], with_delivery(direct[1]))
    assert read[0] == host
    # The gateway follows tasks for clients that do not.
    assert read_through[0] == {TASKS: {}, **(host if front == "serve --" else OFFERED)}
    assert_same(read_through[1], read[1])
