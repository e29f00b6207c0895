"""P2: who subscribes to a resource hears of its changes, also of those that nobody told of. Virtual time."""

import time

import pytest
import trio
from attrs import evolve
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.session.changes import Changes
from mcp_nursery.supervisor import RestartPolicy, open_supervisor
from mcp_nursery.supervisor.errors import UnknownResource
from mcp_nursery.supervisor.events import PromptsChanged, ResourcesChanged, ResourceUpdated
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.specs import lasting, live_events, nothing, spec, status

ERAS = pytest.mark.parametrize("modern", [True, False], ids=["modern", "handshake"])
POLICY = RestartPolicy(delays=[1] * 10)


def library(*, modern, **more):
    resources = {"note:/a": nothing, "note:/b": nothing, "log:/": nothing}
    server = ScriptedServer(Life(modern=modern), resources=resources, prompts={"greet": nothing}, **more)
    server.capabilities["resources"] = {"subscribe": True}
    return server


def subscribed(server):
    """The URIs, in the order in which the living incarnation was asked for them."""
    last = max((number for number, _, _ in server.requests), default=0)
    asked = [(method, params) for number, method, params in server.requests if number == last]
    if server.lives[0].modern:
        return [params["notifications"].get("resourceSubscriptions") for _, params in asked]
    return [(method.partition("/")[2], params["uri"]) for method, params in asked]


async def updated(server, uri):
    await server.notify("notifications/resources/updated", {"uri": uri})
    await trio.sleep(1)


@ERAS
async def test_a_subscriber_hears_of_changes_and_no_other_does(modern, autojump_clock):
    server = library(modern=modern)
    async with open_supervisor([spec(server)], gate=10, policy=POLICY) as supervisor:
        async with supervisor.subscribe("note:/a") as a:
            await trio.sleep(1)
            async with supervisor.subscribe("note:/b", server="lab") as b:
                await trio.sleep(1)
                await updated(server, "note:/a")
                update = await a.receive()
                assert (update.server, update.uri, update.certain) == ("lab", "note:/a", True)
                for _ in range(5):
                    await updated(server, "note:/b")
                assert (await b.receive()).uri == "note:/b"  # one, however often
                with trio.move_on_after(10) as nothing_more:
                    await b.receive()
                assert nothing_more.cancelled_caught
            await trio.sleep(1)
        await trio.sleep(1)
        if modern:
            assert subscribed(server) == [["note:/a"], ["note:/a", "note:/b"], ["note:/a"]]
            assert len(server.cancelled) == 3
        else:
            words = [("subscribe", "a"), ("subscribe", "b"), ("unsubscribe", "b"), ("unsubscribe", "a")]
            assert subscribed(server) == [(word, f"note:/{name}") for word, name in words]
    with pytest.raises(trio.ClosedResourceError):
        await a.receive()


@ERAS
async def test_a_subscription_is_made_again_after_a_loss_and_says_that_something_may_have_changed(
    modern, autojump_clock
):
    server = library(modern=modern)
    async with (
        open_supervisor([spec(server)], gate=10, policy=POLICY) as supervisor,
        supervisor.subscribe("note:/a") as updates,
    ):
        await trio.sleep(1)
        server.crash()
        update = await updates.receive()
        assert (update.uri, update.certain, status(supervisor).incarnation) == ("note:/a", False, 2)
        await updated(server, "note:/a")
        assert (await updates.receive()).certain


@ERAS
async def test_what_is_under_a_resource_counts_as_that(modern, autojump_clock):
    server = library(modern=modern)
    async with open_supervisor([spec(server)], gate=10) as supervisor, supervisor.subscribe("log:/") as updates:
        await trio.sleep(1)
        await updated(server, "note:/a")
        await updated(server, "log:/2026/11/22")
        assert (await updates.receive()).uri == "log:/"


