"""`pytest -m "not slow"` is for every save, `pytest` for a change before it is shared: see `lanes.py`.

Hypothesis has the profile that HYPOTHESIS_PROFILE names, else `brief` in the lane `readme` and `quick` in others: see
`lab/profiles.py`. The tests have folders of a
user of their own: nothing here reads or writes what the developer's mcp-nursery remembers.
"""

import gc
import itertools
import logging
import os
import random
import secrets
import signal
import sys

import pytest
from hypothesis import settings

from mcp_nursery.supervisor.preload import ALL_MODULES
from mcp_nursery.supervisor.security.trust import AGREED_FILE
from mcp_nursery.supervisor.storage import postgres_connection as state_database

from .lab.databases import new_server
from .lab.forked import end_forking
from .lab.profiles import BRIEF, QUICK
from .lab.timely import LATE
from .lanes import ALL, LANES, README, Lanes, lane_of, lanes_of_run, name_of_run
from .leftovers import Leftovers
from .timings import Timings

ALL_MODULES.load()  # in no test: a clock that jumps whenever every task waits would not wait for a thread

# Under nohup, or in the background of a script, processes of the tests would inherit that these are ignored.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def users(tmp_path_factory):
    """The names of folders, each for one test. pytest would number them by a look at all that there are."""
    folder = tmp_path_factory.mktemp("users")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def user_folders(users, monkeypatch):
    """The state and configuration folders of a user of this test's own, also for the processes it starts."""
    base = next(users)
    base.mkdir()
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(base / name.lower()))
    return base


@pytest.fixture(scope="session")
def database_server():
    """A PostgreSQL server for all tests of this process; it is started when the first of them needs it."""
    server = new_server()
    yield server
    server.end()


@pytest.fixture
def database_patience(monkeypatch):
    """Time for everything: a machine that runs tests may be slow. A test of a time limit sets it."""
    for name in ("CONNECTING", "STATEMENT", "UNDER_WAY", "MIGRATING"):
        monkeypatch.setattr(state_database, name, 120)


@pytest.fixture
def database(database_server, database_patience):
    """The URL of an empty database."""
    return database_server.url(database_server.new_database())


@pytest.fixture
def as_root():
    """The test gives files away, or is somebody else for a moment: only root can."""
    if os.geteuid() != 0:
        pytest.skip("only root can do it")


@pytest.fixture(autouse=True)
def agreed_file():
    """A command that runs in this process holds what connects after it to what it has looked at."""
    before = AGREED_FILE.set(None)
    yield
    AGREED_FILE.reset(before)


@pytest.fixture(autouse=True)
def logging_as_it_was():
    """A command that runs in this process says what is logged, and a library may print it: inspect_ai on standard
    output. The next test has the levels that were, and no handler but pytest's own."""
    known = logging.root.manager.loggerDict
    names = [name for name in known if name.partition(".")[0] == "mcp_nursery"]
    loggers = [logging.getLogger(name) for name in (None, "mcp_nursery", "mcp_nursery.server", *names)]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        if logger.level != level:
            logger.setLevel(level)
    logging.root.setLevel(logging.root.level)  # all loggers forget what they had looked up, whoever set `level` itself
    for name in [name for name in known if name.startswith("mcp_nursery.server.")]:
        del known[name]  # of a server of this test: pytest looks at all there are, six times a test
    for handler in list(logging.root.handlers):
        if not type(handler).__module__.startswith("_pytest."):
            logging.root.removeHandler(handler)


SAME_IN_WORKERS = ("lane", "shuffle")
"""Options that all processes of a run have."""


def pytest_addoption(parser):
    parser.addoption(
        "--lane",
        metavar="LANE,…",
        help=f"some of {', '.join(LANES)}, or {ALL}; default: {README}, or what is at the paths that are named",
    )
    parser.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="run the tests in the order of this seed; a lane has an order of its own each time",
    )


def pytest_configure(config):
    is_worker = hasattr(config, "workerinput")
    if is_worker:
        for name in SAME_IN_WORKERS:
            setattr(config.option, name, config.workerinput[name])
    elif config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.option.lane = config.option.lane or README
        if config.option.shuffle is None:
            config.option.shuffle = secrets.randbelow(1_000_000)
    profile = BRIEF if config.option.lane == README else QUICK
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or profile)
    config.pluginmanager.register(Lanes(config))
    if not is_worker and sys.platform == "linux":
        config.pluginmanager.register(Leftovers(), "leftovers")
    config.pluginmanager.register(Timings(name_of_run(config), writes=not is_worker))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """A worker of pytest-xdist reads the command line anew, and knows nothing of what was decided here."""
    for name in SAME_IN_WORKERS:
        node.workerinput[name] = node.config.getoption(name)


@pytest.hookimpl(trylast=True)  # pytest-xdist has ended its workers by then
def pytest_sessionfinish(session):
    end_forking()
    if leftovers := session.config.pluginmanager.get_plugin("leftovers"):
        leftovers.look(session)


def pytest_report_header(config):
    lanes = ", ".join(lanes_of_run(config))
    seed = config.getoption("--shuffle")
    return f"lanes: {lanes}" + ("" if seed is None else f"; in the order of --shuffle={seed}")


@pytest.hookimpl(tryfirst=True)  # before -m looks at the markers
def pytest_collection_modifyitems(config, items):
    """Servers that nobody here wrote have as long as the network takes to install them."""
    for item in items:
        if item.get_closest_marker("interop"):
            item.add_marker(pytest.mark.timeout(1200))
        if item.get_closest_marker("interop") or lane_of(item) != README:
            item.add_marker(pytest.mark.slow)
    if (seed := config.getoption("--shuffle")) is not None:
        _shuffle(items, random.Random(seed))


def _shuffle(items, dice):
    """Shuffle the tests, file by file, as some files share a fixture, and within each file."""
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    order = list(files.values())
    dice.shuffle(order)
    for tests in order:
        dice.shuffle(tests)
    items[:] = itertools.chain.from_iterable(order)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the garbage collector away from the thousands of tests, which live as long as the session."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    """What was late goes with the report, to whoever prints the summary."""
    if call.when == "call":
        item.user_properties.extend(("late", each) for each in LATE)
        LATE.clear()


def pytest_terminal_summary(terminalreporter):
    """How often a test of a promised time was tried again, and why."""
    reports = {
        report.nodeid: report for reports in terminalreporter.stats.values() for report in reports if _ran(report)
    }
    late = [
        (name, why) for name, report in sorted(reports.items()) for key, why in report.user_properties if key == "late"
    ]
    if late:
        terminalreporter.section(f"late, and tried again: {len(late)}")
        for name, why in late:
            terminalreporter.line(f"{name}: {why}")


def _ran(report):
    return getattr(report, "when", None) == "call"
