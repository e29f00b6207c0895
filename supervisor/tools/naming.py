"""Public names of tools. Pure: a name follows from (server, its own tools, the configured server names) and nothing
else, so neither the order of connecting nor another server's tools can change it.

Two kinds of name never meet: a plain one is the template filled in as it is and never ends in `_` and eight hex
digits; every other one does.
"""

import hashlib
import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from itertools import islice, takewhile

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.records import frozen

DEFAULT_TEMPLATE = "mcp_{server}_{tool}"
MAX_LENGTH = 64
"""Characters in a name: the limit of the large model APIs."""

_HASH_LENGTH = 8
_MAX_LITERAL = 32
_NOT_IN_PUBLIC_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_RUN = re.compile(r"_{2,}")
_HASHED = re.compile(r"_[0-9a-f]{8}\Z")
_IS_CLEAN = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*").fullmatch
"""A quick test of whether `clean` leaves a text as it is: most texts pass, and a server may have thousands of tools."""
_TEMPLATE_FIELD = re.compile(r"\{(server|tool)\}")


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
    - another configured server could have a tool of this name, as far as that server's name shows;
    - the head was left out and another tool of this server has the rest as its name;
    - the name looks as if it ended in such a hash; or
    - the host has reserved it.

    So under a template without `{server}` every name has a hash as soon as two servers are configured.

    The tools may be in any order, and one given twice counts once. What follows from the names of all configured
    servers alone is worked out once for the same `frozenset`. For the template see `check_template`.

    Returns:
        Public names by the tools' own names. Two tools whose hashes collide are both left out: neither may answer for
        the other. Across servers such a collision is for the caller to refuse in the same way.

    Raises:
        ConfigError: The template cannot work.
    """
    check_template(template)
    known = frozenset(servers)
    alone = server in known and not _frames(template, known).rivals_of(server)
    return dict(_names(server, tuple(tools), template, frozenset(reserved), frozenset[str]() if alone else known))


@lru_cache(maxsize=2)
def _names(
    server: str, tools: tuple[str, ...], template: str, reserved: frozenset[str], others: frozenset[str]
) -> Mapping[str, str]:
    """`public_names`, given the servers that could have the same names. Supervisors that borrow a server ask for its
    names one after the other, in one turn of the loop: the last ones are cached."""
    frames = _frames(template, others) if others else None
    has_server = "{server}" in template
    shown = clean(server, "server") if has_server else server
    head, tail = _around_tool(template, shown)
    parts = {tool: clean(tool, "tool") for tool in tools}
    rests = {tool: _without_server(part, shown) for tool, part in parts.items()} if has_server else parts
    claims = Counter(rests.values())
    names: dict[str, str] = {}
    for tool, rest in rests.items():
        plain = f"{head}{rest}{tail}"
        part = parts[tool]
        if (
            part != tool
            or shown != server
            or len(plain) > MAX_LENGTH
            or (rest != part and claims[rest] > 1)
            or plain in reserved
            or _is_hashed(plain)
            or (frames is not None and frames.could_name(plain, but=server))
        ):
            plain = _with_hash(template, shown, rest, _digest(server, tool))
        names[tool] = plain
    return {tool: name for tool, name in _unique(names).items() if name not in reserved}


def rivals_of(server: str, servers: frozenset[str], template: str = DEFAULT_TEMPLATE) -> frozenset[str]:
    """The part of `servers` that the names of this server's tools depend on: while it stays the same, so do they.

    Returns:
        For every other server the side of its names that has the server (the beginning, or the end reversed), if one of
        that and this server's side begins with the other.
    """
    return _frames(template, servers).rivals_of(server)


def possible_owners(name: str, servers: Collection[str], template: str = DEFAULT_TEMPLATE) -> list[str]:
    """The servers that can have a tool with this public name, whatever tools they have; the longest name first.

    More than one only if the name ends in a hash, before which a long server's name may be cut, or if nobody has it.
    """
    hashed = _is_hashed(name)
    owners = [server for server in servers if _could_give(name, clean(server, "server"), template, hashed=hashed)]
    return sorted(owners, key=lambda server: (-len(server), server))


def may_be_public(name: str, servers: Collection[str], template: str = DEFAULT_TEMPLATE) -> bool:
    """True if these servers could have a tool with this public name, by their names alone."""
    owners = possible_owners(name, servers, template)
    return len(owners) == 1 or (len(owners) > 1 and _is_hashed(name))


def _could_give(name: str, shown: str, template: str, *, hashed: bool) -> bool:
    rest = name[: -_HASH_LENGTH - 1] if hashed else name
    least = min(len(shown), _room(template) // 3) if hashed else len(shown)
    for end in range(least, len(shown) + 1):
        head, tail = _around_tool(template, shown[:end].rstrip("_"))
        tool = rest[len(head) : len(rest) - len(tail)]
        if tool and rest == f"{head}{tool}{tail}" and (hashed or clean(tool, "") == tool):
            return True
    return False


@lru_cache(maxsize=4)
def _room(template: str) -> int:
    """Characters for server and tool in a name that ends in a hash."""
    return MAX_LENGTH - _HASH_LENGTH - 1 - len(_TEMPLATE_FIELD.sub("", template))


def check_template(template: str) -> None:
    """Refuse a template that cannot name tools.

    It holds `{tool}` once, may hold `{server}` once, and around them at most 32 characters of `[A-Za-z0-9_-]`.

    Raises:
        ConfigError: Otherwise.
    """
    pieces = _TEMPLATE_FIELD.split(template)
    literal, fields = "".join(pieces[::2]), pieces[1::2]
    problem = None
    if fields.count("tool") != 1 or fields.count("server") > 1:
        problem = "it must have {tool} once, and {server} at most once"
    elif _NOT_IN_PUBLIC_NAMES.search(literal):
        problem = "around {server} and {tool} only letters, digits, '_' and '-' are allowed"
    elif len(literal) > _MAX_LITERAL:
        problem = f"at most {_MAX_LITERAL} characters are allowed around {{server}} and {{tool}}"
    if problem:
        raise ConfigError(f"template for tool names {template[:80]!r}: {problem}")


def clean(text: str, placeholder: str) -> str:
    """The text as a part of a name, `placeholder` if nothing is left. Cleaning twice changes nothing more."""
    if _IS_CLEAN(text):
        return text
    return _RUN.sub("_", _NOT_IN_PUBLIC_NAMES.sub("_", text)).strip("_") or placeholder


@frozen
class _Frames:
    """The text around a tool's part in the names of each server, to be looked up from a name: the time does not depend
    on the number of servers."""

    by_server: Mapping[str, tuple[str, str]]
    counts: Mapping[tuple[str, str], int]
    """The number of servers with the same frame: cleaning makes some alike."""
    lengths: Collection[tuple[int, int]]
    """The lengths of those frames that leave room for a tool's part."""
    sides: Mapping[str, str]
    """By server, the side of its frame that has its name, from the outside to the tool: where the names of two servers
    can be alike, one of their sides begins with the other."""
    sorted_sides: Sequence[str]
    """All sides, each as often as servers have it."""

    def could_name(self, plain: str, *, but: str) -> bool:
        """True if another server than `but` could give one of its tools this name, whatever tools it has."""
        own = self.by_server.get(but)
        for before, after in self.lengths:
            end = len(plain) - after
            frame = plain[:before], plain[end:]
            others = self.counts.get(frame, 0) - (frame == own) if before < end else 0
            if others and clean(rest := plain[before:end], "") == rest:
                return True
        return False

    def rivals_of(self, server: str) -> frozenset[str]:
        """The other servers whose tools may get the same public names as those of this one."""
        own, sides = self.sides[server], self.sorted_sides
        first, last = bisect_left(sides, own), bisect_right(sides, own)
        longer = takewhile(lambda side: side.startswith(own), islice(sides, last, None))
        shorter = (own[:length] for length in range(len(own)))
        known = (side for side in shorter if (at := bisect_left(sides, side)) < len(sides) and sides[at] == side)
        return frozenset([*longer, *known, *([own] if last - first > 1 else [])])


