"""The run of a command: its signals, its log, its configuration, its servers and its end."""

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

from mcp_nursery.actors.errors import ConfigError, NurseryError, UnknownServer
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.actors.records import evolve, field, frozen
from mcp_nursery.supervisor import Supervisor, logs, open_supervisor
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.decisions.suggestions import near_names
from mcp_nursery.supervisor.preload import AHEAD
from mcp_nursery.supervisor.status import ServerStatus

from .failures import SIGNAL_BASE, document_of, exit_code, message_of
from .output import (
    LOG_FORMAT,
    LogFormat,
    LogStream,
    StdoutClosed,
    log_object,
    log_time,
    safe_text,
    warn,
    write_json,
)

T = TypeVar("T")

COLLECTED_AFTER = 2.0
"""Seconds from the start of a command to its first collection of garbage."""

_OURS = "mcp_nursery"
"""The parent of all our loggers."""
_OF_FILES = f"{_OURS}.supervisor.config.loader"
"""The logger of warnings about files."""


class Interrupted(Exception):
    """The end of a command by a signal. Its servers have ended."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(signal.Signals(signum).name)


@frozen
class Options:
    """The options that every command has."""

    config: Sequence[Path] = ()
    """The files named; if none, those of the project and of the user."""
    trust: bool = False
    """True if a project's entries are trusted for this run, without a question."""
    as_json: bool = False
    verbose: bool = False
    log_format: LogFormat = "text"
    project: bool = True
    """True if the project's files are read."""
    state: str | None = field(default=None, repr=False)
    """The file or database of what outlasts a run; None for the user's own file."""


def execute(command: Callable[[], int], options: Options) -> int:
    """Run a command, and return its exit code. An error becomes one line, or one JSON document."""
    LOG_FORMAT.set(options.log_format)
    _set_up_logging(verbose=options.verbose)
    try:
        return _run_reporting(command, options)
    except StdoutClosed:
        return SIGNAL_BASE + signal.SIGPIPE
    except Interrupted as interrupted:
        return SIGNAL_BASE + interrupted.signum
    except KeyboardInterrupt:
        return SIGNAL_BASE + signal.SIGINT


def _run_reporting(command: Callable[[], int], options: Options) -> int:
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
        warn(message_of(error), "ERROR")


def run_async(main: Callable[[], Awaitable[T]], hung_up: Callable[[], None] | None = None) -> T:
    """Run `main` under Trio. A signal cancels it and waits for the end of all it has started. At SIGHUP, `hung_up` is
    called instead, as long as the command's terminal exists; under nohup also without one.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP was received.
    """
    return trio.run(_run_interruptibly, main, hung_up)


async def _run_interruptibly(main: Callable[[], Awaitable[T]], hung_up: Callable[[], None] | None) -> T:
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
    """Enable the collection of garbage, if it is disabled, once modules are loaded. Modules are no garbage, and
    checking them again and again would take a tenth of the time to the first answer, and some time later on."""
    if not gc.isenabled():
        await trio.sleep(COLLECTED_AFTER)
        gc.freeze()
        gc.enable()


def _has_terminal() -> bool:
    """True if this process has a terminal that is still open."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def load(options: Options) -> Config:
    """Read the files named, or else those of the project and of the user. Warnings go to standard error.

    Raises:
        ConfigError: A named file is unusable, there is no file, or errors in the files leave no server.
    """
    config = read_config(options)
    if config.errors and not config.servers:
        raise ConfigError("; ".join(config.errors))
    for problem in config.errors:
        warn(problem)
    for warning in config.warnings:
        warn(f"warning: {warning}")
    return config


def read_config(options: Options) -> Config:
    """Read the files named, or else those of the project and of the user, with their errors. With `--trust` no entry
    needs consent.

    Raises:
        ConfigError: A named file is unusable, or there is no file.
    """
    config = _discover(options)
    return config.with_each(partial(evolve, trust_request=None)) if options.trust else config


def _discover(options: Options) -> Config:
    from mcp_nursery.supervisor.config import discover_config, load_config  # one command needs no file

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


async def look(options: Options, config: Config, take: Callable[[Supervisor], T]) -> tuple[T, Sequence[ServerStatus]]:
    """Start the configured servers, wait for every first attempt, and return the result of `take` and the statuses."""
    async with servers_of(options, config) as supervisor:
        return take(supervisor), supervisor.status()


@asynccontextmanager
async def servers_of(options: Options, config: Config) -> AsyncGenerator[Supervisor]:
    """Run the configured servers for a block, which begins when every first attempt is settled."""
    AHEAD.set(False)  # one command needs little of the SDK
    async with open_supervisor(config, state=options.state) as supervisor:
        await supervisor.list_tools()
        yield supervisor


class _Formatter(logging.Formatter):
    """The log as text: time, level, logger and message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    # Records quote servers; tracebacks of libraries quote unparsed text, secrets included.
    def format(self, record: logging.LogRecord) -> str:
        if not _is_ours(record):
            record = logging.makeLogRecord({**record.__dict__, "exc_info": None, "exc_text": None, "stack_info": None})
        return self._written(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - its name
        del datefmt
        return log_time(record.created)

    def _written(self, record: logging.LogRecord) -> str:
        return safe_text(super().format(record))


class _JsonFormatter(_Formatter):
    """The log as JSON, an object a line."""

    def _written(self, record: logging.LogRecord) -> str:
        more = {"traceback": self.formatException(record.exc_info)} if record.exc_info else {}
        server = logs.server_of(record)
        return log_object(record.created, record.levelname, record.name, record.getMessage(), server, **more)


def log_failures() -> None:
    """Log each loss and each failed start of a server, for a command that prints none of them itself."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, _Formatter):  # others are not ours to change
            handler.removeFilter(_is_not_transition)
            handler.addFilter(_is_not_success)
    logging.getLogger(logs.logger.name).setLevel(logging.INFO)


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == _OURS


def _is_not_about_files(record: logging.LogRecord) -> bool:
    """False for warnings about files: commands print them themselves."""
    return record.name != _OF_FILES


def _is_not_transition(record: logging.LogRecord) -> bool:
    """False for changes of servers: most commands print them themselves."""
    return record.name != logs.logger.name


def _is_not_success(record: logging.LogRecord) -> bool:
    return record.levelno != logging.INFO or getattr(record, logs.FAILED_ATTRIBUTE, False)


def _set_up_logging(*, verbose: bool) -> None:
    """Send our warnings to standard error; with `verbose` all that we and servers log, and the warnings of
    libraries."""
    handler = logging.StreamHandler(LogStream())
    handler.setFormatter(_JsonFormatter() if LOG_FORMAT.get() == "json" else _Formatter())
    handler.addFilter(_is_not_about_files)
    if not verbose:
        handler.addFilter(_is_ours)
        handler.addFilter(_is_not_transition)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger(_OURS).setLevel(logging.DEBUG if verbose else logging.WARNING)
    logging.getLogger(f"{_OURS}.server").setLevel(logging.DEBUG if verbose else logging.CRITICAL + 1)
