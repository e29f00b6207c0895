"""Every way a server fails, over every transport: what a call gets, what it comes to, how soon, and back again."""

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import CallError, CallTimeout, RestartPolicy, ServerError, open_supervisor
from mcp_nursery.supervisor.errors import Delivery
from mcp_nursery.supervisor.spec import Liveness

from ..lab.plain_words import unwanted
from ..lab.processes import next_state, outcome_of, status_of
from ..lab.rigs import open_rig
from ..lab.timely import Late, in_time, timely
from . import fault_matrix as matrix
from .fault_matrix import ROWS, When

pytestmark = pytest.mark.slow

SETTINGS = {"policy": RestartPolicy(delays=[0.2] * 100)}
LIVENESS = Liveness(interval=0.5, timeout=0.3)
CONNECT_TIMEOUT = 1.5
BOUNDS = {matrix.PROBE: 0.8, matrix.CONNECT: CONNECT_TIMEOUT}
LATE = 0.5
"""Seconds that a bound may be exceeded by: it starts with the fault, and the test's clock a moment earlier."""

CELLS = [
    pytest.param(row, column, id=f"{row.name}-{column}")
    for row in ROWS
    for column in matrix.COLUMNS
    if column in row.cells
]


def settings_of(row, cell):
    settings = dict(SETTINGS)
    if cell.within == matrix.PROBE:
        settings["liveness"] = LIVENESS
    if row.when is When.START:
        settings["lazy"] = True  # so that nothing is missed of what comes of the start
    if row.when is When.START and cell.within == matrix.CONNECT:
        settings["connect_timeout"] = CONNECT_TIMEOUT
    return settings


def told(outcome):
    """An outcome in the words of the matrix."""
    if not isinstance(outcome, Exception):
        return matrix.ANSWER
    assert isinstance(outcome, CallError), repr(outcome)
    code = f" {outcome.code}" if isinstance(outcome, ServerError) else ""
    return f"`{type(outcome).__name__}`{code} ({outcome.delivery.value})"


@pytest.mark.parametrize(("row", "column"), CELLS)
@timely
async def test_a_cell(row, column, remotes, tmp_path, caplog):
    """L6, L12, L14, R3, R8, P5, Q4, Q10, Q14, Q20, Q21, Q25: as the matrix says, in words for people, and back
    again."""
    caplog.set_level("INFO", "mcp_nursery.supervisor")
    cell = row.cells[column]
    stateless = row.fault == "stateless" and column == "handshake"
    with trio.fail_after(120):
        async with open_rig(column, remotes, tmp_path, stateless=stateless, cut=row.fault == "cut") as rig:
            spec = rig.spec(**settings_of(row, cell))
            if row.when is When.START or row.fault == "garbage":
                await break_(rig, row, None)
            async with open_supervisor([spec], gate=0, shutdown_timeout=2) as supervisor:
                took = await fail(supervisor, rig, row, cell)
                await rig.mend()
                await recover(supervisor, rig, cell)
    assert unwanted(one.getMessage() for one in caplog.records if one.name.startswith("mcp_nursery.supervisor")) == []
    if cell.state != matrix.KEPT:
        in_time(took, BOUNDS.get(cell.within, cell.within) + LATE)


async def break_(rig, row, supervisor):
    fault = "status" if row.fault == "stateless" else row.fault
    arguments = () if row.argument is None else (row.argument,)
    await getattr(rig, fault)(supervisor, *arguments)


async def fail(supervisor, rig, row, cell):
    """The fault, the call if there is one, and what the server comes to; the seconds until it has."""
    if row.when is not When.START:
        await supervisor.wait_connected("lab")
    moment = {When.START: at_start, When.IDLE: while_idle, When.CALL: with_a_call}[row.when]
    async with supervisor.events() as events:
        began, outcome = await moment(supervisor, rig, row)
        if row.when is not When.IDLE:
            assert told(outcome) == cell.call, repr(outcome)
            assert unwanted([str(outcome)] if isinstance(outcome, Exception) else []) == []
        if cell.state == matrix.KEPT:
            assert status_of(supervisor).state == matrix.KEPT
            return None
        came = await next_state(events, cell.state)
        assert unwanted([came.error, repr(came), str(status_of(supervisor).error)]) == []
        return came.at - began


async def at_start(supervisor, rig, row):
    began = trio.current_time()
    outcome, _ = await outcome_of(rig.call(supervisor, 0))
    return began, outcome


async def while_idle(supervisor, rig, row):
    await trio.testing.wait_all_tasks_blocked(0.2)
    began = trio.current_time()
    await break_(rig, row, supervisor)
    return began, None


async def with_a_call(supervisor, rig, row):
    outcomes = []

    async def call():
        outcomes.append((await outcome_of(rig.call(supervisor, 3600)))[0])

    if row.fault == "killed":
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            await rig.arrived(supervisor)
            began = trio.current_time()
            await break_(rig, row, supervisor)
        return began, outcomes[0]
    if row.fault == "garbage":
        outcome, _ = await outcome_of(rig.call_beside_garbage(supervisor))
        return trio.current_time(), outcome
    await break_(rig, row, supervisor)
    began = trio.current_time()
    mute = row.fault in ("frozen", "cut")
    outcome, _ = await outcome_of(rig.call(supervisor, 3600 if mute else 0, timeout=0.3 if mute else None))
    if mute and isinstance(outcome, CallTimeout) and outcome.delivery is Delivery.NOT_SENT:
        raise Late("the time of the call was over before it was sent")
    return began, outcome


async def recover(supervisor, rig, cell):
    """By itself from `waiting`, by a person from what is not retried; `connected` never was anything else."""
    if cell.state in ("failed", "needs_auth"):
        status = status_of(supervisor)
        assert (status.state, status.retry_in) == (cell.state, None)
        await supervisor.reconnect("lab")
    status = await supervisor.wait_connected("lab")
    assert (status.incarnation == 1) == (cell.state == matrix.KEPT)
    assert (await rig.call(supervisor, 0)).incarnation == status.incarnation