@pytest.mark.parametrize(
    ("uri", "heard"),
    [
        ("log:/a/b/c", "log:/a/b"),
        ("log:/a/b", "log:/a/b"),
        ("log:/a/bc", "log:/a/"),
        ("log:/a/", "log:/a/"),
        ("log:/a/x/y/z", "log:/a/"),
        ("log:/z", None),
        ("", None),
        ("/", None),
        ("log:/z/" + "a/" * 200_000, None),
        ("log:/a/" + "a/" * 200_000, "log:/a/"),
        ("/" * 400_000, None),
    ],
)
def test_the_nearest_that_is_subscribed_hears_of_it(uri, heard):
    """However long what a server names: it must not hold up the others."""
    told, began = [], time.process_time()
    changes = Changes("lab")
    changes._updated = lambda *said: told.append(said)
    changes.set_watched(frozenset({"log:/a/", "log:/a/b", "note:/a"}))
    changes.resource_updated(uri)
    assert told == ([] if heard is None else [(heard, True)])
    assert time.process_time() - began < 0.5


@ERAS
async def test_globs_of_the_spec_subscribe_at_every_connect(modern, autojump_clock):
    server = library(modern=modern)
    one = spec(server, subscribe=["note:/*"])
    async with open_supervisor([one], gate=10, policy=POLICY) as supervisor, supervisor.events() as events:
        await trio.sleep(1)
        await updated(server, "note:/b")
        assert await heard(events) == [("note:/b", True)]
        server.crash()
        await trio.sleep(5)
        assert sorted(await heard(events)) == [("note:/a", False), ("note:/b", False)]
        await updated(server, "log:/")
        assert await heard(events) == []


async def heard(events):
    """The updates that came by now."""
    await wait_all_tasks_blocked()
    found = []
    with trio.move_on_after(0.5):
        async for event in events:
            if isinstance(event, ResourceUpdated):
                found.append((event.uri, event.certain))
    return found


async def test_a_flood_of_updates_is_one_event_until_it_is_read(autojump_clock):
    server = library(modern=False)
    async with open_supervisor([spec(server, subscribe=["*"])], gate=10) as supervisor, supervisor.events() as events:
        await trio.sleep(1)
        for _ in range(500):
            await server.notify("notifications/resources/updated", {"uri": "note:/a"})
        await trio.sleep(1)
        assert await heard(events) == [("note:/a", True)]
        await updated(server, "note:/a")
        assert await heard(events) == [("note:/a", True)]


async def test_a_subscription_keeps_a_lazy_server_running(autojump_clock):
    server = library(modern=True)
    one = spec(server, lazy=True, stop_idle_after=5)
    async with open_supervisor([one]) as supervisor:
        async with supervisor.subscribe("note:/a"):
            await trio.sleep(100)
            assert status(supervisor).state == "connected"
        await trio.sleep(100)
        assert status(supervisor).state == "idle"


@ERAS
@pytest.mark.parametrize("restart", [True, False])
async def test_a_subscription_starts_a_lazy_server_again_that_a_reload_has_left_idle(restart, modern, autojump_clock):
    """G8, P2: it is subscribed again, and its subscriber told that something may have changed."""
    server = library(modern=modern)
    one = spec(server, lazy=True, stop_idle_after=5)
    async with open_supervisor([one]) as supervisor, supervisor.subscribe("note:/a") as updates:
        await trio.sleep(100)
        await supervisor.reload([one if restart else evolve(one, max_in_flight=3)], restart=restart)
        assert status(supervisor).state == "connecting"
        update = await updates.receive()
        assert (update.certain, server.starts) == (False, [0, 100])
        await trio.sleep(100)
        assert status(supervisor).state == "connected"


async def test_a_subscription_starts_no_server_that_a_reload_has_disabled(autojump_clock):
    """G8: it does when that is over."""
    server = library(modern=True)
    one = spec(server, lazy=True)
    async with open_supervisor([one]) as supervisor, supervisor.subscribe("note:/a"):
        await trio.sleep(100)
        await supervisor.reload([evolve(one, enabled=False)])
        await trio.sleep(100)
        assert (status(supervisor).state, server.starts) == ("disabled", [0])
        await supervisor.reload([one])
        await supervisor.wait_connected("lab")
        assert server.starts == [0, 200]


