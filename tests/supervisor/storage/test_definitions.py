"""The definition cache: what is written down of a server's definitions, and what is not."""

import math
import time
from contextlib import closing

import pytest
import trio
from attrs import evolve, field, frozen

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.messages import Definitions
from mcp_nursery.actors.pieces import at_once
from mcp_nursery.actors.session.lazy_definitions import cached_definitions_steps
from mcp_nursery.supervisor import MemoryStore, ServerSpec, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.config import TrustRequest
from mcp_nursery.supervisor.errors import ContestedResource
from mcp_nursery.supervisor.events import CatalogueChanged, ResourcesChanged, ToolsChanged
from mcp_nursery.supervisor.security.redaction import Redactor, ServerSecrets
from mcp_nursery.supervisor.spec import spec_digest
from mcp_nursery.supervisor.storage import definition_cache
from mcp_nursery.supervisor.storage import rows as stored_rows
from mcp_nursery.supervisor.storage.definition_cache import NOTHING_CACHED, DefinitionCache, cache_key
from mcp_nursery.supervisor.storage.sqlite import SqliteStore
from mcp_nursery.supervisor.storage.store import DIGEST, MOST_LISTS
from mcp_nursery.supervisor.storage.worker import StoreWorker
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ...lab.specs import SERVERS, Named, nothing
from .places import FilePlace

MOST = 2**20
DAY = 24 * 3600.0
SLOW = Life(connects_after=5)

FULL = {
    "name": "add",
    "title": "Addition",
    "description": "Adds “numbers”.\nOf any kind.",
    "inputSchema": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 10**25}}},
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
    "icons": [{"src": "data:image/png;base64,AAAA"}],
    "_meta": {"anthropic/searchHint": "sum", "own": [1, 2.5, None]},
}


def lab(*lives: Life, name: str = "x", **options) -> ScriptedServer:
    SERVERS[name] = server = ScriptedServer(*lives, **{"tools": {"add": nothing}, **options})
    return server


def spec(name: str = "x", **options) -> ServerSpec:
    return ServerSpec("lab", Named(name), **options)


def key(digest, told=None) -> str:
    """The key of definitions listed for a host that declares this: nothing, unless it is said."""
    return cache_key(digest, told or {})


def key_of(one: ServerSpec) -> str:
    """The key of definitions listed for a host of nothing: it follows tasks."""
    return key(spec_digest(one), {})


def stored(store, one: ServerSpec) -> bytes:
    return store.definitions(one.name, key_of(one), most=MOST)


async def run_once(store, one: ServerSpec, seconds: float = 0) -> None:
    """A run in which the server is connected."""
    async with open_supervisor([one], state=store) as supervisor:
        await supervisor.wait_connected(one.name)
        await trio.sleep(seconds)


# -- the store ------------------------------------------------------------------------------------------------------


def test_the_last_is_kept_by_server_and_spec(any_store):
    """G5."""
    now = time.time()
    assert any_store.definitions("s", "d", most=MOST) == b""
    any_store.remember_definitions("s", "d", b"one", now - 9)
    any_store.remember_definitions("s", "e", b"other", now - 9)
    any_store.remember_definitions("t", "d", b"third", now - 9)
    any_store.remember_definitions("s", "d", b"newer", now - 5)
    any_store.remember_definitions("s", "d", b"older", now - 7)
    found = [any_store.definitions(*key, most=MOST) for key in (("s", "d"), ("s", "e"), ("t", "d"), ("t", "e"))]
    assert found == [b"newer", b"other", b"third", b""]
    assert any_store.definitions("s", "d", most=4) == b""
    any_store.remember_definitions("s", "d", b"", now - 4)  # nothing of it is for the cache any more
    any_store.remember_definitions("s", "d", b"late", now - 5)
    assert any_store.definitions("s", "d", most=MOST) == b""


@pytest.mark.parametrize("most", [2**63, 10**30, math.inf])
def test_a_limit_beyond_what_sqlite_can_count(any_store, most):
    any_store.remember_definitions("s", "d", b"x", time.time())
    assert any_store.definitions("s", "d", most=most) == b"x"


