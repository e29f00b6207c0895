"""`mcp-nursery resources` and `read`, `prompts` and `prompt`: what servers offer besides tools."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from mcp_nursery.actors.errors import ConfigError, InvalidArguments
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.actors.pieces import at_once
from mcp_nursery.actors.preload import RESULT_TYPES
from mcp_nursery.actors.records import evolve
from mcp_nursery.supervisor import Supervisor, open_supervisor
from mcp_nursery.supervisor.preload import AHEAD
from mcp_nursery.supervisor.resources import (
    Prompt,
    PromptResult,
    Resource,
    ResourceResult,
    ResourceTemplate,
    only_content,
)
from mcp_nursery.supervisor.tools.tool_result import render

from .consent import ask_for_trust, can_ask
from .failures import OK
from .output import natural, pick, write_answer, write_json
from .runtime import Options, check_server, load, look, run_async
from .statuses import errors_of, worked
from .tools import parse_arguments, start_all

T = TypeVar("T")


def resources(options: Options) -> int:
    """Print the resources and templates of every server, and the errors of servers that are down."""
    from .tables import write_rows  # with rich, which calls do not need

    config = load(options)
    (resources, templates), statuses = run_async(
        lambda: look(options, config, lambda supervisor: (supervisor.resources, supervisor.resource_templates))
    )
    errors = errors_of(statuses)
    if options.as_json:
        listed = [{"uri": one.uri, **_described(one), "size": one.size} for one in resources]
        patterns = [{"uri_template": one.uri_template, **_described(one)} for one in templates]
        write_json({"resources": listed, "templates": patterns, "errors": errors})
        return worked(statuses)
    rows = sorted(((one.uri, *_cells(one)) for one in resources), key=lambda row: natural(row[0]))
    rows += sorted(((one.uri_template, *_cells(one)) for one in templates), key=lambda row: natural(row[0]))
    write_rows(("URI", "SERVER", "DESCRIPTION"), rows, errors)
    return worked(statuses)


def _cells(one: Resource | ResourceTemplate) -> tuple[str, str]:
    return one.server, one.description or one.title or one.name


def _described(one: Resource | ResourceTemplate) -> dict[str, Any]:
    return pick(one, "name", "server", "mime_type", "title", "description")


def prompts(options: Options) -> int:
    """Print the prompts of every server, and the errors of servers that are down."""
    from .tables import write_rows  # with rich, which calls do not need

    config = load(options)
    prompts, statuses = run_async(lambda: look(options, config, lambda supervisor: supervisor.prompts))
    errors = errors_of(statuses)
    if options.as_json:
        write_json({"prompts": [_prompt_document(one) for one in prompts], "errors": errors})
        return worked(statuses)
    rows = [
        (one.name, one.server, " ".join(each.name for each in one.arguments), one.description or one.title)
        for one in sorted(prompts, key=lambda prompt: natural(prompt.name))
    ]
    write_rows(("NAME", "SERVER", "ARGUMENTS", "DESCRIPTION"), rows, errors)
    return worked(statuses)


def _prompt_document(prompt: Prompt) -> dict[str, Any]:
    arguments = [{**pick(one, "name", "description"), "required": bool(one.required)} for one in prompt.arguments]
    return {**pick(prompt, "name", "server", "prompt", "title", "description"), "arguments": arguments}


def read(options: Options, uri: str, *, server: str | None, timeout: float | None, output: Path | None) -> int:
    """Read one resource, and print its content or write a file."""

    def request(supervisor: Supervisor) -> Awaitable[ResourceResult]:
        return supervisor.read_resource(uri, server=server, timeout=timeout)

    show_content(options, _request(options, uri, server, request), output)
    return OK


def show_content(options: Options, result: ResourceResult, output: Path | None) -> None:
    """Print what was read, or write it to a file.

    Raises:
        InvalidArguments: There are several contents for one file.
    """
    if output is not None and len(result.contents) != 1:
        problem = f"it has {len(result.contents)} contents, and --output takes one; --json prints them all"
        raise InvalidArguments(problem, server=result.server, tool=result.uri)
    if output is not None:
        _write(output, only_content(result))
    if options.as_json:
        write_json(_resource_document(result, output))
    elif output is None:
        write_answer(result.text)


def prompt(options: Options, name: str, *, args: str, server: str | None, timeout: float | None) -> int:
    """Get one prompt with its arguments filled in, and print its messages."""
    arguments = parse_arguments(args)

    def request(supervisor: Supervisor) -> Awaitable[PromptResult]:
        return supervisor.get_prompt(name, arguments or None, server=server, timeout=timeout)

    result = _request(options, name, server, request)
    if options.as_json:
        write_json(_messages_document(result))
        return OK
    for message in result.messages:
        write_answer(f"{message.role}: {at_once(render([message.content], None))}")
    return OK


def _request(options: Options, name: str, server: str | None, request: Callable[[Supervisor], Awaitable[T]]) -> T:
    """Start the servers that may have the object of this name, and send the request. All of them are waited for, since
    several may have the same URI."""
    config = load(options)
    check_server(config, server)
    specs = [evolve(spec, lazy=True) for spec in config.servers]

    async def ask() -> T:
        AHEAD.set(False)  # only the types of a result are needed
        opening = open_supervisor(specs, state=options.state, trust=ask_for_trust if can_ask() else None)
        async with run_alongside(RESULT_TYPES.ensure_loaded), opening as supervisor:
            if server is None:
                await start_all(supervisor, name)
            await RESULT_TYPES.ensure_loaded()  # not in the time of the request
            return await request(supervisor)

    return run_async(ask)


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as error:
        problem = error.strerror or type(error).__name__
    else:
        return
    raise ConfigError(f"cannot be written: {problem}", file=str(file))


def _resource_document(result: ResourceResult, output: Path | None) -> dict[str, Any]:
    return {
        **pick(result, "uri", "server", "text"),
        "contents": [one.model_dump(by_alias=True, mode="json", exclude_none=True) for one in result.contents],
        "output": None if output is None else str(output),
        **pick(result, "duration", "incarnation", "truncated", "signals"),
    }


def _messages_document(result: PromptResult) -> dict[str, Any]:
    return {
        **pick(result, "server", "prompt", "description"),
        "messages": [one.model_dump(by_alias=True, mode="json", exclude_none=True) for one in result.messages],
        **pick(result, "duration", "incarnation", "signals"),
    }
