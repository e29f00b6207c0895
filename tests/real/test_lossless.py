"""W3: what a server and a client say to each other with the gateway between them, frame by frame: the same as without
it, but for the progress token and ids, which are of one hop."""

import json
import sys
from contextlib import asynccontextmanager

import pytest
import trio

from mcp_nursery.supervisor import HttpTransport, ServerSpec, StdioTransport
from mcp_nursery.supervisor.gateway.views.shown_uris import qualify

from ..lab import PROGRAMS
from ..lab.gateways import PROGRAM, served, served_over_http
from ..lab.raw_clients import NEW, OLD, exact, http_client, opened, piped_client, stdio_client
from ..lab.scripted_http import ScriptedHttp

pytestmark = pytest.mark.slow

ODD = (
    '{"above53":9007199254740993,"above64":18446744073709551617,"below":-36893488147419103233,"long":%s,'
    '"one":1,"float":1.0,"small":1e-7,"zero":-0.0,"digits":0.30000000000000004,"nothing":null,"true":true,'
    r'"nul":"a\u0000b","separators":"\u2028\u2029\u0085","pair":"\ud83d\ude00","bidi":"\u202e\ufeff\uffff",'
    r'"":"no name","\u0000":"nul","__proto__":{"a":1},"deep":[[[[[{}]]]],{},null,[]]}' % ("12345678901" * 20)
)
PLAIN = '{"one":1,"float":1.0,"nothing":null,"text":"x"}'
ICONS = '[{"src":"data:image/png;base64,AA==","mimeType":"image/png","sizes":["any"],"theme":"dark","vendor":1}]'
CAPABILITIES = (
    '{"tools":{"listChanged":true,"vendor":1},"prompts":{"listChanged":true},"resources":{"subscribe":true},"logging":{},'
    f'"completions":{{}},"experimental":{{"com.example/x":{ODD}}},"extensions":{{"com.example/ui":{ODD}}},"vendor":{ODD}}}'
)
INFO = f'{{"name":"odd","title":"Odd","version":"1","icons":{ICONS},"websiteUrl":"https://x.example","vendor":{ODD}}}'
META = f'{{"com.example/a":{ODD},"com.example/nothing":null}}'
TAIL = f'"_meta":{META},"vendor":{ODD}'
TOOL = (
    f'{{"name":"odd","title":"Odd","description":"d","icons":{ICONS},"inputSchema":{{"type":"object","x-ui":{ODD},'
    '"properties":{"n":{"type":"integer","maximum":18446744073709551617,"default":null}}},"annotations":{"vendorHint":1},'
    f'"execution":{{"taskSupport":"optional","vendor":1}},{TAIL}}}'
)
OTHERS = ",".join(f'{{"name":"{name}","inputSchema":{{"type":"object"}}}}' for name in ("asks", "fails", "new"))
PROMPT = f'{{"name":"odd","arguments":[{{"name":"a","vendor":{ODD}}}],"icons":{ICONS},{TAIL}}}'
RESOURCE = f'{{"uri":"odd://a","name":"a","size":9007199254740993,"icons":{ICONS},"annotations":{{"vendor":1}},{TAIL}}}'
TEMPLATE = f'{{"uriTemplate":"odd://{{x}}","name":"t","icons":{ICONS},{TAIL}}}'
BLOCKS = (
    f'[{{"type":"text","text":"\\ud83d\\ude00\\u2028","annotations":{{"vendor":{ODD}}},{TAIL}}},'
    f'{{"type":"com.example/hologram","beam":{ODD}}},{{"type":"resource_link","uri":"odd://a","name":"a",{TAIL}}}]'
)


def result(body, modern, **cached):
    kind = '"resultType":"complete",' + ('"ttlMs":12,"cacheScope":"public","vendorHint":1,' if cached else "")
    return f'{{"jsonrpc":"2.0","id":$ID,"result":{{{kind if modern else ""}{body}}}}}'


