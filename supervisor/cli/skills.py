"""`mcp-nursery skills` and `skill`: the skills that servers offer, and their files, verified."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import quote

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import InvalidArguments, NurseryError, UnknownResource
from mcp_nursery.actors.extensions import SKILLS
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.actors.preload import RESULT_TYPES
from mcp_nursery.supervisor import Supervisor
from mcp_nursery.supervisor.resources import ResourceResult
from mcp_nursery.supervisor.skills import MAIN, Skill
from mcp_nursery.supervisor.status import ServerStatus

from .failures import message_of
from .output import natural, pick, write_json
from .resources import show_content
from .runtime import Options, check_server, load, run_async, servers_of
from .statuses import errors_of, worked
from .tools import start_all


def skills(options: Options) -> int:
    """Print the skills of every server, and the errors of servers that are down or do not list them."""
    from .tables import write_rows  # with rich, which calls do not need

    config = load(options)

    async def look() -> tuple[int, list[Skill], dict[str, str]]:
        async with servers_of(options, config) as supervisor:
            statuses = supervisor.status()
            return worked(statuses), *await _list(supervisor, statuses)

    code, found, errors = run_async(look)
    if options.as_json:
        write_json({"skills": [_document(skill) for skill in found], "errors": errors})
    else:
        rows = [(skill.name, skill.server, skill.uri, skill.description) for skill in found]
        write_rows(("NAME", "SERVER", "URI", "DESCRIPTION"), rows, errors)
    return code


async def _list(supervisor: Supervisor, statuses: Iterable[ServerStatus]) -> tuple[list[Skill], dict[str, str]]:
    """The skills of these servers, sorted by name, and the errors of those that could not be asked."""
    found: list[Skill] = []
    errors = errors_of(statuses)

    async def list_of(server: str) -> None:
        try:
            found.extend(await supervisor.list_skills(server))
        except NurseryError as error:
            errors.setdefault(server, message_of(error))

    async with trio.open_nursery() as nursery:
        for status in statuses:
            if status.name not in errors:
                nursery.start_soon(list_of, status.name)
    return sorted(found, key=lambda skill: (natural(skill.name), skill.server, skill.uri)), errors


def _document(skill: Skill) -> dict[str, Any]:
    files = None if skill.files is None else [pick(file, "uri", "digest", "size") for file in skill.files]
    return {**pick(skill, "name", "server", "uri", "description", "frontmatter"), "files": files}


def skill(
    options: Options, name: str, *, file: str | None, server: str | None, timeout: float | None, output: Path | None
) -> int:
    """Read the `SKILL.md` of one skill, or another file of the skill, and print its content or write a file."""
    config = load(options)
    check_server(config, server)

    async def read() -> ResourceResult:
        async with run_alongside(RESULT_TYPES.ensure_loaded), servers_of(options, config) as supervisor:
            await start_all(supervisor, name)
            await RESULT_TYPES.ensure_loaded()  # not in the time of the request
            found = await _find(supervisor, name, server)
            return await supervisor.read_skill_file(_uri_of(found, file), server=found.server, timeout=timeout)

    show_content(options, run_async(read), output)
    return 0


async def _find(supervisor: Supervisor, name: str, server: str | None) -> Skill:
    """The only skill of this name or URI.

    Raises:
        InvalidArguments: There are several, or a server that could not be asked may have another.
        UnknownResource: There is none.
    """
    await supervisor.list_skills(server)  # starts what has to be started
    statuses = [each for each in supervisor.status() if server in (None, each.name)]
    listed, errors = await _list(supervisor, statuses)
    found = [each for each in listed if name in (each.name, f"{each.server}/{each.name}", each.uri)]
    if not found and name.endswith(MAIN):
        return await supervisor.get_skill(name, server=server)
    if not found:
        names = [each.name for each in listed]
        raise UnknownResource(name, server=server, near=get_close_matches(name, names))
    only = found[0]
    unasked = [] if name == f"{only.server}/{only.name}" else _may_have_skills(supervisor, statuses, errors)
    if len(found) > 1 or unasked:
        words = [f"several skills are meant: {_candidates(found)}", *unasked, "give the URI and --server"]
        raise InvalidArguments("; ".join(words), tool=name)
    return only


def _may_have_skills(supervisor: Supervisor, statuses: Iterable[ServerStatus], errors: Mapping[str, str]) -> list[str]:
    """The servers with an error that may have skills, each with it."""
    enabled = [each.name for each in statuses if each.state is not ServerState.DISABLED]
    may = [name for name in enabled if supervisor.declares_extension(name, SKILLS)]
    return [f"{name} could not be asked: {errors[name]}" for name in may if name in errors]


def _candidates(found: Sequence[Skill]) -> str:
    return ", ".join(f"{each.uri} of {each.server}" for each in found)


def _uri_of(skill: Skill, file: str | None) -> str:
    """The URI of a file by its path in the skill's folder, of which a URI has some characters in code."""
    if file is None:
        return skill.uri
    uri = f"{skill.root}/{file}"
    listed = any(each.uri == uri for each in skill.files or ())
    return uri if listed or skill.files is None else f"{skill.root}/{quote(file)}"
