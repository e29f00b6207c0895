"""Skills as the host sees them, and what is true of their files by the word of their server. Pure.

A skill is a folder of files that a server offers as resources, with a `SKILL.md` that tells a model what it is for
(`io.modelcontextprotocol/skills`). Its entry in the server's list says how long each file is, and its digest: what is
read is held against that, so that a person, a model and a pin mean the same files.
"""

import marshal
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, TypeVar, cast
from urllib.parse import unquote

from mcp_nursery.actors.errors import SkillMismatch
from mcp_nursery.actors.json_depth import more_values_than
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.records import Factory, field, frozen

from .tools.fingerprint import fingerprint
from .tools.pins import UNREVIEWED, Review

__all__ = ["Skill", "SkillFile"]

T = TypeVar("T")

MOST_SKILLS: Final = 1_000
"""Skills of one server that are known at once."""
MOST_FILES: Final = 512
"""Files of one skill, as the standard has it."""
MOST_BYTES: Final = 16 << 20
"""Bytes of all files of one skill, as the standard has it."""
_LONGEST_URI: Final = 8192
"""Characters of a URI, as of that of a resource."""
_LONGEST_NAME: Final = 64
"""Characters of a name, by the specification of Agent Skills."""
_MOST_FIELDS: Final = 2_000
"""Values of the frontmatter of one skill."""

MAIN: Final = "/SKILL.md"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_SEPARATOR: Final = re.compile(r"[/\\?#]")
_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^\s?#\\\x00-\x1f\x7f]+)")


@frozen
class SkillFile:
    """One file of a skill, as the skill's entry has it."""

    uri: str
    """The URI, to be read from the server of the skill."""
    digest: str
    """`sha256:` and 64 lowercase hexadecimal digits, of its bytes."""
    size: int | None
    """The bytes; None if the server does not say, as servers of the draft do."""


@frozen
class Skill:
    """One skill that a server offers. A value, true when its server was asked. All but `server` is in the server's
    words, and nothing of it has been read yet."""

    server: str
    """The server's name."""
    uri: str
    """The URI of its `SKILL.md`, which identifies it at this server."""
    name: str
    """The name: other skills may have the same."""
    description: str
    """The purpose, in the server's words."""
    frontmatter: Mapping[str, Any] = field(repr=False, eq=False)
    """All that the frontmatter of its `SKILL.md` says, as JSON."""
    files: tuple[SkillFile, ...] | None = field(repr=False)
    """The files, `SKILL.md` among them; None if its server makes them when they are read, so that they cannot be
    verified."""
    declared: Mapping[str, Any] = field(repr=False, eq=False)
    """The entry as it came."""
    reading: str = field(
        default=Factory(lambda skill: reading_of(skill.root), takes_self=True), init=False, repr=False, eq=False
    )
    """The URI of its folder as URIs are compared, by `reading_of`."""
    kept_bytes: int = field(
        default=Factory(lambda skill: _size_of(skill.declared), takes_self=True), init=False, repr=False, eq=False
    )
    """Bytes that the entry counts as, of those that the server may make the host keep."""

    @property
    def root(self) -> str:
        """The URI of its folder, without a slash at the end."""
        return self.uri[: -len(MAIN)]

    def covers(self, uri: str) -> bool:
        """True if a server could take the URI for one of a file in its folder, whether it has such a file or not."""
        return reading_of(uri).startswith(f"{self.reading}/")

    def file(self, uri: str) -> SkillFile | None:
        """The file of this URI. None: it cannot be verified.

        Raises:
            SkillMismatch: The skill has no such file.
        """
        if self.files is None and is_below(self.root, uri):
            return None
        for each in self.files or ():
            if each.uri == uri:
                return each
        raise SkillMismatch("unlisted", expected=self.uri, found=uri, server=self.server, uri=uri)


def skill_pinning_steps(skill: Skill) -> Steps[str]:
    """The pinned part of a skill, as JSON, step by step: its frontmatter, and its files with their digests, which
    identify their content."""
    files = "dynamic" if skill.files is None else {each.uri: each.digest for each in skill.files}
    return fingerprint({"frontmatter": skill.frontmatter, "resources": files})


def _size_of(entry: Mapping[str, Any]) -> int:
    return len(marshal.dumps(cast("dict[str, Any]", entry), 0))


