"""The contender's half of `behaviours.py`: one scenario in this process, on whatever event loop the contender has.

A contender hands `observe` a context manager that opens it with servers. What was seen goes out as lines of JSON: the
row, a text with a `{}` for each figure, and the seconds.
"""

import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import anyio

PATIENCE = 10.0
"""Seconds in which a server may come back."""
SHORT = 2.0
LONG = 20.0
START = 40.0
"""Seconds for servers to start."""
SAYS = re.compile(r"\b(may|might) (already )?have\b|\b(was|were) (not|never) (sent|executed|run)\b|\bexecuted\b")
"""Words of an error that tell of the effect of a call."""


class Client(Protocol):
    async def call(self, server: str, tool: str, arguments: dict[str, Any], timeout: float) -> str:
        """The text of the result."""

    async def tools(self) -> list[str]:
        """Names, as the user of this contender has them."""


Opened = Callable[[dict[str, list[str]]], AbstractAsyncContextManager[Client]]


class WrongAnswer(Exception):
    """Something came back, but not what was asked for."""


@dataclass
class Job:
    """What the driver wants; it came as JSON in the first argument."""

    scenario: str
    servers: dict[str, list[str]]
    journals: dict[str, str]
    gateway: list[str] = field(default_factory=list)
    """The command of the gateway, if the contender is one."""
    url: str = ""
    """Where the gateway listens; empty for one on standard streams."""


def job() -> Job:
    return Job(**json.loads(sys.argv[1]))


JOB = job()
SERVER = next(iter(JOB.servers))


def read_timeout() -> timedelta:
    """For libraries whose timeout is given when they connect."""
    return timedelta(seconds=SHORT if JOB.scenario == "unanswered" else LONG)


def say(row: str, text: str, *seconds: float) -> None:
    print(json.dumps({"row": row, "text": text, "seconds": seconds}), flush=True)


def journal(server: str = SERVER) -> list[dict[str, Any]]:
    """All that the server has noted by now."""
    path = Path(JOB.journals[server])
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def noted(what: str, server: str = SERVER) -> list[dict[str, Any]]:
    return [entry for entry in journal(server) if entry["what"] == what]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def first_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def name_of(error: BaseException) -> str:
    """Its type and the begin of its text, without what is another in each run."""
    error = first_of(error)
    text = " ".join(str(error).split())
    text = re.sub(r"\S*/\S+|\d+(\.\d+)?", "…", text)
    text = text if len(text) <= 80 else text[:79].rstrip() + "…"
    return f"`{getattr(error, 'said', type(error).__name__)}`" + (f" ({text})" if text else "").replace("|", "/")


def about_the_effect(error: BaseException) -> str:
    """Whether an error says that the server may have acted."""
    error = first_of(error)
    data = getattr(error, "data", None) or getattr(getattr(error, "error", None), "data", None)
    told = getattr(error, "delivery", None) or (data.get("delivery") if isinstance(data, dict) else None)
    if told is not None:
        return f"says `{getattr(told, 'value', told)}`"
    return "says it in words" if SAYS.search(str(error)) else "does not say"


def own(server: str, tool: str) -> str:
    """The server's name of the tool: of several servers no two have the same."""
    return f"{server}_{tool}" if len(JOB.servers) > 1 else tool


async def echo(client: Client, server: str = SERVER, *, timeout: float = LONG) -> None:
    said = await client.call(server, own(server, "echo"), {"text": "hello"}, timeout)
    if said != "hello":
        raise WrongAnswer(said)


# -- the scenarios ----------------------------------------------------------------------------------------------------


async def between(client: Client) -> None:
    """The server is killed while no call is under way."""
    await echo(client)
    await anyio.sleep(1)  # a process of that call alone has ended
    killed = time.monotonic()
    pid = noted("start")[-1]["pid"]
    if was_there := is_alive(pid):
        os.kill(pid, signal.SIGKILL)
        await anyio.sleep(0.2)
    first: BaseException | None = None
    while time.monotonic() < killed + PATIENCE:
        try:
            await echo(client, timeout=PATIENCE / 2)
        except Exception as error:
            first = first or error
            await anyio.sleep(0.2)
        else:
            seconds = time.monotonic() - killed
            if first is not None:
                say("between", f"yes, after {{}} s; until then {name_of(first)}", seconds)
            elif was_there:
                say("between", "yes, the next call, {} s", seconds)
            else:
                say("between", "yes: each call starts a server")
            return
    assert first is not None
    say("between", f"no: {name_of(first)}{await in_a_new_session(client)}")


async def in_a_new_session(client: Client) -> str:
    if not hasattr(client, "again"):
        return ""
    try:
        async with client.again() as other:
            await echo(other, timeout=PATIENCE / 2)
    except Exception:
        return "; nor in a new session"
    return "; yes in a new session"


