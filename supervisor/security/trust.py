"""Where an entry of a project's file is stopped: it starts, runs and reads nothing before its user has agreed to it.

Whoever clones a repository has its files as well, and nobody asked for what they would start. What an entry would do is
its `TrustRequest`; the `TrustGate` is asked before every start of its server.
"""

import logging
import shlex
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from attrs import field, frozen

from mcp_nursery.actors.errors import NurseryError

logger: Final = logging.getLogger(__name__)


@frozen
class TrustRequest:
    """An entry of a project's file that does nothing before its user has agreed to it. Compared by its digest."""

    server: str
    """Its name."""
    file: str
    """The project's file, an absolute path in its folder, even if it is a link to a file elsewhere."""
    reasons: tuple[str, ...] = field(eq=False)
    """What it would do, one phrase each."""
    entry: Mapping[str, Any] = field(repr=False, eq=False)
    """The entry as written, with nothing resolved: exactly what the user agrees to."""
    digest: str = field(repr=False)
    """SHA-256 of file, server and entry: any change makes another request."""
    argv: tuple[str, ...] = field(default=(), repr=False, eq=False)
    """The command and its arguments, unresolved; empty if the entry starts no process itself."""


Trust = Callable[[TrustRequest], Awaitable[bool]]
"""Asks a person whether an entry of a project's file may be used. True is remembered."""


class Memory(Protocol):
    """Where it is remembered what a user has agreed to. Both raise a `NurseryError` if that cannot be read or written:
    then nothing is trusted."""

    async def is_agreed(self, request: TrustRequest) -> bool:
        """Whether the user has agreed to exactly this."""
        ...

    async def agree(self, request: TrustRequest) -> None:
        """Remember that the user has agreed to this."""
        ...


@frozen(eq=False)
class TrustGate:
    """Lets start only what its user has agreed to."""

    _memory: Memory
    """What was agreed to earlier."""
    _trust: Trust | None
    """Asks the user; None: what was not agreed to earlier does not start."""
    _lock: AbstractAsyncContextManager[None, None]
    """Held while the user is asked: a person is shown one request at a time."""

    async def permit(self, request: TrustRequest) -> str | None:
        """None if what a project's file wants is agreed to, earlier or now; otherwise why not, in one line."""
        try:
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
