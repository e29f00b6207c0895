"""W13: for any deaths, calls, time limits and ladders behind a gateway, a call that meets a restart has one outcome, in
time; none is sent twice that must not be; and the server is started as often as its ladder allows."""

import math
from itertools import pairwise
from typing import Any

import trio
from attrs import define, field, frozen
from hypothesis import event, given
from hypothesis import strategies as st

from mcp_nursery.supervisor import RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.events import StateChanged
from mcp_nursery.supervisor.gateway import gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.status import ServerState
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ..lab.gateway_clients import ENVELOPE, NEW

S = ServerState
STABLE_AFTER = 6.0
CONNECT_TIMEOUT = 4.0
READ, WRITE = "read", "write"


@frozen
class Asked:
    """A call of a client. Each begins at a sixty-fourth of its own, so that nothing else happens in that moment."""

    after: int
    tool: str
    lasts: float


@define
class Made:
    """The same call, as it was made."""

    asked: Asked
    began: float
    ended: float = math.nan
    said: list[str] = field(factory=list)
    heard: list[float] = field(factory=list)
    """The times at which the server began it."""
    progress: list[float] = field(factory=list)

    @property
    def failure(self) -> str | None:
        """The name of its error; None if it was answered."""
        (text,) = self.said
        return text.splitlines()[0].removeprefix("MCP error: ") if text.startswith("MCP error: ") else None

    def is_lost_at(self, lost: float) -> bool:
        """True if it ended with the server, which had begun it and may not begin it again."""
        return self.ended == lost and self.asked.tool == WRITE and bool(self.heard)


@frozen
class World:
    """A server, its ladder, the limits of its calls, and the calls."""

    lives: tuple[Life, ...]
    delays: tuple[float, ...]
    hold: float
    call_timeout: float | None
    calls: tuple[Asked, ...]


later_lives = st.builds(
    Life,
    connects_after=st.sampled_from([0.0, 0.0, 1.0, 3.0]),
    dies_after=st.sampled_from([0.0, 0.5, STABLE_AFTER - 0.5, STABLE_AFTER, STABLE_AFTER + 2, math.inf]),
    refuses=st.sampled_from([None, None, None, "no"]),
    mute=st.sampled_from([False, False, False, True]),
    closes_after=st.sampled_from([0.0, 0.0, 1.5]),
)
worlds = st.builds(
    World,
    lives=st.tuples(
        st.builds(Life, dies_after=st.sampled_from([STABLE_AFTER, 8.0, 2.0]), modern=st.booleans()),
        st.lists(later_lives, max_size=8),
    ).map(lambda drawn: (drawn[0], *drawn[1], Life())),
    delays=st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0]), max_size=3).map(tuple),
    hold=st.sampled_from([20.0, 3.0, 0.5, 0.0]),
    call_timeout=st.sampled_from([None, None, 1.0, 4.0]),
    calls=st.lists(
        st.builds(
            Asked,
            st.sampled_from([0, 1, 2, 3, 6]),
            st.sampled_from([READ, WRITE]),
            st.sampled_from([0.0, 0.0, 1.0, 3.0]),
        ),
        min_size=4,
        max_size=16,
    ).map(tuple),
)


