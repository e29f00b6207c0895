"""Servers of the MCP SDK that ask the host, as processes of their own, in both eras."""

import sys

import pytest
import trio
from attrs import evolve
from mcp_types import CreateMessageResult, ElicitResult, TextContent

from mcp_nursery.supervisor import ServerDown, ServerError, ServerSpec, StdioTransport
from mcp_nursery.supervisor.callbacks import Callbacks

from ..lab import PROGRAMS
from ..lab.processes import eventually, supervised

pytestmark = pytest.mark.slow

ASKING = PROGRAMS / "nursery_asking.py"
VERSIONS = {"old": "2025-11-25", "new": "2026-07-28"}


def asking(era, **settings):
    return ServerSpec("asking", StdioTransport(sys.executable, ["-I", str(ASKING), f"era={era}"]), **settings)


class Host:
    """Answers everything, and remembers what it was asked."""

    def __init__(self):
        self.asked = []
        self.lines = []
        self.all_lines = trio.Event()

    async def elicit(self, message):
        self.asked.append((message.server, message.tool, message.params.message))
        if message.params.mode == "url":
            return ElicitResult(action="accept")
        wanted = message.params.requested_schema["properties"]
        return ElicitResult(action="accept", content={"name": "Ann"} if "name" in wanted else {"age": 7})

    async def sample(self, message):
        self.asked.append((message.server, message.tool, message.params.messages[0].content.text))
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text="hm"), model="m")

    async def log(self, message):
        self.lines.append((message.params.level, message.params.data))
        if message.params.data == "line 9":
            self.all_lines.set()

    @property
    def callbacks(self):
        return Callbacks(elicit=self.elicit, sample=self.sample, log=self.log)


@pytest.mark.parametrize("era", VERSIONS)
async def test_a_server_asks_in_the_middle_of_a_call(era):
    """P4, P7, R9: forms, a model, logs; by requests or by rounds, as its era has it."""
    host = Host()
    async with supervised(asking(era), callbacks=host.callbacks) as supervisor:
        assert supervisor.status()[0].protocol_version == VERSIONS[era]
        greeted = await supervisor.call_tool("greet", server="asking")
        thought = await supervisor.call_tool("think", {"topic": "cheese"}, server="asking")
        assert (greeted.full_text, thought.full_text) == ("hello Ann, 7", "cheese: hm says m")
        greets, thinks = ("greet", "think") if era == "new" else (None, None)
        assert host.asked == [
            ("asking", greets, "What is your name?"),
            ("asking", greets, "How old is Ann?"),
            ("asking", thinks, "cheese"),
        ]
        assert (await supervisor.call_tool("talk", {"lines": 10}, server="asking")).full_text == "talked"
        with trio.fail_after(30):
            await host.all_lines.wait()
        assert [data for level, data in host.lines if level == "info"] == [f"line {n}" for n in range(10)]
        noise = sum(level == "debug" for level, _ in host.lines)
        # A new server is told the level, an old one says what it likes; the last of it may still be on its way.
        assert noise in ((0,) if era == "new" else (9, 10))


@pytest.mark.parametrize("era", VERSIONS)
async def test_a_page_must_be_visited_first(era):
    """R9: -32042 of a real server."""
    host = Host()
    async with supervised(asking(era), callbacks=host.callbacks) as supervisor:
        assert (await supervisor.call_tool("enter", server="asking")).full_text == "welcome"
    assert host.asked == [("asking", "enter", "log in")]


@pytest.mark.parametrize("era", VERSIONS)
async def test_a_host_that_offers_nothing_is_asked_for_nothing(era):
    """P4: the server sees it from the capabilities, and says what it misses."""
    async with supervised(asking(era)) as supervisor:
        with pytest.raises(ServerError, match="did not declare the form elicitation capability"):
            await supervisor.call_tool("greet", server="asking")
        with pytest.raises(ServerError, match="did not declare the sampling capability"):
            await supervisor.call_tool("think", {"topic": "cheese"}, server="asking")
        with pytest.raises(ServerError) as caught:
            await supervisor.call_tool("enter", server="asking")
        assert caught.value.code == -32042
        assert (await supervisor.call_tool("talk", {"lines": 1}, server="asking")).full_text == "talked"


WAY_OUT = '"protocol": "handshake" of this server'


