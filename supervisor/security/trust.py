"""The gate for entries of a project's file: nothing is started, run or read before the user has agreed to the entry.

A clone of a repository brings its files along, and the user never asked for what they start. The effect of an entry is
its `TrustRequest`; the `TrustGate` is asked before every start of its server. A file whose text becomes part of the
entry is agreed to as well: the request is made anew from its content, each time.
"""

import hashlib
import json
import logging
import shlex
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import ContextVar
from typing import Any, Final, Protocol

from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.records import evolve, field, frozen

logger: Final = logging.getLogger(__name__)


AGREED_FILE: ContextVar[str | None] = ContextVar("mcp_nursery_agreed_file", default=None)
"""The digest of the `FileRead` that was agreed to, for a connect in this task: it must fail if the content is another.
None: no agreement is needed."""


@frozen
class FileRead:
    """A file whose text becomes part of an entry, as it was when it was looked at."""

    path: str
    """The path; as the entry names it, if there is no such file now."""
    digest: str = field(default="", repr=False)
    """SHA-256 of its content; empty for one that cannot be used."""
    variables: tuple[str, ...] = ()
    """The names of the variables that it sets."""
    problem: str | None = field(default=None, eq=False)
    """The reason why it cannot be used; None if it can."""


@frozen
class TrustRequest:
    """An entry of a project's file that does nothing before its user has agreed to it. Compared by its digest."""

    server: str
    """The server's name."""
    file: str
    """The project's file, an absolute path in its folder, even if it is a link to a file elsewhere."""
    reasons: tuple[str, ...] = field(eq=False)
    """The effects of the entry, one phrase each."""
    entry: Mapping[str, Any] = field(repr=False, eq=False)
    """The entry as written, with nothing resolved: exactly what the user agrees to."""
    digest: str = field(repr=False)
    """SHA-256 of file, server, entry and the content of `files`: any change makes another request."""
    argv: tuple[str, ...] = field(default=(), repr=False, eq=False)
    """The command and its arguments, unresolved; empty if the entry starts no process itself."""
    files: tuple[FileRead, ...] = field(default=(), eq=False)
    """The files whose text becomes part of the entry, as they were found: that of `envFile`."""
    reader: Callable[[], FileRead] | None = field(default=None, repr=False, eq=False)
    """The function that reads that file, which may wait for a disk; None once it is read, or if there is none."""

    def as_found(self) -> "TrustRequest":
        """The request with the present content of its file: that, and nothing else, can be agreed to. Blocks."""
        if self.reader is None:
            return self
        file = self.reader()
        digest = hashlib.sha256(json.dumps([self.digest, file.digest]).encode()).hexdigest()
        return evolve(self, digest=digest, files=(file,), reader=None)

    def is_agreed(self, agreed: Callable[[str], bool]) -> bool:
        """True if the user has agreed to what is found now; a connect in this task is held to that. Blocks.

        Args:
            agreed: Whether a digest was agreed to.
        """
        found = self.as_found()
        found.hold()
        return agreed(found.digest)

    def hold(self) -> None:
        """Have a connect in this task use the file as it was found, or fail."""
        AGREED_FILE.set(self.files[0].digest if self.files else None)


Trust = Callable[[TrustRequest], Awaitable[bool]]
"""The function that asks a person whether an entry of a project's file may be used. True is remembered."""


class Memory(Protocol):
    """The memory of a user's agreements. Both methods raise a `NurseryError` if it cannot be read or written: then
    nothing is trusted."""

    async def found(self, request: TrustRequest) -> TrustRequest:
        """The request as its files are found now; other tasks go on meanwhile."""
        ...

    async def is_agreed(self, request: TrustRequest) -> bool:
        """True if the user has agreed to exactly this."""
        ...

    async def agree(self, request: TrustRequest) -> None:
        """Remember that the user has agreed to this."""
        ...


@frozen(eq=False)
class TrustGate:
    """The gate that lets only those servers start whose user has agreed."""

    _memory: Memory
    """The memory of earlier agreements."""
    _trust: Trust | None
    """The function that asks the user; None: only what was agreed to earlier starts."""
    _lock: AbstractAsyncContextManager[None, None]
    """Held while the user is asked: a person is shown one request at a time."""

    async def is_agreed(self, request: TrustRequest) -> bool:
        """True if the user has agreed to the request as it is found now. Nobody is asked."""
        agreed = False
        with suppress(NurseryError):  # which is the reason of the next refusal
            agreed = await self._memory.is_agreed(await self._memory.found(request))
        return agreed

    async def permit(self, request: TrustRequest) -> str | None:
        """None if the request of a project's file is agreed to, earlier or now; otherwise the reason why not, in one
        line.

        A later connect in this task is held to what was agreed to.
        """
        try:
            request = await self._memory.found(request)
            request.hold()
            if await self._memory.is_agreed(request):
                return None
            if self._trust is None:
                way = f"mcp-nursery trust {shlex.quote(request.file)}"  # the project named its folders
                return f"not trusted: it {', '.join(request.reasons)}; review it with `{way}`"
            if not await self._ask(self._trust, request):
                return "not trusted: refused"
            await self._memory.agree(request)
        except NurseryError as error:
            return f"not trusted: {error}"
        return None

    async def _ask(self, trust: Trust, request: TrustRequest) -> bool:
        async with self._lock:
            try:
                return await trust(request) is True
            except Exception:  # the host's own: whatever is wrong there, the entry is not trusted
                logger.exception("%s: trust= failed", request.server)
                return False
