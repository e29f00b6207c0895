"""A server may send anything, and must not harm the host."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp_types import CreateMessageResult, ElicitResult, TextContent

from mcp_nursery.supervisor import (
    Approval,
    NurseryError,
    RestartPolicy,
    ServerSpec,
    Supervisor,
    ToolResult,
    open_supervisor,
)
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.storage.store import MemoryStore
from mcp_nursery.supervisor.testing import ScriptedServer, run_virtual
from mcp_nursery.supervisor.tools.outcome import error_content

from ..lab.hostile import HostileServer, Plan, plans
from ..lab.hostile_plans import WORST_PLANS
from ..lab.hostile_words import CALLED

pytestmark = pytest.mark.slow


async def elicit(message: Any) -> ElicitResult:
    repr(message)
    return ElicitResult(action="accept", content={"who": "me"})


async def sample(message: Any) -> CreateMessageResult:
    repr(message)
    return CreateMessageResult(role="assistant", content=TextContent(text="hello"), model="m")


async def log(message: Any) -> None:
    repr(message)


async def approve(request: Any) -> Approval:
    json.dumps(request.redacted)
    repr(request)
    return Approval.ALLOW_ALWAYS


CALLBACKS = Callbacks(elicit=elicit, sample=sample, log=log)


def look_at_all(supervisor: Supervisor) -> None:
    """Whatever a host may look at can be looked at."""
    for status in supervisor.status():
        json.dumps([status.error, status.server_info, status.instructions, status.protocol_version])
        repr(status)
        assert status.error is None or one_line(status.error)
    for tool in supervisor.tools:
        json.dumps([tool.as_openai(), tool.as_anthropic(), tool.as_langchain(), tool.output_schema])
        repr((tool, tool.hints, tool.annotations, tool.search_hint, tool.always_load, tool.definition))
    for change in supervisor.definition_changes:
        repr((change, change.fields, change.diff))
    repr(supervisor.statistics())


def one_line(text: str) -> bool:
    return len(text.splitlines()) <= 1 and len(text) <= 5000


def check_outcome(outcome: ToolResult | NurseryError) -> None:
    repr(outcome)
    if isinstance(outcome, ToolResult):
        json.dumps([outcome.text, outcome.full_text, outcome.structured, outcome.signals, outcome.meta])
        json.dumps([block.model_dump(mode="json", by_alias=True) for block in outcome.content])
    else:
        assert one_line(str(outcome)), repr(outcome)
        assert error_content(outcome)


class Host:
    """Uses a hostile server and its healthy sibling in every way."""

    def __init__(self, transport: Any, *, patience: float = 3, connect: float = 5, **options: Any) -> None:
        self.patience = patience
        self.connect = connect
        self.transport = transport
        self.options = {"pins": "report", "state": MemoryStore(), **options}

    async def run(self) -> None:
        healthy = ScriptedServer()
        specs = [
            ServerSpec("hostile", self.transport, policy=RestartPolicy(delays=(1, 1)), connect_timeout=self.connect),
            ServerSpec("healthy", healthy.transport),
        ]
        with trio.fail_after(1000):
            async with open_supervisor(specs, gate=20, approve=approve, **self.options) as self.supervisor:
                await self.use()
            look_at_all(self.supervisor)
        assert len(healthy.starts) == 1

    async def use(self) -> None:
        supervisor = self.supervisor
        async with supervisor.events() as events, trio.open_nursery() as nursery:

            async def read_events() -> None:
                async for event in events:
                    repr(event)

            nursery.start_soon(read_events)
            await self.sibling()
            for _ in range(2):
                await self.calls()
                await self.outcome(supervisor.list_tools("hostile", refresh=True))
                await self.sibling()
            await self.outcome(supervisor.reconnect("hostile"))
            await self.calls()
            await self.sibling()
            nursery.cancel_scope.cancel()

    async def calls(self) -> None:
        supervisor = self.supervisor
        offered = [tool.tool for tool in supervisor.tools if tool.server == "hostile"]
        for name in dict.fromkeys([*CALLED, *offered]):
            await self.call(
                supervisor.call_tool(
                    name, {"a": "b"}, server="hostile", timeout=self.patience, on_progress=self.progress
                )
            )
        for tool in supervisor.tools:
            if tool.server == "hostile":
                with trio.move_on_after(self.patience):
                    await self.call(tool({"a": ""}))
        for change in supervisor.definition_changes:
            await self.outcome(supervisor.accept_change(change))
        async with supervisor.broadcast("echo", {}, timeout=self.patience) as outcomes:
            async for outcome in outcomes:
                check_outcome(outcome.result or outcome.error)
        look_at_all(supervisor)

    async def progress(self, *report: Any) -> None:
        repr(report)

    async def call(self, calling: Any) -> None:
        try:
            check_outcome(await calling)
        except NurseryError as error:
            check_outcome(error)

    async def outcome(self, doing: Any) -> None:
        try:
            await doing
        except NurseryError as error:
            check_outcome(error)

    async def sibling(self) -> None:
        result = await self.supervisor.call_tool("echo", {"a": 1}, server="healthy", timeout=30)
        assert result.full_text == '{"a": 1}'
        look_at_all(self.supervisor)


class Errors(logging.Handler):
    """Formats every record, as a real handler would, and keeps those that tell of a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.crashes: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if "please report" in text:
            self.crashes.append(text)


@pytest.fixture
def errors() -> Any:
    handler, logger = Errors(), logging.getLogger("mcp_nursery")
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large])
@given(plans, st.sampled_from(["report", "block"]), st.booleans(), st.random_module())
def test_whatever_a_server_says_on_a_wire(errors: Errors, plan: Plan, pins: str, callbacks: bool, random: Any) -> None:
    """Q4, Q25, R2, L1: no exception but those of the calls, one outcome a call, a sibling that hears nothing of it."""
    del random
    run_virtual(Host(HostileServer(plan), pins=pins, callbacks=CALLBACKS if callbacks else Callbacks()).run)
    assert not errors.crashes


@pytest.mark.parametrize("pins", ["report", "block"])
@pytest.mark.parametrize("plan", WORST_PLANS.values(), ids=WORST_PLANS)
def test_the_worst_that_is_known(errors: Errors, plan: Plan, pins: str) -> None:
    """Q4, Q25: each of these ended the block, a call or a session, or took hours."""
    run_virtual(Host(HostileServer(plan), pins=pins, callbacks=CALLBACKS).run)
    assert not errors.crashes


@pytest.mark.parametrize("pins", ["report", "block"])
def test_what_is_written_down(errors: Errors, tmp_path: Path, pins: str) -> None:
    """L17, Q4: names and schemas that no file can hold do no harm to one."""

    async def main(*names: str) -> None:
        async with trio.open_nursery() as hosts:
            for name in names:
                host = Host(HostileServer(WORST_PLANS[name]), pins=pins, state=tmp_path / "state.sqlite3")
                hosts.start_soon(host.run)

    trio.run(main, "a name that has no JSON form", "names with lines")
    trio.run(main, "a deep schema", "half a character")  # with a file in which the others have written
    assert not errors.crashes