async def during(client: Client) -> None:
    """The server has an effect and dies before it answers. Then there is time, and another call, for a second one."""
    await echo(client)
    try:
        said = await client.call(SERVER, "act", {}, LONG)
        text = "an answer: " + name_of(WrongAnswer(said))
    except Exception as error:
        text = f"{name_of(error)}; {about_the_effect(error)}"
    seconds = time.time() - noted("death")[0]["at"]
    say("during", f"{{}} s: {text}", seconds)
    await anyio.sleep(3)
    with suppress(Exception):  # another row has that
        await echo(client, timeout=PATIENCE)
    count = len(noted("act"))
    say("twice", "once" if count == 1 else f"{count} times")


async def unanswered(client: Client) -> None:
    await echo(client)
    began = time.monotonic()
    try:
        said = await client.call(SERVER, "hang", {}, SHORT)
        text = "an answer: " + name_of(WrongAnswer(said))
    except Exception as error:
        text = name_of(error)
    seconds = time.monotonic() - began
    back = "yes" if seconds < SHORT + 1 else "no"
    pid = noted("hang")[-1]["pid"]
    until = time.monotonic() + 5
    while not (told := was_told()) and is_alive(pid) and time.monotonic() < until:  # noqa: ASYNC110 - a file tells
        await anyio.sleep(0.1)
    server = "the server is told" if told else "not told" if is_alive(pid) else "not told, but ended"
    say("unanswered", f"{back}, {{}} s: {text}; {server}", seconds)


def was_told() -> bool:
    return any(entry["method"] == "notifications/cancelled" for entry in noted("notified"))


async def wedged(client: Client) -> None:
    """The first server reads nothing any more; calls go to the second."""
    other = list(JOB.servers)[1]
    await echo(client)
    await echo(client, other)

    async def wedge() -> None:
        with suppress(Exception):  # the other server is the subject
            await client.call(SERVER, own(SERVER, "wedge"), {}, LONG)

    async with anyio.create_task_group() as group:
        group.start_soon(wedge)
        while not noted("wedged"):  # noqa: ASYNC110 - a file tells
            await anyio.sleep(0.05)
        slowest = 0.0
        for _ in range(3):
            began = time.monotonic()
            try:
                await echo(client, other, timeout=PATIENCE)
            except Exception as error:
                say("wedged", f"no: {name_of(error)}")
                break
            slowest = max(slowest, time.monotonic() - began)
        else:
            say("wedged", "yes, {} s" if slowest < 1 else "no, {} s", slowest)
        group.cancel_scope.cancel()


def back(row: str, tool: str) -> Callable[[Client], Any]:
    """A scenario: a call of that tool comes back."""

    async def scenario(client: Client) -> None:
        await echo(client)
        began = time.monotonic()
        try:
            said = await client.call(SERVER, tool, {}, LONG)
            if said != "done":
                raise WrongAnswer(said)
        except Exception as error:
            say(row, f"no, {{}} s: {name_of(error)}", time.monotonic() - began)
        else:
            say(row, "yes, {} s", time.monotonic() - began)

    return scenario


async def has_child(client: Client) -> None:
    await client.call(SERVER, "child", {}, LONG)
    if JOB.scenario == "raises":
        raise RuntimeError("the program fails")


SCENARIOS = {
    "between": between,
    "during": during,
    "unanswered": unanswered,
    "wedged": wedged,
    "noise": back("noise", "noise"),
    "stderr": back("stderr", "stderr"),
    "ends": has_child,
    "raises": has_child,
}


async def one_missing(opened: Opened) -> None:
    """One of three servers does not start; the tools of the others are looked for until the driver's patience ends."""
    row, began = JOB.scenario, time.monotonic()
    try:
        async with opened(JOB.servers) as client:
            while (found := sum(name.endswith("echo") for name in await client.tools())) < 2:
                if time.monotonic() > began + START:
                    say(row, f"no: those of {found} in {START:.0f} s")
                    return
                await anyio.sleep(0.1)
            say(row, "yes, {} s", time.monotonic() - began)
    except Exception as error:
        say(row, f"no, {{}} s: {name_of(error)}", time.monotonic() - began)


async def observe(opened: Opened) -> None:
    """Run the scenario that the job names."""
    if JOB.scenario.startswith("one_"):
        await one_missing(opened)
        return
    async with opened(JOB.servers) as client:
        await SCENARIOS[JOB.scenario](client)


def sdk_text(result: Any) -> str:
    return result.content[0].text


@asynccontextmanager
async def all_of(managers: Sequence[AbstractAsyncContextManager[Any]]) -> AsyncIterator[list[Any]]:
    """All of them entered, one after another."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(one) for one in managers]
