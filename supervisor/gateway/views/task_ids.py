"""Ids of tasks as clients are shown them.

The JSON `[server, the server's own id, instance, transport]` is sealed (`sealing`), bound to the client: any gateway
with the key finds the task by its id alone, and for another client, or once the server is reached in another way, an id
does not open, as if it were forged. The only client of one server, as behind `serve -- COMMAND`, is shown the server's
own ids: they can be of no other server or client.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from json import dumps, loads  # which take any name of a server
from typing import Final

from mcp_nursery.actors.extensions import TASK_REQUESTS, TASKS
from mcp_nursery.actors.protocol import INTERNAL_ERROR, INVALID_PARAMS, JsonRpcError
from mcp_nursery.actors.records import astuple, evolve, frozen

from ...spec import ServerSpec
from ..auth.principal import Principal
from ..bridge import Json
from ..client_request import ClientRequest, check_declares
from ..sealing import LONGEST_SEALED, SessionKeys, bind, random_keys
from .view import RequestRoute, View, status_of

_FORMAT: Final = b"mcp-nursery task 2"
"""The format of the JSON: it changes with the form of `TaskPlace`."""
_OWN_FORMAT: Final = b"mcp-nursery own task 1"
UNKNOWN_TASK: Final = "unknown task: it is not this client's, or it has gone with its server"


@frozen
class TaskPlace:
    """The place of a task."""

    server: str
    id: str
    """The server's own id of it."""
    instance: str = ""
    """The name of the session's own instance that has it; empty: the server gives sessions none."""
    reached: str = ""
    """The short digest of the transport of its server, to which alone its id belongs."""


class TaskIds:
    """The ids of tasks, translated in both directions. `has_instance` returns True if a session's instance of a server
    is here, by its name, and `reached` the short digest of how a server is reached. Without keys, ids open as long as
    the gateway lasts."""

    def __init__(
        self, keys: SessionKeys | None, has_instance: Callable[[str, str], bool], reached: Callable[[ServerSpec], str]
    ) -> None:
        self._given = keys
        self._has_instance = has_instance
        self._reached = reached

    @cached_property
    def _keys(self) -> SessionKeys:
        return self._given or random_keys()  # made for the first task: most gateways have none

    def seal(self, place: TaskPlace, owner: Principal | None) -> str | None:
        """Make the id of a task of this client. None if the server's own is too long."""
        return self._keys.seal(dumps(astuple(place)).encode(), bind(_FORMAT, owner))

    def open(self, task_id: object, owner: Principal | None) -> TaskPlace | None:
        """The place of a task, by its id, which may be anything that a client sends. None if no key has sealed it for
        this client."""
        plain = self._keys.open(task_id, bind(_FORMAT, owner)) if isinstance(task_id, str) else None
        return None if plain is None else TaskPlace(*loads(plain))

    def seal_own(self, name: str, owner: Principal | None) -> str:
        """Make the id of a task that a gateway makes itself, by the name under which it is recorded."""
        sealed = self._keys.seal(name.encode(), bind(_OWN_FORMAT, owner))
        assert sealed is not None  # the name is short
        return sealed

    def open_own(self, task_id: object, owner: Principal | None) -> str | None:
        """The name of a task that a gateway makes itself. None if it is no such id, or not this client's."""
        plain = self._keys.open(task_id, bind(_OWN_FORMAT, owner)) if isinstance(task_id, str) else None
        return None if plain is None else plain.decode()

    def find(self, request: ClientRequest, view: View, task_id: object) -> TaskPlace | None:
        """The task that a client means, if it is one of the client's, and its server and instance are here."""
        if not _seals(request, view):
            return TaskPlace(view.server or "", task_id) if isinstance(task_id, str) else None
        place = self.open(task_id, request.client)
        if place is None or view.server not in (None, place.server) or status_of(view.supervisor, place.server) is None:
            return None
        if place.reached != self._reached(view.supervisor.spec(place.server)):
            return None
        return place if not place.instance or self._has_instance(place.server, place.instance) else None

    def route(self, request: ClientRequest, view: View) -> RequestRoute | None:
        """The destination of a request about a task; None: of any other request, or by the server's own id.

        Raises:
            JsonRpcError: The client has no such task, or has not declared the extension.
        """
        if request.method not in TASK_REQUESTS or not _seals(request, view):
            return None
        place = self.find(request, view, request.params.get("taskId"))
        told = request.capabilities if place is None else view.told(request.capabilities, place.server)
        check_declares(told, TASKS)
        if place is None:
            raise JsonRpcError(INVALID_PARAMS, UNKNOWN_TASK)
        request.instance, request.reached = place.instance, place.reached
        return RequestRoute(place.server, request.params | {"taskId": place.id})

    def by_place(
        self, request: ClientRequest, view: View, task_ids: Sequence[object]
    ) -> list[tuple[str, ClientRequest, dict[str, str]]]:
        """The tasks that a client listens to, by their place: the server, the request as the server has it, and the
        ids that the client knows by those of the server. Tasks that are not the client's are left out.

        Raises:
            JsonRpcError: The client has not declared the extension.
        """
        groups: dict[tuple[str, str, str], dict[str, str]] = {}
        if task_ids:
            check_declares(request.capabilities, TASKS)
        for task_id in task_ids:
            if (place := self.find(request, view, task_id)) is not None:
                groups.setdefault((place.server, place.instance, place.reached), {})[place.id] = str(task_id)
        return [
            (
                server,
                evolve(
                    request,
                    capabilities=view.told(request.capabilities, server),
                    instance=instance,
                    # an alone client knows the ids of whatever server there is
                    reached=reached if _seals(request, view) else None,
                ),
                shown,
            )
            for (server, instance, reached), shown in groups.items()
        ]

    def show(self, request: ClientRequest, view: View, route: RequestRoute, result: Json) -> Json:
        """The result of a request, with the id of its task as the client is shown it: by a request about a task, the id
        that the client has sent.

        Raises:
            JsonRpcError: The server answers about another task, or its id is too long to be shown.
        """
        own, asked = result.get("taskId"), request.method in TASK_REQUESTS
        if own is None or not (asked or result.get("resultType") == "task") or not _seals(request, view):
            return result
        if asked and own != route.params["taskId"]:
            raise JsonRpcError(INTERNAL_ERROR, f"{route.server} has answered about another task than it was asked for")
        shown = request.params["taskId"] if asked else self._shown(route.server, own, request)
        return result | {"taskId": shown}

    def _shown(self, server: str, own: object, request: ClientRequest) -> str:
        sealed = None
        if isinstance(own, str) and request.went_by is not None:
            place = TaskPlace(server, own, request.went_to, self._reached(request.went_by))
            sealed = self.seal(place, request.client)
        if sealed is None:
            fault = f"longer than {LONGEST_SEALED} characters when sealed" if isinstance(own, str) else "no text"
            raise JsonRpcError(INTERNAL_ERROR, f"{server} has begun a task that nobody can fetch: its id is {fault}")
        return sealed


def _seals(request: ClientRequest, view: View) -> bool:
    """True if a client is not shown the servers' own ids."""
    return view.server is None or not request.alone
