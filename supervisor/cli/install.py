"""`mcp-nursery install`: the gateway is added to a host's own file; the change is shown first. Starts nothing."""

import os
import sys
from collections.abc import Iterator
from difflib import get_close_matches, unified_diff
from pathlib import Path

from mcp_nursery.actors.errors import ConfigError, NotApproved
from mcp_nursery.supervisor.config.hosts import GATEWAY_ENTRY, HOSTS, HostProgram
from mcp_nursery.supervisor.config.installation import (
    HostFile,
    Plan,
    install,
    place_of,
    project_place,
    status,
    undo,
    user_place,
)
from mcp_nursery.supervisor.config.whole_file import Replacement, split_mark
from mcp_nursery.supervisor.security.untrusted_marks import visible

from .consent import can_ask, says_yes
from .failures import OK
from .output import safe_line, warn, write_json, write_line
from .runtime import Options, run_async
from .tables import write_rows


def install_gateway(
    options: Options,
    host: str | None,
    *,
    scope: str,
    file: Path | None,
    adopt: bool,
    undoing: bool,
    yes: bool,
    dry_run: bool,
) -> int:
    """Print the change, ask, and write it. Without a host: list the hosts."""
    if adopt and undoing:
        raise ConfigError("--adopt and --undo cannot be given together", field="--undo")
    if host is None:
        if scope != "user" or file is not None or adopt or undoing or yes or dry_run:
            raise ConfigError(f"which host? One of {', '.join(each.name for each in HOSTS)}", field="HOST")
        return _show_hosts(options)
    place = _place(host, scope, file)
    plan = undo(place) if undoing else install(place, [_command_path()], adopting=adopt)
    diff = "".join(line for replacement in plan.shown for line in _diff(replacement))
    asking = plan.change is not None and not (yes or dry_run)
    if not options.as_json and diff and not (asking and can_ask()):
        write_line(diff)
    if asking:
        _ask(diff, plan)
    if not dry_run:
        _apply(plan)
    _report(options, place, plan, diff, made=not dry_run)
    return OK


def _place(name: str, scope: str, file: Path | None) -> HostFile:
    host = _host(name)
    if file is not None:
        return place_of(host, file)
    place = project_place(host) if scope == "project" else user_place(host)
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


def _command_path() -> str:
    """The absolute path of the command: a host that was not started in a terminal has another PATH. This is the script,
    as `python -m` would import modules from the folder of the open project."""
    for candidate in (Path(sys.argv[0]), Path(sys.executable).parent / GATEWAY_ENTRY):
        if candidate.name == GATEWAY_ENTRY and os.access(candidate, os.X_OK):
            return os.path.abspath(candidate)
    raise ConfigError(f"the command {GATEWAY_ENTRY} is not beside {sys.executable}; install the package again")


def _diff(replacement: Replacement) -> Iterator[str]:
    """The change as an exact diff, in characters that no terminal obeys."""
    contents = (replacement.before, replacement.after)
    before, after = ([f"{visible(line)}\n" for line in split_mark(data)[1].splitlines()] for data in contents)
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


def _apply(plan: Plan) -> None:
    """Make all replacements, or none."""
    made: list[Replacement] = []
    try:
        for replacement in plan.replacements:
            replacement.make()
            made.append(replacement)
    except ConfigError:
        for replacement in reversed(made):
            Replacement(replacement.file, replacement.after, replacement.before).make()
        raise


def _report(options: Options, place: HostFile, plan: Plan, diff: str, *, made: bool) -> None:
    stays = {name: safe_line(reason) for name, reason in plan.stay.items()}
    if options.as_json:
        change = plan.change if made else None
        backup = str(plan.backup) if made and plan.backup is not None else None
        said = {"host": place.host.name, "file": str(place.file), "change": change, "diff": diff, "backup": backup}
        write_json({**said, "moved": list(plan.moved), "stay": stays, "notes": list(plan.notes)})
        return
    for name, reason in stays.items():
        warn(f"{name} stays: {reason}")
    for note in plan.notes:
        warn(note)
    if plan.change is None:
        write_line(safe_line(f"installed already in {place.file}"))
    elif made:
        number = f"{len(plan.moved)} server{'s' * (len(plan.moved) > 1)}"
        what = f"{number} moved behind {GATEWAY_ENTRY}" if plan.moved else plan.change
        write_line(safe_line(f"{what} in {place.file}; start {place.host.title} again"))
        if plan.backup is not None:
            write_line(safe_line(f"its former content is in {plan.backup.name} beside it, for --undo"))


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
