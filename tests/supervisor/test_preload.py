"""No loop stands still for `import mcp`."""

import json
import subprocess
import sys

import pytest

from ..lab import PROGRAMS
from ..lab.processes import LAB
from ..lab.remote import free_port

FINDER = """
import sys, trio

HEAVY = (
    *("mcp.", "mcp_types", "pydantic", "httpx2", "httpcore2", "trio_websocket", "anyio._backends."),
    "mcp_nursery.actors.session.connection",
)

class InTheLoop:
    found = []

    def find_spec(self, name, *rest):
        if trio.lowlevel.in_trio_run():  # of this thread
            self.found.append(name)

sys.meta_path.insert(0, InTheLoop())
"""
WATCHED = """
async def main():
    {imported}
    once = RestartPolicy(delays=(60,))  # no second attempt while the SDK is loaded, however long that takes
    servers = [
        ServerSpec("program", StdioTransport(sys.executable, ["-c", ""]), policy=once),
        ServerSpec("http", HttpTransport("http://127.0.0.1:9"), policy=once),
        ServerSpec("sse", SseTransport("http://127.0.0.1:9"), policy=once),
        ServerSpec("ws", WebSocketTransport("ws://127.0.0.1:9"), policy=once),
    ]
    async with open_supervisor(servers, state=MemoryStore(), gate=60) as supervisor:
        assert {{status.attempt for status in supervisor.status()}} == {{2}}, supervisor.status()
    print([name for name in InTheLoop.found if name.startswith(HEAVY)])

{before}
trio.run(main)
"""
NAMES = (
    "HttpTransport, MemoryStore, RestartPolicy, ServerSpec, SseTransport, StdioTransport, WebSocketTransport, "
    "open_supervisor"
)
IMPORTED = f"from mcp_nursery.supervisor import {NAMES}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "imported"),
    [(IMPORTED, "pass"), ("pass", IMPORTED)],
    ids=["imported before the loop", "imported in the loop"],
)
def test_nothing_heavy_is_imported_in_the_loop(before, imported):
    code = FINDER + WATCHED.format(before=before, imported=imported)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert (run.stdout, run.stderr) == ("[]\n", "")


SUBSCRIBED = """
from mcp_nursery.supervisor import MemoryStore, ServerSpec, StdioTransport, open_supervisor
from mcp_nursery.supervisor.preload import AHEAD

async def main():
    AHEAD.set(False)
    server = ServerSpec("it", StdioTransport(sys.executable, ["-I", "-S", "-c", sys.argv[1]]))
    async with open_supervisor([server], state=MemoryStore(), gate=0) as supervisor:
        await supervisor.wait_connected("it")
        async with supervisor.subscribe("note://today", server="it") as updates:
            assert (await updates.receive()).certain
    print([name for name in InTheLoop.found if name.startswith(HEAVY)], "mcp.client" in sys.modules)

trio.run(main)
"""
MODERN = """
import json, sys

NEWS = {
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"resources": {"subscribe": True}}},
    "resources/list": {"resources": [{"uri": "note://today", "name": "today"}]},
    "resources/templates/list": {"resourceTemplates": []},
}

def say(**said):
    print(json.dumps({"jsonrpc": "2.0", **said}), flush=True)

for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "subscriptions/listen":
        tag = {"_meta": {"io.modelcontextprotocol/subscriptionId": asked["id"]}}
        honored = {"notifications": asked["params"]["notifications"]}
        say(method="notifications/subscriptions/acknowledged", params=honored | tag)
        say(method="notifications/resources/updated", params={"uri": "note://today"} | tag)
    elif asked["method"] in NEWS:
        facts = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        say(id=asked["id"], result=NEWS[asked["method"]] | facts)
"""


@pytest.mark.slow
def test_a_stream_of_the_newer_era_has_the_sdk_loaded_in_a_thread():
    command = [sys.executable, "-c", FINDER + SUBSCRIBED, MODERN]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (run.stdout, run.stderr) == ("[] True\n", "")


