"""Skills of servers: their entries are asked for when somebody wants them, and what is read of their files is held
against these. Nothing is fetched ahead.

Each entry that a server gives is compared with what it was when it was first seen, before anybody gets it: by
`ServerView.learn_skills`, also those that a client of the host has asked for. A skill that is held back is asked for
again each time that somebody wants the skill: a person may have accepted the change meanwhile, or the server undone it.

While changed skills are held back, all that is read passes one gate, `check_uris`. The pins say what belongs to a
skill, and not what the server lists or declares by now: a server that takes a skill out of its list gets nothing by it.
"""

import logging
import math
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Final, NoReturn, cast

import trio

from mcp_nursery.actors.enums import Delivery, ServerState
from mcp_nursery.actors.errors import (
    CallError,
    ContestedResource,
    InvalidArguments,
    InvalidResult,
    NotApproved,
    NurseryError,
    ServerError,
    SkillMismatch,
    UnknownResource,
)
from mcp_nursery.actors.extensions import SKILLS, Settings, declares, settings_of
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.preload import Stage, import_all
from mcp_nursery.actors.records import evolve
from mcp_nursery.actors.session.lazy_definitions import LazyDefinition
from mcp_nursery.actors.session.lists import FRESH_AT_MOST, FRESH_FOR
from mcp_nursery.actors.session.plain import is_plain_entry

from ..decisions.state_machine import Snapshot
from ..resources import Resource, ResourceResult, only_content
from ..security.untrusted_marks import clean_name
from ..servers.view import ServerView
from ..skills import MAIN, MOST_SKILLS, BadEntry, Skill, is_below, skill_in, verify
from ..tools.approval_rules import Agreement
from ..transports import Transport
from .attempts import deliver
from .call import Call
from .destination import ServerRequest
from .relayed import RelayedCall, RelayedResult
from .resources_and_prompts import read_resource

logger: Final = logging.getLogger(__name__)

MOST_PAGES: Final = 100
"""Pages of a list of skills, or of a folder, after which it ends."""
LIST: Final = "skills/list"
GET: Final = "skills/get"
DIRECTORY: Final = "resources/directory/read"
_READ: Final = "resources/read"
_RESOURCES: Final = "resources/list"
_MOST_SHOWN: Final = 100
"""Characters of a URI that a line of the log has: a server may list one of megabytes."""
_LISTED: Final = {LIST: "skills", DIRECTORY: "resources"}
"""The lists in answers."""
_MEMBERS: Final = {**_LISTED, _RESOURCES: "resources", _READ: "contents", GET: "skill"}
"""The members of results that have something of skills."""
_OF_PAGES: Final = frozenset(["nextCursor", "resultType", "ttlMs", "cacheScope"])
"""Members of a page beside its list."""
FRONTMATTER: Final = Stage(lambda: import_all("mcp_nursery.supervisor.frontmatter"))
"""The parser of YAML, which nothing else needs."""


# -- lists ------------------------------------------------------------------------------------------------------------


def _settings(servers: ServerView, server: str) -> Settings | None:
    """The settings with which a server declares the extension; None: it does not, as far as is known."""
    said = servers.snapshot(server).value.introduction
    return None if said is None else settings_of(said.capabilities, SKILLS)


def serves_skills(servers: ServerView, server: str) -> bool:
    """True if a server declares that it has skills."""
    return _settings(servers, server) is not None


def known_skills(servers: ServerView) -> tuple[Skill, ...]:
    """The skills that are known by now of servers that are shown, sorted by URI and server."""
    shown = [one.value.skills.shown for one in servers.snapshots.values() if one.value.keeps_tools]
    known = [skill for skills in shown for skill in skills.values()]
    return tuple(sorted(known, key=lambda skill: (skill.uri, skill.server)))


async def list_all(servers: ServerView, *, refresh: bool = False, timeout: float | None = None) -> Collection[str]:
    """Ask all servers with skills, at once, for those lists that are not fresh. What a server fails to list is as it
    was.

    Returns:
        The servers that may have skills and could not be asked.
    """
    failed = {name for name, one in servers.snapshots.items() if _may_serve_skills(one.value)}

    async def update(server: str) -> None:
        try:
            await list_of(servers, server, refresh=refresh, timeout=timeout)
        except NurseryError as error:
            logger.warning("%s: its skills could not be listed: %s", clean_name(server), error.fact)
            failed.add(server)

    async with trio.open_nursery() as nursery:
        for name in [name for name in servers.snapshots if serves_skills(servers, name)]:
            nursery.start_soon(update, name)
    return failed


