"""Sessions that go on at another gateway, or at one that was started again. In memory, virtual time."""

import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import MemoryStore
from mcp_nursery.supervisor.gateway import Access, Principal, SessionKeys
from mcp_nursery.supervisor.gateway.http import sessions
from mcp_nursery.supervisor.gateway.http.session_ids import SessionStart, seal_session
from mcp_nursery.supervisor.gateway.sealing import LONGEST_SEALED
from mcp_nursery.supervisor.storage import store as store_module
from mcp_nursery.supervisor.storage.store import StoreUnreadable
from mcp_nursery.supervisor.storage.worker import StoreWorker

from ....lab.gateway_clients import CAN, OLD
from .test_client_messages import ANN, HELLO, LIST, PING, SLEEP, modern, served

KEY = b"k" * 32
TOOLS = {"id": 5, "method": "tools/list"}
DELETED = {"verb": "DELETE"}
OWN = "this session had servers of its own, which are gone: begin a new one"
LEVEL = {"id": 6, "method": "logging/setLevel", "params": {"level": "error"}}


def keys(key=KEY, **options):
    return SessionKeys([key], **options)


@asynccontextmanager
async def replicas(*of_each):
    """Gateways, each with a server of its own; `of_each` are the options of each."""
    async with AsyncExitStack() as stack:
        yield [(await stack.enter_async_context(served(**({"keys": keys()} | options)))) for options in of_each]


@asynccontextmanager
async def two(**options):
    """Those who speak to two gateways with one key."""
    async with replicas(options, options) as ((_, first), (_, second)):
        yield first, second


def sealed(began=None, owner=None, server="lab", **more):
    start = SessionStart(time.time() if began is None else began, OLD, CAN, {"name": "raw", "version": "1"}, **more)
    return {"mcp-session-id": seal_session(keys(), start, owner, server), "mcp-protocol-version": OLD}


async def test_a_session_goes_on_at_another_gateway(autojump_clock):
    """W6: with what its client has said of itself; the client, its path and its key are the same."""
    async with two() as (first, second):
        session = await first.opened(**ANN)
        assert len(session["mcp-session-id"]) <= 220
        said = await second.say(
            {"id": 2, "method": "tools/call", "params": {"name": "echo", "arguments": {}}}, **session
        )
        assert said.last["result"]["content"][0]["text"] == "a word"
        (moved,) = second.application._sessions._open.values()
        (here,) = first.application._sessions._open.values()
        assert (moved.id, moved.version, moved.owner) == (here.id, here.version, here.owner)
        assert moved.client.capabilities == here.client.capabilities == CAN
        assert moved.client.info == here.client.info == HELLO["params"]["clientInfo"]
        assert await first.status(PING, **session) == 200


@pytest.mark.parametrize(
    "options",
    [{"keys": None}, {"keys": keys(b"another key, as long as this one")}],
    ids=["without a key", "with another key"],
)
async def test_a_gateway_without_the_key_does_not_know_it(autojump_clock, options):
    async with replicas({}, options) as ((_, first), (_, second)):
        assert await second.status(PING, **await first.opened()) == 404


async def test_without_a_key_ids_are_as_they_were(autojump_clock):
    async with served() as (_, web):
        assert len((await web.opened())["mcp-session-id"]) == 32


@pytest.mark.parametrize(
    "changed",
    [
        {"authorization": "Bearer Bob"},
        {"authorization": None},
        {"path": "/mcp"},
    ],
    ids=["another client", "nobody in particular", "another path"],
)
async def test_an_id_is_of_no_use_to_another_client_or_on_another_path(autojump_clock, changed):
    async with two() as (first, second):
        session = await first.opened(**ANN)
        for web in (first, second):
            for verb in ("POST", "GET", "DELETE"):
                body = PING if verb == "POST" else b""
                assert await web.status(body, verb=verb, **(session | changed)) == 404
        assert await second.status(PING, **session) == 200


async def test_a_client_that_may_use_something_else_begins_anew(autojump_clock):
    """As where its session was open."""
    grants = [Access(["lab/*"]), Access(["lab/echo"])]

    def authenticate(access):
        async def principal(scope):
            return Principal("Ann", access)

        return principal

    each = [{"authenticate": authenticate(access)} for access in (*grants, grants[0])]
    async with replicas(*each) as ((_, first), (_, changed), (_, same)):
        session = await first.opened()
        assert await changed.status(PING, **session) == 404
        assert await same.status(PING, **session) == 200


