"""`mcp-nursery token`: tokens of clients that `serve --http` admits."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.gateway.auth.bearer_tokens import BearerTokenFile, add_token, remove_token
from mcp_nursery.supervisor.gateway.auth.principal import Principal

from .failures import OK
from .output import write_json, write_line
from .runtime import Options
from .tables import write_rows


def add(options: Options, name: str, file: Path, allow: Sequence[str], days: float | None) -> int:
    """Make a token and print it; only its digest is kept."""
    try:
        expires = None if days is None else datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    except OverflowError:
        raise ConfigError("too many", field="--days") from None
    token = add_token(file, name, allow=allow, expires=expires)
    if options.as_json:
        write_json({"name": name, "token": token, "expires": expires and expires.isoformat()})
    else:
        write_line(token)
    return OK


def show(options: Options, file: Path) -> int:
    """Print the clients of all tokens, with their tools and their ends."""
    found = [_document(principal) for principal in BearerTokenFile(file).principals]
    if options.as_json:
        write_json({"tokens": found})
    else:
        rows = [(each["name"], _tools_allowed(each["allow"]), _end(each["expires"], each["expired"])) for each in found]
        write_rows(("NAME", "ALLOW", "EXPIRES"), rows)
    return OK


def remove(options: Options, name: str, file: Path) -> int:
    """Remove a token."""
    remove_token(file, name)
    if options.as_json:
        write_json({"name": name, "removed": True})
    else:
        write_line(f"{name}: removed; a running gateway admits it for one or two seconds more")
    return OK


def _document(principal: Principal) -> dict[str, Any]:
    allow, expires = principal.access.allow, principal.expires
    ends = None if expires is None else datetime.fromtimestamp(expires, UTC)
    return {
        "name": principal.name,
        "allow": None if allow is None else list(allow),
        "expires": ends and ends.isoformat(),
        "expired": ends is not None and ends <= datetime.now(UTC),
    }


def _tools_allowed(allow: Sequence[str] | None) -> str:
    return "everything" if allow is None else " ".join(allow) or "nothing"


def _end(expires: str | None, expired: bool) -> str:
    return "never" if expires is None else expires + (" (over)" if expired else "")
