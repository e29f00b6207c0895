"""Tokens that outlast a run: for each key a file of this user's alone. The secrets are in the keyring, if there is one,
and else in that file, too.

Everything here waits for a disk or for another program, so it is done in threads, and nobody waits longer than
`DISK_TIMEOUT`. A file is replaced as a whole. A process that changes it holds the lock beside it, which ends with that
process.
"""

import fcntl
import json
import math
import os
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import trio
from attrs.validators import and_, gt, in_, instance_of, lt, optional

from mcp_nursery.actors.oauth.tokens import TokenKey, Tokens, TokensDamaged, TokenStore, TokensUnreadable
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.records import asdict, field, fields, frozen
from mcp_nursery.actors.threads import SLOW_THREADS

from ..storage.state_file import UnusableFile, check_file, make_folder
from . import keyring

T = TypeVar("T")

DISK_TIMEOUT: Final = 10.0
"""Seconds that anybody waits for a disk or a keyring."""
LONGEST_RENEWAL: Final = 60.0
"""Seconds that anybody waits for the lock: longer than it takes to renew a token, with all tries."""
_LOCK_INTERVAL: Final = 0.05
"""Seconds between checks of a lock that another process holds."""
_INTERVAL: Final = 2.0
"""Seconds between checks of a file whose change is waited for."""
_LARGEST_FILE: Final = 1 << 20
"""Bytes of a file: threads, too, hold up the loop while they read one."""
_TOKEN_FORMAT: Final = 1
_SECRET: Final = ("access", "refresh", "client", "proof_key")

Stamp = tuple[int, int, int]
"""The identity of a file's state: another one whenever the file was replaced."""


@frozen
class Kept:
    """The facts about tokens, without the tokens.

    Raises:
        TypeError, ValueError: It comes from a file that is damaged.
    """

    key: TokenKey
    where: str = field(validator=in_(("keyring", "file", "database")))
    """The place of the tokens: `keyring`, `file` or `database`."""
    issuer: str | None = field(validator=optional(instance_of(str)))
    scope: str | None = field(validator=optional(instance_of(str)))
    expires_at: float | None = field(validator=optional(and_(instance_of((int, float)), lt(math.inf), gt(-math.inf))))
    renewable: bool = field(validator=instance_of(bool))
    """True if there is a refresh token."""