def test_a_path_that_no_file_can_have():
    with closing(SqliteStore("state\0")) as store:
        store.remember_definitions("s", "d", b"x", time.time())
        assert store.definitions("s", "d", most=MOST) == b""


def test_it_is_kept_for_thirty_days(lasting, place, monkeypatch):
    """G5: and then goes from the file."""
    now = time.time()
    lasting.remember_definitions("s", "d", b"x", now)
    monkeypatch.setattr(stored_rows.time, "time", lambda: now + 29 * DAY)
    assert lasting.definitions("s", "d", most=MOST) == b"x"
    monkeypatch.setattr(stored_rows.time, "time", lambda: now + 31 * DAY)
    assert lasting.definitions("s", "d", most=MOST) == b""
    lasting.remember_definitions("t", "d", b"x", now + 31 * DAY)
    assert rows(place) == ["t"]


def rows(place) -> list[str]:
    return [name for (name,) in place.do("SELECT server FROM definitions ORDER BY server")]


def test_a_clock_that_was_wrong_keeps_nobody_from_writing(lasting):
    """G5: whatever is written after it is newer."""
    now = time.time()
    lasting.remember_definitions("s", "d", b"of the future", now + 400 * DAY)
    assert lasting.definitions("s", "d", most=MOST) == b"of the future"
    lasting.remember_definitions("s", "d", b"of now", now)
    assert lasting.definitions("s", "d", most=MOST) == b"of now"


@pytest.mark.parametrize(
    ("column", "odd"),
    [("format", 0), ("format", 99), ("format", "x"), ("declared", "text"), ("declared", 7), ("at", "x"), ("at", b"x")],
)
def test_rows_that_are_none_of_ours(store, file, column, odd):
    """G5: another format, or damaged: nothing is cached until it is written again; never an error."""
    store.remember_definitions("s", "d", b"x", time.time())
    FilePlace(file).do(f"UPDATE definitions SET {column} = ?", odd)
    assert store.definitions("s", "d", most=MOST) == b""
    store.remember_definitions("s", "d", b"y", time.time())
    assert store.definitions("s", "d", most=MOST) == b"y"


def test_all_together_have_their_limit(lasting, place, monkeypatch):
    """G5: the oldest go."""
    monkeypatch.setattr(stored_rows, "MOST_CACHED", 100)
    now = time.time()
    for turn, name in enumerate("abcd"):
        lasting.remember_definitions(name, "d", b"x" * 30, now - 60 + turn)
    assert rows(place) == ["b", "c", "d"]
    lasting.remember_definitions("b", "d", b"x" * 60, now)
    assert rows(place) == ["b", "d"]


def test_one_server_has_a_limit_of_its_own(any_store):
    """G5: hosts declare what they like; the oldest go, and those of others stay."""
    others, now = [("s", key("e")), ("t", key("d"))], time.time()
    for other in others:
        any_store.remember_definitions(*other, b"y", now - DAY)
    keys = [("s", key("d" * DIGEST, {str(number): {}})) for number in range(MOST_LISTS + 1)]
    for number, each in enumerate(keys):
        any_store.remember_definitions(*each, b"x" * (2**20 + 1), now - 60 + number)  # so much is swept at once
    kept = [each for each in (*others, *keys) if any_store.definitions(*each, most=2**30)]
    assert kept == [*others, *keys[1:]]


def test_rows_of_the_future_take_no_room_from_what_is_written_now(lasting, place, monkeypatch):
    """G5: another host's clock was wrong, and it wrote much."""
    monkeypatch.setattr(stored_rows, "MOST_CACHED", 100)
    now = time.time()
    for name in "abc":
        lasting.remember_definitions(name, "d", b"x" * 30, now + 400 * DAY)
    lasting.remember_definitions("s", "d", b"x" * 60, now)
    assert lasting.definitions("s", "d", most=MOST) == b"x" * 60
    assert rows(place) == ["a", "s"]


def test_many_rows_are_not_looked_through_at_each_write(store):
    """A thousand servers that start write a thousand rows."""
    now, steps = time.time(), [0]
    store.definitions("s", "d", most=MOST)
    store._connection.set_progress_handler(lambda: steps.__setitem__(0, steps[0] + 1), 1)

    def cost(names) -> int:
        steps[0] = 0
        for name in names:
            store.remember_definitions(str(name), "d", b"x", now)
        return steps[0]

    few, _, many = cost(range(100)), cost(range(100, 1100)), cost(range(1100, 1200))
    assert many < 2 * few


