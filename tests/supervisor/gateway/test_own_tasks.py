"""Calls that a gateway makes tasks of, for clients that have the extension, at servers that do not. In memory, virtual
time."""

import threading
from contextlib import asynccontextmanager

import pytest
import trio

from mcp_nursery.actors.errors import TaskLost
from mcp_nursery.actors.extensions import APPS, TASKS
from mcp_nursery.supervisor import MemoryStore, open_supervisor
from mcp_nursery.supervisor.gateway import SessionKeys, gateway_callbacks, open_gateway
from mcp_nursery.supervisor.spec import MadeTasks
from mcp_nursery.supervisor.storage import task_rows
from mcp_nursery.supervisor.storage.store import StoreUnreadable
from mcp_nursery.supervisor.storage.task_rows import TaskRows
from mcp_nursery.supervisor.testing import Life, ScriptedServer
from mcp_nursery.supervisor.testing.life import tell_progress
from mcp_nursery.supervisor.testing.scripted import Refusal

from ...lab.gateway_clients import as_read
from ...lab.specs import spec
from ..calls.test_kept_tasks import later
from .test_tasks import ANN, BOB, DECLARED, KEY, NEW, UNKNOWN, Asking, TaskServer


@pytest.fixture
def state():
    return MemoryStore()


class SlowServer(ScriptedServer):
    """A server without Tasks, whose tool takes as long as it is told."""

    def __init__(self, modern=True):
        super().__init__(Life(modern=modern), tools={"work": self._work})
        self.done = 0

    async def _work(self, arguments):
        await trio.sleep(arguments["seconds"])
        self.done += 1
        if "error" in arguments:
            raise Refusal(-32000, arguments["error"])
        return arguments.get("text", "done")


@asynccontextmanager
async def served(state, server, after=5, keys=True, **more):
    """The clients of a gateway."""
    options = {"gate": 10, "template": "{server}_{tool}", "callbacks": gateway_callbacks(), "state": state}
    async with (
        open_supervisor([spec(server, name="a", **more), spec(SlowServer(), name="b")], **options) as supervisor,
        open_gateway(supervisor, session_keys=SessionKeys([KEY]) if keys else None, tasks_after=after) as gateway,
        trio.open_nursery() as nursery,
    ):
        yield Asking(gateway, nursery)
        nursery.cancel_scope.cancel()


def call(ask, seconds, who=ANN, able=DECLARED, **arguments):
    return ask("tools/call", name="a_work", arguments={"seconds": seconds, **arguments}, who=who, able=able)


def refuse(store, work):
    """In place of `Store.tasks`: the store is away."""
    raise StoreUnreadable("no route to the database")


async def end(ask, task, who=ANN):
    while (said := await ask("tasks/get", taskId=task, who=who))["status"] == "working":  # noqa: ASYNC110 - a client
        await trio.sleep(said["pollIntervalMs"] / 1000)
    return said


@pytest.mark.parametrize("modern", [True, False])
async def test_a_call_that_takes_long_becomes_a_task(modern, state, autojump_clock):
    server = SlowServer(modern)
    async with served(state, server) as ask:
        made = await call(ask, 20)
        assert trio.current_time() == pytest.approx(5, abs=1)
        assert (made["resultType"], made["status"], made["ttlMs"]) == ("task", "working", None)
        said = await end(ask, made["taskId"])
        assert (said["taskId"], said["resultType"], said["status"]) == (made["taskId"], "complete", "completed")
        assert said["result"]["content"] == [{"type": "text", "text": "done"}]
        assert made["createdAt"] <= said["lastUpdatedAt"]
        assert (await ask("tasks/get", taskId=made["taskId"], who=ANN))["result"] == said["result"]
        assert await ask.refusal("tasks/get", taskId=made["taskId"], who=BOB) == UNKNOWN
        assert await ask("tasks/update", taskId=made["taskId"], who=ANN, inputResponses={}) == {
            "resultType": "complete"
        }
        code, _, _ = await ask.refusal("tasks/get", taskId=made["taskId"], who=ANN, able={})
        assert code == -32021
    assert server.done == 1


async def test_other_calls_stay_calls(state, autojump_clock):
    server = SlowServer()
    async with served(state, server) as ask:
        for seconds, able in ((1, DECLARED), (20, {}), (20, {"extensions": {APPS: {}}})):
            assert (await call(ask, seconds, able=able))["content"] == [{"type": "text", "text": "done"}]
        assert await ask.gateway.supervisor.tasks() == ()