def script(version):
    """What the server says, by method: see tests/lab/programs/stdio_scripted.py."""
    modern = version == NEW
    about = f'"progress":1,"total":3.0,"message":"m",{TAIL}'
    progress = f'{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":$TOKEN,{about}}}}}'
    log = f'{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"error","data":{ODD},{TAIL}}}}}'
    tick = f'{{"jsonrpc":"2.0","method":"notifications/com.example/tick","params":{ODD}}}'
    error = f'{{"jsonrpc":"2.0","id":$ID,"error":{{"code":-32050,"message":"no","data":{ODD}}}}}'
    question = f'{{"jsonrpc":"2.0","id":"%s","method":"%s","params":{{"message":"?","requestedSchema":{ODD},{TAIL}}}}}'
    ask, done = [question % ("v-1", "com.example/ask"), {"await": None}], result(f'"content":{BLOCKS},{TAIL}', modern)
    elicit = [question % ("q-1", "elicitation/create"), {"await": None}]
    calls = {
        "odd": [progress, log, tick, progress, done],
        "asks": [*([] if modern else [*elicit, *ask]), done],
        "fails": [progress, error],
    }
    if modern:
        asked = f'"inputRequests":{{"k":{{"method":"elicitation/create","params":{{"message":"?",{TAIL}}}}}}}'
        calls["asks"] = [done.replace('"complete"', '"input_required"').replace('"content"', f'{asked},"content"')]
        calls["new"] = [done.replace('"complete"', '"com.example/new"')]
    facts = f'"capabilities":{CAPABILITIES},"instructions":"be \\u2028 odd",{TAIL}'
    meta = META[:-1] + f',"io.modelcontextprotocol/serverInfo":{INFO}}}'
    discovered = facts.replace(META, meta)
    answers = {
        "tools/list": [result(f'"tools":[{TOOL},{OTHERS}],{TAIL}', modern, cached=True)],
        "prompts/list": [result(f'"prompts":[{PROMPT}],{TAIL}', modern, cached=True)],
        "resources/list": [result(f'"resources":[{RESOURCE}],{TAIL}', modern, cached=True)],
        "resources/templates/list": [result(f'"resourceTemplates":[{TEMPLATE}],{TAIL}', modern, cached=True)],
        "resources/read": [result(f'"contents":[{{"uri":"odd://a","text":"x",{TAIL}}}],{TAIL}', modern, cached=True)],
        "completion/complete": [result(f'"completion":{{"values":["a"],"total":1,{TAIL}}},{TAIL}', modern)],
        "com.example/do": [result(f'"done":{ODD},{TAIL}', modern)],
        "com.example/fail": [error],
    }
    answers["prompts/get"] = [result(f'"messages":[{{"role":"user","content":{BLOCKS}}}],{TAIL}', modern)]
    if modern:
        answers["server/discover"] = [result(f'"supportedVersions":["{NEW}"],{discovered}', modern=True, cached=True)]
    else:
        hello = f'"protocolVersion":"{OLD}","serverInfo":{INFO},{facts}'
        answers["initialize"] = [result(hello, modern=False)]
        answers["logging/setLevel"] = [result("", modern=False)]
    return {"pages": [[]], "calls": calls, "answers": answers}


TRACE = f"{'a' * 32}-{'b' * 16}"
CLIENT = f'{{"name":"raw","version":"1","vendor":{PLAIN}}}'
ABLE = f'{{"elicitation":{{"form":{{}}}},"extensions":{{"com.example/ui":{PLAIN}}},"com.example/ask":{{}}}}'


def request(number, method, body, version, token=None):
    """A request of the client's, as text."""
    meta = [
        f'"com.example/m":{ODD}',
        '"com.example/nothing":null',
        f'"traceparent":"00-{TRACE}-01"',
    ]
    if token is not None:
        meta.append(f'"progressToken":{token}')
    if version == NEW:
        meta += [
            f'"io.modelcontextprotocol/protocolVersion":"{NEW}"',
            f'"io.modelcontextprotocol/clientInfo":{CLIENT}',
            f'"io.modelcontextprotocol/clientCapabilities":{ABLE}',
            '"io.modelcontextprotocol/logLevel":"debug"',
        ]
    params = f'{{{body}{"," if body else ""}"_meta":{{{",".join(meta)}}}}}'
    return f'{{"jsonrpc":"2.0","id":{number},"method":"{method}","params":{params}}}'


def requests(version):
    """All that the client asks."""
    bodies = [
        ("tools/list", ""),
        ("prompts/list", f'"vendor":{ODD}'),
        ("resources/list", ""),
        ("resources/templates/list", ""),
        ("resources/read", f'"uri":"odd://a","vendor":{ODD}'),
        ("prompts/get", f'"name":"odd","arguments":{{"a":"\\u0000\\u2028"}},"vendor":{ODD}'),
        (
            "completion/complete",
            '"ref":{"type":"ref/prompt","name":"odd","v":1},"argument":{"name":"a","value":"\\u2028"}',
        ),
        ("com.example/do", f'"what":{ODD}'),
        ("com.example/fail", ""),
        ("tools/call", f'"name":"odd","arguments":{ODD},"vendor":{ODD}'),
        ("tools/call", '"name":"asks","arguments":{}'),
        ("tools/call", f'"name":"fails","arguments":{{"deep":{ODD}}}'),
    ]
    if version == NEW:
        bodies.append(("tools/call", '"name":"new","arguments":{}'))
    tokens = {9: '"tok\\u2028"', 11: "9007199254740993"}
    for index, (method, body) in enumerate(bodies):
        yield request(index + 10, method, body, version, tokens.get(index))


