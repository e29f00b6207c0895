"""`mcp-nursery install`: the gateway in a host's own file, shown before it is written. Starts nothing."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from difflib import get_close_matches, unified_diff
from pathlib import Path
from typing import Literal

from attrs import frozen

from mcp_nursery.actors.errors import ConfigError, NotApproved
from mcp_nursery.supervisor.config.hosts import HOSTS, SERVER, HostProgram
from mcp_nursery.supervisor.config.installation import Plan, install, status, undo
from mcp_nursery.supervisor.config.installed import Place, missing_folders, place_of, project_place, user_place
from mcp_nursery.supervisor.config.whole_file import Replacement, parted
from mcp_nursery.supervisor.security.untrusted_marks import visible

from .calling import can_ask, says_yes
from .failures import OK
from .output import safe_line, warn, write_json, write_line
from .runtime import Options, run_async
from .tables import write_rows


@frozen
class InstallOptions:
    """What `install` can be told besides."""

    host: str | None = None
    """None: show which there are."""
    scope: Literal["user", "project"] = "user"
    file: Path | None = None
    """Goes before the scope."""
    adopt: bool = False
    undo: bool = False
    yes: bool = False
    dry_run: bool = False


def install_gateway(options: Options, wanted: InstallOptions) -> int:
    """Show what would be written, ask, and write it."""
    if wanted.adopt and wanted.undo:
        raise ConfigError("--adopt and --undo cannot be given together", field="--undo")
    if wanted.host is None:
        if wanted != InstallOptions():
            raise ConfigError(f"which host? One of {', '.join(host.name for host in HOSTS)}", field="HOST")
        return _show_hosts(options)
    place = _place(wanted)
    plan = undo(place) if wanted.undo else install(place, [_program()], adopting=wanted.adopt)
    diff = "".join(line for replacement in plan.shown for line in _diff(replacement))
    asking = plan.change is not None and not (wanted.yes or wanted.dry_run)
    if not options.as_json and diff and not (asking and can_ask()):
        write_line(diff)
    if asking:
        _ask(diff, plan)
    if not wanted.dry_run:
        _make(plan)
    _tell(options, wanted, place, plan, diff)
    return OK


def _place(wanted: InstallOptions) -> Place:
    host = _host(wanted.host or "")
    if wanted.file is not None:
        return place_of(host, wanted.file)
    place = project_place(host) if wanted.scope == "project" else user_place(host)
    if place is None:
        raise ConfigError(f"{host.title} has no file for a project", field="--scope")
    return place


def _host(name: str) -> HostProgram:
    names = [host.name for host in HOSTS]
    if name in names:
        return HOSTS[names.index(name)]
    near = get_close_matches(name, names, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"there is no host {name[:80]!r}; one of {', '.join(names)}{meant}", field="HOST")


def _program() -> str:
    """The command, by a path that holds wherever a host starts it: one that was not started in a terminal has another
    PATH. The script and not `python -m`, which would take modules from the folder of whatever project is open."""
    for candidate in (Path(sys.argv[0]), Path(sys.executable).parent / SERVER):
        if candidate.name == SERVER and os.access(candidate, os.X_OK):
            return os.path.abspath(candidate)
    raise ConfigError(f"the command {SERVER} is not beside {sys.executable}; install the package again")


def _diff(replacement: Replacement) -> Iterator[str]:
    """In words that no terminal obeys, and that are what is written."""
    contents = (replacement.before, replacement.after)
    before, after = ([f"{visible(line)}\n" for line in parted(data)[1].splitlines()] for data in contents)
    first, second = ("/dev/null" if data is None else visible(str(replacement.file)) for data in contents)
    return unified_diff(before, after, first, second)


def _ask(diff: str, plan: Plan) -> None:
    if not can_ask():
        raise NotApproved(str(plan.file), None, "there is no terminal to ask on; --yes writes it")
    trusting = ", and trust what is moved" if plan.moved else ""

    async def ask() -> bool:
        return await says_yes(f"{diff}Write it{trusting}? [y/N] ")

    if not run_async(ask):
        raise NotApproved(str(plan.file), None, "refused at the terminal")


def _make(plan: Plan) -> None:
    """All of it, or nothing."""
    made: list[Replacement] = []
    folders = [folder for replacement in plan.replacements for folder in missing_folders(replacement.file)]
    try:
        for replacement in plan.replacements:
            replacement.make()
            made.append(replacement)
    except ConfigError:
        for replacement in reversed(made):
            Replacement(replacement.file, replacement.after, replacement.before).make()
        _without(folders)
        raise
    _without(plan.folders)


def _without(folders: Iterable[str]) -> None:
    for folder in folders:
        with suppress(OSError):  # something else is in it
            os.rmdir(folder)


def _tell(options: Options, wanted: InstallOptions, place: Place, plan: Plan, diff: str) -> None:
    stays = {name: safe_line(reason) for name, reason in plan.stay.items()}
    if options.as_json:
        change = None if wanted.dry_run else plan.change
        said = {"host": place.host.name, "file": str(place.file), "change": change, "diff": diff}
        write_json({**said, "moved": list(plan.moved), "stay": stays, "notes": list(plan.notes)})
        return
    for name, reason in stays.items():
        warn(f"{name} stays: {reason}")
    for note in plan.notes:
        warn(note)
    if plan.change is None:
        write_line(safe_line(f"installed already in {place.file}"))
    elif not wanted.dry_run:
        number = f"{len(plan.moved)} server{'s' * (len(plan.moved) > 1)}"
        what = f"{number} moved behind {SERVER}" if plan.moved else plan.change
        write_line(safe_line(f"{what} in {place.file}; start {place.host.title} again"))


def _show_hosts(options: Options) -> int:
    rows: list[tuple[str, str, str, int | None, str]] = []
    for host in HOSTS:
        places = {"user": user_place(host), "project": project_place(host)}
        for scope, place in places.items():
            if place is not None and os.path.lexists(place.file):
                try:
                    count, state = status(place)
                except ConfigError as error:
                    count, state = None, error.problem
                rows.append((host.name, scope, str(place.file), count, state))
    absent = [host.name for host in HOSTS if host.name not in {row[0] for row in rows}]
    names = ("host", "scope", "file", "servers", "gateway")
    if options.as_json:
        write_json({"hosts": [dict(zip(names, row, strict=True)) for row in rows], "not_found": absent})
        return OK
    write_rows([name.upper() for name in names], rows)
    if absent:
        warn(f"not found: {', '.join(absent)}")
    return OK