@pytest.mark.parametrize(("after", "own", "becomes"), [(None, None, False), (None, 2, True), (60, 2, True)])
async def test_an_entry_says_after_how_long(after, own, becomes, state, autojump_clock):
    async with served(state, SlowServer(), after=after, tasks=MadeTasks(after=own)) as ask:
        assert ((await call(ask, 20))["resultType"] == "task") is becomes
        hello = await ask("server/discover", who=ANN)
        assert (TASKS in hello["capabilities"].get("extensions", {})) is becomes


async def test_any_gateway_hands_the_result_out(state, autojump_clock):
    """Also when the client is gone, and after the end of the gateway that has made the call."""
    async with served(state, SlowServer()) as other:
        async with served(state, SlowServer()) as ask:
            task = (await call(ask, 20))["taskId"]
            assert (await other("tasks/get", taskId=task, who=ANN))["status"] == "working"
            await trio.sleep(20)
        said = await other("tasks/get", taskId=task, who=ANN)
        assert said["result"]["content"] == [{"type": "text", "text": "done"}]
        (info,) = await other.gateway.supervisor.tasks()
        assert (info.server, info.tool, info.status) == ("a", "work", "completed")


@pytest.mark.parametrize("how", ["ends", "is killed"])
async def test_a_task_whose_gateway_is_gone_has_failed_and_is_not_made_again(how, state, autojump_clock):
    one, two = SlowServer(), SlowServer()
    async with served(state, two) as other:
        async with served(state, one) as ask:
            task = (await call(ask, 1000))["taskId"]
            if how == "is killed":
                gone = "UPDATE {tasks} SET owner = '[\"another\"]', until = 0"
                state.tasks(lambda rows: rows.execute(gone, ()))
                said = await other("tasks/get", taskId=task, who=ANN)
        if how == "ends":
            said = await other("tasks/get", taskId=task, who=ANN)
        assert said["status"] == "failed"
        assert "has ended; the server may have acted" in said["error"]["message"]
        assert said["error"]["data"] == {"delivery": "unknown"}
        assert await other("tasks/get", taskId=task, who=ANN) == said
    assert (len(one.calls), len(two.calls)) == (1, 0)


@pytest.mark.parametrize("ttl", [60, 7200])
async def test_an_entry_says_how_long_a_result_is_kept(ttl, state, autojump_clock, monkeypatch):
    async with served(state, SlowServer(), tasks=MadeTasks(ttl=ttl)) as ask:
        task = (await call(ask, 20))["taskId"]
        said = await end(ask, task)
        assert said["ttlMs"] == pytest.approx(ttl * 1000, abs=5000)  # by real time, which hardly passes here
        later(monkeypatch, ttl - 10)
        assert (await ask("tasks/get", taskId=task, who=ANN))["result"] == said["result"]
        assert [info.status for info in await ask.gateway.supervisor.tasks()] == ["completed"]
        later(monkeypatch, 20)
        assert await ask.refusal("tasks/get", taskId=task, who=ANN) == UNKNOWN
        assert await ask.gateway.supervisor.tasks() == ()
        await call(ask, 20)
        assert state.tasks(lambda rows: rows.execute("SELECT count(*) FROM {tasks}", ()).fetchone()) == (1,)


async def test_a_list_shows_no_task_of_a_gone_gateway_as_under_way(state, autojump_clock):
    async with served(state, SlowServer()) as other, served(state, SlowServer()) as ask:
        await call(ask, 1000)
        state.tasks(lambda rows: rows.execute("UPDATE {tasks} SET owner = '[\"another\"]', until = 0", ()))
        (info,) = await other.gateway.supervisor.tasks()
        assert (info.status, "the server may have acted" in info.error) == ("failed", True)


@pytest.mark.parametrize("here", [True, False])
async def test_a_task_that_is_cancelled_cancels_the_call(here, state, autojump_clock):
    server = SlowServer()
    async with served(state, server) as ask, served(state, SlowServer()) as other:
        task = (await call(ask, 1000))["taskId"]
        assert await (ask if here else other)("tasks/cancel", taskId=task, who=ANN) == {"resultType": "complete"}
        await trio.sleep(5)
        for each in (ask, other):
            said = await each("tasks/get", taskId=task, who=ANN)
            assert (said["status"], "result" in said, "error" in said) == ("cancelled", False, False)
        assert len(server.cancelled) == 1


