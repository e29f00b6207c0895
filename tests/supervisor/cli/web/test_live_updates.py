"""The changes of pages: made once for all who follow them, bounded, and complete for each of them. In virtual time."""

import json
from contextlib import asynccontextmanager

import trio
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor import Supervisor, open_supervisor
from mcp_nursery.supervisor.cli.web import live_updates as module
from mcp_nursery.supervisor.cli.web.history import History
from mcp_nursery.supervisor.cli.web.layout import LivePage, Part
from mcp_nursery.supervisor.cli.web.live_updates import (
    KEPT_FOR,
    KEPT_MESSAGES,
    LARGEST_LOG,
    MOST_LOGGED,
    Feed,
    Feeds,
    PageKey,
)
from mcp_nursery.supervisor.cli.web.markup import h
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ....lab.specs import spec

KEY = PageKey("/", "", may_act=True)


class Counted(LivePage):
    """A page whose parts are these names with their values, and how often it was asked."""

    title = "Counted"

    def __init__(self, values):
        self.values, self.asked, self.rendered = values, 0, 0

    def parts(self):
        self.asked += 1
        return [Part(name, value, lambda name=name: self.render(name), "list", name)
                for name, value in self.values.items()]  # fmt: skip

    def render(self, name):
        self.rendered += 1
        return h("p", f"{self.values[name]}", id=name)


async def test_a_page_costs_the_same_for_one_and_for_many(autojump_clock):
    page, seen = Counted({"a": 0}), []

    async def follow(feed):
        with feed.followed():
            since = None
            while True:
                changed, message = feed.changed, feed.message(since)
                since = feed.generation
                seen.append(message)
                await changed.wait()

    async with open_supervisor([spec(ScriptedServer())]) as supervisor, trio.open_nursery() as nursery:
        history = History(supervisor)
        feeds = Feeds(history, nursery)
        nursery.start_soon(history.run)
        nursery.start_soon(feeds.run)
        feed = await feeds.open(KEY, lambda: page)
        for _ in range(50):
            nursery.start_soon(follow, feed)
        await trio.sleep(20)
        assert page.asked < 40
        page.values["a"] = 1
        await trio.sleep(2)
        assert page.rendered == 2
        assert len(seen) == 100
        assert len({id(each) for each in seen}) == 2  # the same bytes for all
        nursery.cancel_scope.cancel()


async def test_a_feed_that_nobody_wants_is_forgotten(autojump_clock):
    page = Counted({"a": 0})
    async with open_supervisor([spec(ScriptedServer())]) as supervisor, trio.open_nursery() as nursery:
        feeds = Feeds(History(supervisor), nursery)
        nursery.start_soon(feeds.run)
        first = await feeds.open(KEY, lambda: page)
        await trio.sleep(KEPT_FOR / 2)
        assert await feeds.open(KEY, lambda: page) is first
        with first.followed():
            await trio.sleep(KEPT_FOR * 3)
            assert await feeds.open(KEY, lambda: page) is first
        await trio.sleep(KEPT_FOR + 3)
        asked = page.asked
        await trio.sleep(KEPT_FOR)
        assert page.asked == asked
        assert await feeds.open(KEY, lambda: page) is not first
        nursery.cancel_scope.cancel()


async def test_standard_error_is_read_once_for_all(autojump_clock, monkeypatch):
    opened, stderr = [], Supervisor.stderr

    def count(self, server):
        opened.append(server)
        return stderr(self, server)

    monkeypatch.setattr(Supervisor, "stderr", count)
    server = ScriptedServer(Life(stderr="one\ntwo"))
    async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:
        feeds = Feeds(History(supervisor), nursery)
        key = PageKey("/server/stderr", "lab", may_act=True)
        for _ in range(5):
            feed = await feeds.open(key, lambda: Counted({}))
        await trio.testing.wait_all_tasks_blocked()
        assert opened == ["lab"]
        assert feed.lines_since(0) is None  # a scripted server has no process
        nursery.cancel_scope.cancel()


@given(st.lists(st.lists(st.text(max_size=3), min_size=1, max_size=40), max_size=40), st.integers(0, 2_000))
def test_lines_are_the_latest_and_none_comes_twice(batches, since):
    feed, lines = Feed(Counted({})), []
    for batch in batches:
        feed.add_lines(batch)
        lines += batch
    sent = feed.lines_since(since)
    assert feed.lines == len(lines)
    expected = lines[max(since, len(lines) - MOST_LOGGED) :]
    assert ([] if sent is None else json.loads(sent)["text"][0][1].removesuffix("\n")) == (
        [] if sent is None else "\n".join(expected)
    )
    assert (sent is None) == (not expected)


def test_long_lines_are_bounded():
    feed = Feed(Counted({}))
    for _ in range(MOST_LOGGED):
        feed.add_lines(["x" * 4_000])
    assert len(feed.lines_since(0)) < LARGEST_LOG + 1_000


async def test_parts_are_made_in_short_turns(monkeypatch):
    monkeypatch.setattr(module, "TURN", 0)
    feed, turns, stop = Feed(Counted(dict.fromkeys("abcdef", 0))), 0, False

    async def count():
        nonlocal turns
        while not stop:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await feed.update()
        stop = True
    assert turns >= 5


