"""The tasks that a client listens to. Each server that has some of these tasks gets one request, which lasts as long
as the client's own.

A server's notification is passed on as it came, but for its ids. A notification that is large, or comes while the
client does not read, is not kept: the server is asked for the status of the task once the client reads. After a loss
the server is asked for the status of each task, because each may have changed meanwhile.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import trio

from mcp_nursery.actors.errors import NurseryError, ServerError
from mcp_nursery.actors.extensions import TASK_CHANGED
from mcp_nursery.actors.messages import ACKNOWLEDGED
from mcp_nursery.actors.protocol import SUBSCRIPTION_ID_META_KEY
from mcp_nursery.actors.records import define, evolve, field

from ..bridge import Json, as_object, build_envelope, is_modern
from ..client_request import ClientRequest
from ..views.view import View, status_of
from .instance_leases import InstancePool

MOST_TASK_STREAMS: Final = 64
"""Requests by which clients listen to tasks of one server at once; tasks beyond that are left out of the
acknowledgement."""
MOST_TASK_STREAMS_OF_CLIENT: Final = 16
"""Such requests of one client, where clients are told apart."""
AGREED_WITHIN: Final = 5.0
"""Seconds that a client waits at most for servers to acknowledge; tasks of others are left out."""
LISTEN_AGAIN: Final = 2.0
"""Seconds until a server is listened to again after a loss. The pause doubles with each stream that was shorter than
the pause before it."""
LONGEST_PAUSE: Final = 60.0
"""Seconds of such a pause at most."""
_MOST_KEPT: Final = 4
"""Notifications of one stream that are kept for a client that does not read, of 64 KiB each at most."""

ShowResult = Callable[[ClientRequest, Json, str], Awaitable[Json]]
"""Returns the result of a request as its client is shown it: `(request, result, server)`."""


@define(eq=False)
class TaskStream:
    """The tasks of one server, or of one instance of it, that a client listens to."""

    _instances: InstancePool
    _view: View
    request: ClientRequest
    """The request of the client, as this server has it."""
    server: str
    _shown: Mapping[str, str]
    """The ids that the client knows, by those of the server."""
    _show: ShowResult
    _agreed: set[str] = field(factory=set[str], init=False)
    """The tasks, by the server's ids, of which the server notifies."""
    _begun: trio.Event = field(factory=trio.Event, init=False)
    """Set once the server has acknowledged, or failed to."""
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _changed: dict[str, Json | None] = field(factory=dict[str, "Json | None"], init=False)
    """The tasks that have changed, with their status as it came; None: the server is to be asked for it."""
    _news: trio.Event = field(factory=trio.Event, init=False)

    @property
    def agreed(self) -> list[str]:
        """The client's ids of the tasks of which it is notified."""
        return [shown for own, shown in self._shown.items() if own in self._agreed]

    async def begun(self) -> None:
        """Wait until the server has acknowledged, or failed to."""
        await self._begun.wait()

    def end(self) -> None:
        """Listen no more."""
        self._scope.cancel()

    async def run(self) -> None:
        """Listen, and again after each loss, until cancelled; once, if the server acknowledges nothing."""
        pause = LISTEN_AGAIN / 2
        with self._scope:
            while True:
                began = trio.current_time()
                with suppress(NurseryError):
                    await self._listen()
                if not self._begun.is_set():
                    break
                has_lasted = trio.current_time() - began > pause
                pause = LISTEN_AGAIN if has_lasted else min(2 * pause, LONGEST_PAUSE)
                await trio.sleep(pause)
        self._begun.set()

    async def _listen(self) -> None:
        """Listen until the connection is lost, or the server ends the stream."""
        status = status_of(self._view.supervisor, self.server)
        version = None if status is None else status.protocol_version
        if status is None or status.breaker is not None or not (version is None or is_modern(version)):
            return  # it does not answer, or has no streams
        wanted = {"notifications": {"taskIds": [*self._shown]}}
        await self._ask(self.request, wanted, when_down="wait", on_notice=self._hear, timeout=float("inf"))

    async def _ask(self, request: ClientRequest, params: Json, **options: Any) -> Json:
        meta = build_envelope(request.meta, request.capabilities, request.info, None)
        return (await self._instances.request(self.server, request, params, meta, **options)).result

    async def _hear(self, method: str, params: Mapping[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        if method == ACKNOWLEDGED:
            self._acknowledge(as_object(params.get("notifications")).get("taskIds"))
        elif method == TASK_CHANGED:
            for own in self._own([params.get("taskId")]) & self._agreed:
                whole = "status" in params and len(self._changed) < _MOST_KEPT
                self._put(own, dict(params) if whole else None)

    def _own(self, named: object) -> set[str]:
        """The tasks of this stream among those that the server names."""
        listed = cast("list[object]", named) if isinstance(named, list) else []
        return {each for each in listed if isinstance(each, str) and each in self._shown}

    def _acknowledge(self, named: object) -> None:
        agreed = self._own(named)
        if self._begun.is_set():
            for own in agreed & self._agreed:
                self._put(own, None)
        else:
            self._agreed = agreed
            self._begun.set()

    def _put(self, own: str, said: Json | None) -> None:
        self._changed[own] = said
        self._news.set()

    async def send(self) -> None:
        """Send the client what changes, as fast as it reads, until cancelled."""
        while True:
            while self._changed:
                own = next(iter(self._changed))
                try:
                    said = self._changed.pop(own) or await self._fetch(own)
                except ServerError:  # the server knows it no more: the client learns that when it asks
                    continue
                except NurseryError:
                    self._changed.setdefault(own, None)
                    await trio.sleep(LISTEN_AGAIN)
                    continue
                if said.get("taskId") == own:
                    await self._tell(own, said)
            self._news = trio.Event()
            await self._news.wait()

    def _about(self, own: str) -> ClientRequest:
        return evolve(self.request, method="tasks/get", params={"taskId": own})

    async def _fetch(self, own: str) -> Json:
        asked = self._about(own)
        return await self._ask(asked, asked.params, when_down="fail")

    async def _tell(self, own: str, said: Json) -> None:
        """Notify the client of the status of a task."""
        status = {key: value for key, value in said.items() if key != "resultType"}
        shown = await self._show(self._about(own), status, self.server)
        meta = as_object(shown.get("_meta")) | {SUBSCRIPTION_ID_META_KEY: self.request.id}
        await self.request.notify(TASK_CHANGED, shown | {"taskId": self._shown[own], "_meta": meta})


class TaskStreams:
    """The streams of all clients."""

    def __init__(self) -> None:
        self._open: set[TaskStream] = set()

    async def begin(self, streams: Sequence[TaskStream], nursery: trio.Nursery) -> list[TaskStream]:
        """Begin these streams, as far as there is room. Returns those whose servers have acknowledged in time."""
        begun = [each for each in streams if self._take(each)]
        for each in begun:
            nursery.start_soon(self._run, each)
        with trio.move_on_after(AGREED_WITHIN):
            for each in begun:
                await each.begun()
        for each in begun:
            if not each.agreed:
                each.end()
        return [each for each in begun if each.agreed]

    def _take(self, stream: TaskStream) -> bool:
        there = [each for each in self._open if each.server == stream.server]
        client = stream.request.client
        own = 0 if client is None else sum(each.request.client == client for each in there)
        if len(there) >= MOST_TASK_STREAMS or own >= MOST_TASK_STREAMS_OF_CLIENT:
            return False
        self._open.add(stream)
        return True

    async def _run(self, stream: TaskStream) -> None:
        try:
            await stream.run()
        finally:
            self._open.discard(stream)