async def test_a_task_that_is_cancelled_while_the_store_is_away_has_not_failed(state, autojump_clock, monkeypatch):
    async with served(state, SlowServer()) as ask:
        task = (await call(ask, 1000))["taskId"]
        (info,) = await ask.gateway.supervisor.tasks()
        with monkeypatch.context() as away:
            away.setattr(type(state), "tasks", refuse)
            await ask.gateway.supervisor.made_tasks.cancel_made(info.id)
            await trio.sleep(1)
        assert (await ask("tasks/get", taskId=task, who=ANN))["status"] == "working"
        await trio.sleep(5)
        assert (await ask("tasks/get", taskId=task, who=ANN))["status"] == "cancelled"


async def test_a_task_whose_end_cannot_be_recorded_is_not_under_way_for_ever(state, autojump_clock, monkeypatch):
    """Also where its gateway goes on with other tasks."""
    async with served(state, SlowServer()) as other, served(state, SlowServer()) as ask:
        task = (await call(ask, 10))["taskId"]
        await call(ask, 1000)
        with monkeypatch.context() as away:
            away.setattr(type(state), "tasks", refuse)
            await trio.sleep(100)
        state.tasks(lambda rows: rows.execute("UPDATE {tasks} SET until = until - 8", ()))  # real time stood still
        await trio.sleep(3)
        assert (await other("tasks/get", taskId=task, who=ANN))["status"] == "failed"
        assert sorted(info.status for info in await other.gateway.supervisor.tasks()) == ["failed", "working"]


async def test_a_call_whose_task_has_failed_elsewhere_is_cancelled(state, autojump_clock):
    """Its host has lost the database for a while: nobody can have its result."""
    server = SlowServer()
    async with served(state, SlowServer()) as other, served(state, server) as ask:
        task = (await call(ask, 50))["taskId"]
        state.tasks(lambda rows: rows.execute("UPDATE {tasks} SET owner = '[\"another\"]', until = 0", ()))
        assert (await other("tasks/get", taskId=task, who=ANN))["status"] == "failed"
        await trio.sleep(5)
        assert [info.status for info in await ask.gateway.supervisor.tasks()] == ["failed"]
        assert len(server.cancelled) == 1


async def test_a_program_cannot_follow_what_its_gateway_makes(state, autojump_clock):
    async with served(state, SlowServer()) as ask:
        task = (await call(ask, 20))["taskId"]
        (info,) = await ask.gateway.supervisor.tasks()
        with pytest.raises(TaskLost, match="a gateway makes the call"):
            await ask.gateway.supervisor.task(info.id)
        await end(ask, task)
        assert (await (await ask.gateway.supervisor.task(info.id)).result()).full_text == "done"


async def test_a_client_that_loses_its_access_loses_its_calls(state, autojump_clock):
    server = SlowServer()
    async with served(state, server) as ask:
        await call(ask, 1000)
        kept = (await call(ask, 20, who=BOB))["taskId"]
        ask.gateway.end_clients(ANN.__eq__)
        await trio.sleep(3)
        assert len(server.cancelled) == 1
        assert (await end(ask, kept, who=BOB))["status"] == "completed"


async def test_a_server_that_turns_out_to_make_tasks(state, autojump_clock):
    async with served(state, TaskServer(Life(modern=True, connects_after=3))) as ask:
        made = await ask("tools/call", view="a", name="echo", arguments={}, who=ANN)
        assert (await ask("tasks/get", taskId=made["taskId"], who=ANN))["taskId"] == made["taskId"] != "t1"


async def test_a_gateway_that_ends_waits_for_its_tasks(state, autojump_clock):
    async with served(state, SlowServer()) as ask:
        await call(ask, 20)
        await ask.gateway.drain(100)
        assert trio.current_time() == pytest.approx(20, abs=1)


@pytest.mark.parametrize("drain", [100, 0.3])
async def test_a_result_is_recorded_before_its_gateway_ends(drain, tmp_path, monkeypatch):
    """Also where the store is busy for longer than the gateway waits."""
    busy, free, renew = trio.Event(), threading.Event(), TaskRows.renew
    token = trio.lowlevel.current_trio_token()

    def renew_slowly(self, *args, **options):
        token.run_sync_soon(busy.set)
        free.wait(30)
        return renew(self, *args, **options)

    async with served(tmp_path / "state", SlowServer()) as other:
        async with served(tmp_path / "state", SlowServer(), after=0.1) as ask:
            monkeypatch.setattr(TaskRows, "renew", renew_slowly)
            task = (await call(ask, 0.3))["taskId"]
            await busy.wait()
            threading.Timer(0.8, free.set).start()
            await ask.gateway.drain(drain)
        assert (await other("tasks/get", taskId=task, who=ANN))["status"] == "completed"


