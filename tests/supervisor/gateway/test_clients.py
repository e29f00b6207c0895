"""What the gateway hands on to a client of what is said about a request of his."""

import pytest
import trio
import trio.testing
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, LOG_LEVEL_META_KEY

from mcp_nursery.actors.account import Account
from mcp_nursery.supervisor.gateway.auth.principal import Access
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import (
    BACKLOG_BYTES,
    LOG,
    Backlog,
    ClientListener,
    ClientSession,
    Notification,
    last_change,
)

PROGRESS = "notifications/progress"
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def client(*, meta=None, session=None):
    """A request of a client, and what it is told."""
    told = []

    async def tell(method, params):
        await trio.lowlevel.checkpoint()
        told.append((method, params))

    return ClientRequest(1, "tools/call", {}, meta or {}, tell, None, session), told


async def test_progress_has_the_token_of_the_client():
    ours = {"progressToken": 77, "progress": 1, "vendor": 2}
    incoming, told = client(meta={"progressToken": "its own"})
    await incoming.forward(PROGRESS, ours)
    assert told == [(PROGRESS, ours | {"progressToken": "its own"})]
    incoming, told = client()
    await incoming.forward(PROGRESS, ours)  # it has not asked for any
    await incoming.forward("vendor/notice", {"progressToken": 77})
    assert told == [("vendor/notice", {"progressToken": 77})]


@pytest.mark.parametrize(
    ("in_session", "level", "heard"),
    [
        (True, None, LEVELS),
        (True, "error", LEVELS[4:]),
        (False, None, ()),
        (False, "error", LEVELS[4:]),
        (False, "debug", LEVELS),
        (False, 5, ()),
        (False, "loud", ()),
    ],
)
async def test_logs_are_as_severe_as_the_client_wants(in_session, level, heard):
    """In a session all of them unless it says otherwise; outside of one none unless its request does."""
    session = ClientSession(print, None) if in_session else None
    told_of_itself = {CLIENT_CAPABILITIES_META_KEY: {"roots": {}}, CLIENT_INFO_META_KEY: {"name": "us"}}
    incoming, told = client(meta={} if in_session else told_of_itself | {LOG_LEVEL_META_KEY: level}, session=session)
    if session is not None:
        session.level = level
    else:
        incoming.describe()
        assert (incoming.capabilities, incoming.info) == ({"roots": {}}, {"name": "us"})
    for said in (*LEVELS, "loud", None):
        await incoming.forward(LOG, {"level": said})
    assert tuple(params["level"] for _, params in told) == heard


def test_news_that_wait_are_told_once_each():
    listener = ClientListener(None, ["toolsListChanged"], since=0)
    updated = "notifications/resources/updated"
    for uri in ("a://1", "a://2", "a://1"):
        listener.notify(updated, {"uri": uri})
        listener.notify("notifications/tools/list_changed", {})
    assert [listener.news.receive_nowait() for _ in range(len(listener.news))] == [
        ("notifications/resources/updated", {"uri": "a://1"}),
        ("notifications/tools/list_changed", {}),
        ("notifications/resources/updated", {"uri": "a://2"}),
    ]


@pytest.mark.parametrize(
    ("server", "allow", "at"),
    [
        (None, None, 9),
        ("a", None, 5),
        ("c", None, float("-inf")),
        (None, ["a/*"], 5),
        (None, ["a/*", "b/look"], 9),
        (None, ["c/*"], float("-inf")),
        ("b", ["b/*"], 9),
    ],
)
def test_a_change_is_news_for_who_may_use_something_of_its_server(server, allow, at):
    changes = {"a": 5.0, "b": 9.0, None: 9.0}
    assert last_change(ClientListener(server, [], since=0, access=Access(allow)), changes) == at


async def test_what_is_asked_about_one_resource_has_its_turn(autojump_clock):
    """And nothing is kept of it."""
    session, order = ClientSession(print, None), []

    async def use(uri, name, seconds):
        async with session.turn(uri):
            order.append(name)
            await trio.sleep(seconds)
            order.append(name)

    async with trio.open_nursery() as nursery:
        for uri, name, seconds in (
            ("a://1", "one", 3),
            ("a://1", "two", 1),
            ("a://1", "three", 1),
            ("a://2", "else", 1),
        ):
            nursery.start_soon(use, uri, name, seconds)
            await trio.testing.wait_all_tasks_blocked()
    assert [name for name in order if name != "else"] == ["one", "one", "two", "two", "three", "three"]
    assert order[:3] == ["one", "else", "else"]
    assert not session._turns


async def test_what_is_too_large_to_wait_takes_nobodys_place():
    backlog, sent = Backlog(), []

    async def send(frame):
        await trio.lowlevel.checkpoint()
        sent.append(frame)

    backlog.add(small := Notification("vendor/notice", {"said": "so"}))
    backlog.add(Notification("vendor/notice", {"said": "x" * BACKLOG_BYTES}))
    with trio.move_on_after(0.1):
        await backlog.send(send)
    assert sent == [small.frame]


async def test_what_many_are_told_is_kept_once():
    account = Account(1000)
    backlogs, sent = [Backlog(account) for _ in range(3)], []

    async def send(frame):
        await trio.lowlevel.checkpoint()
        sent.append(frame)

    log, change = (
        Notification(LOG, {"level": "info", "data": "x" * 600}),
        Notification("notifications/tools/list_changed"),
    )
    for backlog in backlogs:
        backlog.add(log)
        backlog.add(Notification(LOG, {"level": "info", "data": "y" * 600}))  # there is no room for it
        backlog.add(change)
        backlog.add(change)
    assert account.kept == {"news": len(log.frame) + len(change.frame)}
    for backlog in backlogs[:2]:
        with trio.move_on_after(0.1):
            await backlog.send(send)
    assert sent == [log.frame, change.frame] * 2
    assert account.kept == {"news": len(log.frame) + len(change.frame)}
    backlogs[2].close()
    assert account.total == 0


def test_a_change_waits_where_there_is_no_room_for_anything_else():
    account = Account(100)
    account.charge("answers", 200)
    backlog = Backlog(account)
    backlog.add(Notification(LOG, {"level": "info"}))
    backlog.add(Notification("notifications/tools/list_changed"))
    assert [backlog.receive_nowait().method for _ in range(len(backlog))] == ["notifications/tools/list_changed"]


async def test_a_change_that_was_not_sent_is_kept():
    account = Account()
    backlog = Backlog(account)
    change = Notification("notifications/tools/list_changed")
    backlog.add(change)

    async def fail(frame):
        raise trio.BrokenResourceError

    with pytest.raises(trio.BrokenResourceError):
        await backlog.send(fail)
    assert account.kept == {"news": len(change.frame)}


def test_nothing_waits_for_a_client_that_has_gone():
    """Its session may be remembered for long after, as the one that a call was for which its server never answers."""
    backlog, log = Backlog(), Notification(LOG, {"level": "info"})
    for said in (log, Notification("notifications/tools/list_changed")):
        backlog.add(said)
    backlog.close()
    backlog.add(log)
    assert len(backlog) == 0
