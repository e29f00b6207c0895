"""The answer that a model gets for a call it asked for: there always is one, even if the call has none. Pure."""

import json
import re
from typing import TYPE_CHECKING, Any, Final

from mcp_nursery.actors.enums import Delivery, ServerState
from mcp_nursery.actors.errors import (
    AuthorizationFailed,
    BreakerOpen,
    CallError,
    CallTimeout,
    ConfigError,
    ConnectionLost,
    ContestedResource,
    InstancesTaken,
    InvalidArguments,
    InvalidResult,
    NotApproved,
    NurseryError,
    ServerBusy,
    ServerDown,
    ServerError,
    SkillMismatch,
    SupervisorClosed,
    TaskLost,
    UnknownPrompt,
    UnknownResource,
    UnknownServer,
    UnknownTask,
    UnknownTool,
    delivery_of,
)
from mcp_nursery.actors.records import field, frozen

from ..security.redaction import PLAIN
from ..security.untrusted_marks import clean_name, wrap

if TYPE_CHECKING:
    from mcp_types import ContentBlock, TextContent

    from .tool_result import ToolResult


# -- a failure in words: what happened, whether the tool may have acted, what to do ------------------------------------

MAX_MESSAGE: Final = 1000
"""Characters of a message, or of a name, that are shown."""
MAX_DATA: Final = 2000
"""Characters of an error's data that are shown."""
MOST_SHOWN_LEVELS: Final = 5
"""Levels of an error's data that are shown."""


@frozen
class _Advice:
    stage: str
    """The stage that the call reached."""
    what_next: str
    retryable: bool = False
    """True if the same call may succeed later and does no harm."""


_LATER = "Wait a little and call again, or go on without this tool."
_ADVICE_BY_ERROR: Final[tuple[tuple[type[NurseryError], _Advice], ...]] = (
    (ConfigError, _Advice("configuration", "Go on without this tool; a person must correct the configuration.")),
    (UnknownServer, _Advice("lookup", "Use one of the configured servers.")),
    (UnknownTool, _Advice("lookup", "Use one of the tools you were given, by its exact name.")),
    (UnknownResource, _Advice("lookup", "Use one of the resources that are listed, by its exact URI.")),
    (ContestedResource, _Advice("lookup", "Name the server, one of those that are listed with that URI.")),
    (UnknownPrompt, _Advice("lookup", "Use one of the prompts that are listed, by its exact name.")),
    (UnknownTask, _Advice("lookup", "Use one of the tasks that are listed, by its exact id.")),
    (InvalidArguments, _Advice("arguments", "Correct the arguments: a JSON object as the tool's schema says.")),
    (NotApproved, _Advice("approval", "Do not call it again unless the user asks for it.")),
    (ServerDown, _Advice("connect", "Go on without this server; a person has to see to it.")),
    (ServerError, _Advice("answer", "Read the message; correct the arguments, or go on without this tool.")),
    (SkillMismatch, _Advice("answer", "Do not use this file. Go on without it, and tell the user.")),
    (InvalidResult, _Advice("answer", "The tool ran, and its answer is unusable. Go on without it.")),
)
_HAPPENED: Final[tuple[tuple[type[NurseryError], str], ...]] = (
    (ConfigError, "the configuration cannot work"),
    (UnknownServer, "no server has that name"),
    (UnknownTool, "no server offers a tool of that name now"),
    (UnknownResource, "no server has a resource of that URI now"),
    (UnknownTask, "no task of that id is recorded"),
    (ContestedResource, "several servers have a resource of that URI"),
    (UnknownPrompt, "no server offers a prompt of that name now"),
    (InvalidArguments, "the arguments do not fit"),
    (NotApproved, "the call was not approved"),
    (AuthorizationFailed, "the login to the server has failed"),
    (SupervisorClosed, "the program that calls tools is ending"),
    (ServerDown, "the server is not connected"),
    (ServerBusy, "too many calls wait for the server"),
    (InstancesTaken, "all instances of the server are in use"),
    (BreakerOpen, "the server has not answered its last calls"),
    (ConnectionLost, "the connection to the server was lost"),
    (CallTimeout, "the answer did not come in time"),
    (TaskLost, "nobody can say what becomes of the task that the server has begun"),
    (ServerError, "the server answered with an error"),
    (SkillMismatch, "the file is not what its server has listed"),
    (InvalidResult, "the answer cannot be used"),
)
_ACTED: Final = {Delivery.NOT_SENT: "no", Delivery.UNKNOWN: "maybe", Delivery.ANSWERED: "yes"}
_OTHERWISE = _Advice("call", "Go on without this tool.")
_BY_DELIVERY: Final = {
    Delivery.NOT_SENT: _Advice("send", _LATER, retryable=True),
    Delivery.UNKNOWN: _Advice("answer", "The tool may have acted. Find out what it did before calling it again."),
    Delivery.ANSWERED: _OTHERWISE,
}


def error_content(
    error: NurseryError, *, transport: str | None = None, restarts_in: float | None = None, held: bool = False
) -> str:
    """The text that a model is shown instead of a result.

    Our own words first, a line each: what happened, whether the tool may have acted, and what to do, 300 characters
    at most; then the facts; then the message and the server's data between the marks of `wrap`: they may be anybody's
    words. Cancellation is not an error, and never comes here.

    Args:
        error: The error that the call raised.
        transport: The server's `ServerStatus.transport`, if known.
        restarts_in: Seconds until the server restarts, for an error that does not know them itself; None if no restart
            is due.
        held: True if the next call waits for the restart.
    """
    advice = _advice(error)
    server, tool = _name(error, "server"), _name(error, "tool")
    what_next = advice.what_next
    if isinstance(error, ConnectionLost) and restarts_in is not None:
        waits = "; the next call waits for it" if held else ""
        what_next += f" The server restarts in {restarts_in:.0f} s{waits}."
    facts = {
        "what": next((what for kind, what in _HAPPENED if isinstance(error, kind)), "the call has failed"),
        "acted": _acted(error),
        "next": what_next,
        "server": server,
        "tool": tool,
        "transport": transport,
        "stage": advice.stage,
        "retryable": "yes" if advice.retryable else "no",
        "code": getattr(error, "code", None),
    }
    lines = [f"MCP error: {type(error).__name__}", *(f"{name}: {fact}" for name, fact in facts.items() if fact)]
    return "\n".join([*lines, wrap(_quote(error), server=server or "none", tool=tool or "none")])