async def talk(client, version):
    """Say all there is to say; what was heard in answer to each request, as values."""
    heard = []

    async def answer(text):
        message = json.loads(text)
        if "id" in message and "method" in message:
            assert message["method"] in ("elicitation/create", "com.example/ask")
            await client.send(
                f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},"result":{{"action":"accept","content":{ODD},{TAIL}}}}}'
            )

    async def ask(frame):
        with trio.fail_after(30):
            heard.append([exact(text) for text in await client.ask(frame, answer)])

    if version == OLD:
        body = f'"protocolVersion":"{OLD}","capabilities":{ABLE},"clientInfo":{CLIENT}'
        await ask(request(1, "initialize", body, version))
        await client.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')
    else:
        await ask(request(1, "server/discover", "", version))
    for frame in requests(version):
        await ask(frame)
    return heard


def on_one_hop(message):
    """A frame without what is of one hop."""
    message = {key: value for key, value in message.items() if key != "id" or "method" not in message}
    params = message.get("params")
    if isinstance(params, dict):
        params.pop("progressToken", None)
        if isinstance(params.get("_meta"), dict):
            params["_meta"].pop("progressToken", None)
            message["params"] = {key: value for key, value in params.items() if key != "_meta" or value}
    return message


def comparable(heard):
    return [[on_one_hop(message) for message in messages] for messages in heard]


def read_by_server(lines):
    """What the server read of the client's own: neither what opens a connection nor what we list ourselves."""
    frames = [exact(line) for line in lines if "above64" in line]
    return [on_one_hop(frame) for frame in frames if frame.get("method") not in ("initialize", "server/discover")]


def serving(tmp_path, version, name):
    path, log = tmp_path / "script.json", tmp_path / f"{name}.log"
    path.write_text(json.dumps(script(version)))
    return [sys.executable, str(PROGRAMS / "stdio_scripted.py"), version, str(path), str(log)], log


@asynccontextmanager
async def through(front, command, version):
    if front == "stdio":
        async with stdio_client([PROGRAM, "serve", "--", *command]) as client:
            yield client
    else:
        async with served_over_http("--", *command) as (_, url), http_client(url, version) as client:
            yield client


def assert_same(one, other):
    """Two values are the same; what differs is named by its place."""
    found = [f"{where}: {here!s:.300} | {there!s:.300}" for where, here, there in differences(one, other)]
    assert not found, "\n".join(found)


