"""The acts of the page, which are orders: what each asks first, and how its outcome is reported; and the form for
logging in."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

import trio

from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.records import frozen
from mcp_nursery.supervisor.gateway.client_status import ClientsStatus
from mcp_nursery.supervisor.orders import ORDERS, OrderHost, OrderRefused
from mcp_nursery.supervisor.status import ServerState

from ..failures import message_of
from ..statuses import line_of_event
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
class PageHost(OrderHost):
    """All that the page shows and acts on."""

    clients: Callable[[], ClientsStatus] | None = None
    """The function that returns the clients of the gateway in front; None: there is no gateway."""
    replicas: Callable[[], Mapping[str, ReplicaReport]] = dict[str, ReplicaReport]
    """The function that returns the last reports of replicas, by their names."""


@frozen
class Act:
    """An order that a person may give with a button of the page."""

    label: str
    """The name of the act for people."""
    told: Callable[[FormFields, Any], str]
    """The function that describes the outcome of the order."""
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


def _tell(outcome: str, field: str = "server") -> Callable[[FormFields, Any], str]:
    return lambda form, _outcome: f"{short(form.get(field))} {outcome}"


ACTS: Final[Mapping[str, Act]] = {
    "reconnect": Act("Reconnect", _tell("is connected."), _ask_if_connected),
    "stop": Act("Stop", _tell("is stopped, until somebody starts it."), _ask_if_connected),
    "start": Act("Start", lambda form, status: f"{short(form.get('server'))} is {status.state}.", _ask(None)),
    "reload": Act(
        "Reload the configuration",
        lambda _form, event: f"{line_of_event(event)}.",
        _ask("Servers whose entries have changed begin again."),
        "/",
    ),
    "accept": Act(
        "Accept the new definition of", _tell("is accepted as it is now.", "tool"), _ask("Models see it from then on.")
    ),
    "end_session": Act(
        "End the session",
        lambda _form, _outcome: "The session has ended.",
        _ask("Its requests are cancelled."),
        "/clients",
    ),
}
"""The acts, by the names of their orders."""


def pressed(form: FormFields) -> FormFields:
    """The fields of an act: those of the button that was pressed, and those of its form."""
    return {**form, **dict(parse_qsl(form.get(DO, ""), keep_blank_values=True, max_num_fields=MOST_ACT_FIELDS))}


async def perform(name: str, host: PageHost, form: FormFields) -> Flash:
    """Perform an act. Returns the message about its outcome."""
    act = ACTS[name]
    with trio.move_on_after(PATIENCE):
        try:
            return Flash(act.told(form, await ORDERS[name](host, {**form, "wait": True})))
        except OrderRefused as error:
            return Flash(short(error.fact, LONGEST_PHRASE), good=False)
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


def sign_in_form(visitor: Visitor, problem: str | None = None) -> str:
    """The page that asks for a token. `problem`: the reason why it asks again."""
    form = h(
        "form",
        csrf_field(visitor),
        h("label", "Token", for_="token"),
        h("input", id="token", name="token", type="password", autocomplete="current-password", required=True),
        h("button", "Log in"),
        method="post",
        action="/ui/login",
        class_="field",
    )
    about = h(
        "p",
        "This gateway asks for a token of its token file. ",
        h("code", "--allow /ui"),
        " lets a token look, ",
        h("code", "--allow /ui/act"),
        " lets it act.",
        class_="quiet",
    )
    return document("Log in", visitor, about, form, flash=None if problem is None else Flash(problem, good=False))
