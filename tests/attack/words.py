"""Messages of which somebody sends thousands, whichever side it is on."""

import json
from collections.abc import Callable, Iterator
from typing import Any

TOGETHER = 200
"""Messages that are written at once."""


def dumps(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def _request(method: str, **params: Any) -> Callable[[int], bytes]:
    return lambda number: dumps(id=f"q{number}", method=method, params=params)


def _notice(method: str, **params: Any) -> Callable[[int], bytes]:
    return lambda number: dumps(method=f"notifications/{method}", params=params)


_FORM = {"type": "object", "properties": {"a": {"type": "string"}}}
_WORDS = [{"role": "user", "content": {"type": "text", "text": "x"}}]

_MAKERS: dict[str, Callable[[int], bytes]] = {
    "ping": lambda number: dumps(id=number, method="ping"),
    "long id": lambda number: dumps(id=f"{number}{'i' * 5000}", method="ping"),
    "elicitation": _request("elicitation/create", message="?", requestedSchema=_FORM),
    "sampling": _request("sampling/createMessage", maxTokens=1, messages=_WORDS),
    "roots": _request("roots/list"),
    "log": _notice("message", level="info", data="x" * 100),
    "progress": lambda number: dumps(
        method="notifications/progress", params={"progressToken": number % 50, "progress": number}
    ),
    "list_changed": _notice("tools/list_changed"),
    "updated": lambda number: dumps(method="notifications/resources/updated", params={"uri": f"a:{number}"}),
    "unasked": lambda number: dumps(id=number % 100 + 100_000, result={"content": []}),
    "junk": lambda number: b"2026-11-24 INFO worker %d is here, on the wrong stream" % number,
    "empty batch": lambda number: b"[]",
    "batch": lambda number: b"[" + b",".join([dumps(id="none", result={})] * 20) + b"]",
    "blank": lambda number: b"",
    "deep": lambda number: b"[" * 5000,
    "nested": lambda number: b'{"jsonrpc":"2.0","method":"x","params":%s1%s}' % (b'{"a":' * 180, b"}" * 180),
    "cancelled": lambda number: dumps(method="notifications/cancelled", params={"requestId": number % 1000}),
    "not UTF-8": lambda number: b'{"jsonrpc":"2.0","method":"caf\xe9"}',
    "zeros": lambda number: b"\0" * 64,
}


def flood(what: str, count: int) -> Iterator[list[bytes]]:
    """So many messages, some at a time."""
    make = _MAKERS[what]
    for first in range(0, count, TOGETHER):
        yield [make(number) for number in range(first, min(first + TOGETHER, count))]
