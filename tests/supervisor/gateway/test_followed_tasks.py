"""Tasks for clients that do not follow them: the call waits, and has its result. Virtual time."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.supervisor import MemoryStore, ServerSpec, Supervisor, open_supervisor
from mcp_nursery.supervisor.gateway import Gateway, gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import ClientSession
from mcp_nursery.supervisor.testing import Life, run_virtual

from ...lab.asking import form
from ...lab.gateway_clients import CAN, ENVELOPE, NEW, OLD
from ...lab.tasks import CAPABILITIES, SERVERS, TASKS, WORKING, OldTaskServer, Place, TaskServer, done, wants

ANSWER = {"action": "accept", "content": {"name": "Ann"}}
PROGRESS = "notifications/progress"


class Client:
    """A client of one era. With `tasks` it has declared the extension."""

    def __init__(self, gateway: Gateway, nursery: trio.Nursery, era: str, *, view: str | None, tasks: bool) -> None:
        self.gateway, self.era, self.view = gateway, era, view
        self.capabilities = CAN | ({"extensions": {TASKS: {}}} if tasks else {})
        self.session = ClientSession(print, nursery, "lab") if era == OLD else None
        self.told: list[tuple[str, Any]] = []
        self.asked: list[str] = []
        self.vanished = False
        self.supervisor: Supervisor

    async def tell(self, method: str, params: Any) -> None:
        self.told.append((method, params))

    async def ask(self, method: str, params: Any) -> Any:
        self.asked.append(params["message"])
        await trio.sleep(30)
        return ANSWER

    async def request(self, method: str, **params: Any) -> Any:
        meta = {"progressToken": "p"} | ({} if self.session else {**ENVELOPE, CAPABILITIES: self.capabilities})
        incoming = ClientRequest(1, method, params, meta, self.tell, "ann", self.session)
        incoming.gone = lambda: self.vanished
        if self.session is None:
            incoming.describe()
        else:
            incoming.capabilities, incoming.ask = self.capabilities, self.ask
        return await self.gateway.answer(incoming, self.gateway.view(self.view), self.era)

    async def call(self, **more: Any) -> Any:
        """One call; the client answers what it is asked."""
        name = "work" if self.view else "mcp_lab_work"
        call = partial(self.request, "tools/call", name=name, arguments={})
        result = await call(**more)
        while result.get("resultType") == "input_required":
            answers = {
                key: await self.ask(one["method"], one["params"]) for key, one in result["inputRequests"].items()
            }
            result = await call(inputResponses=answers, requestState=result["requestState"])
        return result


@asynccontextmanager
async def served(
    *servers: TaskServer,
    era: str,
    view: str | None = "lab",
    tasks: bool = False,
    place: Place | None = None,
    **options: Any,
) -> AsyncGenerator[Client, None]:
    specs = [
        ServerSpec(name, place or each.transport, **options) for name, each in zip(("lab", "b"), servers, strict=False)
    ]
    async with (
        open_supervisor(specs, gate=10, callbacks=gateway_callbacks(), state=MemoryStore()) as supervisor,
        open_gateway(supervisor) as gateway,
        trio.open_nursery() as nursery,
    ):
        client = Client(gateway, nursery, era, view=view, tasks=tasks)
        client.supervisor = supervisor
        yield client
        nursery.cancel_scope.cancel()


both_eras = pytest.mark.parametrize("era", [OLD, NEW])


@both_eras
@pytest.mark.parametrize("view", ["lab", None])
def test_the_call_waits_for_its_task(era, view):
    async def main():
        server = TaskServer({**WORKING, "statusMessage": "half"}, wants(a=form("a?")), WORKING, done())
        async with served(server, era=era, view=view) as client:
            result = await client.call()
        assert result["content"] == [{"type": "text", "text": "done"}]
        assert result.get("resultType") == (None if era == OLD else "complete")
        assert client.asked == ["a?"]
        assert server.task.answers == {"a": ANSWER}
        progress = [params for method, params in client.told if method == PROGRESS]
        assert {params["progressToken"] for params in progress} == {"p"}
        numbers = [params["progress"] for params in progress]
        assert numbers == sorted(set(numbers))
        assert "half" in [params.get("message") for params in progress]
        assert len(server.calls) == 1

    run_virtual(main)


@both_eras
def test_a_client_that_follows_tasks_gets_the_task(era):
    async def main():
        server = TaskServer(done())
        async with served(server, era=era, tasks=True) as client:
            made = await client.request("tools/call", name="work", arguments={})
            assert (made["resultType"], made["status"]) == ("task", "working")
            assert (await client.request("tasks/get", taskId=made["taskId"]))["status"] == "completed"
            assert server.task.cancelled == []

    run_virtual(main)


@both_eras
def test_a_client_that_cancels_its_call_cancels_the_task(era):
    async def main():
        server = TaskServer(WORKING)
        async with served(server, era=era) as client:
            with trio.move_on_after(7):
                await client.call()
            assert trio.current_time() == 7
            await trio.testing.wait_all_tasks_blocked()
        assert server.task.cancelled == [7.0]

    run_virtual(main)


@both_eras
@pytest.mark.parametrize("vanishes", [False, True])
def test_a_task_may_go_on_when_its_client_has_gone(era, vanishes):
    """As one that was submitted: it is listed, and followed to its result. A client that cancels cancels it all the
    same."""

    async def main():
        server = SERVERS["there"] = TaskServer(*[{**WORKING, "statusMessage": "half"}] * 9, done("at last"))
        async with served(server, era=era, on_disconnect="keep", place=Place("there")) as client:
            client.vanished = vanishes
            with trio.move_on_after(7):
                await client.call()
            await trio.testing.wait_all_tasks_blocked()
            if not vanishes:
                assert server.task.cancelled == [7.0]
                assert await client.supervisor.tasks() == ()
                return
            (info,) = await client.supervisor.tasks()
            assert (info.server, info.tool, info.status) == ("lab", "work", "working")
            task = await client.supervisor.task(info.id)
            words = [info.message async for info in task.changes()]
            assert words == [None, "half", "half"]  # its server's words are read with the next look
            assert (await task.result()).full_text == "at last"
            assert (await client.supervisor.tasks())[0].status == "completed"
        assert (server.task.cancelled, len(server.calls)) == ([], 1)

    run_virtual(main)


def test_a_client_that_does_not_come_back_cancels_the_task():
    async def main():
        server = TaskServer(wants(a=form()))
        async with served(server, era=NEW, human_timeout=60) as client:
            asked = await client.request("tools/call", name="work", arguments={})
            assert asked["resultType"] == "input_required"
            await trio.sleep(100)
        assert len(server.task.cancelled) == 1

    run_virtual(main)


@both_eras
def test_a_question_that_its_client_cannot_be_asked(era):
    async def main():
        server = TaskServer(wants(a={"method": "roots/list"}))
        async with served(server, era=era) as client:
            with pytest.raises(JsonRpcError) as refused:
                await client.call()
            assert refused.value.code == -32021
        assert len(server.task.cancelled) == 1

    run_virtual(main)


@both_eras
def test_a_task_that_is_lost_is_a_result_that_says_so(era):
    async def main():
        server = TaskServer(WORKING, made={"ttlMs": 3000})
        async with served(server, era=era) as client:
            result = await client.call()
        assert result["isError"]
        text = json.dumps(result["content"])
        assert "its task is lost" in text
        assert "acted: maybe" in text

    run_virtual(main)


@both_eras
def test_an_entry_may_say_that_its_server_is_not_told(era):
    async def main():
        server = TaskServer(done())
        async with served(server, era=era, extensions={}) as client:
            assert (await client.call())["content"][0]["text"] == "at once"
        assert not server.tasks

    run_virtual(main)


def test_an_entry_that_announces_it_for_a_client_that_has_it_not():
    async def main():
        server = TaskServer(done())
        async with served(server, era=NEW, extensions={TASKS: {}}) as client:
            assert (await client.call())["content"][0]["text"] == "done"

    run_virtual(main)


@both_eras
def test_the_loss_of_the_server_is_a_pause(era):
    async def main():
        server = TaskServer(*[WORKING] * 4, done(), lives=[Life(dies_after=2.5), Life()])
        async with served(server, era=era) as client:
            assert (await client.call())["content"][0]["text"] == "done"
        assert len(server.calls) == 1

    run_virtual(main)


@both_eras
@pytest.mark.parametrize("tasks", [False, True])
def test_a_tool_of_2025_that_needs_a_task_works_for_every_client(era, tasks):
    async def main():
        server = OldTaskServer({**WORKING, "statusMessage": "half"}, done())
        async with served(server, era=era, tasks=tasks) as client:
            result = await client.call()
        assert result["content"] == [{"type": "text", "text": "done"}]
        assert result.get("resultType") == (None if era == OLD else "complete")
        assert "half" in [params.get("message") for method, params in client.told if method == PROGRESS]

    run_virtual(main)
