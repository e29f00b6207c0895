"""Servers that are watched until each has come to something. Knows neither whose they are nor how they are shown."""

from collections.abc import Awaitable, Callable, Sequence

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor.status import ServerStatus

Look = Callable[[], Awaitable[Sequence[ServerStatus]]]
News = Callable[[], Awaitable[object]]
Tell = Callable[[Sequence[ServerStatus], Sequence[ServerStatus]], Awaitable[None]]


async def settle(look: Look, news: News, tell: Tell, within: float) -> Sequence[ServerStatus]:
    """Where each server stands once none is connecting for the first time, or after so many seconds. One that has
    failed and is being started again stands where it failed.

    Args:
        look: Where all stand now.
        news: Ends when it is time to look again.
        tell: Is told who has settled now, and where all stand.
        within: Seconds after which nobody is waited for any more.
    """
    deadline = trio.current_time() + within
    settled: dict[str, ServerStatus] = {}
    while True:
        statuses = await look()
        new = [status for status in statuses if status.state is not ServerState.CONNECTING]
        unheard = [status for status in new if status.name not in settled]
        settled |= {status.name: status for status in new}
        statuses = [settled.get(status.name, status) for status in statuses]
        await tell(unheard, statuses)
        if all(status.name in settled for status in statuses):
            return statuses
        with trio.move_on_at(deadline) as waiting:
            await news()
        if waiting.cancelled_caught:
            return statuses
