"""A failure in words for a model: what happened, whether to try again, what to do instead. Pure."""

import json
from typing import Any, Final

from attrs import frozen

from mcp_nursery.actors.enums import Delivery, ServerState
from mcp_nursery.actors.errors import (
    BreakerOpen,
    CallError,
    ConfigError,
    InvalidArguments,
    InvalidResult,
    NotApproved,
    NurseryError,
    ServerDown,
    ServerError,
    UnknownPrompt,
    UnknownResource,
    UnknownServer,
    UnknownTool,
)

from ..security.redaction import PLAIN
from ..security.untrusted_marks import clean_name, wrap

MAX_MESSAGE: Final = 1000
"""Characters of a message, or of a name, that are shown."""
MAX_DATA: Final = 2000
"""Characters of an error's data that are shown."""
MAX_DEPTH: Final = 5
"""Levels of an error's data that are shown."""


@frozen
class _Advice:
    stage: str
    """How far the call came."""
    what_next: str
    retryable: bool = False
    """Whether the same call may succeed later and does no harm."""


_LATER = "Wait a little and call again, or go on without this tool."
_ADVICE: Final[tuple[tuple[type[NurseryError], _Advice], ...]] = (
    (ConfigError, _Advice("configuration", "Go on without this tool; a person must correct the configuration.")),
    (UnknownServer, _Advice("lookup", "Use one of the configured servers.")),
    (UnknownTool, _Advice("lookup", "Use one of the tools you were given, by its exact name.")),
    (UnknownResource, _Advice("lookup", "Use one of the resources that are listed, by its exact URI.")),
    (UnknownPrompt, _Advice("lookup", "Use one of the prompts that are listed, by its exact name.")),
    (InvalidArguments, _Advice("arguments", "Correct the arguments: a JSON object as the tool's schema says.")),
    (NotApproved, _Advice("approval", "Do not call it again unless the user asks for it.")),
    (ServerDown, _Advice("connect", "Go on without this server; a person has to see to it.")),
    (ServerError, _Advice("answer", "Read the message; correct the arguments, or go on without this tool.")),
    (InvalidResult, _Advice("answer", "The tool ran, and its answer is unusable. Go on without it.")),
)
_OTHERWISE = _Advice("call", "Go on without this tool.")
_BY_DELIVERY: Final = {
    Delivery.NOT_SENT: _Advice("send", _LATER, retryable=True),
    Delivery.UNKNOWN: _Advice("answer", "The tool may have acted. Find out what it did before calling it again."),
    Delivery.ANSWERED: _OTHERWISE,
}


def error_content(error: NurseryError, *, transport: str | None = None) -> str:
    """What a model is shown instead of a result.

    Our own words first, a line each, then the message and the server's data between the marks of `wrap`: they may be
    anybody's words. Cancellation is not an error, and never comes here.

    Args:
        error: What the call raised.
        transport: How the server is reached, as `ServerStatus.transport` says it, if known.
    """
    advice = _advice(error)
    server, tool = _named(error, "server"), _named(error, "tool")
    facts = {
        "server": server,
        "tool": tool,
        "transport": transport,
        "stage": advice.stage,
        "retryable": "yes" if advice.retryable else "no",
        "code": getattr(error, "code", None),
        "next": advice.what_next,
    }
    lines = [f"MCP error: {type(error).__name__}", *(f"{name}: {fact}" for name, fact in facts.items() if fact)]
    return "\n".join([*lines, wrap(_said(error), server=server or "none", tool=tool or "none")])


def _advice(error: NurseryError) -> _Advice:
    if isinstance(error, BreakerOpen):
        when = f"in {error.retry_in:.0f} s" if error.retry_in else "just now"
        return _Advice("send", f"Its last calls got no answer; it is tried again {when}. {_LATER}", retryable=True)
    if isinstance(error, ServerDown) and error.state is ServerState.FAILED and error.retry_in is not None:
        again = f"Go on without this server; it is tried again in {error.retry_in:.0f} s."
        return _Advice("connect", again, retryable=True)
    if isinstance(error, ServerDown) and error.retry_in is not None:
        return _Advice("connect", f"It restarts in {error.retry_in:.0f} s. {_LATER}", retryable=True)
    for kind, advice in _ADVICE:
        if isinstance(error, kind):
            return advice
    return _BY_DELIVERY[error.delivery] if isinstance(error, CallError) else _OTHERWISE


def _named(error: NurseryError, attribute: str) -> str | None:
    if isinstance(error, UnknownTool if attribute == "tool" else UnknownServer):
        name: Any = error.name
    else:
        name = getattr(error, attribute, None)
    return clean_name(name[:MAX_MESSAGE]) if isinstance(name, str) and name else None


def _said(error: NurseryError) -> str:
    lines = [_cut(PLAIN.text(error.fact), MAX_MESSAGE)]
    if isinstance(error, ServerError) and error.data is not None:
        data = json.dumps(PLAIN.value(error.data, depth=MAX_DEPTH), ensure_ascii=False, default=str)
        lines.append(f"data: {_cut(data, MAX_DATA)}")
    return "\n".join(lines)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