@lru_cache(maxsize=4)
def _frames(template: str, servers: frozenset[str]) -> _Frames:
    by_server = {server: _around_tool(template, clean(server, "server")) for server in servers}
    counts = Counter(by_server.values())
    lengths = {(len(head), len(tail)) for head, tail in counts}
    is_behind = "{server}" in template.partition("{tool}")[2]
    sides = {server: tail[::-1] if is_behind else head for server, (head, tail) in by_server.items()}
    room = [pair for pair in lengths if sum(pair) < MAX_LENGTH]
    return _Frames(by_server, counts, room, sides, sorted(sides.values()))


def _around_tool(template: str, shown: str) -> tuple[str, str]:
    head, _, tail = template.partition("{tool}")
    return head.replace("{server}", shown), tail.replace("{server}", shown)


def _is_hashed(name: str) -> bool:
    return name[-_HASH_LENGTH - 1 : -_HASH_LENGTH] == "_" and _HASHED.search(name) is not None


def _without_server(part: str, shown: str) -> str:
    rest = part[len(shown) :]
    if rest[:1] in ("_", "-") and part.lower().startswith(shown.lower()):
        return rest.lstrip("_-") or part
    return part


def _with_hash(template: str, shown: str, rest: str, digest: str) -> str:
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
    pair = f"[{_quoted(server)}, {_quoted(tool)}]".encode("utf-8", "surrogatepass")
    return hashlib.sha256(pair).hexdigest()[:_HASH_LENGTH]


def _quoted(text: str) -> str:
    return f'"{text}"' if _IS_CLEAN(text) else json.dumps(text, ensure_ascii=False)


def _unique(names: dict[str, str]) -> dict[str, str]:
    count = Counter(names.values())
    return {tool: name for tool, name in names.items() if count[name] == 1}


# -- filters: the tools that a host gets to see -----------------------------------------------------------------------


def is_offered(tool: str, *, allow: Sequence[str], deny: Sequence[str], disabled: Sequence[str]) -> bool:
    """True if a tool is in the catalogue: its server's own name of it matches a glob of `allow` and none of `deny`, and
    is not among the `disabled` names, which are no globs."""
    return tool not in disabled and matches(tool, allow) and not matches(tool, deny)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """True if the name fits one of the globs; case counts."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@lru_cache(maxsize=4096)
def fits_any(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """A test of whether a name fits one of these globs, for many names: None if it does not."""
    return re.compile("|".join(map(translate, patterns)) or "(?!)").match
