"""Files are read again when they change. In real time: the system's clock is in their metadata."""

import json
import math
import os
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import evolve

from mcp_nursery.supervisor import ConfigError, ServerSpec, discover_config, load_config, open_supervisor, watch
from mcp_nursery.supervisor.events import Reloaded, ReloadFailed
from mcp_nursery.supervisor.preload import CALL_MODULES
from mcp_nursery.supervisor.testing import ScriptedServer

QUICK = 0.02


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("INTERVAL", "SETTLED", "VANISHED"):
        monkeypatch.setattr(watch, name, QUICK)


def entries(*names, **fields):
    return json.dumps({"mcpServers": {name: {"command": "x", "enabled": False, **fields} for name in names}})


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "servers.json"
    file.write_text(entries("a"))
    return file


class Watched:
    """A supervisor that watches its files, and what it tells of them."""

    def __init__(self, supervisor, events):
        self.supervisor = supervisor
        self._events = events

    async def told(self):
        """The next event of a reload."""
        async for event in self._events:
            if isinstance(event, Reloaded | ReloadFailed):
                return event
        raise AssertionError

    async def told_nothing_more(self):
        with trio.move_on_after(20 * QUICK):
            raise AssertionError(await self.told())

    @property
    def names(self):
        return [status.name for status in self.supervisor.status()]


@asynccontextmanager
async def watching(given):
    with trio.fail_after(30):
        async with open_supervisor(given, watch=True) as supervisor, supervisor.events() as events:
            await trio.sleep(5 * QUICK)  # it has looked at what is there
            yield Watched(supervisor, events)


@pytest.mark.parametrize("given", [str, load_config, lambda file: file])
async def test_a_change_is_read(file, given):
    """L18: in place, once."""
    async with watching(given(file)) as watched:
        file.write_text(entries("a", "b"))
        event = await watched.told()
        assert (event.added, event.changed, event.removed, event.untouched) == (("b",), (), (), ("a",))
        file.write_text(entries("b"))
        event = await watched.told()
        assert (event.added, event.changed, event.removed, event.untouched) == ((), (), ("a",), ("b",))
        await watched.told_nothing_more()


async def test_replaced_by_rename(file, tmp_path):
    """As editors do, with a size and time that are the same."""
    async with watching(file) as watched:
        before = file.stat()
        new = tmp_path / "servers.json~"
        new.write_text(entries("b"))
        os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
        new.replace(file)
        assert (await watched.told()).removed == ("a",)
        assert watched.names == ["b"]


async def test_written_with_the_same_size_and_time(file):
    """As programs do that keep times."""
    async with watching(file) as watched:
        before = file.stat()
        file.write_text(entries("b"))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (await watched.told()).removed == ("a",)


@pytest.mark.slow
async def test_removed_and_written_again(file, monkeypatch):
    """In a moment, nothing is lost on the way; for longer, it is told of once."""
    monkeypatch.setattr(watch, "VANISHED", 0.5)
    async with watching(file) as watched:
        file.unlink()
        await trio.sleep(0.1)
        file.write_text(entries("a", "b"))
        assert (await watched.told()).added == ("b",)
        file.unlink()
        assert "cannot be read: No such file" in (await watched.told()).error
        assert watched.names == ["a", "b"]
        await watched.told_nothing_more()
        file.write_text(entries("b"))
        assert (await watched.told()).removed == ("a",)


@pytest.mark.slow
async def test_a_broken_file_changes_nothing_and_says_so_once(file, caplog):
    """Q12: until it changes again."""
    async with watching(file) as watched:
        for text, problem in (("{", "not JSON"), ("[]", "must be an object")):
            file.write_text(text)
            event = await watched.told()
            assert problem in event.error
            assert watched.names == ["a"]
            await watched.told_nothing_more()
        file.write_text(entries("a"))
        assert (await watched.told()).untouched == ("a",)
    said = [record.message for record in caplog.records if record.name == watch.__name__]
    assert len(said) == 2
    assert said[0].startswith(f"not reloaded, everything stays as it is: {file}: not JSON")