def _may_serve_skills(snapshot: Snapshot) -> bool:
    """True if a server that was not connected in this run may have skills: as is known from earlier runs, or because
    its first start is under way."""
    if snapshot.introduction is not None or snapshot.state is ServerState.DISABLED:
        return False
    hello = snapshot.cached_hello
    return snapshot.is_unknown if hello is None else declares(hello.get("capabilities"), SKILLS)


async def list_of(servers: ServerView, server: str, *, refresh: bool = False, timeout: float | None = None) -> None:
    """Ask a server for its skills, if it has any and its list is not fresh.

    Raises:
        NurseryError: It cannot be listed.
    """
    fresh = _is_fresh(servers, server) and not servers.snapshot(server).value.skills.review.held
    if not serves_skills(servers, server) or (fresh and not refresh):
        await trio.lowlevel.checkpoint()
        return
    listing, transport = _Listing(servers, server), _transport_of(servers, server)
    connection = servers.snapshot(server).value.owner
    fresh_for = FRESH_FOR
    for page in range(MOST_PAGES):
        said = await _page(servers, server, LIST, {"cursor": listing.cursor}, timeout)
        ttl: object = said.get("ttlMs")
        if isinstance(ttl, int | float) and ttl > 0:
            fresh_for = min(ttl / 1000, FRESH_AT_MOST, fresh_for if page else FRESH_AT_MOST)
        if not await by_turns(listing.take(said)):
            break
    listing.log()
    review = await servers.learn_skills(server, listing.kept, whole=True, transport=transport)
    if review.certain and servers.snapshot(server).value.owner is connection:
        servers.registry.skills_fresh_until[server] = trio.current_time() + fresh_for


def _is_fresh(servers: ServerView, server: str) -> bool:
    """True if the list need not be asked for again, if nothing in it is held back."""
    return trio.current_time() < servers.registry.skills_fresh_until.get(server, -math.inf)


def _transport_of(servers: ServerView, server: str) -> Transport:
    return servers.snapshot(server).value.spec.transport


async def _page(
    servers: ServerView, server: str, method: str, params: dict[str, Any], timeout: float | None
) -> dict[str, Any]:
    """One page of a list; `params` without what is None."""
    given = {key: value for key, value in params.items() if value is not None}
    request = ServerRequest(Call(given.get("uri", ""), server=server, timeout=timeout), servers, method, given)
    said = await deliver(request)
    if not isinstance(said.get(_LISTED[method]), list):
        problem = f"its answer to {method} has no list of {_LISTED[method]}"
        raise InvalidResult(problem, server=server, tool=request.name, incarnation=request.slot.incarnation)
    return said


class _Listing:
    """The skills of one server's list, as far as they can be used and kept."""

    def __init__(self, servers: ServerView, server: str) -> None:
        self.kept: dict[str, Skill] = {}
        self.cursor: str | None = None
        """The cursor of the next page."""
        self._server = server
        self._redactor = servers.redactor(server)
        self._room = servers.snapshot(server).value.spec.max_kept_bytes
        self._cursors: set[str] = set()
        self._left_out: dict[str, tuple[str, int]] = {}

    def take(self, page: Mapping[str, Any]) -> Steps[bool]:
        """Add the skills of a page. True if another page is to be asked for."""
        entries: list[object] = page["skills"]
        before = len(self.kept)
        for entry in entries:
            yield
            if not self._take(entry):
                return False
        following: object = page.get("nextCursor")
        if not isinstance(following, str) or not following or following in self._cursors:
            return False
        self._cursors.add(following)
        self.cursor = following
        return len(self.kept) > before or not entries

    def _take(self, entry: object) -> bool:
        """Add one skill. False if there is no room for more."""
        try:
            skill = skill_in(self._server, entry)
        except BadEntry as error:
            uri: object = cast("dict[str, object]", entry).get("uri") if isinstance(entry, dict) else None
            self._leave_out(uri if isinstance(uri, str) else "?", str(error))
            return True
        self._room -= skill.kept_bytes
        if len(self.kept) >= MOST_SKILLS or self._room < 0:
            self._leave_out(skill.uri, "there are too many to be kept; each can be had by its URI")
            return False
        if skill.uri in self.kept:
            self._leave_out(skill.uri, "the server has another skill of that URI")
        else:
            self.kept[skill.uri] = skill
        return True

    def _leave_out(self, uri: str, why: str) -> None:
        first, count = self._left_out.get(why, (uri, 0))
        self._left_out[why] = first, count + 1

    def log(self) -> None:
        """Log what was left out."""
        for why, (uri, count) in self._left_out.items():
            more = f" and {count - 1} more" if count > 1 else ""
            said = self._redactor.beginning(uri, _MOST_SHOWN)
            logger.warning("%s: dropped the skill %.100r%s: %s", clean_name(self._server), said, more, why)