def _acted(error: NurseryError) -> str:
    """The answer to whether the tool has acted. An error that the server answers with does not tell."""
    delivery = delivery_of(error)
    return _ACTED[Delivery.UNKNOWN if isinstance(error, ServerError) and delivery is Delivery.ANSWERED else delivery]


def _advice(error: NurseryError) -> _Advice:
    if isinstance(error, BreakerOpen):
        when = f"in {error.retry_in:.0f} s" if error.retry_in else "just now"
        return _Advice("send", f"Its last calls got no answer; it is tried again {when}. {_LATER}", retryable=True)
    if isinstance(error, ServerDown) and (coming := _coming_back(error)):
        return _Advice("connect", coming, retryable=True)
    if isinstance(error, ServerError) and error.retry_in is not None and error.delivery is Delivery.ANSWERED:
        return _Advice("answer", f"It takes no calls for {error.retry_in:.0f} s. {_LATER}", retryable=True)
    for kind, advice in _ADVICE_BY_ERROR:
        if isinstance(error, kind) and not (isinstance(error, ServerError) and error.delivery is Delivery.UNKNOWN):
            return advice
    return _BY_DELIVERY[error.delivery] if isinstance(error, CallError) else _OTHERWISE


def _coming_back(error: ServerDown) -> str | None:
    """The time at which the server is tried again; None if nobody tries it."""
    if error.retry_in is None:
        return f"It is being started again. {_LATER}" if error.state is ServerState.CONNECTING else None
    if error.state is ServerState.FAILED:
        return f"Go on without this server; it is tried again in {error.retry_in:.0f} s."
    return f"It restarts in {error.retry_in:.0f} s. {_LATER}"


def _name(error: NurseryError, attribute: str) -> str | None:
    if isinstance(error, UnknownTool if attribute == "tool" else UnknownServer):
        name: Any = error.name
    else:
        name = getattr(error, attribute, None)
    return clean_name(name[:MAX_MESSAGE]) if isinstance(name, str) and name else None


def _quote(error: NurseryError) -> str:
    lines = [_truncate(PLAIN.text(error.fact), MAX_MESSAGE)]
    if isinstance(error, ServerError) and error.data is not None:
        data = json.dumps(PLAIN.value(error.data, depth=MOST_SHOWN_LEVELS), ensure_ascii=False, default=str)
        lines.append(f"data: {_truncate(data, MAX_DATA)}")
    return "\n".join(lines)


def _truncate(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


@frozen
class ToolOutcome:
    """A call's result or its failure, as a model may see it."""

    text: str = field(repr=lambda text: f"<{len(text)} characters>")
    """All of it as text, between marks: for models that take nothing else. Before them, a line says how many images and
    sounds are left out of `content`, if any are."""
    content: "tuple[ContentBlock, ...]" = field(repr=False)
    """The same for models that take pictures and sound: `text` as the first block, then the result's images and audio
    as they came, unless their data is no base64. Words inside a picture cannot be marked."""
    is_error: bool
    """True if the tool said that it failed, or the call did."""
    error: NurseryError | None = None
    """The error that the call raised; None if the tool answered."""
    result: "ToolResult | None" = field(default=None, repr=False)
    """The result, whole and without marks; None if there is none."""


def outcome_of_result(result: "ToolResult") -> ToolOutcome:
    """The outcome of a call that was answered. Images and sounds that cannot be decoded are left out: frameworks and
    APIs raise for them, which would end the run of an agent."""
    media = [block for block in result.content if block.type in ("image", "audio")]
    readable = [block for block in media if _is_readable(block)]
    text = result.text
    if left_out := len(media) - len(readable):  # counted: a line for each could be much longer than a result may be
        text = f"[images and sounds that cannot be read, and are left out: {left_out}; their data is no base64]\n{text}"
    return ToolOutcome(text, (_block(text), *readable), result.is_error, result=result)


_BASE64: Final = re.compile(r"\s*+[A-Za-z0-9+/][A-Za-z0-9+/\s]*+={0,2}+\s*+", re.ASCII)
"""The characters of base64 that is not empty, in lines or not. It never tries a place twice, however long the text."""


def _is_readable(block: "ContentBlock") -> bool:
    """True if the data of an image or a sound can be decoded. To look takes a third of the time of decoding."""
    data: str = getattr(block, "data", "")
    return _BASE64.fullmatch(data) is not None and (len(data) - sum(map(data.count, " \t\n\r\f\v"))) % 4 == 0


def outcome_of_error(
    error: NurseryError, *, transport: str | None = None, restarts_in: float | None = None, held: bool = False
) -> ToolOutcome:
    """The outcome of a call that raised. For the arguments, see `error_content`."""
    text = error_content(error, transport=transport, restarts_in=restarts_in, held=held)
    return ToolOutcome(text, (_block(text),), is_error=True, error=error)


def _block(text: str) -> "TextContent":
    from mcp_types import TextContent

    return TextContent(type="text", text=text)