class TokenFolder:
    """All tokens of a user, in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def store(self, key: TokenKey) -> "TokenFile":
        """The store of these tokens."""
        return TokenFile(self.path, key)


class TokenFile(TokenStore):
    """The tokens of one key: a `TokenStore`."""

    def __init__(self, folder: Path, key: TokenKey) -> None:
        self._folder = folder
        self._key = key
        self._path = folder / f"{key.digest}.json"
        self._seen: Stamp | None = None
        self._login: str | None = None

    @override
    async def read(self) -> Tokens | None:
        self._seen = await _in_thread(self._stamp)  # before: what is written meanwhile is new
        tokens = await _in_thread(self._read)
        self._login = None if tokens is None else tokens.login
        return tokens

    @override
    async def write(self, tokens: Tokens) -> None:
        self._seen = await _in_thread(lambda: self._write(tokens))
        self._login = tokens.login

    async def remove(self) -> bool:
        """Remove the tokens; False if there were none.

        Raises:
            TokensUnreadable: They may still be there.
        """
        async with self.locked():
            return await _in_thread(self._remove)

    async def kept(self) -> Kept | None:
        """The facts about the tokens; None if there are none.

        Raises:
            TokensUnreadable: That cannot be found out.
        """
        return await _in_thread(self._kept)

    async def changed(self) -> None:
        """Wait until the tokens come from another login than those that were last read or written here, or are gone. A
        renewal by another host does not count: where a server refuses all tokens, hosts would wake each other."""
        while True:
            with suppress(TokensUnreadable):
                if (stamp := await _in_thread(self._stamp)) != self._seen:
                    if await _in_thread(self._kept_login) != self._login:
                        return
                    self._seen = stamp
            await trio.sleep(_INTERVAL)

    @override
    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None, None]:
        lock = await _in_thread(self._open_lock)
        try:
            with trio.move_on_after(LONGEST_RENEWAL) as patience:
                while not _take(lock):  # noqa: ASYNC110 - there is no event for what another process does
                    await trio.sleep(_LOCK_INTERVAL)
            if patience.cancelled_caught:
                raise TokensUnreadable("another process is renewing them, and does not come to an end")
            yield
        finally:
            os.close(lock)

    # -- in threads -----------------------------------------------------------------------------------------------

    def _read(self) -> Tokens | None:
        document = self._document()
        if document is None:
            return None
        said = dict(document["tokens"])
        if document["where"] == "keyring":
            secret = keyring.get(self._key.digest)
            if secret is None:
                return None
            said = {**said, **json.loads(secret)}
        known = {attribute.name for attribute in fields(Tokens)}
        return Tokens(**{name: value for name, value in said.items() if name in known})

    def _kept(self) -> Kept | None:
        document = self._document()
        if document is None:
            return None
        said = document["tokens"]
        return Kept(
            self._key, document["where"], said["issuer"], said["scope"], said["expires_at"], document["renewable"]
        )

    def _kept_login(self) -> str | None:
        document = self._document()
        return None if document is None else str(document["tokens"].get("login", ""))

    def _document(self) -> dict[str, Any] | None:
        if not os.path.lexists(self._path):
            return None
        make_folder(self._folder)
        check_file(self._path)
        if self._path.stat().st_size > _LARGEST_FILE:
            raise UnusableFile("it is too large to hold tokens", "log in again")
        document = json.loads(self._path.read_bytes())
        if document["format"] != _TOKEN_FORMAT:
            raise UnusableFile("another version of mcp-nursery wrote it", "log in again")
        return dict(document)

    def _write(self, tokens: Tokens) -> Stamp | None:
        make_folder(self._folder)
        said = asdict(tokens)
        secret = {name: said.pop(name) for name in _SECRET}
        inside = keyring.put(self._key.digest, json.dumps(secret))
        document = {
            "format": _TOKEN_FORMAT,
            "key": asdict(self._key),
            "where": "keyring" if inside else "file",
            "renewable": tokens.refresh is not None,
            "tokens": said if inside else {**said, **secret},
        }
        self._replace(json.dumps(document).encode())
        return self._stamp()

    def _replace(self, content: bytes) -> None:
        handle, name = tempfile.mkstemp(prefix=f".{self._key.digest}.", dir=self._folder)  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self._path)
        except BaseException:
            os.unlink(name)
            raise

    def _remove(self) -> bool:
        document = self._document()
        if document is None:
            return False
        if document["where"] == "keyring":
            keyring.remove(self._key.digest)
        self._path.unlink(missing_ok=True)
        return True

    def _stamp(self) -> Stamp | None:
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _open_lock(self) -> int:
        make_folder(self._folder)
        path = self._path.with_suffix(".lock")
        check_file(path)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _take(lock: int) -> bool:
    """Take the lock if it is free. Never waits."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _in_thread(work: Callable[[], T]) -> T:
    """Do the work in a thread, which finishes even if its caller is cancelled: what it writes is written."""
    try:
        with trio.move_on_after(DISK_TIMEOUT):
            return await SLOW_THREADS.run(work, abandon_on_cancel=True)
    except UnusableFile as error:
        problem = f"{error}; {error.advice}"
    except keyring.KeyringFailed as error:
        problem = str(error)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise TokensDamaged from None
    except OSError as error:
        problem = error.strerror or type(error).__name__
    else:
        problem = f"no answer within {DISK_TIMEOUT:g} s"
    raise TokensUnreadable(problem)