def run(world: World) -> tuple[list[Made], list[StateChanged], ScriptedServer]:
    """The calls, the changes of the server's state, and the server."""
    made: list[Made] = []
    told: list[StateChanged] = []

    async def work(arguments: dict[str, Any]) -> str:
        one = made[arguments["number"]]
        one.heard.append(trio.current_time())
        await trio.sleep(one.asked.lasts)
        return "done"

    server = ScriptedServer(*world.lives, tools={READ: work, WRITE: work}, annotations={READ: {"readOnlyHint": True}})
    spec = ServerSpec(
        "lab",
        server.transport,
        policy=RestartPolicy(delays=world.delays, stable_after=STABLE_AFTER),
        connect_timeout=CONNECT_TIMEOUT,
        call_timeout=world.call_timeout,
        trust_hints=True,
        breaker=None,
    )

    async def main() -> None:
        async with (
            open_supervisor([spec], callbacks=gateway_callbacks()) as supervisor,
            open_gateway(supervisor, hold=world.hold) as gateway,
            trio.open_nursery() as clients,
        ):
            await supervisor.wait_connected("lab")

            async def call(number: int) -> None:
                one = made[number]

                async def notify(_method: str, params: Any) -> None:
                    one.progress.append(params["progress"])

                params = {"name": one.asked.tool, "arguments": {"number": number}}
                meta = ENVELOPE | {"progressToken": number}
                incoming = ClientRequest(number, "tools/call", params, meta, notify, principal="ann")
                result = await gateway.answer(incoming, gateway.view("lab"), NEW)
                one.said.append(result["content"][0]["text"])
                one.ended = trio.current_time()

            async def follow() -> None:
                async with supervisor.events() as events:
                    async for each in events:
                        if isinstance(each, StateChanged):
                            told.append(each)

            clients.start_soon(follow)
            for number, asked in enumerate(world.calls):
                await trio.sleep_until(math.floor(trio.current_time()) + asked.after + (number + 1) / 64)
                made.append(Made(asked, trio.current_time()))
                clients.start_soon(call, number)
            await trio.sleep(200)
            clients.cancel_scope.cancel()

    run_virtual(main)
    return made, told, server


def first_pause(told: list[StateChanged], since: float) -> float:
    """When the server was first `waiting` from this time on; `inf` if it never was."""
    for change, following in pairwise([*told, None]):
        until = math.inf if following is None else following.at
        if change.new is S.WAITING and until >= since:  # the call itself may have ended the pause
            return max(change.at, since)
    return math.inf


def state_at(told: list[StateChanged], at: float) -> ServerState:
    return [S.CONNECTED, *(change.new for change in told if change.at <= at)][-1]


@given(worlds, st.random_module())
def test_a_call_that_meets_a_restart(world: World, schedule: object) -> None:
    made, told, server = run(world)
    losses = {change.incarnation: change.at for change in told if change.new in (S.WAITING, S.FAILED)}
    for one in made:
        assert len(one.said) == 1, "one outcome"
        assert len(one.heard) <= (2 if one.asked.tool == READ else 1), "sent again only where that does no harm"
        assert (one.failure is None) <= bool(one.heard)
        assert one.ended - one.began <= (world.call_timeout or math.inf)
        assert [*one.progress] == sorted({*one.progress}), "it grows"
        if not one.heard:
            pause = first_pause(told, one.began)
            assert one.ended <= pause + world.hold, "held no longer than it may be"
            gave_up = one.ended == pause + world.hold or state_at(told, one.ended) is S.FAILED
            assert one.failure != "ServerDown" or gave_up
            event("held in vain" if one.ended > one.began else "refused at once")
        elif one.began < one.heard[0]:
            event("held and sent")
        if one.failure == "ServerDown":
            assert not one.heard
    # -- the ladder, counted by its definition
    failures = 0
    for number, (begun, following) in enumerate(pairwise([*server.starts, math.inf]), start=1):
        if number not in losses:
            continue
        lost, closed = losses[number], server.ends[number - 1]
        connected = [each.at for each in told if each.new is S.CONNECTED and each.incarnation == number]
        since = connected[0] if connected else 0.0 if number == 1 else math.inf
        stable = lost - since >= STABLE_AFTER
        failures = 1 if stable else failures + 1
        assert begun <= lost
        if failures > len(world.delays):
            assert following == math.inf, "started more often than its ladder says"
            continue
        due = max(lost + world.delays[failures - 1], closed)
        open_then = [one for one in made if one.began <= due and one.ended >= lost and not one.is_lost_at(lost)]
        callers = [max(one.began, lost) for one in open_then]
        if stable and world.hold and callers:
            event("begun at once")
            assert following == max(min(callers), closed)
        else:
            assert following == due