# -- what is written of a server ------------------------------------------------------------------------------------


def test_all_that_it_declares_comes_back_as_it_was():
    """G5: tools, resources, templates and prompts; another spec has nothing of it."""

    async def main():
        store = MemoryStore()
        declared = {key: value for key, value in FULL.items() if key != "name"}
        resources = {"note://one": nothing, "note://{id}": nothing}
        lab(declared={"add": declared}, resources=resources, prompts={"greet": nothing})
        async with open_supervisor([spec()], state=store) as supervisor:
            before = supervisor.tools[0].definition
            live = supervisor.resources, supervisor.resource_templates, supervisor.prompts
        assert [len(each) for each in live] == [1, 1, 1]
        lab(Life(mute=True))
        async with open_supervisor([spec(), ServerSpec("new", Named("y"), lazy=True)], state=store) as supervisor:
            (tool,) = supervisor.tools
            assert (tool.name, tool.available) == ("mcp_lab_add", False)
            assert tool.definition == before
            assert tool.definition.model_dump() == before.model_dump()
            kept = supervisor.resources, supervisor.resource_templates, supervisor.prompts
            assert [one[0].definition for one in kept] == [one[0].definition for one in live]
            assert [one[0].available for one in kept] == [False] * 3
        async with open_supervisor([spec("z")], state=store) as supervisor:
            assert supervisor.tools == ()

    lab(Life(mute=True), name="z")
    lab(name="y")
    run_virtual(main)


def test_nobody_takes_over_what_is_cached_of_a_server_in_its_first_start():
    """P8: it is the server's own, though the server has not said so in this run."""

    async def main():
        store = MemoryStore()
        lab(resources={"note://one": nothing, "note://{id}": nothing})
        await run_once(store, spec())
        lab(Life(mute=True))
        other = ServerSpec("other", Named("y"))
        async with open_supervisor([other, spec()], state=store) as supervisor:
            await supervisor.wait_connected("other")
            for uri in ("note://one", "note://two"):
                assert await supervisor.servers_with(uri) == ("other", "lab")
                with pytest.raises(ContestedResource):
                    await supervisor.read_resource(uri)

    lab(name="y", resources={"{+x}": nothing})
    run_virtual(main)


def test_events_say_what_is_from_the_cache():
    """G5: and nothing once it is connected with the same."""

    async def main():
        store = MemoryStore()
        lab(SLOW, resources={"a://b": nothing})
        await run_once(store, spec())
        lab(SLOW, resources={"a://b": nothing})
        told = []
        async with open_supervisor([spec()], state=store, gate=0) as supervisor, supervisor.events() as events:
            while ServerState.CONNECTED not in told:
                event = await events.receive()
                if isinstance(event, CatalogueChanged):
                    told.append((type(event), event.cached))
                told.append(getattr(event, "new", None))
            await supervisor.remove_server("lab")
            while not isinstance(event, CatalogueChanged):
                event = await events.receive()
        changes = [each for each in told if isinstance(each, tuple)]
        assert changes == [(ToolsChanged, True), (ResourcesChanged, True)]
        assert not event.cached

    run_virtual(main)


def test_an_empty_list_is_not_cached():
    """G5: and nothing older is offered in its place."""

    async def main():
        store = MemoryStore()
        lab()
        await run_once(store, spec())
        assert stored(store, spec()).startswith(b"tools {")
        lab(tools={})
        await run_once(store, spec())
        assert stored(store, spec()) == b""

    run_virtual(main)


@pytest.mark.parametrize(("most", "kept"), [(60, False), (2000, True)])
def test_what_is_too_large_for_its_budget_is_not_cached(most, kept):
    """G5: not more than the server may make its host keep, when it is written and when it is read."""
    declared = definitions_of(*(f"t{n}" for n in range(9)))
    worker = StoreWorker(MemoryStore())
    cache = DefinitionCache(worker, spec(max_kept_bytes=most), "d", ServerSecrets())
    assert bool(at_once(cache._encoding_steps(declared, None))) is kept