# -- one skill --------------------------------------------------------------------------------------------------------


async def _owner_of(servers: ServerView, uri: str, server: str | None) -> str:
    """The server that was named, or the only one that has a skill with this file or folder; else the only one with
    skills at all, which may have some that it does not list. A server that could not be asked may have it, too.

    Raises:
        ContestedResource: There are several.
        UnknownResource: There is none.
        UnknownServer: No server of that name.
    """
    await servers.update_lists(server, ())
    if server is not None:
        return server
    unasked = await list_all(servers)
    having = [name for name in servers.snapshots if _covering(servers, name, uri)]
    sure = having or [name for name in servers.snapshots if serves_skills(servers, name)]
    owners = [name for name in servers.snapshots if name in sure or (sure and name in unasked)]
    if len(owners) > 1:
        raise ContestedResource(uri, owners)
    if not owners:
        raise UnknownResource(uri, down=sorted(unasked))
    return owners[0]


def _covering(servers: ServerView, server: str, uri: str) -> list[Skill]:
    """The known skills of a server in whose folders this file or folder would be; several if they are nested."""
    known = servers.snapshot(server).value.skills
    return [known.by_uri[each] for each in known.of(uri) if each in known.by_uri]


async def get_skill(servers: ServerView, uri: str, server: str | None = None, *, timeout: float | None = None) -> Skill:
    """Ask a server for the entry of a skill. See `Supervisor.get_skill`."""
    owner = await _owner_of(servers, uri, server)
    _check_serves(servers, owner, uri)
    request = ServerRequest(Call(uri, server=owner, timeout=timeout), servers, GET, {"uri": uri})
    transport = _transport_of(servers, owner)
    said = await deliver(request)
    skill = _skill_given(owner, uri, said, request.slot.incarnation)
    with _delivery_is(Delivery.ANSWERED):
        await _learn(servers, skill, transport)
    return skill


def _skill_given(server: str, uri: str, said: Mapping[str, Any], incarnation: int | None) -> Skill:
    """The skill in an answer to a request for the one of this URI.

    Raises:
        InvalidResult: It cannot be used.
    """
    try:
        skill = skill_in(server, said.get("skill"))
        if skill.uri != uri:
            raise BadEntry("its answer is about another skill")
    except BadEntry as error:
        raise InvalidResult(str(error), server=server, tool=uri, incarnation=incarnation) from None
    return skill


async def _learn(servers: ServerView, skill: Skill, transport: Transport) -> None:
    """Know a skill that its server has just given.

    Raises:
        NotApproved: It is held back.
    """
    server, uri = skill.server, skill.uri
    review = await servers.learn_skills(server, {uri: skill}, whole=False, transport=transport)
    why, change = review.held.get(uri), review.changes.get(uri)
    if change is not None:
        why = why and f"its {' and '.join(change.fields)} changed since it was first used; see `mcp-nursery pins`"
    if why is not None:
        raise NotApproved(server, servers.redactor(server).said(uri), why)


def _check_serves(servers: ServerView, server: str, uri: str) -> None:
    """Refuse to ask a server that is known to have no skills.

    Raises:
        UnknownResource: It declares none.
    """
    if servers.snapshot(server).value.introduction is not None and not serves_skills(servers, server):
        raise UnknownResource(uri, server=server)


