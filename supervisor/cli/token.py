"""`mcp-nursery token`: tokens of clients that `serve --http` lets in."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.gateway.token_file import add_token

from .failures import OK
from .output import write_json, write_line
from .runtime import Options


def add(options: Options, name: str, file: Path, allow: Sequence[str], days: float | None) -> int:
    """Make a token and print it: it is kept nowhere."""
    try:
        expires = None if days is None else datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    except OverflowError:
        raise ConfigError("too many", field="--days") from None
    token = add_token(file, name, allow=allow, expires=expires)
    if options.as_json:
        write_json({"name": name, "token": token, "expires": None if expires is None else expires.isoformat()})
    else:
        write_line(token)
    return OK
