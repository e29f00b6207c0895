"""`mcp-nursery resources` and `read`: what can be read, and what it holds."""

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from mcp_nursery.actors.errors import ConfigError, InvalidArguments, InvalidResult
from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.resources import Resource, ResourceResult, ResourceTemplate

from .calling import can_ask, start_all
from .failures import OK
from .natural_order import natural
from .output import write_answer, write_json
from .runtime import Options, check_server, load, look, run_async
from .statuses import errors_of, worked
from .tables import write_rows
from .trust import ask_for_trust

if TYPE_CHECKING:
    from mcp_types import BlobResourceContents, TextResourceContents


@frozen
class ReadOptions:
    """What `read` can be told besides."""

    uri: str
    server: str | None = None
    timeout: float | None = None
    output: Path | None = None
    """The file that the content goes to, as it is."""


def show_resources(options: Options) -> int:
    """Start the servers, list resources, templates and the errors of servers that have none, stop them."""
    config = load(options)
    (resources, templates), statuses = run_async(
        lambda: look(config, lambda supervisor: (supervisor.resources, supervisor.resource_templates))
    )
    errors = errors_of(statuses)
    if options.as_json:
        listed = [{"uri": one.uri, **_described(one), "size": one.size} for one in resources]
        made = [{"uri_template": one.uri_template, **_described(one)} for one in templates]
        write_json({"resources": listed, "templates": made, "errors": errors})
        return worked(statuses)
    by_uri = sorted(resources, key=lambda resource: natural(resource.uri))
    rows = [(one.uri, one.server, one.description or one.title or one.name) for one in by_uri]
    by_uri_template = sorted(templates, key=lambda template: natural(template.uri_template))
    rows += [(one.uri_template, one.server, one.description or one.title or one.name) for one in by_uri_template]
    write_rows(("URI", "SERVER", "DESCRIPTION"), rows, errors)
    return worked(statuses)


def _described(one: Resource | ResourceTemplate) -> dict[str, Any]:
    return {
        "name": one.name,
        "server": one.server,
        "mime_type": one.mime_type,
        "title": one.title,
        "description": one.description,
    }


def read(options: Options, wanted: ReadOptions) -> int:
    """Start the servers it takes, read one resource, print it or put it into a file, stop the servers."""
    config = load(options)
    check_server(config, wanted.server)
    specs = [evolve(spec, lazy=True) for spec in config.servers]

    async def ask() -> ResourceResult:
        async with open_supervisor(specs, trust=ask_for_trust if can_ask() else None) as supervisor:
            if wanted.server is None:
                await start_all(supervisor, wanted.uri)  # of those that have it the first is asked, not the fastest
            return await supervisor.read_resource(wanted.uri, server=wanted.server, timeout=wanted.timeout)

    result = run_async(ask)
    if wanted.output is not None:
        _write(wanted.output, _only(result))
    if options.as_json:
        write_json(_document(result, wanted.output))
    elif wanted.output is None:
        write_answer(result.text)
    return OK


def _only(result: ResourceResult) -> bytes:
    """The one content of a resource, as it is.

    Raises:
        InvalidArguments: It has none, or several.
        InvalidResult: What should be base64 is not.
    """
    contents: Sequence[TextResourceContents | BlobResourceContents] = result.contents
    if len(contents) != 1:
        problem = f"it has {len(contents)} contents, and --output takes one; --json prints them all"
        raise InvalidArguments(problem, server=result.server, tool=result.uri)
    text: str | None = getattr(contents[0], "text", None)
    if text is not None:
        return text.encode()
    try:
        return base64.b64decode(getattr(contents[0], "blob", ""), validate=True)
    except binascii.Error:
        pass
    raise InvalidResult("not base64", server=result.server, tool=result.uri, incarnation=result.incarnation)


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as error:
        problem = error.strerror or type(error).__name__
    else:
        return
    raise ConfigError(f"cannot be written: {problem}", file=str(file))


def _document(result: ResourceResult, output: Path | None) -> dict[str, Any]:
    return {
        "uri": result.uri,
        "server": result.server,
        "text": result.text,
        "contents": [one.model_dump(by_alias=True, mode="json", exclude_none=True) for one in result.contents],
        "output": None if output is None else str(output),
        "duration": result.duration,
        "incarnation": result.incarnation,
        "truncated": result.truncated,
        "signals": list(result.signals),
    }