async def skills_with(servers: ServerView, uri: str, server: str, *, timeout: float | None = None) -> Sequence[Skill]:
    """The skills of a server that a file belongs to, each of which has it.

    Raises:
        NotApproved: A skill is held back.
        SkillMismatch: A skill has no such file.
        UnknownResource: None is known.
    """
    _check_serves(servers, server, uri)
    if not _covering(servers, server, uri):
        if uri.endswith(MAIN):
            await get_skill(servers, uri, server, timeout=timeout)
        else:
            await list_of(servers, server, timeout=timeout)
    await check_uris(servers, server, [uri], timeout)
    skills = [skill for skill in _covering(servers, server, uri) if skill.covers(uri)]
    if not skills:
        raise UnknownResource(uri, server=server)
    for skill in skills:
        skill.file(uri)
    return skills


async def check_uris(servers: ServerView, server: str, uris: Iterable[str], timeout: float | None) -> None:
    """Refuse what belongs to a skill that is held back, if changed skills are: each skill to which one of these URIs
    belongs, by the pins or by what is known, must have an entry, not older than its server lets lists be, that equals
    its pin.

    Raises:
        NotApproved: One is held back, cannot be compared, or its URI may or may not be one of a skill.
        NurseryError: The skills of a server that has some cannot be listed.
    """
    if not servers.pinned:
        return
    snapshot = servers.snapshot(server)
    lists = serves_skills(servers, server)
    if snapshot.value.skills.pinned is None or not (lists or _is_fresh(servers, server)):
        if not lists:  # else its list will bring what other hosts have pinned
            servers.registry.skills_fresh_until[server] = trio.current_time() + FRESH_FOR
        await servers.learn_skills(server, {}, whole=False, transport=snapshot.value.spec.transport)
    for uri in dict.fromkeys(uris):
        await _learn_of(servers, server, uri, timeout)
        known = snapshot.value.skills
        if known.pinned is None:
            _refuse(servers, server, uri, "it is not known whether it is of a changed skill: the pins cannot be read")
        if known.is_unclear(uri):
            _refuse(servers, server, uri, "a server may read this URI in several ways: it has dots, or a slash in code")
        for each in known.of(uri):
            known, fresh = snapshot.value.skills, serves_skills(servers, server) and _is_fresh(servers, server)
            if not fresh or each not in known.by_uri or each in known.review.held:
                try:
                    await get_skill(servers, each, server, timeout=timeout)
                except (ServerError, InvalidResult, UnknownResource):
                    _refuse(
                        servers, server, each, "its server has no entry of it now that can be compared with its pin"
                    )


@contextmanager
def _delivery_is(delivery: Delivery) -> Generator[None, None, None]:
    """A block before or after a request, which has this delivery by then: so have errors of what is asked for it."""
    try:
        yield
    except (CallError, NotApproved) as error:
        error.delivery = delivery
        raise


def _refuse(servers: ServerView, server: str, uri: str, why: str) -> NoReturn:
    raise NotApproved(server, servers.redactor(server).said(uri), why)


async def _learn_of(servers: ServerView, server: str, uri: str, timeout: float | None) -> None:
    """Ask a server with skills for its list, unless it is fresh, and for the skill of this `SKILL.md`, unless it is
    listed.

    Raises:
        NurseryError: They cannot be listed, or the skill is held back.
    """
    if not serves_skills(servers, server):
        return
    if not _is_fresh(servers, server):
        await list_of(servers, server, timeout=timeout)
    if uri.endswith(MAIN) and not _covering(servers, server, uri):
        with suppress(ServerError):  # it is no skill
            await get_skill(servers, uri, server, timeout=timeout)


async def read_unless_held(
    call: Call, servers: ServerView, agreed: Agreement | None = None, *, refresh: bool = False
) -> ResourceResult:
    """Read a resource that belongs to no skill that is held back. See `Supervisor.read_resource`."""
    result = await read_resource(call, servers, agreed, refresh=refresh)
    uris = result.uri, *(each.uri for each in result.contents)
    with _delivery_is(Delivery.ANSWERED):
        await check_uris(servers, result.server, uris, call.timeout)
    return result


async def read_for_model(call: Call, servers: ServerView, agreed: Agreement) -> ResourceResult:
    """Read a resource of the server that is named, for a model: what may belong to a skill only if it is verified."""
    uri, server = call.name, call.server
    assert server is not None  # it was agreed to
    if not _is_of_skill(servers, uri, server):
        result = await read_unless_held(call, servers, agreed)
        with _delivery_is(Delivery.ANSWERED):
            await _learn_of(servers, server, uri, call.timeout)
        uris = uri, *(each.uri for each in result.contents)
        of_skills = [each for each in uris if _is_of_skill(servers, each, server)]
        if not of_skills:
            return result
        if of_skills[0] != uri:
            problem = "its answer has a file of a skill, which must be read by its own URI"
            raise InvalidResult(problem, server=server, tool=uri, incarnation=result.incarnation)
    return await read_skill_file(call, servers, agreed)


