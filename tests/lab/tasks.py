"""A server that answers calls with tasks (the extension Tasks), and keeps them longer than its connections."""

from collections.abc import Mapping
from typing import Any

import trio
from attrs import define, field, frozen

from mcp_nursery.supervisor.testing import Life, Refusal, ScriptedServer

TASKS = "io.modelcontextprotocol/tasks"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
WORKING: dict[str, Any] = {"status": "working"}


def done(text: str = "done", **more: Any) -> dict[str, Any]:
    return {"status": "completed", "result": {"content": [{"type": "text", "text": text}], **more}}


def failed(code: int = -32603, message: str = "no luck") -> dict[str, Any]:
    return {"status": "failed", "error": {"code": code, "message": message}}


def wants(**questions: Any) -> dict[str, Any]:
    return {"status": "input_required", "inputRequests": questions}


@define(eq=False)
class OneTask:
    """One task, and what its server was told about it."""

    id: str
    left: list[Any]
    """What it will be, one for each look; the last stays."""
    answers: dict[str, Any] = field(factory=dict)
    """The answers to its questions, each as it came first."""
    looks: list[float] = field(factory=list)
    updates: list[dict[str, Any]] = field(factory=list)
    cancelled: list[float] = field(factory=list)

    @property
    def now(self) -> Any:
        return self.left[0]

    def look(self) -> Any:
        now = self.now
        if len(self.left) > 1 and not self.open(now):
            self.left.pop(0)
        return self.now

    def open(self, now: Any) -> dict[str, Any]:
        asked = now.get("inputRequests") if isinstance(now, dict) else None
        return {key: one for key, one in (asked or {}).items() if key not in self.answers}


class TaskServer(ScriptedServer):
    """Its tool `work` becomes a task with these steps: each look shows the next one, and a step with questions stays
    until they are answered. `made` is what the call is answered with, besides the id. A step that is an exception is
    raised."""

    def __init__(self, *steps: Any, made: Mapping[str, Any] | None = None, lives: Any = (), **options: Any) -> None:
        super().__init__(*lives, tools={"work": None, "plain": None}, **options)  # type: ignore[dict-item]
        self.capabilities["extensions"] = {TASKS: {}}
        self.steps, self.made = steps, {"ttlMs": None, "pollIntervalMs": 1000, **WORKING, **(made or {})}
        self.tasks: dict[str, OneTask] = {}
        self.told: list[Any] = []
        """The capabilities in each request about calls and tasks."""
        self.remembers = True
        for method, answer in (
            ("tools/call", self._make),
            ("tasks/get", self._get),
            ("tasks/update", self._update),
            ("tasks/cancel", self._cancel),
        ):
            self.answers[method] = answer

    @property
    def task(self) -> OneTask:
        (task,) = self.tasks.values()
        return task

    def _note(self, params: dict[str, Any]) -> None:
        self.told.append(params.get("_meta", {}).get(CAPABILITIES))

    async def _make(self, params: dict[str, Any]) -> Any:
        self._note(params)
        if params["name"] == "plain" or TASKS not in (self.told[-1] or {}).get("extensions", {}):
            return {"content": [{"type": "text", "text": "at once"}]}
        name = f"t{len(self.tasks)}"
        self.tasks[name] = OneTask(name, [None, *self.steps])
        return {"resultType": "task", "taskId": name, "createdAt": "x", "lastUpdatedAt": "x", **self.made}

    def _known(self, params: dict[str, Any]) -> OneTask:
        self._note(params)
        if not self.remembers or params["taskId"] not in self.tasks:
            raise Refusal(-32602, "Failed to retrieve task: Task not found")
        return self.tasks[params["taskId"]]

    async def _get(self, params: dict[str, Any]) -> Any:
        task = self._known(params)
        task.looks.append(trio.current_time())
        step = task.look()
        if isinstance(step, Exception):
            raise step
        if callable(step):
            return await step(task)
        return self.as_answer(task, step)

    def as_answer(self, task: OneTask, step: dict[str, Any]) -> dict[str, Any]:
        said = {"taskId": task.id, "createdAt": "x", "lastUpdatedAt": "x", **self.made, **step}
        return said if "inputRequests" not in step else {**said, "inputRequests": task.open(step)}

    async def _update(self, params: dict[str, Any]) -> Any:
        task = self._known(params)
        task.updates.append(params["inputResponses"])
        for key, answer in params["inputResponses"].items():
            task.answers.setdefault(key, answer)
        return {}

    async def _cancel(self, params: dict[str, Any]) -> Any:
        self._known(params).cancelled.append(trio.current_time())
        return {}


SERVERS: dict[str, TaskServer] = {}
"""The servers of places."""


@frozen
class Place:
    """A way to a server that means the same for every host."""

    name: str
    kind = "scripted"

    def connector(self, *, close_grace: float) -> Any:
        return SERVERS[self.name].transport.connector(close_grace=close_grace)


class OldTaskServer(TaskServer):
    """The same as 2025-11-25 has it: its tool needs a parameter, and the result comes by a request of its own."""

    def __init__(self, *steps: Any, **options: Any) -> None:
        needs = {"work": {"execution": {"taskSupport": "required"}}}
        options = {"declared": needs, "lives": [Life(modern=False)], **options}
        super().__init__(*steps, made={"ttl": 60_000, "pollInterval": 1000}, **options)
        self.capabilities["tasks"] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
        self.answers["tasks/result"] = self._result
        self.results = 0

    async def _make(self, params: dict[str, Any]) -> Any:
        self._note(params)
        if params["name"] == "work" and "task" not in params:
            return {"content": [{"type": "text", "text": "it needs a task"}], "isError": True}
        if "task" not in params:
            return {"content": [{"type": "text", "text": "at once"}]}
        name = f"t{len(self.tasks)}"
        self.tasks[name] = OneTask(name, [None, *self.steps])
        return {"task": {"taskId": name, **self.made}}

    def as_answer(self, task: OneTask, step: dict[str, Any]) -> dict[str, Any]:
        said = super().as_answer(task, step)
        return {key: value for key, value in said.items() if key not in ("result", "error")}

    async def _result(self, params: dict[str, Any]) -> Any:
        self.results += 1
        now = self._known(params).now
        if "error" in now:
            raise Refusal(now["error"]["code"], now["error"]["message"])
        return now["result"]
