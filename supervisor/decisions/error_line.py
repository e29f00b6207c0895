"""The line of a process's stderr that names the cause of its failure. Pure.

It is seldom the last one: npm ends with the path of its log, Node with its version, a traceback of Node with frames, a
program with its usage. The line is quoted, and a wrong guess only makes it less useful. Advice follows only where many
users meet the same cause, and nothing in the line names the way out.
"""

import re
from collections.abc import Callable, Sequence

_UNKNOWN_AUTHORITY = re.compile(
    r"unable to (get (local )?issuer|verify the first) certificate|self[- ]signed certificate"
    r"|unknown ?(certificate )?(issuer|authority)|(SELF_SIGNED_CERT|UNABLE_TO_(GET|VERIFY))_",
    re.IGNORECASE,
)
"""The words of OpenSSL, Node, Rust and Go for a certificate of an authority that they do not know."""
_NAME_AUTHORITY = (
    "name the authority's file in SSL_CERT_FILE (Python, uv, Go) or NODE_EXTRA_CA_CERTS (Node), in env or in the "
    "host's environment"
)

_LINE_PREFIX = re.compile(r"^[\s|+]*(?=\S)")
"""Indentation, and the margin of an exception group."""

_NOISE = re.compile(
    r"""^(npm\ (error|ERR!)\s*\d*|[\W_]*)$      # nothing
    |--help|\bto\ see\ a\ list\ of\b|complete\ log\ of\ this\ run|for\ (further|more)\ information
    |^npm\ (warn|WARN|notice)\b
    |^Node\.js\ v\d|^at\s|^File\ "|^note:\ run\ with|^requireStack:|^code:\ '|^errno:|^syscall:|^path:""",
    re.VERBOSE | re.IGNORECASE,
)
"""Lines that never name a cause."""

_MILD = re.compile(r"^\W*(\S+\s+){0,3}\W?(warn(ing)?|info|debug|notice|trace)\b", re.IGNORECASE)
"""A line of a log below `error`."""

_TELLING = re.compile(
    r"(error|exception)s?\b|\b(fatal|panic(ked)?|fail(ed|ure|s)?|cannot|can't|could not|unable to|denied|not found"
    r"|no such|no module named|invalid|missing|required|refused|unauthori[sz]ed|forbidden|unrecogni[sz]ed|unknown"
    r"|must be|not set|not defined|abort(ed|ing)?|killed|out of memory|already in use)\b",
    re.IGNORECASE,
)
_CAUSE = re.compile(r"^(cause[ds]?\b( by)?:?|\W{1,4}─▶)", re.IGNORECASE)
"""The beginning of a line that continues the one before: from uv, and from programs in Rust."""

_NPM = re.compile(r"^npm (?:error|ERR!)\s*(.*)$")
_NPM_ASIDE = re.compile(r"^(code|syscall|path|errno|command|signal|cwd|dest)\b(?! failed)")
_TRACEBACK = "Traceback (most recent call last)"
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(:|$)")
_MORE_LINES = 2
"""Further lines of an exception's message."""


KEPT_CHARACTERS = 4096
"""Characters of a tail that are kept for each server."""

LAST_WORDS = 2.0
"""Seconds before the end of a process in which any line that it writes is taken for the cause."""


def redact_tail(text: str, redact: Callable[[str], str]) -> str | None:
    """The end of a tail, without secrets; None if it is empty. Nothing is cut before the secrets are out."""
    return redact(text)[-KEPT_CHARACTERS:] or None


def find_cause(text: str, *, recent: bool = True) -> str | None:
    """The line that best explains why the writer of this failed, or failed to start; None if there is none. The text is
    its last lines, in order, with all secrets taken out. If they were not written when it failed, but earlier, only
    what looks like an error counts."""
    lines = [_LINE_PREFIX.sub("", line).rstrip() for line in text.splitlines()]
    npm = [match[1] for line in lines if (match := _NPM.match(line))]
    others = [line for line in lines if not _NPM.match(line) and not _NOISE.search(line)]
    code = next((word.removeprefix("code ") for word in npm if word.startswith("code ")), "")
    found = _npm(npm, code) if code.startswith("E") else None
    found = found or _find_exception(lines) or _error(others) or _npm(npm, code) or _usage(others)
    found = found or (others[-1] if others and recent else None)
    return None if found is None else " ".join(found.split())


def way_out(cause: str) -> str | None:
    """The advice about a cause of which the way out is known; None: it is not."""
    return _NAME_AUTHORITY if _UNKNOWN_AUTHORITY.search(cause) else None


def _npm(said: Sequence[str], code: str) -> str | None:
    """npm's own error: npm cannot install a package, or the installed command has failed."""
    telling = [line for line in said if not _NOISE.search(f"npm error {line}") and not _NPM_ASIDE.match(line)]
    if not telling:
        return f"npm error code {code}" if code else None
    return ": ".join([f"npm error code {code}" if code else "npm error", telling[0]])


def _find_exception(lines: Sequence[str]) -> str | None:
    """The exception that ended a Python program, with the beginning of a message of several lines."""
    starts = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if not starts:
        return None
    after = lines[starts[-1] + 1 :]
    raised = [number for number, line in enumerate(after) if _RAISED.match(line) and _TELLING.search(line)]
    if not raised:
        return None
    message = after[raised[0] : raised[0] + 1 + _MORE_LINES]
    ends = (number for number, line in enumerate(message) if not line or _NOISE.search(line) or _NPM.match(line))
    return " ".join(message[: next(ends, len(message))])


def _error(lines: Sequence[str]) -> str | None:
    """The last line that speaks of an error, with the cause that follows it."""
    telling = [number for number, line in enumerate(lines) if _is_error(line) and not _is_usage(line)]
    if not telling:
        return None
    last = telling[-1]
    while last and _goes_on(lines[last - 1], lines[last]):
        last -= 1
    goes_on = last + 1 < len(lines) and _goes_on(lines[last], lines[last + 1])
    return " ".join(lines[last : last + 2] if goes_on else lines[last : last + 1])


def _goes_on(line: str, following: str) -> bool:
    return "panicked at" in line or bool(_CAUSE.match(following))


def _is_error(line: str) -> bool:
    return bool(_TELLING.search(line)) and not _MILD.match(line)


def _is_usage(line: str) -> bool:
    return line.lower().startswith("usage")


def _usage(lines: Sequence[str]) -> str | None:
    return next(filter(_is_usage, lines), None)
