"""`mcp-nursery check`: whether a configuration can work. Starts nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor import Config, ServerSpec, load_config
from mcp_nursery.supervisor.spec import UnusableTransport

from .failures import OK, USAGE
from .output import warn, write_json, write_rows
from .runtime import Options, required_files


def check(options: Options) -> int:
    """Read the files and say what is wrong with them."""
    config, problems = _read(required_files(options))
    servers = [_document(spec) for each in config for spec in each.servers]
    problems += [server["error"] for server in servers if server["error"]]
    for warning in (warning for each in config for warning in each.warnings):
        warn(f"warning: {warning}")
    if options.as_json:
        write_json({"ok": not problems, "servers": servers, "errors": problems})
    else:
        _print(servers, problems)
    return USAGE if problems else OK


def _read(files: Sequence[Path]) -> tuple[list[Config], list[str]]:
    configs: list[Config] = []
    problems: list[str] = []
    for file in files:
        try:
            configs.append(load_config(file))
        except ConfigError as error:
            problems.append(str(error))
    # Together, because an entry of a later file replaces one of an earlier file.
    return (configs if problems else [load_config(*files)]), problems


def _document(spec: ServerSpec) -> dict[str, Any]:
    transport = spec.transport
    return {
        "name": spec.name,
        "transport": transport.kind,
        "source": spec.source,
        "trusted": True,
        "error": str(transport.error) if isinstance(transport, UnusableTransport) else None,
    }


def _print(servers: Sequence[dict[str, Any]], problems: Sequence[str]) -> None:
    headers = ("SERVER", "TRANSPORT", "SOURCE", "ENTRY")
    entries = [(each, "unusable" if each["error"] else "ok") for each in servers]
    write_rows(headers, [(each["name"], each["transport"], each["source"], verdict) for each, verdict in entries])
    for problem in problems:
        warn(problem)