steps = st.lists(
    st.one_of(
        st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), max_size=4),  # the parts are these now
        st.integers(0, 2),  # this reader reads
    ),
    max_size=30,
)


@given(steps)
def test_each_reader_has_the_page_as_it_is_whatever_it_has_missed(steps):
    """Readers that read now and then have the whole page, applied as a browser applies it."""

    async def play():
        page = Counted({})
        feed = Feed(page)
        readers = [(None, {})] * 3
        for step in [*steps, 0, 1, 2]:
            if isinstance(step, dict):
                page.values = step
                await feed.update()
                continue
            since, shown = readers[step]
            message = json.loads(feed.message(since) or b"{}")
            put = {html.split('"')[1]: html for html in message.get("put", [])}
            there = message.get("all")
            shown = {**{name: html for name, html in shown.items() if there is None or name in there}, **put}
            readers[step] = (feed.generation, shown)
            assert shown == {name: h("p", f"{value}", id=name) for name, value in page.values.items()}

    trio.run(play)


async def test_the_messages_for_generations_that_visitors_choose_are_few():
    page = Counted({"a": 0})
    feed = Feed(page)
    for value in range(3 * KEPT_MESSAGES):
        page.values["a"] = value
        await feed.update()
    messages = {id(feed.message(since)) for since in (None, *range(-5, 9 * KEPT_MESSAGES)) if since != feed.generation}
    assert len(messages) <= KEPT_MESSAGES + 1
    assert feed.message(10**9) == feed.message(None)


async def test_what_is_no_text_is_sent_too():
    feed = Feed(Counted({"a": "\ud800"}))
    await feed.update()
    feed.add_lines(["\udfff"])
    assert json.loads(feed.message(None))["put"] == ['<p id="a">\ud800</p>']
    assert json.loads(feed.lines_since(0))["text"] == [["stderr", "\udfff\n"]]


async def test_a_part_that_cannot_be_made_takes_nothing_with_it(caplog):
    page = Counted({"a": 1, "b": 2})
    render = page.render
    page.render = lambda name: render(name) if name == "a" else 1 / 0
    feed = Feed(page)
    await feed.update()
    first, second = json.loads(feed.message(None))["put"]
    assert first == '<p id="a">1</p>'
    assert "cannot be shown" in second
    assert "ZeroDivisionError" in caplog.text


async def test_a_feed_that_is_gone_takes_no_other_of_its_name_with_it(autojump_clock):
    async with open_supervisor([spec(ScriptedServer())]) as supervisor, trio.open_nursery() as nursery:
        feeds = Feeds(History(supervisor), nursery)
        nursery.start_soon(feeds.run)
        old = await feeds.open(KEY, lambda: Counted({}))
        old.is_gone = True
        page = Counted({"a": 0})
        new = await feeds.open(KEY, lambda: page)
        assert new is not old
        feeds._drop(KEY, old)
        with new.followed():
            await trio.sleep(KEPT_FOR * 2)
            page.values["a"] = 1
            generation = new.generation
            await trio.sleep(2)
            assert new.generation == generation + 1
        nursery.cancel_scope.cancel()


async def test_a_page_that_takes_long_holds_up_no_other(autojump_clock, monkeypatch):
    """One whose update never ends stands for one of many turns."""
    update = Feed.update
    slow, quick = Counted({}), Counted({"a": 0})

    async def updated(feed):
        if feed.page is slow and feed.generation:
            await trio.sleep_forever()
        await update(feed)
        feed.generation += feed.page is slow

    monkeypatch.setattr(Feed, "update", updated)
    async with open_supervisor([spec(ScriptedServer())]) as supervisor, trio.open_nursery() as nursery:
        feeds = Feeds(History(supervisor), nursery)
        nursery.start_soon(feeds.run)
        await feeds.open(PageKey("/slow", "", may_act=True), lambda: slow)
        feed = await feeds.open(KEY, lambda: quick)
        with feed.followed():
            quick.values["a"] = 1
            await trio.sleep(2)
            assert 'id="a">1<' in feed.message(None).decode().replace("\\", "")
        nursery.cancel_scope.cancel()


async def test_standard_error_of_a_server_that_is_there_again_is_read(autojump_clock, monkeypatch):
    sent = []

    @asynccontextmanager
    async def stderr(_supervisor, _server):
        send, receive = trio.open_memory_channel(10)
        sent.append(send)
        yield receive

    monkeypatch.setattr(Supervisor, "stderr", stderr)
    async with open_supervisor([spec(ScriptedServer())]) as supervisor, trio.open_nursery() as nursery:
        feeds = Feeds(History(supervisor), nursery)
        feed = await feeds.open(PageKey("/server/stderr", "lab", may_act=True), lambda: Counted({}))
        await trio.sleep(1)
        await sent[0].send("old")
        sent[0].close()
        await trio.sleep(3)
        assert feed.lines_since(0) is None
        await sent[1].send("new")
        await trio.sleep(1)
        assert json.loads(feed.lines_since(0))["text"] == [["stderr", "new\n"]]
        nursery.cancel_scope.cancel()