def test_more_than_a_server_may_list_now_is_not_offered():
    """It was listed while the limit was another."""

    async def main():
        store = MemoryStore()
        for limit, offered in ((1, 0), (2, 2)):
            lab(tools={"a": nothing, "b": nothing})
            await run_once(store, spec())
            lab(Life(mute=True))
            async with open_supervisor([spec(max_definitions=limit)], state=store) as supervisor:
                assert len(supervisor.tools) == offered

    run_virtual(main)


def definitions_of(*names: str) -> Definitions:
    return at_once(cached_definitions_steps([("tools", {"name": name, "inputSchema": {}}) for name in names]))


@frozen
class Given:
    """The transport of a scripted server that is given an environment, and is known again by it."""

    name: str
    env: dict[str, str] = field(repr=False)
    kind = "scripted"

    def connector(self, *, close_grace: float):
        return SERVERS[self.name].transport.connector(close_grace=close_grace)


@pytest.mark.parametrize(
    ("said", "kept"),
    [("The key is s3cr\u00e9t/key!", False), ("The key is hidden.", True), ("s3cr%C3%A9t%2Fkey!", False)],
)
async def test_what_quotes_what_it_was_given_is_not_cached(file, said, kept):
    """L17: a secret is nowhere in the file, in no form."""
    lab(declared={"add": {"description": "x" * 70_000 + said}})
    one = ServerSpec("lab", Given("x", {"KEY": "s3cr\u00e9t/key!"}))
    await run_once(file, one)
    with closing(SqliteStore(file)) as again:
        assert bool(stored(again, one)) is kept


@pytest.mark.parametrize(("said", "kept"), [("The key is s3cr\u00e9t/key!", False), ("The key is hidden.", True)])
async def test_an_introduction_is_cached_with_the_definitions_unless_it_quotes_what_the_server_was_given(
    said, kept, autojump_clock
):
    """G5, L17: as it came; what a status shows is of this run."""
    lab().instructions = said
    store, one = MemoryStore(), ServerSpec("lab", Given("x", {"KEY": "s3cr\u00e9t/key!"}))
    async with open_supervisor([one], state=store) as supervisor:
        await supervisor.wait_connected("lab")
        hello = supervisor.hello("lab")
        assert hello["instructions"] == said
    assert (said.encode() in stored(store, one)) is kept
    lab(Life(mute=True))
    async with open_supervisor([one], state=store) as supervisor:
        await supervisor.wait_listed("lab")
        assert [tool.tool for tool in supervisor.tools] == ["add"]
        assert supervisor.hello("lab") == (hello if kept else None)
        assert supervisor.protocol_version("lab") is None
        assert supervisor.status()[0].instructions is None


@pytest.mark.parametrize("at", [0, 1, 65_530, 65_536, 70_000, 199_990])
def test_a_secret_is_found_wherever_it_stands(at):
    """L17: also across the pieces in which it is looked for."""
    redactor = Redactor.of(["s3cr\u00e9t/key"])
    quoted = "s3cr%c3%a9t%2fkey"
    text = "x" * at + quoted + "x" * (200_000 - at)
    assert at_once(redactor.finds_configured(text))
    assert not at_once(redactor.finds_configured(text.replace("%2f", "%2x")))
    assert not at_once(Redactor().finds_configured(text))


def test_a_changed_list_is_written_down_now_and_then():
    """G5: at a connect, once a minute at most after that, and at the end of a connection."""

    async def main():
        store = MemoryStore()
        server = lab(tools={"t0": nothing})
        server.capabilities["tools"] = {"listChanged": True}

        async def change_to(name: str) -> None:
            server.tools = {name: nothing}
            await supervisor.list_tools(refresh=True)

        def cached(name: str) -> bool:
            return f'"{name}"'.encode() in stored(store, spec())

        async with open_supervisor([spec()], state=store) as supervisor:
            await trio.sleep(1)
            assert cached("t0")
            await change_to("t1")
            await trio.sleep_until(59)
            assert cached("t0")
            await trio.sleep_until(61)
            assert cached("t1")
            await change_to("t2")
            await trio.sleep(1)
            assert cached("t1")
            await supervisor.stop_server("lab")
            await trio.sleep(1)
            assert cached("t2")
            await supervisor.start_server("lab")
            await supervisor.wait_connected("lab")
            await change_to("t3")
            await trio.sleep(1)
            assert cached("t2")
            await supervisor.reload([spec(lazy=True)])
            await trio.sleep(1)
            assert cached("t3"), "by what knows it last"
            await supervisor.wait_connected("lab")
            await change_to("t4")
            await trio.sleep(1)
            assert cached("t3")
        assert cached("t4")

    run_virtual(main)


