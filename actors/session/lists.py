"""The lists of a server: tools, resources, resource templates and prompts, every page of each."""

import logging
import marshal
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final, cast

import trio

from mcp_nursery.actors.records import define, evolve, field, frozen

from ..enums import ListKind
from ..errors import one_line
from ..fairness import by_turns
from ..json_depth import TOO_DEEP, nested_too_deep
from ..jsonrpc.endpoint import NO_PAGE, Endpoint, Page, rest_in
from ..limits import CostLimits, size_text
from ..messages import NOTHING_DECLARED, Definitions
from ..pieces import Steps
from ..preload import SDK_MODULES
from ..protocol import INTERNAL_ERROR, METHOD_NOT_FOUND, X_MCP_HEADER, JsonRpcError
from ..secrets import SECRETS, words_of
from .base import BAD_ANSWER, NotValid
from .lazy_definitions import LazyDefinition
from .plain import is_plain_entry
from .session import ServerSession, capability_of, offered

logger: Final = logging.getLogger(__name__)

_PAGE_LIMIT = 1000
"""Pages after which a listing ends: a server that invents a new cursor for ever must not block its own start."""

_MOST_EMPTY: Final = 3
"""Pages without entries, in a row, after which a listing ends: a server that leaves some out may send one."""

_NAME_LIMIT = 1024
"""Characters of a name; the protocol recommends at most 128."""

_URI_LIMIT = 8192
"""Characters of a URI or a URI template: what HTTP servers usually accept."""

MOST_EXPRESSIONS: Final = 64
"""Expressions of a URI template: a URI is held against the templates of all servers."""

_ENTRIES_AT_ONCE = 50
"""Entries that are checked in a row."""

FRESH_FOR: Final = 300.0
"""Seconds for which a list is fresh to its readers, if its server does not say for how long. SDKs send 0 for every list
by default, so that 0 counts as nothing said here. A request for a list that may be old waits."""

FRESH_AT_MOST: Final = 86_400.0
"""Seconds for which a list is fresh at most: the MCP SDK's limit too."""


class ListTooLarge(JsonRpcError):
    """The server lists more than it may make its host keep."""


@frozen(eq=False)
class _Listing:
    """The way to list one kind of definition."""

    method: str
    noun: str
    field: str
    """The field of `Definitions`."""
    name: str
    """The field that identifies an entry."""
    longest: int
    """The most characters of that field."""


_LISTINGS: Final[Mapping[ListKind, _Listing]] = {
    ListKind.TOOLS: _Listing("tools/list", "tool", "tools", "name", _NAME_LIMIT),
    ListKind.RESOURCES: _Listing("resources/list", "resource", "resources", "uri", _URI_LIMIT),
    ListKind.TEMPLATES: _Listing(
        "resources/templates/list", "resource template", "templates", "uri_template", _URI_LIMIT
    ),
    ListKind.PROMPTS: _Listing("prompts/list", "prompt", "prompts", "name", _NAME_LIMIT),
}


@frozen
class Fetched:
    """The times at which fetches of a list began, on Trio's clock."""

    begun: float
    """The latest fetch."""
    known_from: float
    """The latest fetch that succeeded."""


