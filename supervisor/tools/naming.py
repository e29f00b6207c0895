"""Public names of tools. Pure: a name follows from (server, its own tools, the configured server names) and nothing
else, so neither the order of connecting nor another server's tools can move it.

Two kinds of name never meet: a plain one is the template filled in as it is and never ends in `_` and eight hex
digits; every other one does.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from attrs import frozen

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.pieces import Steps, at_once

DEFAULT_TEMPLATE = "mcp_{server}_{tool}"
MAX_LENGTH = 64
"""Characters in a name; what the large model APIs accept."""

_HASH_LENGTH = 8
_MAX_LITERAL = 32
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]+")
_RUN = re.compile(r"_{2,}")
_HASHED = re.compile(r"_[0-9a-f]{8}\Z")
_FIELD = re.compile(r"\{(server|tool)\}")


def public_names(
    server: str,
    tools: Sequence[str],
    servers: Collection[str],
    template: str = DEFAULT_TEMPLATE,
    reserved: Collection[str] = frozenset(),
) -> dict[str, str]:
    """The public name of each tool of one server.

    A part has every character outside `[A-Za-z0-9_-]` replaced by `_`, runs of `_` collapsed and edges stripped;
    an empty one becomes `server` or `tool`. The server's own name at the head of a tool's (`git` and `git_status`, in
    any case) is left out where the template already says it. `_` and an 8-digit hash of (server, tool) follow when

    - cleaning or cutting at 64 characters changed a part that is in the name;
    - another configured server could give one of its tools this name, whatever tools it has;
    - the head was left out and another tool of this server has the rest as its name;
    - the name looks as if it ended in such a hash; or
    - the host has reserved it.

    So under a template without `{server}` every name has a hash as soon as two servers are configured.

    Args:
        server: The server's configured name.
        tools: Its tools' own names, in any order. One given twice counts once.
        servers: The names of all configured servers; `server` may be among them. What follows from them alone is
            worked out once for the same `frozenset`.
        template: See `check_template`.
        reserved: Names that no tool may have.

    Returns:
        Public names by the tools' own names. Two tools whose hashes collide are both left out: neither may answer for
        the other. Across servers such a collision is for the caller to refuse in the same way.

    Raises:
        ConfigError: The template cannot work.
    """
    return at_once(naming_steps(server, tools, servers, template, reserved))


def naming_steps(
    server: str,
    tools: Sequence[str],
    servers: Collection[str],
    template: str = DEFAULT_TEMPLATE,
    reserved: Collection[str] = frozenset(),
) -> Steps[dict[str, str]]:
    """The same in pieces: see `public_names`.

    Raises:
        ConfigError: The template cannot work.
    """
    check_template(template)
    if not tools:
        return {}
    has_server = "{server}" in template
    shown = clean(server, "server") if has_server else server
    head, tail = _around_tool(template, shown)
    frames = _frames(template, frozenset(servers))
    parts: dict[str, str] = {}
    rests: dict[str, str] = {}
    for tool in tools:
        yield
        parts[tool] = part = clean(tool, "tool")
        rests[tool] = _without_server(part, shown) if has_server else part
    claims = Counter(rests.values())
    names: dict[str, str] = {}
    for tool, rest in rests.items():
        yield
        plain = f"{head}{rest}{tail}"
        changed = shown != server or parts[tool] != tool or len(plain) > MAX_LENGTH
        taken = rest != parts[tool] and claims[rest] > 1
        if changed or taken or plain in reserved or _HASHED.search(plain) or frames.could_name(plain, but=server):
            names[tool] = _hashed(template, shown, rest, _digest(server, tool))
        else:
            names[tool] = plain
    return {tool: name for tool, name in _unique(names).items() if name not in reserved}


def possible_owners(name: str, servers: Collection[str], template: str = DEFAULT_TEMPLATE) -> list[str]:
    """The servers of which a tool can have this public name, whatever tools they have; the longest name first.

    More than one only if the name ends in a hash, before which a long server's name may be cut, or if nobody has it.
    """
    hashed = _HASHED.search(name) is not None
    owners = [server for server in servers if _could_give(name, clean(server, "server"), template, hashed=hashed)]
    return sorted(owners, key=lambda server: (-len(server), server))


def _could_give(name: str, shown: str, template: str, *, hashed: bool) -> bool:
    rest = name[: -_HASH_LENGTH - 1] if hashed else name
    least = min(len(shown), _room(template) // 3) if hashed else len(shown)
    for end in range(least, len(shown) + 1):
        head, tail = _around_tool(template, shown[:end].rstrip("_"))
        tool = rest[len(head) : len(rest) - len(tail)]
        if tool and rest == f"{head}{tool}{tail}" and (hashed or clean(tool, "") == tool):
            return True
    return False


def _room(template: str) -> int:
    """Characters for server and tool in a name that ends in a hash."""
    return MAX_LENGTH - _HASH_LENGTH - 1 - len(_FIELD.sub("", template))


def check_template(template: str) -> None:
    """Refuse a template that cannot name tools.

    It holds `{tool}` once, may hold `{server}` once, and around them at most 32 characters of `[A-Za-z0-9_-]`.

    Raises:
        ConfigError: Otherwise.
    """
    pieces = _FIELD.split(template)
    literal, fields = "".join(pieces[::2]), pieces[1::2]
    problem = None
    if fields.count("tool") != 1 or fields.count("server") > 1:
        problem = "it must have {tool} once, and {server} at most once"
    elif _FOREIGN.search(literal):
        problem = "around {server} and {tool} only letters, digits, '_' and '-' are allowed"
    elif len(literal) > _MAX_LITERAL:
        problem = f"at most {_MAX_LITERAL} characters are allowed around {{server}} and {{tool}}"
    if problem:
        raise ConfigError(f"template for tool names {template[:80]!r}: {problem}")


def clean(text: str, placeholder: str) -> str:
    """The text as a part of a name, `placeholder` if nothing is left. Cleaning twice changes nothing more."""
    return _RUN.sub("_", _FOREIGN.sub("_", text)).strip("_") or placeholder


@frozen
class _Frames:
    """What stands around a tool's part in the names of each server, to be looked up from a name: how long that takes
    does not depend on how many servers there are."""

    by_server: Mapping[str, tuple[str, str]]
    counts: Mapping[tuple[str, str], int]
    """How many servers have the same: cleaning makes some alike."""
    lengths: Collection[tuple[int, int]]
    """Of all of them that leave room for a tool's part."""

    def could_name(self, plain: str, *, but: str) -> bool:
        """Whether another server than `but` could give one of its tools this name, whatever tools it has."""
        own = self.by_server.get(but)
        for before, after in self.lengths:
            end = len(plain) - after
            frame = plain[:before], plain[end:]
            others = self.counts.get(frame, 0) - (frame == own) if before < end else 0
            if others and clean(rest := plain[before:end], "") == rest:
                return True
        return False


