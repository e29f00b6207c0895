"""The servers that a host gives: specs, a configuration, or the file of one; and Docker's MCP gateway, which is added
to them if it is found."""

import logging
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from mcp_nursery.actors.errors import ConfigError, SupervisorClosed
from mcp_nursery.actors.records import Factory, define, field

from ..spec import ServerSpec
from ..transports import DockerGatewayTransport
from .config import Config, Signature, signatures

if TYPE_CHECKING:
    from ..servers.servers import Servers

Given: TypeAlias = Config | ServerSpec | Iterable[ServerSpec] | str | os.PathLike[str]

WANTED = "servers must be specs, [ServerSpec(name, transport), …], or what load_config returns, or a file's path"
"""The message to a host that gives something else."""


def specs_of(given: Given) -> tuple[ServerSpec, ...]:
    """The servers, in whichever form they were given. A text or path is a file, as for `load_config`.

    Raises:
        ConfigError: They were given in another form, or as a file that cannot be read.
    """
    if isinstance(given, str | os.PathLike):
        return _read(given).servers
    if isinstance(given, Config):
        return given.servers
    if isinstance(given, ServerSpec):
        return (given,)
    if isinstance(given, dict):
        raise ConfigError(f"{WANTED}, not a dict: write it to a file, or make specs of it")
    try:
        specs = tuple(given)
    except TypeError:
        raise ConfigError(f"{WANTED}, not {_describe(given)}") from None
    for spec in cast("tuple[object, ...]", specs):
        if not isinstance(spec, ServerSpec):
            raise ConfigError(f"{WANTED}, not an iterable with {_describe(spec)} in it")
    return specs


def is_taken(spec: ServerSpec, specs: Iterable[ServerSpec]) -> bool:
    """True if one of these has the spec's name, or its kind of transport."""
    return any(spec.name == each.name or spec.transport.kind == each.transport.kind for each in specs)


@define
class ConfigSource:
    """The origin of the set of servers. Files can be read again."""

    given: Given
    besides: Sequence[ServerSpec] = ()
    """Servers that are added to those, whatever is read, unless their names or transports are taken."""
    before: Mapping[str, Signature] = field(default=Factory(lambda self: self._before(), takes_self=True), init=False)
    """The signatures of the files before they were first read."""

    def _before(self) -> Mapping[str, Signature]:
        return self.given.before if isinstance(self.given, Config) else signatures(self.files())

    def with_besides(self, specs: Sequence[ServerSpec]) -> Sequence[ServerSpec]:
        """All servers, if these specs were read."""
        return (*specs, *(spec for spec in self.besides if not is_taken(spec, specs)))

    def reader(self) -> Callable[[], Config] | None:
        """The reader of the files; None if servers were given in another way."""
        if isinstance(self.given, str | os.PathLike):
            return partial(self._read_again, partial(_read, self.given))
        reread = self.given.reread if isinstance(self.given, Config) else None
        return None if reread is None else partial(self._read_again, reread)

    def _read_again(self, read: Callable[[], Config]) -> Config:
        for file in self.files():
            if _is_stream(file):
                raise ConfigError("a pipe or the like, which cannot be read again", file=file)
        return read()

    def files(self) -> Sequence[str]:
        """The files that would be read now, existing or not."""
        if isinstance(self.given, str | os.PathLike):
            return (os.fspath(self.given),)
        locate = self.given.locate if isinstance(self.given, Config) else None
        return () if locate is None else locate()


def _read(file: str | os.PathLike[str]) -> Config:
    from .loader import load_config  # slow to import, and specs do not need it

    return load_config(file)


def _is_stream(file: str) -> bool:
    """True if reading the file may wait for its writer."""
    try:
        mode = os.stat(file).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _describe(value: object) -> str:
    kind = type(value).__name__
    if hasattr(value, "connector"):
        return f"a bare {kind}, which has no name: ServerSpec('name', transport)"
    if type(value).__module__.startswith("mcp."):
        return f"a server object: ServerSpec('name', InProcessTransport(server)), where its {kind} belongs"
    return kind


logger: Final = logging.getLogger(__name__)

Docker = Literal["auto"]
"""The setting that adds the gateway without an entry of its own, if it is found."""

GATEWAY_NAME: Final = "docker"
"""The name of the server that is added."""


async def add_gateway(servers: "Servers", source: ConfigSource) -> None:
    """Look for the gateway and add it, now and at later reloads, unless there is one, or a server of its name. If it
    cannot run, one warning gives the reason."""
    from mcp_nursery.actors.transports.docker import problem_with_gateway

    transport = DockerGatewayTransport()
    spec = ServerSpec(GATEWAY_NAME, transport)
    if is_taken(spec, servers.specs()):
        return
    problem = await problem_with_gateway(transport.command, transport.env)
    if problem is not None:
        logger.warning("%s", problem)
        return
    source.besides = (spec,)
    if not is_taken(spec, servers.specs()):
        with suppress(ConfigError, SupervisorClosed):  # it was added meanwhile; the block is being left
            await servers.add(spec)
