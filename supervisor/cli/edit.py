"""`mcp-nursery enable`, `disable` and `remove`: one server of a file, and nothing else of it. Starts nothing."""

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.config import discover_config, load_config
from mcp_nursery.supervisor.config.discovery import own_file
from mcp_nursery.supervisor.config.edits import Change, edited
from mcp_nursery.supervisor.config.whole_file import parted, read_bytes, replace_file

from .failures import OK
from .output import safe_line, write_json, write_line
from .runtime import Options, check_server

_DONE = {"enable": "enabled", "disable": "disabled", "remove": "removed"}


def edit(options: Options, server: str, change: Change) -> int:
    """Change the file that the server stands in, and say so."""
    file = _file_of(options, server)
    before = read_bytes(file)
    mark, text = parted(before)
    after = (mark + edited(text, file, server, change)).encode()
    if after != before:
        replace_file(file, after, before=before)
    done = _DONE[change] if after != before else None
    if options.as_json:
        write_json({"server": server, "file": file, "change": done})
    else:
        write_line(safe_line(f"{server}: {done or f'{_DONE[change]} already'} in {file}"))
    return OK


def _file_of(options: Options, server: str) -> str:
    """Of several files that name it, the one whose entry counts."""
    config = load_config(*options.config) if options.config else discover_config(project=False)
    for error in config.errors:
        raise ConfigError(error)
    found = next((spec.source for spec in config.servers if spec.name == server), None)
    if found is not None:
        return found
    theirs = () if options.config else discover_config(user=False).servers
    for spec in theirs:
        if spec.name == server:
            raise ConfigError("it came with a project; --config FILE edits it", file=spec.source, server=server)
    if not config.files:
        raise ConfigError("there is none; name a file with --config FILE", file=str(own_file()))
    check_server(config, server)
    raise ConfigError("a server without a name; edit the file by hand", server=server)
