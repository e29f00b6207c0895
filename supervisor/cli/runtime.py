"""How a command runs: its signals, its log, its configuration, its servers and its end."""

import gc
import logging
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio
from attrs import evolve, frozen

from mcp_nursery.actors.errors import ConfigError, NurseryError, UnknownServer
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.supervisor import Supervisor, discover_config, load_config, open_supervisor, transition_log
from mcp_nursery.supervisor.catalogue.suggestions import near_names
from mcp_nursery.supervisor.config import Config, loader
from mcp_nursery.supervisor.status import ServerStatus

from .failures import SIGNAL_BASE, document_of, exit_code, message_of
from .output import LogStream, StdoutClosed, safe_text, warn, write_json

T = TypeVar("T")

COLLECTED_AFTER = 2.0
"""Seconds after the start of a command until garbage is collected."""

_OURS = "mcp_nursery"
"""The logger of everything here."""


class Interrupted(Exception):
    """A signal asked the command to end; its servers have ended."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(signal.Signals(signum).name)


@frozen
class Options:
    """What every command can be told."""

    config: Sequence[Path] = ()
    """The files that were named; none means those of the project and of the user."""
    trust: bool = False
    """Whether a project's entries may be used without being asked about, this once."""
    as_json: bool = False
    verbose: bool = False
    project: bool = True
    """Whether the project's files are looked for."""


def execute(command: Callable[[], int], options: Options) -> int:
    """Run a command to its exit code; its errors become one line, or one JSON document."""
    _set_up_logging(verbose=options.verbose)
    try:
        return _reported(command, options)
    except StdoutClosed:
        return SIGNAL_BASE + signal.SIGPIPE
    except Interrupted as interrupted:
        return SIGNAL_BASE + interrupted.signum
    except KeyboardInterrupt:
        return SIGNAL_BASE + signal.SIGINT


def _reported(command: Callable[[], int], options: Options) -> int:
    try:
        return command()
    except NurseryError as error:
        report(error, as_json=options.as_json)
        return exit_code(error)


def report(error: NurseryError, *, as_json: bool) -> None:
    """Print an error: one line of JSON on standard output, or one line on standard error."""
    if as_json:
        write_json(document_of(error), indent=None)  # it may follow lines of JSON
    else:
        warn(message_of(error))


def run_async(main: Callable[[], Awaitable[T]], hung_up: Callable[[], None] | None = None) -> T:
    """Run `main` under Trio. A signal cancels it and waits for the end of what it started.

    Args:
        main: What is run.
        hung_up: Called at SIGHUP instead, as long as the terminal is there that the command was started on; under
            nohup also when that is gone.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP came.
    """

    async def watched() -> T:
        return await _interruptible(main, hung_up)

    return trio.run(watched)


async def _interruptible(main: Callable[[], Awaitable[T]], hung_up: Callable[[], None] | None) -> T:
    received: list[int] = []
    scope = trio.CancelScope()
    on_terminal = _has_terminal()
    outlives_it = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup asks for that
    hang_ups = [] if outlives_it and hung_up is None else [signal.SIGHUP]
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, *hang_ups) as signals:

        async def watch() -> None:
            async for signum in signals:
                is_order = outlives_it or _has_terminal() or not on_terminal
                if signum == signal.SIGHUP and hung_up is not None and is_order:
                    hung_up()
                else:
                    received.append(signum)
                    scope.cancel()

        async with run_alongside(watch, collect_later):
            with scope:
                return await main()
    raise Interrupted(received[0])


async def collect_later() -> None:
    """Have garbage collected again, if that is switched off, once modules are loaded: they are no garbage, and to look
    at them again and again would take a tenth of the time until the first answer, and a while ever after."""
    if not gc.isenabled():
        await trio.sleep(COLLECTED_AFTER)
        gc.freeze()
        gc.enable()


def _has_terminal() -> bool:
    """Whether there is a terminal that this process belongs to, and nobody has closed it."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def load(options: Options) -> Config:
    """Read the files that were named, or else those of the project and of the user. Warnings go to standard error.

    Raises:
        ConfigError: A file that was named is unusable, there is no file, or what is wrong with those there are leaves
            no server.
    """
    config = found(options)
    if config.errors and not config.servers:
        raise ConfigError("; ".join(config.errors))
    for problem in config.errors:
        warn(problem)
    for warning in config.warnings:
        warn(f"warning: {warning}")
    return config


def found(options: Options) -> Config:
    """What the files say that were named, or else those of the project and of the user. With `--trust` without anything
    that would have to be agreed to; it is read again in the same way.

    Raises:
        ConfigError: A file that was named is unusable, or there is no file.
    """
    config = _read(options)
    return config.with_each(partial(evolve, trust_request=None)) if options.trust else config


def _read(options: Options) -> Config:
    if options.config:
        return load_config(*options.config)
    config = discover_config(project=options.project)
    if not (config.files or config.errors):
        raise ConfigError(
            "no configuration: there is no .mcp.json here; name a file with --config FILE, or see mcp-nursery import"
        )
    return config


def check_server(config: Config, server: str | None) -> None:
    """Refuse a server that is not configured.

    Raises:
        UnknownServer: There is no server of that name.
    """
    names = [spec.name for spec in config.servers]
    if server is not None and server not in names:
        raise UnknownServer(server, near_names(server, names))


async def look(config: Config, take: Callable[[Supervisor], T]) -> tuple[T, Sequence[ServerStatus]]:
    """What the configured servers have, and where each stands, every first attempt settled."""
    async with servers_of(config) as supervisor:
        return take(supervisor), supervisor.status()


@asynccontextmanager
async def servers_of(config: Config) -> AsyncGenerator[Supervisor]:
    """The configured servers, every first attempt settled."""
    async with open_supervisor(config) as supervisor:
        await supervisor.list_tools()
        yield supervisor


class _Formatter(logging.Formatter):
    # Records quote servers; a library's tracebacks quote what could not be parsed, secrets included.
    def format(self, record: logging.LogRecord) -> str:
        if not _is_ours(record):
            record = logging.makeLogRecord({**record.__dict__, "exc_info": None, "exc_text": None, "stack_info": None})
        return safe_text(super().format(record))


def log_failures() -> None:
    """Have each loss and each failed start of a server in the log: the command prints none of them itself."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, _Formatter):  # others are not ours to change
            handler.removeFilter(_is_no_transition)
            handler.addFilter(_is_no_success)
    logging.getLogger(transition_log.__name__).setLevel(logging.INFO)


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == _OURS


def _is_said_by_nobody_else(record: logging.LogRecord) -> bool:
    """Commands print the warnings about files themselves."""
    return record.name != loader.__name__


def _is_no_transition(record: logging.LogRecord) -> bool:
    """Most commands print the changes of servers themselves."""
    return record.name != transition_log.__name__


def _is_no_success(record: logging.LogRecord) -> bool:
    return record.levelno != logging.INFO or getattr(record, transition_log.FAILED, False)


def _set_up_logging(*, verbose: bool) -> None:
    """Our warnings go to standard error; with `verbose` all that we and servers log, and libraries' warnings."""
    handler = logging.StreamHandler(LogStream())
    handler.setFormatter(_Formatter("%(levelname)s %(name)s: %(message)s"))
    handler.addFilter(_is_said_by_nobody_else)
    if not verbose:
        handler.addFilter(_is_ours)
        handler.addFilter(_is_no_transition)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger(_OURS).setLevel(logging.DEBUG if verbose else logging.WARNING)
    logging.getLogger(f"{_OURS}.server").setLevel(logging.DEBUG if verbose else logging.CRITICAL + 1)