USED = """
from mcp_nursery.supervisor import Call, HttpTransport, MemoryStore, ServerSpec, StdioTransport, open_supervisor
from mcp_nursery.supervisor.approval import Approval
from mcp_nursery.supervisor.callbacks import Callbacks

LAB, LIBRARY, ASKING, TOLD, PORT = sys.argv[1:]

def plain(name, *command):
    return ServerSpec(name, StdioTransport(sys.executable, ["-I", "-S", *command]))

async def elicit(question):
    from mcp_types import ElicitResult

    [wanted] = question.params.requested_schema["properties"]
    return ElicitResult(action="accept", content={"name": {"name": "Ann"}, "age": {"age": 7}}[wanted])

async def allow(request):
    return Approval.ALLOW

def loaded():
    assert [name for name in InTheLoop.found if name.startswith(HEAVY)] == []
    return "mcp.client" in sys.modules

async def main():
    servers = [
        plain("lab", LAB),
        plain("library", LIBRARY),
        plain("told", TOLD, "modern"),
        ServerSpec("far", HttpTransport(f"http://127.0.0.1:{PORT}/mcp")),
    ]
    names = [server.name for server in servers]
    everywhere = [Call("mcp_lab_echo", {"text": "a"}), Call("mcp_far_echo", {"text": "a"})]
    callbacks = Callbacks(elicit=elicit)
    async with open_supervisor(servers, state=MemoryStore(), callbacks=callbacks, approve=allow) as supervisor:
        for server in names:
            await supervisor.wait_connected(server)
        for server in ("lab", "far"):
            assert (await supervisor.call_tool("echo", {"text": "a"}, server=server)).full_text == "a"
        assert (await supervisor.call_tool("told", {"of": "this client"}, server="told")).full_text
        assert len(await supervisor.gather(everywhere)) == 2
        async with supervisor.fan_out(everywhere) as outcomes:
            assert len([outcome async for outcome in outcomes]) == 2
        toolset = supervisor.as_toolset()
        assert "a" in (await toolset.run("mcp_lab_echo", {"text": "a"})).text
        assert (await toolset.run("mcp_lab_crash", {})).is_error
        await supervisor.wait_connected("lab")
        assert await supervisor.find_tools("echo")
        assert await supervisor.list_tools(refresh=True)
        assert await supervisor.list_resources("library")
        assert await supervisor.read_resource("note://today", server="library")
        assert await supervisor.list_prompts("library")
        assert (await supervisor.get_prompt("summarise", {"topic": "x"}, server="library")).messages
        assert await supervisor.list_skills() == ()
        assert await supervisor.request("lab", "tools/list")
        assert supervisor.hello("told") and supervisor.status() and supervisor.statistics()
        await supervisor.add_server(plain("more", LAB))
        async with open_supervisor(borrow=supervisor, servers=["more"]) as borrower:
            assert (await borrower.call_tool("echo", {"text": "a"}, server="more")).full_text == "a"
        assert not loaded()
        for era in ("old", "new"):
            await supervisor.add_server(plain(era, ASKING, f"era={era}"))
            assert (await supervisor.call_tool("greet", server=era)).full_text == "hello Ann, 7"
        assert loaded()

trio.run(main)
"""


@pytest.mark.slow
def test_a_host_that_is_asked_nothing_never_loads_the_sdk_and_no_host_loads_it_in_the_loop():
    port = str(free_port())
    plain = [sys.executable, "-I", "-S"]
    programs = [str(PROGRAMS / f"{name}.py") for name in ("nursery_lab", "plain_library", "asking", "told")]
    far = subprocess.Popen([*plain, programs[0], f"port={port}"])
    try:
        command = [sys.executable, "-c", FINDER + USED, *programs, port]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    finally:
        far.kill()
        far.wait()
    assert run.returncode == 0, run.stderr