@frozen
class KnownSkills:
    """The skills of one server that are known: the skills of its list, and skills that the server was asked for by URI.
    They outlast its connection: a file that is read is held against the known entry, so that no file can change
    unseen."""

    by_uri: Mapping[str, Skill] = field(factory=dict[str, Skill])
    """The entries that the server gave last, those that were known first before others."""
    review: Review = UNREVIEWED
    """The comparison of these skills with their entries at first sight."""
    pinned: Mapping[str, tuple[str, ...]] | None = None
    """The URIs of all skills that were ever pinned, by `reading_of` their folders, whether the server has them now or
    not; None if they are not needed, not asked for yet, or cannot be read."""

    @property
    def shown(self) -> Mapping[str, Skill]:
        """The skills that are not held back."""
        if not self.review.held:
            return self.by_uri
        return {uri: skill for uri, skill in self.by_uri.items() if uri not in self.review.held}

    def claims(self, uri: str) -> bool:
        """True if the URI is one of a file in the folder of such a skill."""
        return any(self.by_uri[each].covers(uri) for each in self.of(uri) if each in self.by_uri)

    def of(self, uri: str) -> Sequence[str]:
        """The URIs of the skills, known or pinned, to which this URI belongs, as a server could read it: that of a file
        in the folder, or of the folder."""
        if not (self.by_uri or self.pinned):
            return ()
        said = reading_of(uri)
        found: dict[str, None] = {}
        for end in (*(each.start() for each in _SEPARATOR.finditer(said, 0, 2 * _LONGEST_URI)), len(said)):
            for roots in (self._roots, self.pinned or {}):
                found.update(dict.fromkeys(roots.get(said[:end], ())))
        return tuple(found)

    @cached_property
    def _roots(self) -> Mapping[str, Sequence[str]]:
        roots: dict[str, list[str]] = {}
        for uri, skill in self.by_uri.items():
            roots.setdefault(skill.reading, []).append(uri)
        return roots

    def is_unclear(self, uri: str) -> bool:
        """True if servers may take this URI for one of a skill or not, as some have it: with `.` or `..`, or what means
        a slash. Only a URI of the scheme of some skill counts."""
        said = reading_of(uri)
        if said.count("/") == uri.count("/") and "\\" not in said and not {".", ".."} & {*_SEPARATOR.split(said)}:
            return False
        scheme = said[: said.find(":") + 1]
        return any(root.startswith(scheme) for root in (*self._roots, *(self.pinned or ())))

    def holds(self, uri: str) -> bool:
        """True if this URI belongs to a skill that is held back."""
        return bool(self.review.held) and any(each in self.review.held for each in self.of(uri))

    def with_some(self, skills: Mapping[str, Skill], review: Review, room: int, *, whole: bool) -> "KnownSkills":
        """The known skills once these were given as well, with their review: as many as there is room for, in bytes.
        If these are the `whole` list of the server, all others go, but not those that are held back. These stay
        longest, so that none can be pushed out to be read; else the first go."""
        stay: Iterable[str] = self.review.held if whole else self.by_uri
        others = {uri: skill for uri, skill in self.by_uri.items() if uri not in skills and uri in stay}
        held = {*review.held, *(self.review.held.keys() & others.keys())}
        known: dict[str, Skill] = {}
        for uri, skill in sorted([*others.items(), *skills.items()], key=lambda each: each[0] in held)[::-1]:
            room -= skill.kept_bytes
            if room < 0 or len(known) == MOST_SKILLS:
                break
            known[uri] = skill
        known = dict([*known.items()][::-1])

        def findings(before: Mapping[str, T], now: Mapping[str, T]) -> Mapping[str, T]:
            left = {uri: each for uri, each in before.items() if uri in others}
            return {uri: each for uri, each in {**left, **now}.items() if uri in known}

        before = self.review
        review = Review(findings(before.changes, review.changes), findings(before.held, review.held))
        return KnownSkills(known, review, self.pinned)


NO_SKILLS: Final = KnownSkills()
"""The skills of a server that was not asked for them."""


class BadEntry(ValueError):
    """The entry of a skill cannot be used. The message says why, in one line without its name."""


def reading_of(uri: str) -> str:
    """The form in which URIs are compared to tell whether they belong to a skill, so that no spelling of one gets past
    that: the scheme, the host and, at many servers, names of files have no case, and any character can be in code."""
    return unquote(uri).lower()


def with_roots(known: Mapping[str, tuple[str, ...]], skills: Iterable[str]) -> Steps[Mapping[str, tuple[str, ...]]]:
    """Pinned skills by `reading_of` their folders, with more, given by URI; the same object if it has all of these."""
    made = known
    for uri in skills:
        yield
        root = reading_of(uri[: -len(MAIN)])
        if uri not in made.get(root, ()):
            made = {**known} if made is known else made
            made = cast("dict[str, tuple[str, ...]]", made)
            made[root] = (*made.get(root, ()), uri)
    return made