def differences(one, other, where=""):
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from differences(one.get(key, "<absent>"), other.get(key, "<absent>"), f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{where}[{index}]")
    elif type(one) is not type(other) or one != other:
        yield where, one, other


@pytest.mark.parametrize("front", ["stdio", "http"])
@pytest.mark.parametrize("version", [OLD, NEW])
async def test_frames_are_the_same_directly_and_through(tmp_path, version, front):
    direct_command, direct_log = serving(tmp_path, version, "direct")
    command, log = serving(tmp_path, version, "through")
    async with stdio_client(direct_command) as client:
        direct = await talk(client, version)
    async with through(front, command, version) as client:
        heard = await talk(client, version)
    assert_lossless(heard, direct)
    assert_same(*(read_by_server(each.read_text().split("\n")) for each in (log, direct_log)))


def assert_lossless(heard, direct):
    progress = [message for messages in heard for message in messages if "progress" in message.get("method", "")]
    assert [each["params"]["progressToken"] for each in progress] == ["tok\u2028"] * 2 + [9007199254740993]
    assert_same(comparable(heard), [list(map(with_delivery, messages)) for messages in comparable(direct)])


def with_delivery(message):
    """An answer as a gateway passes it: an error says that the server may have acted, where its data has room."""
    error = message.get("error")
    if error is None or not isinstance(data := error.get("data", {}), dict):
        return message
    return {**message, "error": {**error, "data": {**data, "delivery": "answered"}}}


@asynccontextmanager
async def through_here(front, spec, version):
    """A client of a gateway in this loop."""
    async with served([spec], only=spec.name) as (gateway, url):
        if front == "stdio":
            async with piped_client(gateway, spec.name) as client:
                yield client
        else:
            async with http_client(url, version) as client:
                yield client


@asynccontextmanager
async def remote(version):
    """The server over HTTP, and its URL."""
    server = ScriptedHttp(script(version))
    async with trio.open_nursery() as nursery:
        yield server, await nursery.start(server.serve)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("front", ["stdio", "http"])
@pytest.mark.parametrize("version", [OLD, NEW])
async def test_frames_of_a_remote_server_are_the_same_directly_and_through(version, front):
    async with remote(version) as (direct_server, url), http_client(url, version) as client:
        direct = await talk(client, version)
    async with (
        remote(version) as (server, url),
        through_here(front, ServerSpec("odd", HttpTransport(url)), version) as client,
    ):
        heard = await talk(client, version)
    assert_lossless(heard, direct)
    assert_same(read_by_server(server.read), read_by_server(direct_server.read))


@pytest.mark.parametrize("front", ["stdio", "http"])
@pytest.mark.parametrize("version", [OLD, NEW])
async def test_frames_are_the_same_directly_and_through_two_gateways(tmp_path, version, front):
    """Between which the server's own era is spoken: the newer one has no questions of vendors."""
    direct_command, direct_log = serving(tmp_path, version, "direct")
    command, log = serving(tmp_path, version, "through")
    async with stdio_client(direct_command) as client:
        direct = await talk(client, version)
    async with (
        served_over_http("--", *command) as (_, url),
        through_here(front, ServerSpec("odd", HttpTransport(url), protocol=version), version) as client,
    ):
        heard = await talk(client, version)
    assert_lossless(heard, direct)
    assert_same(*(read_by_server(each.read_text().split("\n")) for each in (log, direct_log)))


LISTS = {"tools/list": "tools", "prompts/list": "prompts", "resources/list": "resources"}
LISTS["resources/templates/list"] = "resourceTemplates"


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_lists_of_all_servers_differ_in_names_and_uris_alone(tmp_path, version):
    command, _ = serving(tmp_path, version, "log")
    spec = ServerSpec("one", StdioTransport(command[0], command[1:]))
    async with (
        served([spec]) as (_, url),
        http_client(f"{url}/one", version) as client,
        http_client(url, version) as every,
    ):
        await opened(client, version)
        await opened(every, version)
        for number, (method, key) in enumerate(LISTS.items(), 10):
            [own, *_] = exact((await client.ask(request(number, method, "", version)))[-1])["result"][key]
            [*_, listed] = exact((await every.ask(request(number, method, "", version)))[-1])["result"][key]  # sorted
            if key in ("tools", "prompts"):
                assert listed.pop("name") == f"one_{own.pop('name')}"
            else:
                uri = "uri" if key == "resources" else "uriTemplate"
                assert listed.pop(uri) == qualify("one", own.pop(uri))
            assert_same(listed, own)


def to_all(text):
    """A client's frame for the view of all servers, of which `one` is the only one."""
    message = json.loads(text)
    params = message.get("params", {})
    for each in (params, params.get("ref", {})):
        if "name" in each:
            text = text.replace(f'"name":"{each["name"]}"', f'"name":"one_{each["name"]}"', 1)
        if "uri" in each:
            text = text.replace(each["uri"], qualify("one", each["uri"]), 1)
    return text


def to_one(text):
    """A frame of the view of all servers, as the server itself says it."""
    return text.replace(qualify("one", "odd:"), "odd:")


class ClientOfAll:
    """A client that sees all servers as one, and speaks as if that were the server itself."""

    def __init__(self, client):
        self._client = client
        self.send = client.send

    async def ask(self, frame, on_frame):
        return list(map(to_one, await self._client.ask(to_all(frame), on_frame)))


@pytest.mark.parametrize("front", ["stdio", "http"])
@pytest.mark.parametrize("version", [OLD, NEW])
async def test_frames_are_the_same_directly_and_in_the_view_of_all_servers(tmp_path, version, front):
    """But for introductions, and lists, which are made of those of all servers."""
    direct_command, direct_log = serving(tmp_path, version, "direct")
    command, log = serving(tmp_path, version, "through")
    async with stdio_client(direct_command) as client:
        direct = await talk(client, version)
    spec = ServerSpec("one", StdioTransport(command[0], command[1:]))
    async with served([spec]) as (gateway, url):
        if front == "stdio":
            async with piped_client(gateway, None) as client:
                heard = await talk(ClientOfAll(client), version)
        else:
            async with http_client(url, version) as client:
                heard = await talk(ClientOfAll(client), version)
    of_all = 1 + len(LISTS)
    assert_lossless(heard[of_all:], direct[of_all:])
    read = (read_by_server(each.read_text().split("\n")) for each in (log, direct_log))
    assert_same(*([each for each in one if each.get("method") not in LISTS] for one in read))