async def test_through_links(file, tmp_path):
    """Another target, another content of it, and a link in the way."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    for number, folder in enumerate(("one", "two")):
        (tmp_path / folder / "servers.json").write_text(entries(f"s{number}"))
    (tmp_path / "now").symlink_to("one")
    async with watching(tmp_path / "now" / "servers.json") as watched:
        (tmp_path / "new").symlink_to("two")
        (tmp_path / "new").replace(tmp_path / "now")
        assert (await watched.told()).added == ("s1",)
        (tmp_path / "two" / "servers.json").write_text(entries("s2"))
        assert (await watched.told()).added == ("s2",)


async def test_files_that_come_to_a_project(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    config = discover_config(tmp_path, user=False)
    async with watching(config) as watched:
        (tmp_path / ".mcp.json").write_text(entries("a"))
        assert (await watched.told()).added == ("a",)
        (tmp_path / ".mcp.json").unlink()
        assert (await watched.told()).removed == ("a",)


async def test_a_file_of_variables(file, tmp_path):
    """Its servers begin again: what it says is not part of their specs."""
    env = tmp_path / "one.env"
    env.write_text("A=1")
    document = {"with": {"command": "x", "envFile": str(env), "enabled": False}, "without": {"command": "x"}}
    document["without"]["enabled"] = False
    file.write_text(json.dumps({"mcpServers": document}))
    async with watching(file) as watched:
        env.write_text("A=22")
        event = await watched.told()
        assert (event.changed, event.untouched) == (("with",), ("without",))
        env.unlink()
        assert (await watched.told()).changed == ("with",)
        document["with"]["envFile"] = str(tmp_path / "two.env")
        file.write_text(json.dumps({"mcpServers": document}))
        assert (await watched.told()).changed == ("with",)
        await watched.told_nothing_more()  # that there is another file to look at is no change of it
        (tmp_path / "two.env").write_text("A=3")
        assert (await watched.told()).changed == ("with",)


async def test_a_file_of_variables_of_a_server_that_is_not_trusted(tmp_path):
    """It says where that is, and nobody looks there."""
    (tmp_path / ".git").mkdir()
    env = tmp_path / "one.env"
    env.write_text("A=1")
    server = {"command": "x", "envFile": str(env)}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"theirs": server}}))
    async with watching(discover_config(tmp_path, user=False)) as watched:
        assert watched.supervisor.status()[0].state == "blocked"
        env.write_text("A=22")
        await watched.told_nothing_more()


async def test_what_the_host_reloads_is_watched_from_then_on(file, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(entries("b"))
    async with watching(file) as watched:
        await watched.supervisor.reload(load_config(other))
        assert (await watched.told()).added == ("b",)
        other.write_text(entries("b", "c"))
        assert (await watched.told()).added == ("c",)


async def test_who_writes_without_end_is_read(file):
    async with watching(file) as watched, trio.open_nursery() as nursery:

        async def write():
            number = 0
            while True:
                number += 1
                file.write_text(entries("a", "b", description="x" * (number % 7)))
                await trio.sleep(QUICK / 3)

        nursery.start_soon(write)
        await watched.told()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("given", [load_config, str])
async def test_what_changes_after_it_was_read_is_a_change(file, given, monkeypatch):
    """Between the reading and the first look; what is loaded in between takes its time."""

    async def slowly():
        file.write_text(entries("a", "b"))

    monkeypatch.setattr(CALL_MODULES, "ensure_loaded", slowly)
    with trio.fail_after(30):
        async with open_supervisor(given(file), watch=True) as supervisor, supervisor.events() as events:
            while {one.name for one in supervisor.status()} != {"a", "b"}:  # it may be seen before the block is entered
                await events.receive()


async def test_files_that_come_after_the_project_was_looked_at(tmp_path):
    (tmp_path / ".git").mkdir()
    config = discover_config(tmp_path, user=False)
    (tmp_path / ".mcp.json").write_text(entries("a"))
    async with watching(config) as watched:
        assert (await watched.told()).added == ("a",)


async def test_a_pipe_is_not_waited_for(file):
    """Nobody may ever write to it; and who waits for that lets no other reload begin."""
    async with watching(file) as watched:
        file.unlink()
        os.mkfifo(file)
        assert "cannot be read again" in (await watched.told()).error
        file.unlink()
        file.write_text(entries("b"))
        assert (await watched.told()).added == ("b",)


async def test_leaving_does_not_wait_for_it(file, monkeypatch):
    monkeypatch.setattr(watch, "INTERVAL", 3600)
    with trio.fail_after(5):
        async with watching(file):
            pass


@pytest.mark.parametrize(
    "given", [[], ServerSpec("lab", ScriptedServer().transport), lambda file: evolve(load_config(file), warnings=())]
)
async def test_there_must_be_files(file, given):
    with pytest.raises(ConfigError, match="field 'watch': needs files"):
        async with open_supervisor(given(file) if callable(given) else given, watch=True):
            pass
    with pytest.raises(ConfigError, match="field 'watch': must be True or False"):
        async with open_supervisor(file, watch="yes"):
            pass


# a few files, such as the one that says who may come


@asynccontextmanager
async def file_watch(*files):
    """What was read of each file, whenever one has changed."""
    send, read = trio.open_memory_channel(math.inf)
    files_watch = watch.FileWatch(
        [str(each) for each in files],
        lambda: send.send_nowait([each.read_text() if each.exists() else None for each in files]),
    )
    async with trio.open_nursery() as nursery:
        with trio.fail_after(30):
            yield files_watch, read, nursery
        nursery.cancel_scope.cancel()


async def test_a_file_that_changes_is_read_again_when_it_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "SETTLED", 0.3)
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("1")
    other.write_text("2")
    async with file_watch(one, other) as (files, read, nursery):
        nursery.start_soon(files.run)
        one.write_text("half")
        await trio.sleep(4 * QUICK)
        one.write_text("whole")
        assert await read.receive() == ["whole", "2"]
        other.unlink()
        other.write_text("3")
        assert await read.receive() == ["whole", "3"]
        other.unlink()
        assert await read.receive() == ["whole", None]
        with trio.move_on_after(0.5):
            raise AssertionError(await read.receive())


async def test_a_change_before_the_first_look_is_one(tmp_path):
    one = tmp_path / "one"
    one.write_text("1")
    async with file_watch(one) as (files, read, nursery):
        one.write_text("2")
        nursery.start_soon(files.run)
        assert await read.receive() == ["2"]


async def test_a_file_behind_a_link_that_is_led_elsewhere_has_changed(tmp_path):
    """As secrets do that are mounted into a container."""
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
    link, beside = tmp_path / "link", tmp_path / "beside"
    link.symlink_to("first")
    async with file_watch(link) as (files, read, nursery):
        nursery.start_soon(files.run)
        beside.symlink_to("second")
        beside.rename(link)
        assert await read.receive() == ["second"]