async def test_a_server_that_asks_by_requests_says_what_lets_it():
    """P4: on a connection of 2026-07-28 there are none, and its author has not the spec in hand."""
    host = Host()
    async with supervised(asking("new"), callbacks=host.callbacks) as supervisor:
        with pytest.raises(ServerError, match=WAY_OUT) as caught:
            await supervisor.call_tool("insist", server="asking")
        assert WAY_OUT not in caught.value.message  # the server's own words
        failed = await supervisor.call_tool("give_up", server="asking")
        assert failed.is_error
        assert WAY_OUT in failed.full_text
        assert WAY_OUT not in failed.content[0].text
    assert host.asked == []


@pytest.mark.parametrize("protocol", ["handshake", "handshake-first"])
async def test_a_server_of_both_eras_asks_by_requests_where_the_handshake_is_wanted(protocol):
    """P4, P7."""
    host = Host()
    async with supervised(asking("new", protocol=protocol), callbacks=host.callbacks) as supervisor:
        assert supervisor.status()[0].protocol_version == VERSIONS["old"]
        assert (await supervisor.call_tool("insist", server="asking")).full_text == "hello Ann"
        failed = await supervisor.call_tool("give_up", server="asking")
        assert WAY_OUT not in failed.full_text
    assert host.asked == [("asking", None, "What is your name?")]


async def test_a_server_without_a_handshake_is_found_where_that_comes_first():
    """P7: it refuses `initialize`, which is not the last word."""
    modern = StdioTransport(sys.executable, ["-I", str(ASKING.with_name("conformance_server.py")), "modern"])
    async with supervised(ServerSpec("s", modern, protocol="handshake-first")) as supervisor:
        assert supervisor.status()[0].protocol_version == VERSIONS["new"]
    with pytest.raises(ServerDown, match="Method not found"):
        async with supervised(ServerSpec("s", modern, protocol="handshake")):
            raise AssertionError("connected")


@pytest.mark.parametrize("version", ["2025-03-26", "2026-07-28"])
async def test_a_version_that_is_wanted_is_spoken(version):
    """P7: a server of the SDK speaks them all."""
    async with supervised(asking("new", protocol=version)) as supervisor:
        assert supervisor.status()[0].protocol_version == version
        assert (await supervisor.call_tool("talk", {"lines": 1}, server="asking")).full_text == "talked"


@pytest.mark.parametrize("era", VERSIONS)
async def test_a_server_is_told_where_to_work(era, tmp_path, monkeypatch):
    """P3: in the folders that the host names, until it names others."""
    monkeypatch.chdir(tmp_path)
    async with supervised(asking(era), roots="cwd") as supervisor:
        assert (await supervisor.call_tool("where", server="asking")).structured == {"result": [tmp_path.as_uri()]}
        await supervisor.set_roots(["/work", "file:///other"])
        told = (await supervisor.call_tool("where", server="asking")).structured
        assert told == {"result": ["file:///work", "file:///other"]}
        with pytest.raises(ValueError, match="roots must be an async function, a list of paths"):
            await supervisor.set_roots("/work")


@pytest.mark.parametrize("era", VERSIONS)
async def test_a_server_is_offered_roots_if_the_host_has_some(era):
    """P3: when it connects. Some take them in the place of the folders in their arguments."""
    async with supervised(asking(era)) as supervisor:
        await supervisor.wait_connected("asking")
        await supervisor.set_roots(["/work"])
        with pytest.raises(ServerError, match="did not declare the roots capability"):
            await supervisor.call_tool("where", server="asking")
        await supervisor.reconnect("asking")
        told = (await supervisor.call_tool("where", server="asking")).structured
        assert told == {"result": ["file:///work"]}


@pytest.mark.parametrize("era", VERSIONS)
async def test_a_server_with_folders_of_its_own(era, tmp_path):
    """P3: whatever the host has; one that has none is not told that it may ask."""
    specs = [asking(era, roots=[tmp_path]), evolve(asking(era, roots=[]), name="none")]
    async with supervised(*specs) as supervisor:
        await supervisor.set_roots(["/work"])
        assert (await supervisor.call_tool("where", server="asking")).structured == {"result": [tmp_path.as_uri()]}
        with pytest.raises(ServerError, match="did not declare the roots capability"):
            await supervisor.call_tool("where", server="none")


async def test_a_change_of_roots_is_announced(tmp_path):
    """P3: to a server of the handshake, as its protocol has it."""
    journal = tmp_path / "journal"
    command = StdioTransport(sys.executable, ["-I", str(ASKING.with_name("both_eras.py")), "fickle", str(journal)])
    async with supervised(ServerSpec("s", command, protocol="handshake"), roots=["/work"]) as supervisor:
        await supervisor.wait_connected("s")
        await supervisor.set_roots([])
        await eventually(lambda: "notifications/roots/list_changed" in journal.read_text())