async def test_a_subscription_in_the_step_of_a_reload_starts_the_server_too(autojump_clock):
    """G8: the keeper hears of it after it has begun anew, and is idle."""
    server = library(modern=True)
    one = spec(server, lazy=True)
    async with open_supervisor([one]) as supervisor, trio.open_nursery() as nursery:
        await supervisor.list_tools()
        for n in range(1, 20):
            nursery.start_soon(supervisor.reload, [evolve(one, max_in_flight=n)])
            async with supervisor.subscribe("note:/a"):
                await trio.sleep(10)
                assert status(supervisor).state == "connected"


async def test_a_subscription_ends_with_its_server_or_was_none(autojump_clock):
    async with open_supervisor([spec(library(modern=True))], gate=10) as supervisor:
        with pytest.raises(UnknownResource):
            async with supervisor.subscribe("other:/"):
                raise AssertionError
        async with supervisor.subscribe("note:/a") as updates:
            await supervisor.remove_server("lab")
            with pytest.raises(trio.EndOfChannel):
                await updates.receive()


async def test_a_server_that_refuses_a_subscription_stays_connected(autojump_clock, caplog):
    server = library(modern=False)
    server.capabilities["resources"] = {}
    async with open_supervisor([spec(server)], gate=10) as supervisor, supervisor.subscribe("note:/a"):
        await trio.sleep(10)
        assert status(supervisor).state == "connected"
        assert server.requests == []
    assert "lab: cannot be subscribed: it does not offer it" in caplog.messages


@ERAS
async def test_lists_that_change_are_events_and_one_swap(modern, autojump_clock):
    """G4, Q24: what is listed, in one event for each kind."""
    server = library(modern=modern)
    for name in ("resources", "prompts"):
        server.capabilities[name] = {"listChanged": True}
    async with open_supervisor([spec(server)], gate=10) as supervisor, live_events(supervisor) as events:
        await trio.sleep(1)
        server.resources = {"note:/a": nothing, "note:/c": nothing, "day:/{n}": nothing}
        server.prompts = {"part": nothing}
        await server.notify("notifications/resources/list_changed")
        await server.notify("notifications/prompts/list_changed")
        await trio.sleep(1)
        assert [resource.uri for resource in supervisor.resources] == ["note:/a", "note:/c"]
        first, second = await events.receive(), await events.receive()
        assert isinstance(first, ResourcesChanged)
        assert (first.added, first.removed) == (("day:/{n}", "note:/c"), ("log:/", "note:/b"))
        assert isinstance(second, PromptsChanged)
        assert (second.added, second.removed) == (("mcp_lab_part",), ("mcp_lab_greet",))


async def test_a_subscription_that_begins_while_relayed_calls_are_in_flight(autojump_clock):
    """P2: its acknowledgement is not taken for a word about one of them."""
    server, told = library(modern=True, tools={"work": lasting(1)}), []
    server.capabilities["tools"] = {"listChanged": True}

    async def note(method, params):
        told.append(method)

    options = {"lazy": True, "stop_idle_after": 0, "subscribe": ("*",)}
    async with open_supervisor([spec(server, **options)]) as supervisor, live_events(supervisor) as events:
        for at in range(20):
            await supervisor.request("lab", "tools/call", {"name": "work", "arguments": {}}, on_notice=note)
            if at == 5:
                await updated(server, "note:/a")
        heard = []
        with trio.move_on_after(1):
            async for event in events:
                if isinstance(event, ResourceUpdated) and event.certain:
                    heard.append(event.uri)
    asked = [method for _, method, _ in server.requests]
    assert (told, asked.count("subscriptions/listen"), heard) == ([], 2, ["note:/a"])
