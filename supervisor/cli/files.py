"""`mcp-nursery check`, `enable`, `disable`, `remove` and `import`: files with servers. Starts none of them."""

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.resources import files as resource_files
from pathlib import Path
from typing import Any

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor import ServerSpec, load_config
from mcp_nursery.supervisor.config import Config, discover_config
from mcp_nursery.supervisor.config.deferred import problem_with
from mcp_nursery.supervisor.config.discovery import EntryOrigin, own_file, user_files
from mcp_nursery.supervisor.config.edits import Change, edit_text
from mcp_nursery.supervisor.config.hosts import is_gateway
from mcp_nursery.supervisor.config.loader import File, read_file, read_found, warnings_of
from mcp_nursery.supervisor.config.variables import texts_of
from mcp_nursery.supervisor.config.whole_file import read_bytes, replace_file, split_mark
from mcp_nursery.supervisor.storage.named import store_named
from mcp_nursery.supervisor.storage.store import StoreUnreadable
from mcp_nursery.supervisor.transports import UnusableTransport

from .failures import OK, USAGE
from .output import safe_line, warn, write_json, write_line
from .runtime import Options, check_server, read_config, run_async
from .tables import write_rows

# -- check ------------------------------------------------------------------------------------------------------------


def check(options: Options, *, schema: bool) -> int:
    """Read the files and print the errors in them; with `schema`, print the JSON Schema of our own files."""
    if schema:
        write_line(resource_files("mcp_nursery.supervisor.config").joinpath("schema.json").read_text())
        return OK
    configs, problems = _read(options)
    specs = [spec for each in configs for spec in each.servers]
    servers = run_async(partial(documents_of, options, specs))
    problems += [server["error"] for server in servers if server["error"]]
    for warning in (warning for each in configs for warning in each.warnings):
        warn(f"warning: {warning}")
    for note in (note for each in configs for note in each.replaced):
        warn(note)
    if options.as_json:
        write_json({"ok": not problems, "servers": servers, "errors": problems})
        return USAGE if problems else OK
    pairs = zip(servers, specs, strict=True)
    rows = [(each["name"], each["transport"], spec.origin, _verdict(each)) for each, spec in pairs]
    write_rows(("SERVER", "TRANSPORT", "SOURCE", "ENTRY"), rows)
    for problem in problems:
        warn(problem)
    return USAGE if problems else OK


def _read(options: Options) -> tuple[list[Config], list[str]]:
    if not options.config:
        config = read_config(options)
        return [config], list(config.errors)
    configs: list[Config] = []
    problems: list[str] = []
    for file in options.config:
        try:
            configs.append(load_config(file))
        except ConfigError as error:
            problems.append(error.fact)
    # Together, because an entry of a later file replaces one of an earlier file.
    return (configs if problems else [load_config(*options.config)]), problems


async def documents_of(options: Options, specs: Sequence[ServerSpec]) -> list[dict[str, Any]]:
    """Describe the entries, as far as they can be known without a start: whether they are trusted, and their errors."""
    return [await _document(options, spec) for spec in specs]


async def _document(options: Options, spec: ServerSpec) -> dict[str, Any]:
    transport = spec.transport
    trusted = _is_trusted(options, spec)
    problem = transport.error if isinstance(transport, UnusableTransport) else None
    if problem is None and spec.enabled:  # a disabled entry may be meant for another machine
        problem = await problem_with(spec, trusted=trusted)
    return {
        "name": spec.name,
        "transport": transport.kind,
        "source": spec.source,
        "trusted": trusted,
        "error": None if problem is None else str(problem),
    }


def _is_trusted(options: Options, spec: ServerSpec) -> bool:
    if spec.trust_request is None:
        return True
    store = store_named(options.state)
    try:
        return spec.trust_request.is_agreed(store.agreed)
    except StoreUnreadable as error:
        warn(f"{spec.name}: {error}")
        return False
    finally:
        store.close()


def _verdict(server: dict[str, Any]) -> str:
    if server["error"]:
        return "unusable"
    return "ok" if server["trusted"] else "not trusted"


