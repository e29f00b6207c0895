"""What was read is answered from memory for as long as its server says that it stays true. Virtual time."""

from contextlib import asynccontextmanager

import pytest
import trio
from mcp_types import ElicitResult

from mcp_nursery.supervisor import Approval, BorrowedServer, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.errors import SupervisorClosed
from mcp_nursery.supervisor.testing import Ask, Life, ScriptedServer

from ...lab.specs import spec


class Notes(ScriptedServer):
    """Says how often each was read."""

    def __init__(self, *lives, texts=("note:/a", "note:/b", "note:/day/{day}"), seconds=60):
        super().__init__(*(lives or (Life(),)), resources=dict.fromkeys(texts, self._read))
        self.capabilities["resources"] = {"subscribe": True, "listChanged": True}
        self.fresh_for["resources/read"] = seconds

    async def _read(self, arguments):
        await trio.lowlevel.checkpoint()
        return f"{arguments['uri']} {self.reads}"

    @property
    def reads(self):
        return sum(method == "resources/read" for _, method, _ in self.requests)


@asynccontextmanager
async def reading(server, **options):
    async with open_supervisor([spec(server, **options)], gate=10) as supervisor:

        async def read(uri="note:/a", **more):
            return (await supervisor.read_resource(uri, **more)).full_text

        yield supervisor, read


async def test_a_read_is_kept_for_as_long_as_its_server_says(autojump_clock):
    server = Notes()
    async with reading(server) as (supervisor, read):
        first = await supervisor.read_resource("note:/a")
        assert (first.full_text, first.fresh_for, first.cache_scope) == ("note:/a 1", 60.0, "private")
        first.contents[0].text = "changed by who got it"
        await trio.sleep(59)
        again = await supervisor.read_resource("note:/a")
        assert (again.full_text, again.contents[0].text, again.duration) == ("note:/a 1", "note:/a 1", 0)
        assert await read("note:/day/monday") == "note:/day/monday 2"
        assert await read("note:/day/monday", server="lab") == "note:/day/monday 2"
        await trio.sleep(1)
        assert await read() == "note:/a 3"
        assert await read() == "note:/a 3"
    with pytest.raises(SupervisorClosed):
        await read()


@pytest.mark.parametrize(("modern", "seconds"), [(True, 0), (False, 60)])
async def test_what_its_server_says_nothing_of_is_not(autojump_clock, modern, seconds):
    server = Notes(Life(modern=modern), seconds=seconds)
    async with reading(server) as (_, read):
        assert [await read(), await read()] == ["note:/a 1", "note:/a 2"]


async def test_who_wants_it_anew_gets_it_anew(autojump_clock):
    """Also who sends more with the request: that may matter to what it says."""
    server = Notes()
    async with reading(server) as (_, read):
        assert [await read(), await read(refresh=True), await read()] == ["note:/a 1", "note:/a 2", "note:/a 2"]
        assert await read(meta={"com.example/who": 7}) == "note:/a 3"
        assert await read() == "note:/a 2"
        with pytest.raises(ValueError, match="refresh must be True or False"):
            await read(refresh="no")


@pytest.mark.parametrize("uri", ["note:/a", "note:/"])
async def test_news_of_a_resource(autojump_clock, uri):
    """Or of the folder that it is in."""
    server = Notes()
    async with reading(server) as (supervisor, read), supervisor.subscribe(uri, server="lab") as updates:
        await trio.sleep(1)
        assert await read() == await read() == "note:/a 1"
        await server.notify("notifications/resources/updated", {"uri": "note:/a"})
        while not (await updates.receive()).certain:
            pass
        assert await read() == await read() == "note:/a 2"


async def test_news_of_what_there_is(autojump_clock):
    server = Notes()
    async with reading(server) as (_, read):
        assert await read() == "note:/a 1"
        await server.notify("notifications/resources/list_changed")
        await trio.sleep(1)
        assert await read() == await read() == "note:/a 2"


