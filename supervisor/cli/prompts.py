"""`mcp-nursery prompts` and `prompt`: which prompts there are, and one of them filled in."""

from typing import Any

from attrs import evolve, frozen

from mcp_nursery.actors.pieces import at_once
from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.resources import Prompt, PromptResult
from mcp_nursery.supervisor.tools.results import render

from .calling import can_ask, parse_arguments, start_all
from .failures import OK
from .natural_order import natural
from .output import write_answer, write_json
from .runtime import Options, check_server, load, look, run_async
from .statuses import errors_of, worked
from .tables import write_rows
from .trust import ask_for_trust


@frozen
class PromptOptions:
    """What `prompt` can be told besides."""

    name: str
    """A public name, or with `server` the server's own name of the prompt."""
    args: str = "{}"
    server: str | None = None
    timeout: float | None = None


def show_prompts(options: Options) -> int:
    """Start the servers, list prompts and the errors of servers that have none, stop them."""
    config = load(options)
    prompts, statuses = run_async(lambda: look(config, lambda supervisor: supervisor.prompts))
    errors = errors_of(statuses)
    if options.as_json:
        write_json({"prompts": [_described(one) for one in prompts], "errors": errors})
        return worked(statuses)
    rows = [
        (one.name, one.server, " ".join(each.name for each in one.arguments), one.description or one.title)
        for one in sorted(prompts, key=lambda prompt: natural(prompt.name))
    ]
    write_rows(("NAME", "SERVER", "ARGUMENTS", "DESCRIPTION"), rows, errors)
    return worked(statuses)


def _described(prompt: Prompt) -> dict[str, Any]:
    return {
        "name": prompt.name,
        "server": prompt.server,
        "prompt": prompt.prompt,
        "title": prompt.title,
        "description": prompt.description,
        "arguments": [
            {"name": one.name, "description": one.description, "required": bool(one.required)}
            for one in prompt.arguments
        ],
    }


def prompt(options: Options, wanted: PromptOptions) -> int:
    """Start the servers it takes, have one prompt filled in, print its messages, stop the servers."""
    arguments = parse_arguments(wanted.args)
    config = load(options)
    check_server(config, wanted.server)
    specs = [evolve(spec, lazy=True) for spec in config.servers]

    async def ask() -> PromptResult:
        async with open_supervisor(specs, trust=ask_for_trust if can_ask() else None) as supervisor:
            if wanted.server is None:
                await start_all(supervisor, wanted.name)
            return await supervisor.get_prompt(
                wanted.name, arguments or None, server=wanted.server, timeout=wanted.timeout
            )

    result = run_async(ask)
    if options.as_json:
        write_json(_document(result))
        return OK
    for message in result.messages:
        write_answer(f"{message.role}: {at_once(render([message.content], None))}")
    return OK


def _document(result: PromptResult) -> dict[str, Any]:
    return {
        "server": result.server,
        "prompt": result.prompt,
        "description": result.description,
        "messages": [one.model_dump(by_alias=True, mode="json", exclude_none=True) for one in result.messages],
        "duration": result.duration,
        "incarnation": result.incarnation,
        "signals": list(result.signals),
    }
