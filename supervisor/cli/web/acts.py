"""The acts of the page: what they do, what they ask first, and how their outcome is reported."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias
from urllib.parse import parse_qsl

import trio
from attrs import frozen

from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.supervisor import Supervisor
from mcp_nursery.supervisor.gateway.client_status import ClientsStatus
from mcp_nursery.supervisor.status import ServerState

from ..failures import message_of
from ..statuses import line_of_event
from .definition_digest import digest_of
from .layout import DO, LONGEST_PHRASE, Flash, csrf_field, document, short, url
from .markup import h
from .replicas import ReplicaReport
from .visitors import Visitor

FormFields: TypeAlias = Mapping[str, str]
"""The fields of a form that a browser has sent, by name."""
MOST_ACT_FIELDS: Final = 20
"""Fields of an act."""
PATIENCE: Final = 60.0
"""Seconds after which an act without an outcome is given up."""


@frozen
class PageHost:
    """All that the page shows and acts on."""

    supervisor: Supervisor
    """The supervisor of the servers."""
    clients: Callable[[], ClientsStatus] | None = None
    """The function that returns the clients of the gateway in front; None: there is no gateway."""
    end_session: Callable[[str], Awaitable[bool]] | None = None
    """The function that ends a session of such a client: see `HttpApplication.end_session`."""
    replicas: Callable[[], Mapping[str, ReplicaReport]] = dict[str, ReplicaReport]
    """The function that returns the last reports of replicas, by their names."""


class ActFailed(Exception):
    """The error of an act that was not done. Its text is the reason, on one line."""


@frozen
class Act:
    """Something that a person may do."""

    label: str
    """The name of the act for people."""
    run: Callable[[PageHost, FormFields], Awaitable[str]]
    """The function that does it, and returns the outcome."""
    question: Callable[[PageHost, FormFields], str | None]
    """The function that returns the consequence that is asked about first, or None if the act can be undone."""
    to: str = "/server"
    """The page that follows."""

    def back(self, form: FormFields) -> str:
        """The address of the page that follows."""
        return url(self.to, name=form.get("server", "")) if self.to == "/server" else url(self.to)


def _ask(consequence: str | None) -> Callable[[PageHost, FormFields], str | None]:
    return lambda _host, _form: consequence


def _ask_if_connected(host: PageHost, form: FormFields) -> str | None:
    states = {status.name: status.state for status in host.supervisor.status()}
    connected = states.get(form.get("server", "")) is ServerState.CONNECTED
    return "Calls that are under way there are lost." if connected else None


async def _reconnect(host: PageHost, form: FormFields) -> str:
    server = form.get("server", "")
    await host.supervisor.reconnect(server)
    return f"{short(server)} is connected."


async def _stop(host: PageHost, form: FormFields) -> str:
    server = form.get("server", "")
    await host.supervisor.stop_server(server)
    return f"{short(server)} is stopped, until somebody starts it."


async def _start(host: PageHost, form: FormFields) -> str:
    server = form.get("server", "")
    await host.supervisor.start_server(server)
    status = await host.supervisor.wait_connected(server)
    return f"{short(server)} is {status.state}."


async def _reload(host: PageHost, _form: FormFields) -> str:
    return f"{line_of_event(await host.supervisor.reload())}."


async def _accept(host: PageHost, form: FormFields) -> str:
    server, tool = form.get("server", ""), form.get("tool", "")
    for change in host.supervisor.definition_changes:
        if (change.server, change.tool) == (server, tool):
            if digest_of(change) != form.get("digest"):
                raise ActFailed(f"{short(tool)} has changed again: look at it as it is now.")
            await host.supervisor.accept_change(change)
            return f"{short(tool)} is accepted as it is now."
    raise ActFailed(f"{short(tool)} does not differ any more.")


async def _end_session(host: PageHost, form: FormFields) -> str:
    if host.end_session is None or not await host.end_session(form.get("session", "")):
        raise ActFailed("This session has ended already.")
    return "The session has ended."


ACTS: Final[Mapping[str, Act]] = {
    "reconnect": Act("Reconnect", _reconnect, _ask_if_connected),
    "stop": Act("Stop", _stop, _ask_if_connected),
    "start": Act("Start", _start, _ask(None)),
    "reload": Act("Reload the configuration", _reload, _ask("Servers whose entries have changed begin again."), "/"),
    "accept": Act("Accept the new definition of", _accept, _ask("Models see it from then on.")),
    "end_session": Act("End the session", _end_session, _ask("Its requests are cancelled."), "/clients"),
}


def pressed(form: FormFields) -> FormFields:
    """The fields of an act: those of the button that was pressed, and those of its form."""
    return {**form, **dict(parse_qsl(form.get(DO, ""), keep_blank_values=True, max_num_fields=MOST_ACT_FIELDS))}


async def perform(act: Act, host: PageHost, form: FormFields) -> Flash:
    """Perform an act. Returns the message about its outcome."""
    with trio.move_on_after(PATIENCE):
        try:
            return Flash(await act.run(host, form))
        except ActFailed as error:
            return Flash(str(error), good=False)
        except NurseryError as error:
            return Flash(short(f"{act.label}: {message_of(error)}", LONGEST_PHRASE), good=False)
    return Flash(f"{act.label}: no outcome after {PATIENCE:.0f} s.", good=False)


def confirm_page(visitor: Visitor, act: Act, question: str, form: FormFields) -> str:
    """The page that asks before an act. `question`: its consequence."""
    given = {name: value for name, value in form.items() if name not in ("csrf", "sure", DO)}
    fields = [h("input", type="hidden", name=name, value=value) for name, value in given.items()]
    asked = h(
        "form",
        csrf_field(visitor),
        fields,
        h("input", type="hidden", name="sure", value="yes"),
        h("button", "Yes"),
        h("a", "No, go back", href=act.back(form)),
        method="post",
        action="/ui/act",
        class_="acts",
    )
    about = " ".join(filter(None, (act.label, short(form.get("tool") or form.get("server")))))
    return document(f"{about}?", visitor, h("p", question), asked)
