"""What servers log, in Python's own log."""

import logging

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import MemoryStore, ServerSpec, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.log_limits import WITHIN
from mcp_nursery.supervisor.logs import MESSAGES_PER_MINUTE, MOST_MESSAGE_CHARACTERS, ServerLog
from mcp_nursery.supervisor.testing import ScriptedServer

from ..lab.specs import WithEnvironment

SECRET = "hunter2-hunter2"
LONG = "Zq" * 200
"""Another."""


def told(caplog):
    return [(each.name, each.levelname, each.getMessage()) for each in caplog.records if ".server." in each.name]


async def logged(*messages, name="lab", **options):
    """Have a server log this."""
    server = ScriptedServer()
    lab = ServerSpec(name, WithEnvironment(server, {"TOKEN": SECRET, "OTHER": LONG}))
    async with open_supervisor([lab], state=MemoryStore(), **options):
        for message in messages:
            await server.notify("notifications/message", message)
        await trio.testing.wait_all_tasks_blocked()


LEVELS = [
    ("debug", "DEBUG"),
    ("info", "INFO"),
    ("notice", "INFO"),
    ("warning", "WARNING"),
    ("error", "ERROR"),
    ("critical", "CRITICAL"),
    ("alert", "CRITICAL"),
    ("emergency", "CRITICAL"),
]


async def test_each_server_has_a_logger(autojump_clock, caplog):
    """Dots in its name make no children of it; each level has one of Python's."""
    caplog.set_level(logging.DEBUG, "mcp_nursery")
    await logged(*({"level": level, "data": level} for level, _ in LEVELS), name="a.b c")
    assert told(caplog) == [("mcp_nursery.server.a_b_c", known, level) for level, known in LEVELS]


async def test_python_decides_what_is_heard(autojump_clock, caplog):
    caplog.set_level(logging.ERROR, "mcp_nursery.server")
    caplog.set_level(logging.INFO, "mcp_nursery.server.lab")
    await logged({"level": "debug", "data": 1}, {"level": "info", "data": 2})
    await logged({"level": "info", "data": 3}, name="other")
    assert told(caplog) == [("mcp_nursery.server.lab", "INFO", "2")]


async def test_a_callback_takes_its_place(autojump_clock, caplog):
    heard = []

    async def log(message):
        heard.append(message.params.data)

    await logged({"level": "error", "data": "broken"}, callbacks=Callbacks(log=log))
    assert (heard, told(caplog)) == (["broken"], [])


SAID = {
    "text": ("two\nlines\x1b[31m", r"two\nlines\u001b[31m"),
    "object": ({"key": [1, None, "naïve"]}, '{"key": [1, null, "naïve"]}'),
    "secret": ({"why": f"no {SECRET}"}, '{"why": "no [REDACTED:config]"}'),
    "long": ("x" * 50_000, "x" * (MOST_MESSAGE_CHARACTERS - 1) + "…"),
    "cut apart": (f"{LONG} " * 40, "…"),
    "many": ([1] * 9_000, "[" + "1, " * 666 + "…"),
}


@pytest.mark.parametrize("what", SAID)
async def test_a_message_is_a_line_without_secrets(autojump_clock, caplog, what):
    data, line = SAID[what]
    await logged({"level": "warning", "data": data}, {"level": "warning", "data": "x", "logger": f"l {SECRET}"})
    assert [text for _, _, text in told(caplog)] == [line, "l [REDACTED:config]: x"]


async def test_a_storm_of_messages(autojump_clock, caplog):
    """Q7: a bounded number of lines, and how many were left out."""
    server = ScriptedServer()
    async with open_supervisor([ServerSpec("lab", server.transport)], state=MemoryStore()):
        for number in range(2 * MESSAGES_PER_MINUTE):
            await server.notify("notifications/message", {"level": "error", "data": number})
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(WITHIN)
        await server.notify("notifications/message", {"level": "error", "data": "later"})
        await trio.testing.wait_all_tasks_blocked()
    lines = [text for _, _, text in told(caplog)]
    assert lines[:-1] == [str(number) for number in range(MESSAGES_PER_MINUTE)]
    assert lines[-1] == f"later ({MESSAGES_PER_MINUTE} messages before it are left out)"


def test_what_has_no_json_form(caplog):
    """A server object of this process may log anything."""
    log = ServerLog("lab", str)
    assert log._line(Params(object())).startswith('"<object object at')
    endless = []
    endless.append(endless)
    assert log._line(Params(endless)) == "<what has no JSON form>"


class Params:
    level, logger = "info", None

    def __init__(self, data):
        self.data = data


@pytest.mark.parametrize(
    ("python", "level"),
    [(logging.DEBUG, "debug"), (logging.INFO, "info"), (logging.WARNING, "warning"), (logging.CRITICAL + 1, None)],
)
def test_the_level_that_is_asked_for(caplog, python, level):
    """The least severe that somebody hears."""
    caplog.set_level(python, "mcp_nursery.server")
    assert ServerLog("lab", str).level == level


async def test_a_process_without_logging(autojump_clock, monkeypatch, capsys):
    """Nothing is asked for, and nothing comes to standard error."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    assert ServerLog("lab", str).level is None
    await logged({"level": "error", "data": "unheard"})
    assert capsys.readouterr().err == ""