def is_below(root: str, uri: str) -> bool:
    """True if the URI is one of a file in this folder, however it is read: without `.`, `..`, empty parts, and what
    means a slash."""
    return uri.startswith(f"{root}/") and _parts_of(uri) is not None and not _has_steps(uri[len(root) + 1 :])


def _parts_of(uri: object) -> re.Match[str] | None:
    """The scheme and the rest of a URI; None if it is none, or too long."""
    return _URI.fullmatch(uri) if isinstance(uri, str) and len(uri) <= _LONGEST_URI else None


def _has_steps(path: str) -> bool:
    parts = [unquote(part) for part in path.split("/")]
    return any(part in ("", ".", "..") or "/" in part or "\\" in part for part in parts)


def skill_in(server: str, entry: object) -> Skill:
    """The skill of an entry of `skills/list`, or of the answer to `skills/get`.

    Raises:
        BadEntry: It cannot be used.
    """
    if not isinstance(entry, dict):
        raise BadEntry("its entry is no object")
    said = cast("dict[str, Any]", entry)
    uri, front = said.get("uri"), said.get("frontmatter")
    found = _parts_of(uri)
    if found is None or not found[2].endswith(MAIN) or _has_steps(found[2]):
        raise BadEntry("its URI is none of a SKILL.md in a folder")
    fields = cast("dict[str, Any]", front) if isinstance(front, dict) else None
    if fields is None or more_values_than(fields, _MOST_FIELDS):
        raise BadEntry(f"its frontmatter is no object of at most {_MOST_FIELDS} values")
    name, description = fields.get("name"), fields.get("description")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or name != found[2].split("/")[-2]:
        raise BadEntry("its name is not that of its folder")
    if not isinstance(description, str) or not description:
        raise BadEntry("it has no description")
    files = _files(said["uri"], said.get("resources", "dynamic"))
    return Skill(server, said["uri"], name, description, fields, files, said)


def _files(uri: str, listed: object) -> tuple[SkillFile, ...] | None:
    if listed == "dynamic":
        return None
    if not isinstance(listed, list):
        raise BadEntry("its resources are neither a list nor 'dynamic'")
    entries = cast("list[object]", listed)
    if len(entries) > MOST_FILES:
        raise BadEntry(f"it has more than {MOST_FILES} files")
    files = tuple(_file(uri[: -len(MAIN)], each) for each in entries)
    uris = {each.uri for each in files}
    if len(uris) != len(files) or uri not in uris:
        raise BadEntry("its resources do not have each file once, its SKILL.md among them")
    if sum(each.size or 0 for each in files) > MOST_BYTES:
        raise BadEntry(f"its files have more than {MOST_BYTES >> 20} MiB")
    return files


def _file(root: str, entry: object) -> SkillFile:
    said = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    uri, digest, size = said.get("uri"), said.get("digest"), said.get("size")
    if not isinstance(uri, str) or not is_below(root, uri):
        raise BadEntry("a resource of it is not in its folder")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise BadEntry("a digest of it is not sha256: and 64 lowercase hexadecimal digits")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
        raise BadEntry("a size of it is no number of bytes")
    return SkillFile(uri, digest, size)


def verify(skills: Sequence[Skill], uri: str, content: bytes, incarnation: int) -> Steps[None]:
    """Hold what was read against the entries of the skills that have the file, in steps.

    Raises:
        SkillMismatch: The content differs from the entry of a skill.
    """

    from .frontmatter import Differs, compare_frontmatter  # with a parser of YAML, which no start needs

    def differs(skill: Skill, what: str, expected: object, found: object) -> SkillMismatch:
        said, read = str(expected), str(found)
        return SkillMismatch(what, expected=said, found=read, server=skill.server, uri=uri, incarnation=incarnation)

    size, digest = len(content), ""
    for skill in skills:
        told = skill.file(uri)
        if told is not None and told.size not in (None, size):
            raise differs(skill, "size", told.size, size)
        if size > MOST_BYTES:
            raise differs(skill, "size", f"at most {MOST_BYTES}", size)
        digest = digest or f"sha256:{sha256(content).hexdigest()}"
        if told is not None and told.digest != digest:
            raise differs(skill, "digest", told.digest, digest)
        if uri == skill.uri:
            try:
                yield from compare_frontmatter(_text(content), skill.frontmatter)
            except Differs as error:
                where = f"{error.where}: " if error.where else ""
                raise differs(skill, "frontmatter", f"{where}{error.expected!r:.200}", error.found) from None
        yield


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return ""  # no frontmatter