@lru_cache(maxsize=4)
def _frames(template: str, servers: frozenset[str]) -> _Frames:
    by_server = {server: _around_tool(template, clean(server, "server")) for server in servers}
    counts = Counter(by_server.values())
    lengths = {(len(head), len(tail)) for head, tail in counts}
    return _Frames(by_server, counts, [pair for pair in lengths if sum(pair) < MAX_LENGTH])


def _around_tool(template: str, shown: str) -> tuple[str, str]:
    head, _, tail = template.partition("{tool}")
    return head.replace("{server}", shown), tail.replace("{server}", shown)


def _without_server(part: str, shown: str) -> str:
    rest = part[len(shown) :]
    if part.lower().startswith(shown.lower()) and rest.startswith(("_", "-")):
        return rest.lstrip("_-") or part
    return part


def _hashed(template: str, shown: str, rest: str, digest: str) -> str:
    if "{server}" not in template:
        shown = ""
    room = _room(template)
    # A long server name leaves the tool, which says more, two thirds.
    shown = shown[: max(room - len(rest), room // 3)].rstrip("_")
    rest = rest[: room - len(shown)].rstrip("_")
    head, tail = _around_tool(template, shown)
    return f"{head}{rest}{tail}_{digest}"


def _digest(server: str, tool: str) -> str:
    # Not as ASCII: two lone surrogates and the character they would pair to must not encode alike.
    pair = json.dumps([server, tool], ensure_ascii=False).encode("utf-8", "surrogatepass")
    return hashlib.sha256(pair).hexdigest()[:_HASH_LENGTH]


def _unique(names: dict[str, str]) -> dict[str, str]:
    count = Counter(names.values())
    return {tool: name for tool, name in names.items() if count[name] == 1}