def test_what_its_user_has_not_agreed_to_offers_nothing():
    """K7: whatever was cached when it ran by another file."""

    async def main():
        store = MemoryStore()
        lab()
        await run_once(store, spec())
        lab(SLOW)
        request = TrustRequest("lab", "/p/.mcp.json", ("starts a process",), {}, "digest")
        asked = spec(trust_request=request)

        async def trust(_request) -> bool:
            await trio.sleep(2)
            return True

        for offered in (0, 1):
            async with open_supervisor([asked], state=store, trust=trust) as supervisor:
                assert len(supervisor.tools) == offered
                await supervisor.wait_connected("lab")

    run_virtual(main)


@pytest.mark.parametrize(
    "cached", [b"x", b"tools", b"tools {}", b"\xff\xff {}", b"towels {}", b"tools [[[[", b"tools 1\n\n"]
)
def test_what_cannot_be_read_is_nothing(cached):
    """G5: never an error."""

    async def main():
        store = MemoryStore()
        store.remember_definitions("lab", key_of(spec()), cached, time.time())
        lab(SLOW)
        async with open_supervisor([spec()], state=store) as supervisor:
            assert supervisor.tools == ()
            await supervisor.wait_connected("lab")

    run_virtual(main)


def test_what_was_listed_for_another_is_not_offered():
    """G5: a server may choose its tools by what its host can be asked."""

    async def main():
        store = MemoryStore()
        able = Callbacks(elicit=nothing, capabilities={"elicitation": {"form": {}}})
        lab()
        async with open_supervisor([spec()], state=store, callbacks=able) as supervisor:
            await supervisor.wait_connected("lab")
        offered = []
        for host in (able, evolve(able, capabilities=None), Callbacks(), evolve(able, elicit=None)):
            lab(SLOW)
            async with open_supervisor([spec()], state=store, callbacks=host) as supervisor:
                offered.append(len(supervisor.tools))
        assert offered == [1, 0, 0, 0]

    run_virtual(main)


def test_a_store_that_hangs_holds_nobody_up():
    """G5: as for anything else in it, two seconds at most."""

    async def main():
        store = MemoryStore()
        lab()
        await run_once(store, spec())
        worker = StoreWorker(store)  # and nobody runs it
        cache = DefinitionCache(worker, spec(), spec_digest(spec()), ServerSecrets())
        cache.declare({})
        cache.fetch()
        await trio.sleep(1)
        began = trio.current_time()
        assert await cache.recalled() == NOTHING_CACHED
        assert trio.current_time() == began + 1

    run_virtual(main)


class Counting(MemoryStore):
    """Counts what is written."""

    writes = 0

    def remember_definitions(self, server, spec, declared, at):
        self.writes += 1
        super().remember_definitions(server, spec, declared, at)


def test_a_store_that_hangs_keeps_one_list_of_each_server():
    """However often that changes meanwhile: the last is written when it goes on."""

    async def main():
        store = Counting()
        worker = StoreWorker(store)  # and nobody runs it yet
        cache = DefinitionCache(worker, spec(), "d", ServerSecrets())
        for name in ("t0", "t1", "t2"):
            cache.declare({name: {}})
            cache.note(definitions_of(name), None)
            await cache.save()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            await worker.ask(lambda _: None)
            await worker.finish()
        assert store.writes == 1
        assert b'"t2"' in store.definitions("lab", key("d", {"t2": {}}), most=MOST)

    run_virtual(main)


def test_a_list_is_written_no_more_often_than_this():
    assert definition_cache.SAVED_EVERY == 60
