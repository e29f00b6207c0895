"""The definition cache under any order of writes, and any bytes; and what is offered while servers start."""

import shutil
import tempfile
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.pieces import at_once
from mcp_nursery.supervisor import MemoryStore, NurseryError, RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.decisions.state_machine import KEEPS_TOOLS
from mcp_nursery.supervisor.spec import spec_digest
from mcp_nursery.supervisor.storage.definition_cache import _decoding_steps, cache_key
from mcp_nursery.supervisor.storage.sqlite import SqliteStore
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ..lab.specs import SERVERS, Named, nothing

MOST = 2**20


@given(writes=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.sampled_from(["s", "t"])), max_size=12))
@settings(max_examples=40)
def test_an_older_list_never_replaces_a_newer(writes):
    """G5: whoever writes what in which order, what was declared last is what is read, by everybody."""
    now = time.time() - 1000
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        file = Path(folder, "state", "state.sqlite3")
        hosts = [stack.enter_context(closing(SqliteStore(file))) for _ in range(3)]
        stores = [*hosts, MemoryStore()]
        last: dict[str, tuple[int, bytes]] = {}
        for turn, (host, at, server) in enumerate(writes):
            declared = str(turn).encode()
            for store in (hosts[host], stores[-1]):
                store.remember_definitions(server, "d", declared, now + at)
            if at >= last.get(server, (at, b""))[0]:
                last[server] = at, declared
            for store in stores:
                found = {name: store.definitions(name, "d", most=MOST) for name in last}
                assert found == {name: declared for name, (_, declared) in last.items()}


@given(cached=st.binary() | st.builds(lambda rest: b"tools " + rest, st.binary()) | st.text().map(str.encode))
def test_any_bytes_are_definitions_or_none(cached):
    """G5: nothing but `ValueError` comes of what stands in a row, and that is nothing cached."""
    with suppress(ValueError):
        at_once(_decoding_steps(cached, most=100))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A state file with definitions in it."""
    file = tmp_path_factory.mktemp("cache") / "folder" / "state.sqlite3"
    with closing(SqliteStore(file)) as store:
        for name in "abc":
            store.remember_definitions(name, "d", b"tools {}\n" * 900, time.time())
    return file


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_bytes_on_disk_raise_nothing(written, data):
    """G5: a file with holes in it is read as far as it can be, and never an error."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "state.sqlite3")
        shutil.copy(written, file)
        whole = bytearray(file.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(whole) - 1))
            piece = data.draw(st.binary(min_size=1, max_size=64))
            whole[at : at + len(piece)] = piece
        file.write_bytes(whole[: data.draw(st.integers(0, len(whole)) | st.just(len(whole)))])
        file.chmod(0o600)
        with closing(SqliteStore(file)) as store:
            for name in "abcd":
                assert isinstance(store.definitions(name, "d", most=MOST), bytes)
            store.remember_definitions("a", "d", b"x", time.time())


LIVES = st.lists(
    st.builds(
        Life,
        connects_after=st.sampled_from([0.0, 0.125, 1.0, 3.0]),
        refuses=st.sampled_from([None, None, "no"]),
        mute=st.sampled_from([False, False, False, True]),
        dies_after=st.sampled_from([2.0, 1000.0]),
    ),
    min_size=1,
    max_size=3,
)
PLANS = st.lists(
    st.tuples(st.booleans(), st.sampled_from([False, True, "cached"]), LIVES, st.sampled_from([0, 1, 2, 4])),
    min_size=1,
    max_size=4,
)


def warmed(plans) -> tuple[list[ServerSpec], MemoryStore]:
    """The specs of these, and a store that has seen some of them."""
    store, specs = MemoryStore(), []
    for number, (cached, lazy, lives, _) in enumerate(plans):
        name, ladder = f"s{number}", RestartPolicy(delays=(1, 2))
        one = ServerSpec(name, Named(name), lazy=lazy, policy=ladder, connect_timeout=5, stop_idle_after=3)
        specs.append(one)
        if cached:
            said = b'tools {"name":"kept","inputSchema":{}}\n'
            store.remember_definitions(name, cache_key(spec_digest(one) or "", {}), said, time.time())
        SERVERS[name] = ScriptedServer(*lives, tools={"live": nothing})
    return specs, store


def wanted(statuses, plans) -> set[tuple[str, str, bool]]:
    """What is to be offered: a function of where servers stand, whether they ever told of themselves, and the cache."""
    offered = set()
    for status, (cached, *_) in zip(statuses, plans, strict=True):
        is_known = status.server_info is not None
        if status.state in KEEPS_TOOLS and (is_known or cached):
            offered.add((status.name, "live" if is_known else "kept", status.state is ServerState.CONNECTED))
    return offered


@pytest.mark.slow
@given(plans=PLANS, gate=st.sampled_from([0, 0.25, 2.0]), wait_for=st.sampled_from(["all", "uncached"]))
@settings(max_examples=60, deadline=None)
def test_what_is_offered_follows_from_snapshots_and_cache(plans, gate, wait_for):
    """G2, G4, G5, G13: at any moment. Live tools once it was connected, cached ones before; none in states that show
    none; available only while it is connected. At the gate the cache is read, if there was a moment for it."""
    specs, store = warmed(plans)

    async def use(supervisor, server: str, after: float) -> None:
        await trio.sleep(after)
        with trio.move_on_after(6), suppress(NurseryError):
            await supervisor.list_tools(server, refresh=after == 1)

    async def main() -> None:
        async with open_supervisor(specs, state=store, gate=gate, wait_for=wait_for) as supervisor:
            if not gate:
                await trio.sleep(0.01)
            async with trio.open_nursery() as nursery:
                for one, (*_, after) in zip(specs, plans, strict=True):
                    nursery.start_soon(use, supervisor, one.name, after or 1000)
                for _ in range(60):
                    offered = {(tool.server, tool.tool, tool.available) for tool in supervisor.tools}
                    assert offered == wanted(supervisor.status(), plans)
                    await trio.sleep(0.17)
                nursery.cancel_scope.cancel()

    run_virtual(main)