class Lists:
    """The definitions of one server, as they were listed last. The limits are those of all its lists together. The log
    names the server."""

    def __init__(self, session: ServerSession, endpoint: Endpoint, *, limits: CostLimits, server: str) -> None:
        self.definitions: Definitions = NOTHING_DECLARED
        """All of its lists."""
        self._session = session
        self._endpoint = endpoint
        self._limits = limits
        self._server = server
        self._taken: dict[ListKind, tuple[int, int]] = dict.fromkeys(ListKind, (0, 0))
        """Entries and bytes of each list."""
        self._failed: frozenset[ListKind] = frozenset()
        """Lists whose failure was logged."""
        self._fresh_until: dict[ListKind, float] = {}
        """The times until which they are fresh, on Trio's clock; `inf` during a fetch."""
        self._old_from: dict[ListKind, float] = {}
        """The times from which they may be old without a notification."""
        self._begun: dict[ListKind, float] = {}
        """The times at which the latest fetches began."""
        self._known_from: dict[ListKind, float] = {}
        """The same, for the latest that succeeded."""
        self._rests_until: dict[ListKind, float] = {}
        """The times until which the server wants to be asked for none of these."""
        self._digests: dict[ListKind, bytes] = {}
        """Digests of the entries of each."""

    def expired(self) -> Collection[ListKind]:
        """The lists that are older than their server says they may get."""
        now = trio.current_time()
        return [kind for kind, until in self._fresh_until.items() if until <= now]

    def old(self, kinds: Collection[ListKind]) -> Mapping[ListKind, Fetched]:
        """The lists among these that may be old without a notification and may be asked for, and when each was
        fetched."""
        now = trio.current_time()
        old = [kind for kind in kinds if max(self._old_from.get(kind, math.inf), self.rests_until([kind])) <= now]
        return {kind: Fetched(self._begun[kind], self._known_from[kind]) for kind in old}

    def rests_until(self, kinds: Collection[ListKind]) -> float:
        """The time from which the server may be asked for all of these, on Trio's clock; `-inf`: it never asked for
        time."""
        return max((self._rests_until.get(kind, -math.inf) for kind in kinds), default=-math.inf)

    async def fetch(self, kind: ListKind, *, anew: bool = True) -> None:
        """Fetch every page of one list. If that fails, the list stays as it was. Unless `anew`, an unchanged list stays
        the same object, by which others recognise it.

        Raises:
            JsonRpcError: A page was refused, the lists are too large, or the connection ended.
            NotValid: A page is not valid.
        """
        before, self._taken[kind] = self._taken[kind], (0, 0)
        begun = self._begun[kind] = trio.current_time()
        self._fresh_until[kind] = math.inf
        try:
            sieve, fresh_for = await self._every_page(kind)
        except BaseException as error:
            self._taken[kind], rest = before, rest_in(error)
            self._rests_until[kind] = trio.current_time() + rest
            self._fresh_until[kind] = trio.current_time() + max(FRESH_FOR, rest)
            raise
        self._known_from[kind] = begun
        self._note_age(kind, fresh_for)
        listed: dict[str, Any] = {
            "fresh_until": min(self._fresh_until.values()),
            "old_from": min(self._old_from.values()),
        }
        if anew or sieve.digest != self._digests.get(kind):
            self._digests[kind] = sieve.digest
            sieve.log()
            listed[_LISTINGS[kind].field] = tuple(sieve.kept.values())
        self.definitions = evolve(self.definitions, **listed)

    def _note_age(self, kind: ListKind, fresh_for: float | None) -> None:
        """Record until when a list is fresh, and from when it may be old; None: its server gives no time."""
        now = trio.current_time()
        self._fresh_until[kind] = now + (fresh_for or FRESH_FOR)
        if fresh_for is not None:
            self._old_from[kind] = now + fresh_for
        else:
            said = capability_of(self._session.server_capabilities, kind) or {}
            self._old_from[kind] = math.inf if said.get("listChanged") else now

    async def try_fetch(self, kinds: Collection[ListKind], *, anew: bool = True) -> None:
        """Fetch several lists at once, if the server offers them. Failures are logged, once for each kind."""
        if some := offered(self._session.server_capabilities, kinds):
            async with trio.open_nursery() as nursery:
                for kind in some:
                    nursery.start_soon(self._try_fetch, kind, anew)

    async def _try_fetch(self, kind: ListKind, anew: bool) -> None:  # noqa: FBT001
        try:
            await self.fetch(kind, anew=anew)
        except BAD_ANSWER as error:
            if self._endpoint.lost.is_set():
                return
            if isinstance(error, JsonRpcError) and error.code == METHOD_NOT_FOUND:
                self._digests.pop(kind, None)
                nothing: dict[str, Any] = {_LISTINGS[kind].field: ()}
                self.definitions = evolve(self.definitions, **nothing)
            elif kind not in self._failed:
                self._failed |= {kind}
                why = one_line(words_of(error))
                logger.warning("%s: its %s could not be listed: %s", self._server, kind, why)

    async def _every_page(self, kind: ListKind) -> tuple["_Sieve", float | None]:
        """All entries, in the server's order, and for how many seconds they are fresh, if the server says so. A name
        that comes twice counts once. A cursor that comes twice ends the list, and so does a page without a new name.
        Entries that cannot be used or shown are left out.
        """
        sieve = _Sieve(_LISTINGS[kind], self._session.is_modern, partial(self._count, kind))
        empty = 0
        cursors: set[str] = set()
        cursor: str | None = None
        fresh_for: float | None = None
        for _ in range(_PAGE_LIMIT):
            page, cursor, ttl = await self._page(_LISTINGS[kind].method, cursor)
            if ttl is not None:
                fresh_for = min(ttl, FRESH_AT_MOST if fresh_for is None else fresh_for)
            if not SDK_MODULES.is_loaded and await by_turns(sieve.needs_models(page.entries)):
                await SDK_MODULES.ensure_loaded()
            is_new = await by_turns(sieve.take(page.entries))
            empty = 0 if page.entries else empty + 1
            if cursor is None or cursor in cursors or not (is_new or 0 < empty <= _MOST_EMPTY):
                break
            cursors.add(cursor)
        sieve.check()
        return sieve, fresh_for

    async def _page(self, method: str, cursor: str | None) -> tuple[Page, str | None, float | None]:
        """One page, the cursor of the next, and the seconds for which it may be kept, if the server says so."""
        pages = self._endpoint.pages
        pages[method] = NO_PAGE
        try:
            said = await self._session.list_page(method, cursor)
            ttl = said.get("ttlMs")
            return pages[method], said.get("nextCursor"), None if ttl is None else ttl / 1000
        finally:
            del pages[method]

    def _count(self, kind: ListKind, entry_size: int) -> None:
        """Count an entry that is kept.

        Raises:
            ListTooLarge: There are too many entries, or bytes, with it.
        """
        number, size = self._taken[kind]
        self._taken[kind] = number + 1, size + entry_size
        if sum(number for number, _ in self._taken.values()) > self._limits.definitions:
            raise self._too_large(kind, f"{self._limits.definitions:,} entries", "max_definitions, or maxDefinitions")
        if sum(size for _, size in self._taken.values()) > self._limits.kept:
            raise self._too_large(kind, size_text(self._limits.kept), "max_kept_bytes, or maxKeptBytes")

    def _too_large(self, kind: ListKind, limit: str, setting: str) -> ListTooLarge:
        also = " and other lists" if any(size for other, (_, size) in self._taken.items() if other is not kind) else ""
        exceeded = f"exceed {limit}, the limit for one server ({setting} in a file, allows more)"
        return ListTooLarge(INTERNAL_ERROR, f"its {_LISTINGS[kind].noun} definitions{also} {exceeded}")


