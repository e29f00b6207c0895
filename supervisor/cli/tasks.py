"""`mcp-nursery tasks`, `task` and `call --detach`: tasks that are recorded in the state, and calls that are left to a
running host."""

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from mcp_nursery.actors.errors import NotApproved, UnknownTask, UnknownTool
from mcp_nursery.actors.preload import RESULT_TYPES
from mcp_nursery.actors.records import asdict, evolve
from mcp_nursery.supervisor import ServerSpec, Supervisor, ToolResult, open_supervisor
from mcp_nursery.supervisor.preload import AHEAD
from mcp_nursery.supervisor.security.untrusted_marks import visible
from mcp_nursery.supervisor.status import TaskInfo

from .consent import ask_for_trust, can_ask, says_yes
from .failures import OK, TOOL_ERROR
from .output import safe_line, send_json_line, send_line, write_answer, write_json, write_line
from .runtime import Interrupted, Options, load, run_async
from .tools import call as call_here
from .tools import parse_arguments, result_document

if TYPE_CHECKING:
    from mcp_nursery.supervisor.control.client import ControlClient
    from mcp_nursery.supervisor.control.protocol import ToolSummary

T = TypeVar("T")

_LOOK_EVERY: Final = 2.0
"""Seconds between two looks at the state."""
_HEADERS: Final = ("ID", "SERVER", "TOOL", "STATUS", "AGE", "MESSAGE")


def tasks(options: Options, *, watch: bool) -> int:
    """Print the recorded tasks; with `watch`, a line for each change until Ctrl-C."""
    if watch:
        try:
            return run_async(lambda: _with_state(options, (), lambda supervisor: _watch(options, supervisor)))
        except Interrupted:  # the normal end
            return OK
    found = run_async(lambda: _with_state(options, (), lambda supervisor: supervisor.tasks()))
    if options.as_json:
        write_json({"tasks": [asdict(info) for info in found]})
    else:
        from .tables import write_rows  # with rich, which calls do not need

        write_rows(_HEADERS, [_row(info) for info in found])
    return OK


def task(options: Options, id: str, *, wait: bool, cancel: bool) -> int:  # noqa: A002
    """Print a recorded task. With `wait`, its result; with `cancel`, have it cancelled first."""

    async def find(supervisor: Supervisor) -> TaskInfo:
        for info in await supervisor.tasks():
            if info.id == id:
                return info
        raise UnknownTask(id)

    info = run_async(lambda: _with_state(options, (), find))
    if not (wait or cancel) or (cancel and info.finished is not None):
        return _print_info(options, info)
    specs = () if info.finished is not None else load(options).servers

    async def follow(supervisor: Supervisor) -> tuple[TaskInfo, ToolResult | None]:
        found = await supervisor.task(id)
        if cancel:
            await found.cancel()
            return found.info, None
        await RESULT_TYPES.ensure_loaded()
        return found.info, await found.result()

    info, result = run_async(lambda: _with_state(options, [evolve(spec, lazy=True) for spec in specs], follow))
    if result is None:
        return _print_info(options, info)
    if options.as_json:
        write_json({"id": id, "server": result.server, "tool": result.tool, **result_document(result)})
    else:
        write_answer(result.text)
    return TOOL_ERROR if result.is_error else OK


async def _with_state(options: Options, specs: Sequence[ServerSpec], look: Callable[[Supervisor], Awaitable[T]]) -> T:
    """The result of a function of a supervisor with the state of this command, and with these servers."""
    AHEAD.set(False)  # little of the SDK is needed
    trust = ask_for_trust if can_ask() else None
    async with open_supervisor(specs, state=options.state, gate=0, trust=trust) as supervisor:
        return await look(supervisor)


async def _watch(options: Options, supervisor: Supervisor) -> int:
    known: Mapping[str, TaskInfo] = {}
    while True:
        found = {info.id: info for info in await supervisor.tasks()}
        for info in found.values():
            if known.get(info.id) == info:
                continue
            if options.as_json:
                await send_json_line(asdict(info))
            else:
                await send_line(safe_line(": ".join(filter(None, (info.id, info.server, info.tool, *_state(info))))))
        known = found
        await trio.sleep(_LOOK_EVERY)


def _print_info(options: Options, info: TaskInfo) -> int:
    if options.as_json:
        write_json(asdict(info))
        return OK
    for name, cell in zip(_HEADERS, _row(info), strict=True):
        if cell:
            write_line(safe_line(f"{name.lower()}: {cell}"))
    return OK


def _row(info: TaskInfo) -> tuple[str, ...]:
    status, said = _state(info)
    return info.id, info.server, info.tool, status, f"{max(time.time() - info.created, 0):.0f}s", said


def _state(info: TaskInfo) -> tuple[str, str]:
    """The status of a task, and the words about that."""
    said = [info.message, *(f"asks: {words}" for words in info.questions)] if info.error is None else [info.error]
    return str(info.status), "; ".join(filter(None, said))


# -- a call that is left to a host ------------------------------------------------------------------------------------


def call(
    options: Options, name: str, *, detach: bool, host: str | None, max_result_chars: int | None, **given: Any
) -> int:
    """Make a call; or, with `detach`, have a running host make the call and follow its task."""
    if detach:
        return _detach(options, name, host=host, **given)
    return call_here(options, name, max_result_chars=max_result_chars, **given)


def _detach(
    options: Options, name: str, *, args: str, server: str | None, timeout: float | None, yes: bool, host: str | None
) -> int:
    from .running_hosts import find_host  # a call that is made here needs none

    arguments = parse_arguments(args)

    async def submit() -> TaskInfo:
        client = await find_host(host, server)
        tool = await _tool_of(client, name, server)
        if tool.requires_approval and not yes:
            await _approve(tool, arguments)
        return await client.submit(tool.tool, arguments, server=tool.server, timeout=timeout)

    info = run_async(submit)
    if options.as_json:
        write_json(asdict(info))
    else:
        write_line(info.id)
    return OK


async def _tool_of(client: "ControlClient", name: str, server: str | None) -> "ToolSummary":
    """The tool of a host.

    Raises:
        UnknownTool: It has none of this name.
    """
    servers = [server] if server is not None else [status.name for status in await client.status()]
    for each in servers:
        for tool in await client.tools(each):
            if name == (tool.name if server is None else tool.tool):
                return tool
    raise UnknownTool(name, server=server)


async def _approve(tool: "ToolSummary", arguments: Mapping[str, Any]) -> None:
    """Ask the person at the terminal.

    Raises:
        NotApproved: The person refused, or there is no terminal to ask on.
    """
    if not can_ask():
        raise NotApproved(tool.server, tool.tool, "there is no terminal to ask on; --yes answers")
    lines = (
        f"server:    {visible(tool.server)}",
        f"tool:      {visible(tool.tool)}",
        *(["changed:   since its first use; see mcp-nursery pins"] if tool.changed else []),
        f"arguments: {visible(json.dumps(arguments, ensure_ascii=False))}",
        "Call it? [y/N] ",
    )
    if not await says_yes("\n".join(lines)):
        raise NotApproved(tool.server, tool.tool, "refused at the terminal")
