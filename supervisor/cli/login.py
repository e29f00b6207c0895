"""`mcp-nursery login`, `logout` and `auth status`: the tokens of servers that want a person to agree."""

import os
import sys
import termios
import time
import webbrowser
from collections.abc import Sequence
from typing import Any

import trio
from attrs import frozen

from mcp_nursery.actors.errors import (
    AuthorizationFailed,
    ConfigError,
    NotApproved,
    StartFailed,
    UnknownServer,
    one_line,
)
from mcp_nursery.actors.transports.http.address import Address
from mcp_nursery.actors.transports.http.tokens import TokenKey, Tokens, TokensUnreadable
from mcp_nursery.supervisor import ServerSpec
from mcp_nursery.supervisor.auth.login import log_in, resolved
from mcp_nursery.supervisor.auth.token_files import Kept, TokenFile
from mcp_nursery.supervisor.auth.vault import token_folder, words_of
from mcp_nursery.supervisor.callbacks import AuthorizationRequest
from mcp_nursery.supervisor.catalogue.suggestions import near_names
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.storage.sqlite import SqliteStore
from mcp_nursery.supervisor.transports import UnusableTransport

from .calling import can_ask
from .failures import OK
from .output import safe_line, write_json, write_line
from .runtime import Options, load, run_async
from .tables import write_rows

_LONGEST = 16 << 10
"""Bytes of what is pasted."""
_OPENING = 1.0
"""Seconds that a browser's command is waited for."""


@frozen
class LoginOptions:
    """What `login` can be told besides."""

    name: str
    browser: bool = True
    """Whether a browser is opened; the page's address is shown in any case."""


def login(options: Options, wanted: LoginOptions) -> int:
    """Have the person at this machine authorise a server; keep the tokens."""
    spec = _spec(load(options), wanted.name)
    ask = _Ask(browser=wanted.browser)
    tokens = run_async(lambda: log_in(spec, token_folder(SqliteStore()), ask))
    if options.as_json:
        write_json({"server": spec.name, "authorised": True, "issuer": tokens.issuer, "scope": tokens.scope})
    else:
        write_line(safe_line(f"{spec.name}: authorised{_by(tokens)}"))
    return OK


def logout(options: Options, name: str) -> int:
    """Keep the tokens of a server no more."""
    spec = _spec(load(options), name)

    async def remove() -> bool:
        try:
            return await (await _store(spec)).remove()
        except TokensUnreadable as error:
            problem = str(error)
        raise AuthorizationFailed(spec.name, f"its tokens may be there still: {problem}")

    removed = run_async(remove)
    if options.as_json:
        write_json({"server": spec.name, "removed": removed})
    else:
        write_line(safe_line(f"{spec.name}: {'its tokens are removed' if removed else 'there were no tokens'}"))
    return OK


def auth_status(options: Options) -> int:
    """Show which servers have tokens, and where. No token is shown, and none is read."""
    specs = [spec for spec in load(options).servers if words_of(spec) is not None]
    found = run_async(lambda: _found(specs))
    if options.as_json:
        write_json({"servers": found})
        return OK
    headers = ("server", "authorised", "issuer", "scope", "renewable", "expires_in", "where", "error")
    write_rows([header.upper() for header in headers], ([_cell(one[header]) for header in headers] for one in found))
    return OK


def _cell(value: object) -> str:
    words = {None: "-", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


async def _found(specs: Sequence[ServerSpec]) -> list[dict[str, Any]]:
    return [await _state(spec) for spec in specs]


async def _state(spec: ServerSpec) -> dict[str, Any]:
    kept: Kept | None = None
    error: str | None = None
    try:
        _check_trusted(spec)
        kept = await (await _store(spec)).kept()
    except (TokensUnreadable, StartFailed, NotApproved) as problem:
        error = one_line(problem)
    ends = None if kept is None or kept.expires_at is None else max(0, round(kept.expires_at - time.time()))
    return {
        "server": spec.name,
        "authorised": kept is not None and (kept.renewable or ends != 0),
        "issuer": kept and kept.issuer,
        "scope": kept and kept.scope,
        "renewable": kept and kept.renewable,
        "expires_in": ends,
        "where": kept and kept.where,
        "error": error,
    }


async def _store(spec: ServerSpec) -> TokenFile:
    transport = await resolved(spec)
    key = TokenKey.of(Address.of(transport.url).bare, transport.auth)
    return token_folder(SqliteStore()).store(key)


def _spec(config: Config, name: str) -> ServerSpec:
    spec = next((spec for spec in config.servers if spec.name == name), None)
    if spec is None:
        raise UnknownServer(name, near=near_names(name, [spec.name for spec in config.servers]))
    if isinstance(spec.transport, UnusableTransport):
        raise spec.transport.error
    if words_of(spec) is None:
        raise ConfigError('it has no OAuth: `"auth": "oauth"` gives it that', server=name)
    _check_trusted(spec)
    return spec


def _check_trusted(spec: ServerSpec) -> None:
    """Its variables and commands are resolved: nothing of a project's file is before its user has agreed to it."""
    request = spec.trust_request
    if request is None:
        return
    store = SqliteStore()
    try:
        agreed = request.is_agreed(store.agreed)
    finally:
        store.close()
    if not agreed:
        raise NotApproved(spec.name, None, f"it {', '.join(request.reasons)}; see mcp-nursery trust {request.file}")


def _by(tokens: Tokens) -> str:
    issuer = "" if tokens.issuer is None else f" by {tokens.issuer}"
    return issuer + ("" if tokens.scope is None else f", for {tokens.scope}")


@frozen
class _Ask:
    """Shows the page; and takes what is pasted, where there is somebody to paste."""

    browser: bool

    async def __call__(self, request: AuthorizationRequest) -> str | None:
        has_browser = self.browser and _has_browser()
        did = "A browser shows this page" if has_browser else "Open this page in a browser"
        sys.stderr.write(f"{did}, and agree there:\n\n  {request.url}\n\n")
        sys.stderr.flush()  # a browser may be back before it is known that it was opened
        if has_browser and not await _opened(request.url):
            sys.stderr.write("No browser could be opened: open the page in one.\n")
        if not can_ask():
            sys.stderr.flush()
            return None
        sys.stderr.write("If the browser cannot come back here, paste the address that it ends at: ")
        sys.stderr.flush()
        return await _pasted()


async def _opened(url: str) -> bool:
    """Whether a browser shows it. Some commands end only with the browser: one that goes on for a second does."""
    with trio.move_on_after(_OPENING):
        return await trio.to_thread.run_sync(webbrowser.open, url, abandon_on_cancel=True)
    return True


def _has_browser() -> bool:
    """Whether one opens in a window of its own, and not on this terminal."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


async def _pasted() -> str:
    line = b""
    # Not with the limit that terminals have for the lines that they let people edit: the address may be longer.
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    raw = list(before)
    raw[3] &= ~termios.ICANON
    termios.tcsetattr(stdin, termios.TCSANOW, raw)
    try:
        while b"\n" not in line and len(line) < _LONGEST:
            await trio.lowlevel.wait_readable(stdin)
            part = os.read(stdin, _LONGEST)
            line += part or b"\n"
    finally:
        termios.tcsetattr(stdin, termios.TCSANOW, before)
    return line.decode(errors="replace").strip()