def _name_in(raw: object) -> str:
    """The name in an entry that is not valid, as far as there is one."""
    members: Mapping[str, object] = cast("Mapping[str, object]", raw) if isinstance(raw, dict) else {}
    names = (members.get(key) for key in ("name", "uri", "uriTemplate"))
    return next((name for name in names if isinstance(name, str)), "?")


def _bytes_of(raw: Any) -> bytes:
    return marshal.dumps(raw, 0)  # of any JSON, half characters and great depths included


def _header_problem(entry: Any, written: bytes) -> str | None:
    """The reason why a tool whose annotations repeat arguments in headers must not be called; None if it may be."""
    if X_MCP_HEADER not in written:
        return None
    from mcp.shared.inbound import find_invalid_x_mcp_header

    wrong = find_invalid_x_mcp_header(entry.input_schema) is not None
    return "the x-mcp-header annotations of its arguments are not valid" if wrong else None


def _open_parts(entry: Any) -> object:
    """The parts of a definition that may be nested to any depth."""
    if isinstance(entry, LazyDefinition):
        return entry.said
    from .models import more_of

    return [[getattr(entry, "input_schema", None), getattr(entry, "output_schema", None), entry.meta, more_of(entry)]]


@define(eq=False)
class _Sieve:
    """A filter for the entries of one list that can be used and shown. The others are logged, once for each reason,
    with one of their names."""

    _listing: _Listing
    _modern: bool
    """True if its era repeats arguments in headers: a tool whose annotations for that are invalid must not be
    called."""
    _count: Callable[[int], None]
    """Called with the bytes of an entry before that is kept."""
    kept: dict[str, Any] = field(factory=dict[str, Any], init=False)
    """The entries, by name."""
    _seen: set[object] = field(factory=set[object], init=False)
    """Hashes of all names, and of entries without one."""
    _reasons: dict[str, tuple[str, int]] = field(factory=dict[str, tuple[str, int]], init=False)
    _invalid: NotValid | None = field(default=None, init=False)
    """The first error of an entry."""
    _hash: Any = field(factory=blake2b, init=False)

    @property
    def _has_headers(self) -> bool:
        return self._modern and self._listing.field == "tools"

    @property
    def digest(self) -> bytes:
        """The digest of all entries."""
        digest: bytes = self._hash.digest()
        return digest

    def needs_models(self, page: Sequence[object]) -> Steps[bool]:
        """True if the SDK has to look at an entry of this page."""
        for raw in page:
            yield
            if not is_plain_entry(self._listing.field, raw) or (self._has_headers and X_MCP_HEADER in _bytes_of(raw)):
                return True
        return False

    def take(self, page: Sequence[object]) -> Steps[bool]:
        """Add the entries of one page. False if it has no new name.

        Raises:
            ListTooLarge: More would be kept than may be.
        """
        before = len(self._seen)
        for at in range(0, len(page), _ENTRIES_AT_ONCE):
            for raw in page[at : at + _ENTRIES_AT_ONCE]:
                written = _bytes_of(raw)
                self._hash.update(written)
                self._seen.add(hash(self._identity(raw) or written))
                try:
                    entry = self._entry(raw)
                except NotValid as error:
                    self._invalid = self._invalid or error
                    self._leave_out(_name_in(raw), f"its definition is not valid MCP: {error.problem}")
                    yield
                    continue
                name: str = getattr(entry, self._listing.name)
                problem = self._problem(name, entry) or (_header_problem(entry, written) if self._has_headers else None)
                if problem is None:
                    self._count(len(written))
                    self.kept[name] = entry
                else:
                    self._leave_out(name, problem)
                yield
        return len(self._seen) > before

    def check(self) -> None:
        """Check that the list is one of definitions at all.

        Raises:
            NotValid: There are entries, and none is valid.
        """
        if self._invalid is not None and not self.kept:
            raise self._invalid

    def _identity(self, raw: object) -> str | None:
        """The name of an entry among the others, whether or not that is valid."""
        key = "uriTemplate" if self._listing.field == "templates" else self._listing.name
        name: object = cast("dict[str, object]", raw).get(key) if isinstance(raw, dict) else None
        return name if isinstance(name, str) else None

    def _leave_out(self, name: str, problem: str) -> None:
        first, count = self._reasons.get(problem, (name, 0))
        self._reasons[problem] = (first, count + 1)

    def _entry(self, raw: object) -> Any:
        if is_plain_entry(self._listing.field, raw):
            return LazyDefinition(self._listing.field, cast("Mapping[str, Any]", raw))
        from .models import definition_of

        return definition_of(self._listing.field, raw)

    def _problem(self, name: str, entry: Any) -> str | None:
        """The reason why an entry is left out; None if it is not."""
        what = self._listing.name.replace("_", " ").replace("uri", "URI")
        if name in self.kept:
            return f"the server has another {self._listing.noun} of that {what}"
        if len(name) > self._listing.longest:
            return f"its {what} is longer than {self._listing.longest} characters"
        if self._listing.field == "templates" and name.count("{") > MOST_EXPRESSIONS:
            return f"its {what} has more than {MOST_EXPRESSIONS} expressions"
        try:
            name.encode()
        except UnicodeEncodeError:
            return f"its {what} is not Unicode text"
        return TOO_DEEP if nested_too_deep(_open_parts(entry)) else None

    def log(self) -> None:
        """Log what was left out."""
        for reason, (name, count) in self._reasons.items():
            more = f" and {count - 1} more" if count > 1 else ""
            hidden = SECRETS.get().hide_line(name)
            logger.warning("dropped a %s named %.100r%s: %s", self._listing.noun, hidden, more, reason)
