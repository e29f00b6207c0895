"""`mcp-nursery logs` where no host runs: what a server's process writes to standard error on its way to `connected`, or
to failure."""

from attrs import evolve

from mcp_nursery.actors.errors import UnknownServer
from mcp_nursery.supervisor.catalogue.suggestions import near_names
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.status import ServerStatus

from .output import safe_text, warn, write_json, write_line
from .runtime import Options, load, run_async, servers_of
from .statuses import documents, error_of, worked


def log(options: Options, name: str, *, host: str | None, follow: bool) -> int:
    """The log of a server of a running host, or else of one that is started for it."""
    from .attached import attached_log
    from .hosts import HostOptions, has_server

    async def runs() -> bool:
        return await has_server(name)

    named = options.config or options.trust or not options.project
    if follow or host is not None or (not named and run_async(runs)):
        return attached_log(options, HostOptions(host), name, follow=follow)
    return show_log(options, name)


def show_log(options: Options, name: str) -> int:
    """Start this server alone, wait for it, print the end of its log, stop it. Fails if it does not work."""
    config = _only(load(options), name)

    async def look() -> tuple[ServerStatus, ...]:
        async with servers_of(config) as supervisor:
            return supervisor.status()

    (status,) = run_async(look)
    if options.as_json:
        (document,) = documents([status])
        write_json({key: document[key] for key in ("name", "state", "error", "stderr_tail")})
    else:
        _print(status)
    return worked([status])


def _only(config: Config, name: str) -> Config:
    chosen = tuple(spec for spec in config.servers if spec.name == name)
    if not chosen:
        raise UnknownServer(name, near=near_names(name, [spec.name for spec in config.servers]))
    return evolve(config, servers=chosen)


def _print(status: ServerStatus) -> None:
    for line in (status.stderr_tail or "").splitlines():
        write_line(safe_text(line))
    if error := error_of(status):
        warn(f"{status.name}: {error}")
    elif not status.stderr_tail:
        warn(f"{status.name}: it is {status.state} and has written nothing to standard error")
