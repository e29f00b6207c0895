"""Servers that ask in the middle of a call, and a user who answers."""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio
import trio.testing
from mcp_types import ElicitResult

from mcp_nursery.supervisor import CallError, RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.testing import Ask, Refusal, ScriptedServer, run_virtual

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
READ_ONLY = {"readOnlyHint": True}


def form(message: str = "who?") -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": FORM}}


def sampling(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": {"type": "text", "text": "hm?"}}]
    return {"method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": 5, **more}}


def pages(*urls: str) -> Refusal:
    elicitations = [{"mode": "url", "message": f"log in at {n}", "url": url} for n, url in enumerate(urls)]
    return Refusal(-32042, "log in first", {"elicitations": elicitations})


async def dumped(answers: dict[str, Any]) -> object:
    return json.dumps(answers)


def asking(
    *requests: dict[str, Any], then: Callable[[dict[str, Any]], Awaitable[object]] = dumped, **options: Any
) -> ScriptedServer:
    """Its tool `work` asks all of this in one round, and returns the answers."""

    async def work(arguments: object) -> object:
        return Ask({f"q{n}": request for n, request in enumerate(requests)}, then)

    return ScriptedServer(*options.pop("lives", ()), tools={"work": work}, **options)


def refusing(*refusals: Exception) -> ScriptedServer:
    """Its tool `work` refuses in turn, and then does it."""
    left = list(refusals)

    async def work(arguments: object) -> object:
        if left:
            raise left.pop(0)
        return "done"

    return ScriptedServer(tools={"work": work})


class User:
    """Answers what it is asked, after some seconds, and remembers it."""

    def __init__(self, *answers: object, after: float = 0.0) -> None:
        self.answers = list(answers) or [ElicitResult(action="accept", content={"name": "Ann"})]
        self.after = after
        self.asked: list[Any] = []
        self.times: list[float] = []
        self.gave_up = 0

    async def __call__(self, message: Any) -> Any:
        self.asked.append(message)
        self.times.append(trio.current_time())
        try:
            await trio.sleep(self.after)
        except trio.Cancelled:
            self.gave_up += 1
            raise
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


ACCEPT, DECLINE, DISMISS = (ElicitResult(action=action) for action in ("accept", "decline", "cancel"))


def spec(server: ScriptedServer, **options: Any) -> ServerSpec:
    return ServerSpec("lab", server.transport, **{"policy": RestartPolicy(delays=(2,) * 5), **options})


async def called(server: ScriptedServer, callbacks: Callbacks, **options: Any) -> Any:
    """What a call comes to, and when."""
    trust = options.pop("trust_hints", True)
    async with open_supervisor([spec(server, trust_hints=trust)], callbacks=callbacks) as supervisor:
        try:
            outcome: object = await supervisor.call_tool("work", {"n": 1}, server="lab", **options)
        except CallError as error:
            outcome = error
        counts = supervisor.status()[0].calls
        assert (counts.in_flight, counts.done + counts.failed) == (0, 1)
        return outcome


def run(server: ScriptedServer, **callbacks: Any) -> Any:
    return run_virtual(partial(called, server, Callbacks(**callbacks)))