async def test_a_task_is_known_where_its_server_is(state, autojump_clock):
    async with served(state, SlowServer()) as ask:
        task = (await call(ask, 20))["taskId"]
        assert (await ask("tasks/get", taskId=task, who=ANN, view="a"))["status"] == "working"
        assert await ask.refusal("tasks/get", taskId=task, who=ANN, view="b") == UNKNOWN
        await end(ask, task)


async def test_a_client_with_a_handle_is_told_nothing_more_of_its_call(state, autojump_clock):
    told = []

    async def notify(method, params):
        await trio.lowlevel.checkpoint()
        told.append(params["progress"])

    class Telling(SlowServer):
        async def _work(self, arguments):
            for progress in range(10):
                await trio.sleep(2)
                tell_progress.get()({"progress": progress})
            return "done"

    server = Telling()
    async with served(state, server) as ask:
        incoming = ask.request("tools/call", {"name": "a_work", "arguments": {"seconds": 0}}, notify, who=ANN)
        incoming.meta = {**incoming.meta, "progressToken": 1}
        made = await ask.gateway.answer(incoming, ask.gateway.view(None, ANN.access), NEW)
        seen = [*told]
        await end(ask, as_read(made)["taskId"])
    assert told == seen == [0, 1]


async def test_a_call_that_fails_as_a_task(state, autojump_clock):
    async with served(state, SlowServer()) as ask:
        said = await end(ask, (await call(ask, 20, error="no luck"))["taskId"])
        assert (said["status"], said["error"]["code"], said["error"]["message"]) == ("failed", -32000, "no luck")
        assert said["statusMessage"] == "no luck"
        for text in ("x" * (1 << 20), "é" * (1 << 18)):  # as it is recorded, it is as long
            said = await end(ask, (await call(ask, 20, text=text))["taskId"])
            assert (said["status"], said["error"]["data"]) == ("failed", {"delivery": "answered"})


async def test_the_client_of_a_task_is_not_asked(state, autojump_clock):
    server = SlowServer()

    async def asks(params):
        await trio.sleep(20)
        question = {"method": "elicitation/create", "params": {"message": "a?", "requestedSchema": {}}}
        return {"resultType": "input_required", "inputRequests": {"q": question}}

    server.answers["tools/call"] = asks
    async with served(state, server) as ask:
        said = await end(ask, (await call(ask, 20))["taskId"])
        assert said["status"] == "failed"
        assert "asks for input" in said["error"]["message"]


async def test_a_client_has_so_many_at_once_and_further_calls_stay_calls(state, autojump_clock, monkeypatch):
    monkeypatch.setattr(task_rows, "MOST_MADE_OF_CLIENT", 1)
    async with served(state, SlowServer()) as ask:
        first = (await call(ask, 100))["taskId"]
        assert (await call(ask, 20))["content"] == [{"type": "text", "text": "done"}]
        assert (await call(ask, 20, who=BOB))["resultType"] == "task"
        await end(ask, first)
        for _ in range(2):
            last = (await call(ask, 20))["taskId"]
            await end(ask, last)
        (*_, again) = [await call(ask, 20)]
        assert await ask.refusal("tasks/get", taskId=first, who=ANN) == UNKNOWN
        await end(ask, again["taskId"])


async def test_a_client_that_gives_up_before_there_is_a_task_cancels_the_call(state, autojump_clock):
    server = SlowServer()
    async with served(state, server) as ask:
        with trio.move_on_after(3):
            await call(ask, 1000)
        await trio.sleep(10)
        assert await ask.gateway.supervisor.tasks() == ()
        assert len(server.cancelled) == 1


async def test_a_client_that_gives_up_while_its_task_is_recorded_leaves_no_record(tmp_path, monkeypatch):
    recorded, given_up, add = trio.Event(), threading.Event(), TaskRows.add_made
    token = trio.lowlevel.current_trio_token()

    def add_slowly(self, *args):
        add(self, *args)
        token.run_sync_soon(recorded.set)
        return given_up.wait(30)

    monkeypatch.setattr(TaskRows, "add_made", add_slowly)
    server = SlowServer()
    async with served(tmp_path / "state", server, after=0.1) as ask:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, ask, 1000)
            await recorded.wait()
            nursery.cancel_scope.cancel()
        given_up.set()
        assert await ask.gateway.supervisor.tasks() == ()
        assert len(server.cancelled) == 1


async def test_without_a_store_a_call_stays_a_call(state, autojump_clock, monkeypatch):
    async with served(state, SlowServer()) as ask:
        monkeypatch.setattr(type(state), "tasks", refuse)
        assert (await call(ask, 20))["content"] == [{"type": "text", "text": "done"}]