async def test_another_connection(autojump_clock):
    server = Notes()
    async with reading(server) as (supervisor, read):
        assert await read() == "note:/a 1"
        await supervisor.reconnect("lab")
        assert await read() == await read() == "note:/a 2"
        server.crash()
        await trio.sleep(1)
        await supervisor.wait_connected("lab")
        assert await read() == "note:/a 3"


async def test_a_read_that_was_under_way_when_news_came(autojump_clock):
    """It may be older than they are."""
    server = Notes()

    async def slowly(arguments):
        text = await server._read(arguments)
        await trio.sleep(5)
        return text

    server.resources = {"note:/a": slowly}
    async with reading(server) as (_, read), trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.sleep(1)
        await server.notify("notifications/resources/list_changed")
        await trio.sleep(10)
        assert await read() == "note:/a 2"


async def test_what_depends_on_what_the_host_was_asked(autojump_clock):
    """The protocol forbids to keep it."""

    async def ask(arguments):
        await trio.lowlevel.checkpoint()

        async def then(answers):
            await trio.lowlevel.checkpoint()
            return "for you"

        form = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
        return Ask({"who": {"method": "elicitation/create", "params": {"mode": "form", **form}}}, then)

    async def elicit(message):
        await trio.lowlevel.checkpoint()
        return ElicitResult(action="accept", content={})

    server = Notes()
    server.resources = {"note:/a": ask}
    specs = [spec(server)]
    async with open_supervisor(specs, gate=10, callbacks=Callbacks(elicit=elicit)) as supervisor:
        first = await supervisor.read_resource("note:/a")
        assert (first.full_text, first.fresh_for) == ("for you", 0)
        before = server.reads
        await supervisor.read_resource("note:/a")
        assert server.reads == 2 * before


async def test_a_server_makes_its_host_keep_no_more_than_it_may(autojump_clock):
    """Bytes and entries: the oldest go first, and what is larger than all that there is room for is not kept."""
    server = Notes(texts=("note:/day/{day}",))
    async with reading(server, max_kept_bytes=10_000) as (_, read):
        days = [f"note:/day/{day}" for day in range(20)]
        for day in days:
            await read(day)
        assert [server.reads, await read(days[-1]), server.reads] == [20, f"{days[-1]} 20", 20]
        assert await read(days[0]) == f"{days[0]} 21"

        async def large(arguments):
            server.requests.append((1, "resources/read", {}))  # and what the server notes itself
            await trio.lowlevel.checkpoint()
            return "x" * 5000

        server.resources = {"note:/day/{day}": large}
        await read("note:/day/large")
        before = server.reads
        await read("note:/day/large")
        assert server.reads == before + 2
        assert await read(days[0]) == f"{days[0]} 21"
    server = Notes(texts=("note:/day/{day}",))
    async with reading(server) as (_, read):
        days = [f"note:/day/{day}" for day in range(1001)]
        for day in days:
            await read(day)
        assert await read(days[0]) == f"{days[0]} 1002"
        assert await read(days[2]) == f"{days[2]} 3"


async def test_who_borrows_a_server(autojump_clock):
    """Has what the lender has read, cut to what a model of its own is shown."""
    server = Notes()
    short = BorrowedServer("lab", max_result_chars=4)
    async with reading(server) as (lender, read), open_supervisor(borrow=lender, servers=[short]) as borrower:
        assert await read() == "note:/a 1"
        borrowed = await borrower.read_resource("note:/a")
        assert (borrowed.full_text, borrowed.max_result_chars, borrowed.truncated) == ("note:/a 1", 4, True)
        assert not (await lender.read_resource("note:/a")).truncated
        assert server.reads == 1


async def test_a_model_reads_from_memory_too(autojump_clock):
    """With approval as ever."""
    server, asked = Notes(), []

    async def approve(request):
        await trio.lowlevel.checkpoint()
        asked.append(request.arguments)
        return Approval.ALLOW

    async with open_supervisor([spec(server)], gate=10, approve=approve) as supervisor:
        for _ in range(2):
            assert "note:/a 1" in (await supervisor.as_toolset().run("read_mcp_resource", {"uri": "note:/a"})).text
    assert asked == [{"uri": "note:/a"}] * 2