async def test_a_session_that_is_ended_while_a_request_looks_for_its_note_does_not_go_on(autojump_clock, monkeypatch):
    async with two() as (first, second):
        session = await first.opened()
        found, real = trio.Event(), StoreWorker.session_note

        async def session_note(worker, of):
            note = await real(worker, of)
            await found.wait()
            return note

        monkeypatch.setattr(StoreWorker, "session_note", session_note)
        late = second.begin(PING, **session)
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.undo()
        assert await second.status(b"", **DELETED, **session) == 200
        found.set()
        await late.ended.wait()
        assert late.status == 404
        assert second.application.clients().sessions == ()


async def test_two_requests_that_come_at_once_find_one_session(autojump_clock):
    async with two() as (first, second):
        session = await first.opened()
        said = [second.begin(SLEEP | {"id": number}, **session) for number in range(5)]
        stream = second.begin(b"", verb="GET", **session)
        await trio.sleep(1)
        assert len(second.application._sessions._open) == 1
        cancel = {"method": "notifications/cancelled", "params": {"requestId": 3}}
        assert await second.status(cancel, **session) == 202
        for each in said:
            await each.ended.wait()
        assert [each.status for each in said] == [200, 200, 200, 202, 200]
        assert stream.status == 200


async def test_its_client_is_notified_that_each_list_may_have_changed(autojump_clock):
    """Once, and where the session has begun not at all."""
    async with two() as (first, second):
        session = await first.opened(path="/mcp")
        streams = [web.begin(b"", verb="GET", **session) for web in (first, second)]
        assert await second.status(TOOLS, **session) == 200
        await trio.sleep(10)
        changes = [f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")]
        assert [said.get("method") for said in second.heard if "method" in said] == changes
        assert [said for said in first.heard if "method" in said] == []
        assert [each.status for each in streams] == [200, 200]


async def test_of_one_server_the_lists_are_announced_that_it_announces(autojump_clock):
    async with two(capabilities={"tools": {"listChanged": True}, "prompts": {}}) as (first, second):
        session = await first.opened()
        declared = next(said["result"] for said in first.heard if "result" in said)["capabilities"]
        second.begin(b"", verb="GET", **session)
        await trio.sleep(10)
        told = {said["method"].split("/")[1] for said in second.heard if "method" in said}
        assert told == {kind for kind, what in declared.items() if what.get("listChanged")} == {"tools"}


async def test_a_session_that_moves_counts_like_a_new_one(autojump_clock):
    """Against the limits of all and of its client, until it is idle."""
    async with replicas({}, {"sessions": 2, "sessions_of_client": 1, "idle": 60}) as ((_, first), (_, second)):
        ann, more, nobody, last = [await first.opened(**headers) for headers in (ANN, ANN, {}, {})]
        assert await second.status(PING, **ann) == 200
        refused = await second.say(PING, **more)
        assert (refused.status, refused.headers[b"retry-after"]) == (429, b"1")
        assert await second.status(PING, **nobody) == 200
        refused = await second.say(PING, **last)
        assert (refused.status, refused.headers[b"retry-after"]) == (503, b"1")
        await trio.sleep(59)
        assert await second.status(PING, **ann) == 200
        await trio.sleep(2)
        assert [each.id for each in second.application._sessions._open.values()] == [ann["mcp-session-id"]]
        await trio.sleep(61)
        assert not second.application._sessions._open
        assert [await second.status(PING, **each) for each in (more, last)] == [200, 200]


async def test_a_session_that_moves_with_a_notification_is_idle_from_then_on(autojump_clock):
    async with replicas({}, {"idle": 60}) as ((_, first), (_, second)):
        session = await first.opened()
        assert await second.status({"method": "notifications/initialized"}, **session) == 202
        await trio.sleep(59)
        assert len(second.application._sessions._open) == 1
        await trio.sleep(2)
        assert not second.application._sessions._open


async def test_a_session_that_was_idle_for_too_long_goes_on(autojump_clock):
    async with served(keys=keys(), idle=60) as (_, web):
        session = await web.opened()
        await trio.sleep(100)
        assert not web.application._sessions._open
        assert await web.status(PING, **session) == 200


@pytest.mark.parametrize("known", [True, False])
async def test_a_session_that_its_client_has_ended_does_not_go_on_here(autojump_clock, known):
    """Whether this gateway knew it or not. Another does not hear of it."""
    async with two() as (first, second):
        session = await first.opened()
        if known:
            assert await second.status(PING, **session) == 200
        assert await second.status(b"", **DELETED, **session) == 200
        for verb in ("POST", "GET", "DELETE"):
            assert await second.status(PING if verb == "POST" else b"", verb=verb, **session) == 404
        assert await first.status(PING, **session) == 200


async def test_a_session_that_was_ended_for_its_client_does_not_go_on(autojump_clock):
    async with served(keys=keys()) as (_, web):
        session = await web.opened(**ANN)
        web.application.end_clients(lambda client: client.name == "Ann")
        assert await web.status(PING, **session) == 404


async def test_ids_of_ended_sessions_are_kept_within_a_bound_and_until_their_age(autojump_clock, monkeypatch):
    monkeypatch.setattr(sessions, "MOST_REVOKED", 3)
    monkeypatch.setattr(store_module, "MOST_NOTES", 3)
    async with served(keys=keys()) as (_, web):
        each = [await web.opened() for _ in range(4)]
        for session in each:
            assert await web.status(b"", **DELETED, **session) == 200
        assert len(web.application._sessions._revoked) == 3
        assert [await web.status(PING, **session) for session in each] == [200, 404, 404, 404]
    async with served(keys=keys(max_age=0)) as (_, web):
        for _ in range(3):
            assert await web.status(b"", **DELETED, **await web.opened()) == 200
        assert len(web.application._sessions._revoked) == 1


async def test_a_session_that_began_too_long_ago_does_not_move(autojump_clock):
    async with served(keys=keys(max_age=1_000.0)) as (_, web):
        now = time.time()
        assert await web.status(PING, **sealed(now - 900)) == 200
        assert await web.status(PING, **sealed(now - 1_100)) == 404


async def test_a_session_with_an_instance_of_its_own_does_not_move(autojump_clock):
    """The instance is where it began, and what is known there is nowhere else."""
    each = {"of_server": {"instances": "session"}}
    async with two(**each) as (first, second):
        for path in ("/mcp", "/mcp/lab"):
            session = await first.opened(path=path)
            refused = await second.say(PING, **session)
            assert (refused.status, refused.text) == (404, OWN)
            assert await first.status(PING, **session) == 200
    async with served(keys=keys(), idle=60, **each) as (_, web):
        session = await web.opened()
        await trio.sleep(100)
        assert (await web.say(PING, **session)).text == OWN


async def test_a_client_that_says_too_much_has_a_session_that_does_not_move(autojump_clock):
    params = HELLO["params"] | {"capabilities": CAN | {"experimental": {"x": {"y": "z" * LONGEST_SEALED}}}}
    async with two() as (first, second):
        opened = (await first.say(HELLO | {"params": params})).session
        session = {"mcp-session-id": opened, "mcp-protocol-version": OLD}
        assert len(opened) == 32
        assert [await web.status(PING, **session) for web in (first, second)] == [200, 404]


async def test_the_id_of_a_handshake_that_failed_opens_nothing(autojump_clock):
    """What is sealed was checked."""
    wrong = HELLO["params"] | {"capabilities": {"elicitation": 5}}
    async with two() as (first, second):
        refused = await first.say(HELLO | {"params": wrong})
        assert "error" in refused.last
        for web in (first, second):
            assert await web.status(PING, **{"mcp-session-id": refused.session or "none"}) == 404


async def test_a_session_that_is_refused_for_a_limit_costs_no_look_at_the_state_and_no_line(
    autojump_clock, caplog, monkeypatch
):
    """However often its client comes again."""
    caplog.set_level(logging.INFO)
    async with replicas({}, {"sessions_of_client": 1}) as ((_, first), (_, second)):
        one, *others = [await first.opened(**ANN) for _ in range(20)]
        assert await second.status(PING, **one) == 200
        notes, looked = second.application._sessions._notes, []
        monkeypatch.setattr(type(notes), "session_note", lambda *_: looked.append(1))
        assert [await second.status(PING, **each) for each in others] == [429] * 19
        assert (looked, caplog.text.count("goes on here")) == ([], 1)


async def test_of_sessions_that_go_on_there_is_one_line_a_minute(autojump_clock, caplog):
    caplog.set_level(logging.INFO)
    async with two() as (first, second):
        for session in [await first.opened() for _ in range(20)]:
            assert await second.status(PING, **session) == 200
        await trio.sleep(61)
        assert await second.status(PING, **(await first.opened())) == 200
        said = [each.getMessage() for each in caplog.records if "goes on here" in each.getMessage()]
        assert said == ["a session goes on here", "a session goes on here (19 such lines before it are left out)"]


async def test_what_does_not_open_is_logged_once_a_minute(autojump_clock, caplog):
    """Without the id, however many come, and their number is."""
    async with served(keys=keys()) as (_, web):
        ids = [f"forged{number}" for number in range(50)] + ["x" * (64 << 10), sealed()["mcp-session-id"][:-1]]
        for session_id in ids:
            assert await web.status(PING, **{"mcp-session-id": session_id}) == 404
        lines = [each.message for each in caplog.records if "id of a session" in each.message]
        assert len(lines) == 1
        await trio.sleep(61)
        assert await web.status(PING, **sealed(0)) == 404
        lines = [each.message for each in caplog.records if "id of a session" in each.message]
        assert lines[1:] == [
            "the id of a session was refused: its session began too long ago (51 such lines before it are left out)"
        ]
        assert "forged" not in caplog.text


async def test_what_is_subscribed_to_and_the_log_level_stay_behind_where_no_state_is_shared(autojump_clock):
    """Its client is told in no other way than by the changes of its lists."""
    async with two() as (first, second):
        session = await first.opened(path="/mcp")
        assert await first.status(LEVEL, **session) == 200
        assert await second.status(PING, **session) == 200
        levels = [next(iter(web.application._sessions._open.values())).client.level for web in (first, second)]
        assert levels == ["error", None]


# -- what gateways with one state know of a session -------------------------------------------------------------------

URI, OTHER = "note://a", "note://b"


def shared_store():
    """A store of several machines."""
    store = MemoryStore()
    store.shared = True
    return store


async def text(arguments):
    await trio.lowlevel.checkpoint()
    return "text"


def about(method, uri=URI):
    return {"id": 7, "method": f"resources/{method}", "params": {"uri": uri}}


@asynccontextmanager
async def sharing(store=None, **options):
    """The servers of two gateways with one key and one state, and who speaks to them."""
    script = {"resources": {URI: text, OTHER: text}}
    each = {"state": store or shared_store(), "of_script": script, "capabilities": {"resources": {"subscribe": True}}}
    async with replicas(*[each | {"keys": keys()} | options] * 2) as gateways:
        yield gateways


def updates(web):
    return [said["params"]["uri"] for said in web.heard if said.get("method") == "notifications/resources/updated"]


async def update(server, uri=URI):
    await server.notify("notifications/resources/updated", {"uri": uri})


def open_at(web):
    (session,) = web.application._sessions._open.values()
    return session


@pytest.mark.parametrize("known", [True, False])
async def test_a_session_that_its_client_has_ended_goes_on_nowhere(autojump_clock, known):
    """Where it is open already it ends within two seconds."""
    async with sharing() as ((_, first), (_, second)):
        session = await first.opened()
        stream = None
        if known:
            stream = second.begin(b"", verb="GET", **session)
            assert await second.status(PING, **session) == 200
        assert await first.status(b"", **DELETED, **session) == 200
        await trio.sleep(sessions.NOTES_EVERY + 0.1 if known else 0)
        assert await second.status(PING, **session) == 404
        assert stream is None or stream.ended.is_set()


async def test_a_session_that_was_ended_for_its_client_goes_on_nowhere(autojump_clock):
    async with sharing() as ((_, first), (_, second)):
        session = await first.opened(**ANN)
        first.application.end_clients(lambda client: client.name == "Ann")
        await trio.testing.wait_all_tasks_blocked()
        assert await second.status(PING, **session) == 404


async def test_a_session_that_was_open_where_a_gateway_ends_goes_on(autojump_clock):
    """The end of a gateway is none of its sessions."""
    async with sharing() as ((_, first), (_, second)):
        session = await first.opened()
        await first.gateway.drain(1)
        first.application.end_clients(lambda _: True)
        await trio.sleep(sessions.NOTES_EVERY + 1)
        assert await second.status(PING, **session) == 200


@pytest.mark.parametrize("away", [4, 30])
async def test_an_end_that_was_noted_while_a_replica_could_not_look(autojump_clock, monkeypatch, away):
    begun, at = time.time(), trio.current_time()
    monkeypatch.setattr(time, "time", lambda: begun + trio.current_time() - at)

    class Away(MemoryStore):
        is_away = False

        def changed_notes(self, seconds):
            return None if self.is_away else super().changed_notes(seconds)

    store = Away()
    store.shared = True
    async with sharing(store) as ((_, first), (_, second)):
        session = await first.opened()
        assert await second.status(PING, **session) == 200
        store.is_away = True
        assert await first.status(b"", **DELETED, **session) == 200
        await trio.sleep(away)
        store.is_away = False
        await trio.sleep(sessions.NOTES_EVERY + 0.1)
        assert await second.status(PING, **session) == 404


async def test_an_end_holds_though_what_was_noted_before_is_forgotten(autojump_clock, monkeypatch):
    monkeypatch.setattr(store_module, "MOST_NOTES", 1)
    async with sharing() as ((_, first), (_, second)):
        session, other = await first.opened(), await first.opened()
        for uri in (URI, OTHER):
            assert await second.status(about("subscribe", uri), **session) == 200
        assert await first.status(about("subscribe"), **other) == 200
        assert await first.status(b"", **DELETED, **session) == 200
        await trio.sleep(sessions.NOTES_EVERY + 0.1)
        assert await second.status(PING, **session) == 404


async def test_of_a_session_that_was_ended_nothing_else_stays_noted(autojump_clock):
    store = shared_store()
    async with sharing(store) as ((_, first), _):
        session = await first.opened()
        for request in (about("subscribe"), LEVEL):
            assert await first.status(request, **session) == 200
        assert await first.status(b"", **DELETED, **session) == 200
        (note,) = store.changed_notes(3600).values()
        assert (note.ended, note.subscribed, note.level) == (True, frozenset(), None)


async def test_its_subscriptions_and_log_level_go_on_where_it_does(autojump_clock):
    """What may have changed meanwhile is announced once."""
    async with sharing() as ((_, first), (server, second)):
        session = await first.opened()
        for message in (LEVEL, about("subscribe"), about("subscribe", OTHER), about("unsubscribe", OTHER)):
            assert await first.status(message, **session) == 200
        second.begin(b"", verb="GET", **session)
        await trio.sleep(1)
        assert (open_at(second).client.level, updates(second)) == ("error", [URI])
        await update(server)
        await update(server, OTHER)
        await trio.sleep(1)
        assert updates(second) == [URI, URI]


async def test_where_it_is_open_at_both_each_does_what_the_other_was_asked(autojump_clock):
    """Its one stream may be at either."""
    async with sharing() as ((_, first), (server, second)):
        session = await first.opened()
        second.begin(b"", verb="GET", **session)
        assert await first.status(about("subscribe"), **session) == 200
        assert await second.status(about("subscribe", OTHER), **session) == 200
        await trio.sleep(sessions.NOTES_EVERY + 0.1)
        await update(server)
        await trio.sleep(0.1)
        assert updates(second)[-1:] == [URI]
        assert open_at(first).client.subscribed.keys() == open_at(second).client.subscribed.keys() == {URI, OTHER}
        assert await first.status(about("unsubscribe"), **session) == 200
        await trio.sleep(sessions.NOTES_EVERY + 0.1)
        heard = updates(second)
        await update(server)
        await trio.sleep(sessions.NOTES_OVERLAP + 1)
        assert updates(second) == heard
        assert open_at(first).client.subscribed.keys() == open_at(second).client.subscribed.keys() == {OTHER}


async def test_more_uris_than_are_noted_stay_behind(autojump_clock, monkeypatch):
    monkeypatch.setattr(sessions, "MOST_NOTED", len(URI))
    async with sharing() as ((_, first), (_, second)):
        session = await first.opened()
        for uri in (URI, OTHER):
            assert await first.status(about("subscribe", uri), **session) == 200
        assert await second.status(PING, **session) == 200
        await trio.sleep(1)
        assert open_at(second).client.subscribed.keys() == {URI}


@pytest.mark.parametrize("options", [{"keys": None}, {"of_server": {"instances": "session"}}], ids=["key", "instance"])
async def test_nothing_is_noted_of_a_session_that_cannot_move(autojump_clock, options):
    store = shared_store()
    async with sharing(store, **options) as ((_, first), _):
        session = await first.opened()
        for message in (LEVEL, about("subscribe")):
            assert await first.status(message, **session) == 200
        assert await first.status(b"", **DELETED, **session) == 200
        assert store.changed_notes(3600) == {}


async def test_without_its_state_a_session_goes_on_all_the_same(autojump_clock):
    class Broken(MemoryStore):
        def session_note(self, session):
            raise StoreUnreadable("it is away")

        def note_session(self, session, until, change):
            raise StoreUnreadable("it is away")

        changed_notes = session_note

    store = Broken()
    store.shared = True
    async with sharing(store) as ((_, first), (_, second)):
        session = await first.opened()
        assert await first.status(about("subscribe"), **session) == 200
        assert await second.status(LEVEL, **session) == 200
        await trio.sleep(sessions.NOTES_EVERY + 1)
        assert [await web.status(PING, **session) for web in (first, second)] == [200, 200]
        assert await first.status(b"", **DELETED, **session) == 200


async def test_a_client_without_a_session_is_asked_for_none(autojump_clock):
    async with two() as (first, second):
        for web in (first, second):
            said = await web.say(LIST, **modern(LIST))
            assert (said.status, said.session) == (200, None)
            assert not web.application._sessions._open
