"""Bearer tokens by their digests, in a TOML file.

    [tokens.ann]
    sha256 = "…"
    allow = ["github/*", "files/read_*"]
    expires = 2027-01-01T00:00:00Z

A token is 256 random bits. Nobody finds it by trying, however fast digests are made; so a slow digest, such as a
password needs, would protect nothing and slow down every request.
"""

import hashlib
import hmac
import math
import os
import re
import secrets
import stat
import time
import tomllib
from collections.abc import Mapping, MutableMapping, Sequence
from datetime import date, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, cast

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.records import frozen

from ...config import toml_edits
from ...config.whole_file import Replacement, open_regular, read_bytes
from .principal import Access, Principal, Refused, bearer_of

PREFIX: Final = "mcpn_"
"""The prefix of tokens, by which programs that look for leaked tokens recognise them."""
_TOKEN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAME_RULE: Final = "must be letters, digits, _ and -, at most 64"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FIELDS: Final = frozenset(["sha256", "allow", "expires"])
_CHALLENGE: Final = {"www-authenticate": "Bearer"}


@frozen
class _WrittenToken:
    digest: bytes
    principal: Principal


class BearerTokenFile:
    """The tokens of a file, as it was when it was last read.

    Raises:
        ConfigError: The file cannot be read or used.
    """

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._entries: Sequence[_WrittenToken] = _read(path)

    def reload(self) -> None:
        """Read the file again.

        Raises:
            ConfigError: The file cannot be read or used; the tokens that were read before stay valid.
        """
        self._entries = _read(self._path)

    def find(self, token: str) -> Principal | None:
        """The principal of this token; None if the token is unknown, or has expired."""
        digest = hashlib.sha256(token.encode()).digest()
        found = None
        for entry in self._entries:  # all of them, so that the time taken reveals nothing
            if hmac.compare_digest(entry.digest, digest):
                found = entry.principal
        return found if found is not None and not _has_expired(found) else None

    @property
    def principals(self) -> Sequence[Principal]:
        """The principals of all tokens, in the order of the file; also those that have expired."""
        return [entry.principal for entry in self._entries]

    def holds(self, principal: Principal) -> bool:
        """True if this principal's token is still in the file, allows the same, and ends no sooner."""
        return any(each == principal and _expiry_of(each) >= _expiry_of(principal) for each in self.principals)

    async def authenticate(self, scope: MutableMapping[str, Any]) -> Principal:
        """See `Authenticate`.

        Raises:
            Refused: No valid token.
        """
        token = bearer_of(scope)
        if token is None:
            raise Refused(HTTPStatus.UNAUTHORIZED, "a bearer token is needed", _CHALLENGE)
        principal = self.find(token)
        if principal is None:
            challenge = {"www-authenticate": 'Bearer error="invalid_token"'}
            raise Refused(HTTPStatus.UNAUTHORIZED, "this token is not valid", challenge)
        return principal


def add_token(path: Path, name: str, *, allow: Sequence[str] = (), expires: datetime | None = None) -> str:
    """Add a token of a client, whose name logs show, to a file, which is created if it does not exist, and return the
    token. It cannot be recovered later. `allow` has globs on `server/tool`; none: everything. The token is valid until
    it expires; None: until it is removed.

    Raises:
        ConfigError: The file cannot be used or written, or has a token of this name.
    """
    if not _TOKEN_NAME.fullmatch(name):
        raise ConfigError(_NAME_RULE, field="NAME")
    token = PREFIX + secrets.token_urlsafe(32)
    lines = [f"[tokens.{name}]", f'sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"']
    if allow:
        lines.append(f"allow = [{', '.join(map(_quote, allow))}]")
    if expires is not None:
        lines.append(f"expires = {expires.isoformat()}")
    before = _read_if_exists(path)
    there = (before or b"").decode()
    gap = ("" if not there or there.endswith("\n") else "\n") + ("\n" if there else "")
    text = there + gap + "\n".join(lines) + "\n"
    if before is not None and any(entry.principal.name == name for entry in _read(path)):
        raise ConfigError("there is a token of this name: remove it first", file=str(path), field=f"tokens.{name}")
    _parse(text, path)
    Replacement(path, before, text.encode()).make()
    return token


