"""One server given on the command line: its command, and the fields that its entry in a file would have."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from mcp_nursery.actors.argument_checks import Check, check_setting, finite_seconds_or_none, one_of
from mcp_nursery.actors.enums import Protocol
from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.records import asdict, fields, frozen
from mcp_nursery.supervisor import RestartPolicy, ServerSpec, StdioTransport
from mcp_nursery.supervisor.decisions.restart_policy import RestartMode, Revive, is_revive
from mcp_nursery.supervisor.spec import Liveness

from .command_names import name_of_command

T = TypeVar("T")


@frozen(kw_only=True)
class CommandServer:
    """The fields of the server. None stands for the default of an entry."""

    name: str | None = None
    """The server's name. None: the name of its program."""
    cwd: str | None = None
    """The working directory."""
    env: Sequence[str] = ()
    """Variables, as `NAME=VALUE`, which take precedence over those of the host."""
    restart: str | None = None
    restart_delays: str | None = None
    """The delays of restarts: seconds, with commas between them."""
    stable_after_seconds: float | None = None
    connect_seconds: float | None = None
    idle_seconds: float | None = None
    revive: str | None = None
    """The ends of a failure: `never`, `on_call`, seconds, or the last two with a comma between them."""
    liveness: str | None = None
    """Seconds of silence before a probe, and, optionally after a comma, seconds for its answer."""
    protocol: str | None = None

    @property
    def first_option(self) -> str | None:
        """The first option that was given; None if none was."""
        values = asdict(self)
        return next(
            (option_of(each.name) for each in fields(CommandServer) if values[each.name] not in (None, ())), None
        )

    def spec(self, command: Sequence[str], *, call_seconds: float | None) -> ServerSpec:
        """Make the spec of the server. The server inherits the environment, which its host chose for it.

        Raises:
            ConfigError: An option has a value that cannot work.
        """
        program, *args = command
        for option, check in _CHECKS.items():
            if getattr(self, option) is not None:
                check_setting(option_of(option), getattr(self, option), check)
        for option in ("name", "cwd"):
            if getattr(self, option) == "":
                raise ConfigError("must not be empty", field=option_of(option))
        chosen: dict[str, Any] = {
            "restart": self.restart,
            "policy": self._policy(),
            "connect_timeout": self.connect_seconds,
            "stop_idle_after": self.idle_seconds,
            "revive": self._revive(),
            "liveness": self._liveness(),
            "protocol": self.protocol,
        }
        return ServerSpec(
            self.name or name_of_command(command, os.path.join(_working_directory(), self.cwd or "")),
            StdioTransport(program, args, env=_variables(self.env), cwd=self.cwd, inherit_env=True),
            call_timeout=call_seconds,
            **{key: value for key, value in chosen.items() if value is not None},
        )

    def _policy(self) -> RestartPolicy | None:
        ladder: dict[str, Any] = {}
        if self.restart_delays is not None:
            ladder["delays"] = _seconds("restart_delays", self.restart_delays)
        if self.stable_after_seconds is not None:
            ladder["stable_after"] = self.stable_after_seconds
        return _checked("restart_delays", lambda: RestartPolicy(**ladder)) if ladder else None

    def _revive(self) -> Revive | None:
        if self.revive in (None, "never", "on_call"):
            return cast("Revive | None", self.revive)
        word, comma, seconds = self.revive.partition(",")
        try:
            after = float(seconds if comma else word)
        except ValueError:
            after = math.nan
        revive: Revive = ("on_call", after) if comma and word.strip() == "on_call" else after
        if not is_revive(revive) or (comma and not isinstance(revive, tuple)):
            problem = f"must be never, on_call, finite seconds > 0, or on_call,SECONDS, not {self.revive!r:.80}"
            raise ConfigError(problem, field=option_of("revive"))
        return revive

    def _liveness(self) -> Liveness | None:
        if self.liveness is None:
            return None
        times = _seconds("liveness", self.liveness)
        if len(times) not in (1, 2):
            raise ConfigError("must be SECONDS or SECONDS,SECONDS", field=option_of("liveness"))
        return _checked("liveness", lambda: Liveness(*times))


_CHECKS: Mapping[str, Check] = {
    "restart": one_of(RestartMode),
    "protocol": one_of(Protocol),
    "stable_after_seconds": finite_seconds_or_none,
    "connect_seconds": finite_seconds_or_none,
    "idle_seconds": finite_seconds_or_none,
}


def option_of(name: str) -> str:
    """Return the option that sets a field."""
    return "--" + name.replace("_", "-")


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return os.sep


def _checked(option: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        problem = str(error)
    raise ConfigError(problem, field=option_of(option))


def _seconds(option: str, text: str) -> list[float]:
    """Parse seconds with commas between them; blank text is an empty list."""
    try:
        return [float(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        raise ConfigError(
            f"must be seconds with commas, such as 2,5,15, not {text!r:.80}", field=option_of(option)
        ) from None


def _variables(given: Iterable[str]) -> dict[str, str]:
    """The variables by name. No error shows a value."""
    variables: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (equals and name):
            raise ConfigError("must be NAME=VALUE", field="--env")
        variables[name] = value
    return variables
