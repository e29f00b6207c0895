"""Watching the files that configure servers, and a gateway's tokens, keys and certificates: a changed file is read
again.

The metadata of the files is checked twice a second. Notifications of the system would come sooner, but would need a
thread each that a host has to wait for when it ends, a watch on every folder on the way, and these checks as well where
there are no notifications: on network drives and in many containers.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import trio

from mcp_nursery.actors.errors import ConfigError, SupervisorClosed
from mcp_nursery.actors.records import define, field, frozen
from mcp_nursery.actors.threads import SLOW_THREADS

from .config.config import Signature, signatures
from .config.deferred import DeferredTransport
from .config.specs import ConfigSource
from .spec import ServerSpec
from .supervisor import Supervisor

logger: Final = logging.getLogger(__name__)

INTERVAL: Final = 0.5
"""Seconds between two checks."""
SETTLED: Final = 0.25
"""Seconds without a change until a change counts as whole."""
VANISHED: Final = 1.0
"""The same if a file has disappeared: some editors remove it and write it anew."""
_MOST_LOOKS: Final = 20
"""Checks until then at most: a file that is written without end is read all the same."""


async def reload_or_log(supervisor: Supervisor, restart: Sequence[str] = ()) -> None:
    """Read the files again. If they cannot be used, that is logged, and nothing changes. A closed supervisor is
    ignored."""
    try:
        with suppress(SupervisorClosed):
            await supervisor.reload(restart=restart)
    except ConfigError as error:
        logger.warning("not reloaded, everything stays as it is: %s", error)


@define(eq=False)
class FileWatch:
    """A watch on a few files: all are read again whenever one changes. To be made before they are first read."""

    _paths: Sequence[str]
    _reload: Callable[[], None]
    _seen: Mapping[str, Signature] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._seen = signatures(self._paths)

    async def run(self) -> None:
        """Watch, until cancelled."""
        while True:
            await trio.sleep(INTERVAL)
            now = await self._inspect()
            if now != self._seen:
                # Recorded before the files are read: a later change still counts as one.
                self._seen = await self._wait_settled(now)
                self._reload()

    async def _wait_settled(self, now: Mapping[str, Signature]) -> Mapping[str, Signature]:
        for _ in range(_MOST_LOOKS):
            await trio.sleep(SETTLED if all(now.values()) else VANISHED)
            before, now = now, await self._inspect()
            if now == before:
                break
        return now

    async def _inspect(self) -> Mapping[str, Signature]:
        """Check the files, in a thread: a network drive may take its time."""
        return await SLOW_THREADS.run(signatures, self._paths, abandon_on_cancel=True)


@frozen
class _Look:
    """All files that count, as they were at one moment."""

    files: Mapping[str, Signature]
    """The signatures of the files that configure servers."""
    env_files: Mapping[str, Signature]
    """The signatures of the files of variables that these name."""

    def lacks(self, earlier: "_Look") -> bool:
        """True if a file that was there is gone."""
        here = {**self.files, **self.env_files}
        return any(found and not here.get(path) for path, found in {**earlier.files, **earlier.env_files}.items())


@define(eq=False)
class ConfigWatch:
    """A watch on a supervisor's files, which reads the files again whenever a file changes."""

    _supervisor: Supervisor
    _source: ConfigSource
    _specs: Callable[[], Sequence[ServerSpec]]

    async def run(self) -> None:
        """Watch, until cancelled."""
        seen = _Look(self._source.before, (await self._inspect()).env_files)
        while True:
            await trio.sleep(INTERVAL)
            now = await self._inspect()
            if now != seen and (now := await self._wait_settled(seen, now)) != seen:
                await reload_or_log(self._supervisor, self._apply(seen, now))
                after = (
                    await self._inspect()
                ).env_files  # perhaps other files; what changed in the meantime still counts as one
                now = _Look(now.files, {path: now.env_files.get(path, found) for path, found in after.items()})
            seen = now

    async def _wait_settled(self, seen: _Look, now: _Look) -> _Look:
        for _ in range(_MOST_LOOKS):
            await trio.sleep(VANISHED if now.lacks(seen) else SETTLED)
            before, now = now, await self._inspect()
            if now == before:
                break
        return now

    def _apply(self, seen: _Look, now: _Look) -> list[str]:
        """The servers whose files of variables have changed."""
        before, after = seen.env_files, now.env_files
        others = {path for path in before.keys() & after.keys() if before[path] != after[path]}
        return [name for name, path in self._env_files().items() if path in others]

    def _env_files(self) -> dict[str, str]:
        """The files of variables, by server; none for a server that is not trusted."""
        transports = {spec.name: spec.transport for spec in self._specs() if spec.trust_request is None}
        deferred = {name: each for name, each in transports.items() if isinstance(each, DeferredTransport)}
        paths = {name: each.env_file_path() for name, each in deferred.items()}
        return {name: path for name, path in paths.items() if path is not None}

    async def _inspect(self) -> _Look:
        """Check the files, in a thread: a network drive may take its time."""
        env_files = self._env_files().values()
        return await SLOW_THREADS.run(
            lambda: _Look(signatures(self._source.files()), signatures(env_files)), abandon_on_cancel=True
        )