def remove_token(path: Path, name: str) -> None:
    """Remove the token of the client with this name from a file. A gateway admits it until it has read the file again.

    Raises:
        ConfigError: The file cannot be used or written, has no token of this name, or is written in a way that the
            token cannot be removed.
    """
    entries = _read(path)
    left = [entry for entry in entries if entry.principal.name != name]
    if len(left) == len(entries):
        raise ConfigError("there is no token of this name", file=str(path), field=f"tokens.{name}")
    before = read_bytes(path)
    text = toml_edits.remove(before.decode(), ("tokens",), [name])
    if _parse(text, path) != left:
        raise ConfigError("cannot be taken out of this text: edit the file", file=str(path), field=f"tokens.{name}")
    Replacement(path, before, text.encode()).make()


def _read_if_exists(path: Path) -> bytes | None:
    """The content of a file; None if it does not exist, but its folder does."""
    target = os.path.realpath(path)
    if not os.path.isdir(os.path.dirname(target)):
        raise ConfigError("cannot be written: No such file or directory", file=str(path))
    return read_bytes(path) if os.path.lexists(target) else None


def _quote(text: str) -> str:
    if not text.isprintable():
        raise ConfigError("must be printable", field="allow")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _read(path: Path) -> Sequence[_WrittenToken]:
    try:
        with open_regular(path) as file:
            found = os.fstat(file.fileno())
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or found.st_uid not in (0, os.geteuid()):
                raise ConfigError("others can write it, and so give themselves tokens: chmod 600", file=str(path))
            text = file.read().decode()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8", file=str(path)) from None
    return _parse(text, path)


def _parse(text: str, path: Path) -> Sequence[_WrittenToken]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"is no TOML: {error}", file=str(path)) from None
    except (RecursionError, ValueError):
        raise ConfigError("is nested too deeply, or has a number of too many digits", file=str(path)) from None
    tokens = document.pop("tokens", {})
    if document:
        raise ConfigError("unknown: the only table is [tokens]", file=str(path), field=min(document))
    if not isinstance(tokens, Mapping):
        raise ConfigError("must be a table", file=str(path), field="tokens")
    entries = [_parse_entry(name, value, str(path)) for name, value in cast("Mapping[str, object]", tokens).items()]
    first: dict[bytes, str] = {}
    for entry in entries:
        name = entry.principal.name
        if (other := first.setdefault(entry.digest, name)) != name:
            problem = f"is that of tokens.{other}: which of the two holds?"
            raise ConfigError(problem, file=str(path), field=f"tokens.{name}.sha256")
    return entries


def _parse_entry(name: str, given: object, file: str) -> _WrittenToken:
    place = f"tokens.{name}"
    if not _TOKEN_NAME.fullmatch(name):
        raise ConfigError(f"the name {_NAME_RULE}", file=file, field=place)
    if not isinstance(given, Mapping):
        raise ConfigError("must be a table", file=file, field=place)
    fields = cast("Mapping[str, object]", given)
    if unknown := fields.keys() - _FIELDS:
        raise ConfigError(f"unknown; it has {', '.join(sorted(_FIELDS))}", file=file, field=f"{place}.{min(unknown)}")
    digest, allow = fields.get("sha256"), fields.get("allow")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ConfigError("must be 64 hexadecimal digits", file=file, field=f"{place}.sha256")
    if not (
        allow is None or (isinstance(allow, list) and all(isinstance(it, str) for it in cast("list[object]", allow)))
    ):
        raise ConfigError("must be a list of globs", file=file, field=f"{place}.allow")
    try:
        access = Access(cast("list[str] | None", allow))
    except ValueError as error:
        raise ConfigError(str(error), file=file, field=f"{place}.allow") from None
    principal = Principal(name, access, key=digest, expires=_parse_expiry(fields.get("expires"), file, place))
    return _WrittenToken(bytes.fromhex(digest), principal)


def _parse_expiry(given: object, file: str, place: str) -> float | None:
    if given is None:
        return None
    try:
        if type(given) is date:
            given = datetime(given.year, given.month, given.day)
        if isinstance(given, datetime):
            return given.timestamp()
    except (OverflowError, ValueError):
        pass  # a year that no clock has
    raise ConfigError("must be a date, such as 2027-01-01T00:00:00Z", file=file, field=f"{place}.expires")


def _expiry_of(principal: Principal) -> float:
    return math.inf if principal.expires is None else principal.expires


def _has_expired(principal: Principal) -> bool:
    return _expiry_of(principal) <= time.time()