GATE = """
import sys, trio
from mcp_nursery.supervisor import MemoryStore, ServerSpec, open_supervisor
from mcp_nursery.supervisor.testing import ScriptedServer

async def main():
    now = ServerSpec("now", ScriptedServer().transport, lazy=sys.argv[1] or False)
    later = ServerSpec("later", ScriptedServer().transport, lazy=True)
    async with open_supervisor([now, later], state=MemoryStore(), gate=0.25) as supervisor:
        print([str(each.state) for each in supervisor.status()])

trio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("lazy", ["", "cached"], ids=["not lazy", "nothing cached"])
def test_the_time_of_the_gate_begins_when_all_is_loaded_that_its_servers_need(lazy):
    run = subprocess.run([sys.executable, "-c", GATE, lazy], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "['connected', 'idle']\n"


LIGHT = """
import sys
from mcp_nursery.supervisor import open_supervisor
heavy = ("mcp", "mcp_types", "pydantic", "httpx2", "starlette", "keyring", "rich", "opentelemetry.sdk", "click")
print([name for name in heavy if name in sys.modules])
"""


def test_importing_it_loads_nothing_heavy():
    run = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=120, check=True)
    assert (run.stdout, run.stderr) == ("[]\n", "")


def test_those_who_wait_go_on_in_the_order_in_which_they_came():
    """Those who come when it is loaded overtake none of them: they are requests of one client."""
    code = """
import trio
from mcp_nursery.supervisor.preload import ALL_MODULES

went_on = []

async def wait(number):
    await ALL_MODULES.ensure_loaded()
    went_on.append(number)

async def main():
    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(wait, number)
            await trio.sleep(0.02)

trio.run(main)
assert went_on == sorted(went_on), went_on
print(len(went_on))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("30\n", "")


PROGRAM = """
import atexit, gc, sys
from mcp_nursery.supervisor.cli import main

atexit.register(lambda: print("frozen", gc.get_freeze_count() > len(gc.get_objects()), file=sys.stderr))
main()
"""
ABOUT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
ASKED = [
    {"id": 1, "method": "initialize", "params": ABOUT},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "heard"}}},
]


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [[], ["--lazy"]], ids=["eager", "lazy"])
def test_what_serve_has_loaded_is_in_no_collection_of_garbage(lazy):
    """Q38: one that looks at all of it stops the loop for longer than a turn may take, whoever brought it about."""
    command = [sys.executable, "-c", PROGRAM, "serve", *lazy, "--", sys.executable, "-I", "-S", str(LAB)]
    frames = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in ASKED)
    run = subprocess.run(command, input=frames, capture_output=True, text=True, timeout=120, check=True)
    assert '"text":"heard"' in run.stdout.replace(" ", "")
    assert run.stderr == "frozen True\n"


LEAVING = """
import os, threading, time, trio
from mcp_nursery.actors import preload

begun = threading.Event()

def load():
    with preload.LOADING:
        begun.set()
        time.sleep(0.3)  # a module takes that long
        os.write(1, b"loaded")

async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(preload.run_aside, load)
        await trio.to_thread.run_sync(begun.wait)
        nursery.cancel_scope.cancel()

trio.run(main)
"""


def test_a_program_that_ends_stops_no_import_in_the_middle():
    """The thread would be ended in a module written in Rust, and that ends the process with SIGABRT."""
    run = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, timeout=60, check=True)
    assert (run.stdout, run.stderr) == ("loaded", "")


def test_what_texts_are_searched_for_is_compiled_ahead():
    code = (
        "from mcp_nursery.supervisor.preload import ALL_MODULES\n"
        "ALL_MODULES.load()\n"
        "import re\n"
        "from mcp_nursery.supervisor.security.redaction import PLAIN\n"
        "known = re.compile, re._compile\n"
        "re.compile = re._compile = None\n"
        "print(PLAIN.text('a key: nothing'))\n"
        "re.compile, re._compile = known\n"  # a measurement of coverage needs them at the end
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert (run.stdout, run.stderr) == ("a key: nothing\n", "")