def _is_of_skill(servers: ServerView, uri: str, server: str) -> bool:
    known = servers.snapshot(server).value.skills
    return known.is_unclear(uri) or any(skill.covers(uri) for skill in _covering(servers, server, uri))


SHOWS_SKILLS: Final = _MEMBERS.keys()
"""The requests whose answers may hold something of skills: for `relay`."""


async def relay(call: RelayedCall) -> RelayedResult:
    """Make one of these requests on behalf of a client. What it is given of skills is compared as for everybody; while
    changed skills are held back, entries that cannot be compared are so as well. See `Supervisor.request`."""
    servers, method, server = call.servers, call.method, _server_of(call)
    before, uri, reads = servers.snapshot(server).value, str(call.given_params.get("uri")), method in (_READ, DIRECTORY)
    known = reads and before.introduction is not None
    if known:
        with _delivery_is(Delivery.NOT_SENT):
            await check_uris(servers, server, [uri], call.asked.timeout)
    relayed = await deliver(call)
    if servers.pinned:
        relayed = evolve(relayed, result=_with_one_meaning(call, relayed))
    if relayed.result.get("resultType") == "input_required":
        return relayed
    with _delivery_is(Delivery.ANSWERED):
        if reads:
            asked = [] if known and relayed.incarnation == before.incarnation else [uri]
            given = (str(each.get("uri")) for each in _dicts(relayed.result.get("contents")))
            await check_uris(servers, server, chain(asked, given), call.asked.timeout)
        return evolve(relayed, result=await _without_held(call, relayed, uri, before.spec.transport))


async def _without_held(call: RelayedCall, relayed: RelayedResult, uri: str, transport: Transport) -> dict[str, Any]:
    """The result without what it has of skills that are held back. Its entries of skills are known from now on.

    Raises:
        NotApproved: It is the entry of one that is held back.
        InvalidResult: It is an entry that cannot be compared, while changed skills are held back.
    """
    servers, server, result = call.servers, _server_of(call), relayed.result
    if call.method == LIST:
        return await _without_skills_held(servers, server, result, transport)
    if call.method == GET:
        try:
            skill = _skill_given(server, uri, result, relayed.incarnation)
        except InvalidResult:
            if servers.pinned:
                raise
        else:
            await _learn(servers, skill, transport)
    elif call.method != _READ:
        return await by_turns(_without_files_held(servers, server, result))
    return result


def _with_one_meaning(call: RelayedCall, relayed: RelayedResult) -> dict[str, Any]:
    """The result of a request for skills or resources that asks for input or gives something, and not both.

    Raises:
        InvalidResult: It does neither: what it leads to could not be compared.
    """
    result, member = relayed.result, _MEMBERS[call.method]
    kind: object = result.get("resultType", "complete")
    if kind == "input_required":
        return {key: value for key, value in result.items() if key not in _MEMBERS.values()}
    if (
        kind != "complete"
        or "task" in result
        or not isinstance(result.get(member), dict if call.method == GET else list)
    ):
        problem = f"its answer to {call.method} has no {member}, or is not complete"
        raise InvalidResult(problem, server=_server_of(call), tool=call.name, incarnation=relayed.incarnation)
    return result


def _server_of(call: RelayedCall) -> str:
    assert call.asked.server is not None  # a relayed request names it
    return call.asked.server


def _dicts(entries: object) -> list[dict[str, Any]]:
    found = cast("list[object]", entries) if isinstance(entries, list) else []
    return [cast("dict[str, Any]", each) for each in found if isinstance(each, dict)]


def _without_files_held(servers: ServerView, server: str, listed: dict[str, Any]) -> Steps[dict[str, Any]]:
    """A list of resources without those of skills that are held back."""
    known = servers.snapshot(server).value.skills
    if not known.review.held:
        return listed
    shown: list[dict[str, Any]] = []
    for each in _dicts(listed.get("resources")):
        yield
        if not known.holds(str(each.get("uri"))):
            shown.append(each)
    return listed | {"resources": shown}


