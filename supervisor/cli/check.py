"""`mcp-nursery check`: whether a configuration can work, here and now. Starts nothing and runs nothing."""

from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from typing import Any

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor import ServerSpec, load_config
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.config.preflight import problem_with
from mcp_nursery.supervisor.storage.sqlite import SqliteStore
from mcp_nursery.supervisor.storage.store import StoreUnreadable
from mcp_nursery.supervisor.transports import UnusableTransport

from .failures import OK, USAGE
from .output import warn, write_json, write_line
from .runtime import Options, found, run_async
from .tables import write_rows


def check(options: Options) -> int:
    """Read the files and say what is wrong with them."""
    config, problems = _read(options)
    specs = [spec for each in config for spec in each.servers]
    servers = run_async(partial(_documents, specs))
    problems += [server["error"] for server in servers if server["error"]]
    for warning in (warning for each in config for warning in each.warnings):
        warn(f"warning: {warning}")
    for note in (note for each in config for note in each.replaced):
        warn(note)
    if options.as_json:
        write_json({"ok": not problems, "servers": servers, "errors": problems})
    else:
        _print(servers, [spec.origin for spec in specs], problems)
    return USAGE if problems else OK


def print_schema(_options: Options) -> int:
    """Print the JSON Schema of our own files."""
    write_line(files("mcp_nursery.supervisor.config").joinpath("schema.json").read_text())
    return OK


def _read(options: Options) -> tuple[list[Config], list[str]]:
    if not options.config:
        config = found(options)
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


async def _documents(specs: Sequence[ServerSpec]) -> list[dict[str, Any]]:
    return [await _document(spec) for spec in specs]


async def _document(spec: ServerSpec) -> dict[str, Any]:
    transport = spec.transport
    trusted = _is_trusted(spec)
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


def _is_trusted(spec: ServerSpec) -> bool:
    if spec.trust_request is None:
        return True
    store = SqliteStore()
    try:
        return spec.trust_request.is_agreed(store.agreed)
    except StoreUnreadable as error:
        warn(f"{spec.name}: {error}")
        return False
    finally:
        store.close()


def _print(servers: Sequence[dict[str, Any]], origins: Sequence[str], problems: Sequence[str]) -> None:
    headers = ("SERVER", "TRANSPORT", "SOURCE", "ENTRY")
    rows = [
        (each["name"], each["transport"], origin, _verdict(each)) for each, origin in zip(servers, origins, strict=True)
    ]
    write_rows(headers, rows)
    for problem in problems:
        warn(problem)


def _verdict(server: dict[str, Any]) -> str:
    if server["error"]:
        return "unusable"
    return "ok" if server["trusted"] else "not trusted"