# -- enable, disable, remove ------------------------------------------------------------------------------------------

_DONE = {"enable": "enabled", "disable": "disabled", "remove": "removed"}


def edit(options: Options, name: str, *, change: Change) -> int:
    """Change the entry of one server in its file, and nothing else of the file."""
    file = _file_of(options, name)
    before = read_bytes(file)
    mark, text = split_mark(before)
    after = (mark + edit_text(text, file, name, change)).encode()
    if after != before:
        replace_file(file, after, before=before)
    done = _DONE[change] if after != before else None
    if options.as_json:
        write_json({"server": name, "file": file, "change": done})
    else:
        write_line(safe_line(f"{name}: {done or f'{_DONE[change]} already'} in {file}"))
    return OK


def _file_of(options: Options, server: str) -> str:
    """The file with the entry of a server; of several, the one whose entry counts."""
    config = load_config(*options.config) if options.config else discover_config(project=False)
    for error in config.errors:
        raise ConfigError(error)
    own = next((spec.source for spec in config.servers if spec.name == server), None)
    if own is not None:
        return own
    for spec in () if options.config else discover_config(user=False).servers:
        if spec.name == server:
            raise ConfigError("it comes with a project; --config FILE edits it", file=spec.source, server=server)
    if not config.files:
        raise ConfigError("does not exist; name a file with --config FILE", file=str(own_file()))
    check_server(config, server)
    raise ConfigError("a server without a name; edit the file by hand", server=server)


# -- import -----------------------------------------------------------------------------------------------------------


def import_servers(options: Options, files: Sequence[Path], *, to: Path | None, force: bool) -> int:
    """Copy the servers of these files, or of other hosts' files in the user's home, into one file, and print what was
    left out. A project's file has to be named: what is written is trusted."""
    target = to or own_file()
    if os.path.lexists(target) and not force:
        raise ConfigError("exists already; --force overwrites it, --to FILE writes elsewhere", file=str(target))
    sources, left = _files(files)
    servers: dict[str, tuple[Mapping[str, Any], ServerSpec]] = {}
    for file in sources:
        left += _left_out(file)
        for name, entry in file.entries:
            if not (isinstance(entry.spec.transport, UnusableTransport) or is_gateway(entry.own)):
                if name in servers:
                    left.append(f"{servers[name][1].source}: server {name!r}: {file.path} overrides it")
                servers[name] = entry.own, entry.spec
    if not servers:
        raise ConfigError("there is nothing to import; name the files: mcp-nursery import FILE")
    written = {"mcpServers": {name: entry for name, (entry, _) in servers.items()}}
    replace_file(str(target), f"{json.dumps(written, indent=2)}\n".encode())
    for line in left:
        warn(line)
    if options.as_json:
        write_json({"file": str(target), "servers": sorted(servers), "left_out": left})
    else:
        write_line("\n".join(spec.label for _, spec in servers.values()))
        write_line(f"written to {target}")
    return OK


def _files(named: Sequence[Path]) -> tuple[list[File], list[str]]:
    if named:
        return [read_file(EntryOrigin(str(file))) for file in named], []
    others = [origin for origin in user_files(hosts=True) if origin.file != str(own_file())]
    read, errors = read_found(others)
    return read, list(errors)


def _left_out(file: File) -> list[str]:
    left: list[str] = []
    for name, entry in file.entries:
        transport = entry.spec.transport
        if is_gateway(entry.own):
            left.append(f"{file.path}: server {name!r}: it is mcp-nursery itself")
            continue
        if isinstance(transport, UnusableTransport):
            left.append(str(transport.error))
            continue
        left += [line for _, line in warnings_of(file.path, name, entry, before=len(left))]
        if any("${workspaceFolder" in text for text in texts_of(dict(entry.own))):
            left.append(f"{file.path}: server {name!r}: ${{workspaceFolder}} becomes the working directory")
        left += [
            f"{file.path}: server {name!r}: its {key} becomes relative to the working directory"
            for key in ("cwd", "envFile")
            if key in entry.own and not entry.own[key].startswith(("/", "${"))
        ]
    return left