async def _without_skills_held(
    servers: ServerView, server: str, listed: dict[str, Any], transport: Transport
) -> dict[str, Any]:
    given: object = listed.get("skills")
    entries = cast("list[object]", given) if isinstance(given, list) else []
    skills = await by_turns(_skills_in(server, entries[:MOST_SKILLS]))
    by_uri = {skill.uri: skill for skill in skills if skill is not None}
    review = await servers.learn_skills(server, by_uri, whole=False, transport=transport)
    if not servers.pinned:
        return listed
    shown = {id(skill) for uri, skill in by_uri.items() if uri not in review.held}
    kept = {key: value for key, value in listed.items() if not review.held or key in _OF_PAGES}
    return kept | {"skills": [entry for entry, skill in zip(entries, skills, strict=False) if id(skill) in shown]}


def _skills_in(server: str, entries: Iterable[object]) -> Steps[list[Skill | None]]:
    """The skills of these entries; None for one that cannot be used."""
    skills: list[Skill | None] = []
    for entry in entries:
        yield
        try:
            skills.append(skill_in(server, entry))
        except BadEntry:
            skills.append(None)
    return skills


async def read_skill_file(call: Call, servers: ServerView, agreed: Agreement | None = None) -> ResourceResult:
    """Read a file of a skill, and verify it. See `Supervisor.read_skill_file`."""
    uri = call.name
    owner = await _owner_of(servers, uri, call.server)
    with _delivery_is(Delivery.NOT_SENT):
        skills = await skills_with(servers, uri, owner, timeout=call.timeout)
    named = Call(uri, server=owner, timeout=call.timeout, when_down=call.when_down, meta=call.meta)
    result = await read_resource(named, servers, agreed, refresh=True)
    await FRONTMATTER.ensure_loaded()
    try:
        await by_turns(verify(skills, uri, only_content(result), result.incarnation))
    except SkillMismatch as error:
        said = servers.redactor(owner).said
        raise SkillMismatch(
            error.what,
            expected=said(error.expected),
            found=said(error.found),
            server=owner,
            uri=uri,
            incarnation=result.incarnation,
        ) from None
    return result


async def list_directory(
    servers: ServerView, uri: str, server: str | None = None, *, timeout: float | None = None
) -> tuple[Resource, ...]:
    """Ask a server what a folder has. See `Supervisor.list_skill_directory`."""
    owner = await _owner_of(servers, uri, server)
    _check_serves(servers, owner, uri)
    if (_settings(servers, owner) or {}).get("directoryRead") is not True:
        raise InvalidArguments("the server does not list folders: it declares no directoryRead", server=owner, tool=uri)
    found: dict[str, Resource] = {}
    cursors: set[str | None] = {None}
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await _page(servers, owner, DIRECTORY, {"uri": uri, "cursor": cursor}, timeout)
        before = len(found)
        await by_turns(_children(owner, uri, page["resources"], found))
        cursor = page.get("nextCursor")
        if cursor in cursors or not isinstance(cursor, str) or len(found) == before:
            break
        cursors.add(cursor)
    with _delivery_is(Delivery.ANSWERED):
        await check_uris(servers, owner, [uri], timeout)
    known = servers.snapshot(owner).value.skills
    return tuple(each for each in found.values() if not known.holds(each.uri))


def _children(server: str, folder: str, entries: Iterable[object], found: dict[str, Resource]) -> Steps[None]:
    """Add the resources of a page.

    Raises:
        InvalidResult: One is not valid or not in the folder, or there are too many.
    """
    for entry in entries:
        yield
        fields = cast("dict[str, object]", entry) if isinstance(entry, dict) else {}
        uri = fields.get("uri")
        valid = isinstance(uri, str) and is_below(folder, uri) and is_plain_entry("resources", fields)
        if not valid or len(found) >= MOST_SKILLS:
            problem = (
                "an entry of the folder is not valid, or not in it" if not valid else f"more than {MOST_SKILLS} entries"
            )
            raise InvalidResult(problem, server=server, tool=folder, incarnation=None)
        definition: Any = LazyDefinition("resources", cast("dict[str, Any]", entry))
        found[cast("str", uri)] = Resource(server, cast("str", uri), definition, available=True)
