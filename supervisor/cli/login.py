"""`mcp-nursery login`, `logout` and `auth status`: the tokens of servers that use OAuth."""

import os
import sys
import termios
import time
import webbrowser
from collections.abc import Sequence
from typing import Any

import trio

from mcp_nursery.actors.errors import (
    AuthorizationFailed,
    ConfigError,
    NotApproved,
    StartFailed,
    UnknownServer,
    one_line,
)
from mcp_nursery.actors.http.address import Address
from mcp_nursery.actors.oauth.tokens import TokenKey, Tokens, TokensUnreadable
from mcp_nursery.actors.records import frozen
from mcp_nursery.actors.threads import SLOW_THREADS
from mcp_nursery.supervisor import ServerSpec
from mcp_nursery.supervisor.callbacks import AuthorizationRequest
from mcp_nursery.supervisor.decisions.suggestions import near_names
from mcp_nursery.supervisor.login.token_files import Kept, TokenFile
from mcp_nursery.supervisor.login.token_table import TokenRow
from mcp_nursery.supervisor.login.vault import lasting_vault, resolved_transport, words_of
from mcp_nursery.supervisor.storage.named import store_named
from mcp_nursery.supervisor.transports import UnusableTransport

from .consent import can_ask
from .failures import OK
from .output import safe_line, write_json, write_line
from .runtime import Options, load, run_async
from .tables import write_rows

_LONGEST_PASTE = 16 << 10
"""Bytes of a pasted address."""
_BROWSER_TIMEOUT = 1.0
"""Seconds to wait for the end of a browser's command."""


def login(options: Options, name: str, *, browser: bool) -> int:
    """Let the person at this machine authorise a server, and keep the tokens. The address of the page is always
    printed."""
    spec = _spec(options, name)
    from mcp_nursery.supervisor.login.login import log_in  # loads the SDK, once the entry is known to have a login

    ask = _AskPerson(browser=browser)
    tokens = run_async(lambda: log_in(spec, lasting_vault(store_named(options.state)), ask))
    if options.as_json:
        write_json({"server": spec.name, "authorised": True, "issuer": tokens.issuer, "scope": tokens.scope})
    else:
        write_line(safe_line(f"{spec.name}: authorised{_grant(tokens)}"))
    return OK


def logout(options: Options, name: str) -> int:
    """Remove the tokens of a server."""
    spec = _spec(options, name)

    async def remove() -> bool:
        try:
            return await (await _store(options, spec)).remove()
        except TokensUnreadable as error:
            problem = str(error)
        raise AuthorizationFailed(spec.name, f"its tokens may still exist: {problem}")

    removed = run_async(remove)
    if options.as_json:
        write_json({"server": spec.name, "removed": removed})
    else:
        write_line(safe_line(f"{spec.name}: {'tokens removed' if removed else 'it had no tokens'}"))
    return OK


def auth_status(options: Options) -> int:
    """Print which servers have tokens, and where. No token is printed, and none is read."""
    specs = [spec for spec in load(options).servers if words_of(spec) is not None]
    found = run_async(lambda: _documents(options, specs))
    if options.as_json:
        write_json({"servers": found})
        return OK
    headers = ("server", "authorised", "issuer", "scope", "renewable", "expires_in", "where", "error")
    write_rows([header.upper() for header in headers], ([_cell(one[header]) for header in headers] for one in found))
    return OK


def _cell(value: object) -> str:
    words = {None: "-", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


async def _documents(options: Options, specs: Sequence[ServerSpec]) -> list[dict[str, Any]]:
    return [await _document(options, spec) for spec in specs]


async def _document(options: Options, spec: ServerSpec) -> dict[str, Any]:
    kept: Kept | None = None
    error: str | None = None
    try:
        _check_trusted(options, spec)
        kept = await (await _store(options, spec)).kept()
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


async def _store(options: Options, spec: ServerSpec) -> TokenFile | TokenRow:
    transport = await resolved_transport(spec)
    key = TokenKey.of(Address.of(transport.url).bare, transport.auth)
    return lasting_vault(store_named(options.state)).store(key)


def _spec(options: Options, name: str) -> ServerSpec:
    config = load(options)
    spec = next((spec for spec in config.servers if spec.name == name), None)
    if spec is None:
        raise UnknownServer(name, near=near_names(name, [spec.name for spec in config.servers]))
    if isinstance(spec.transport, UnusableTransport):
        raise spec.transport.error
    if words_of(spec) is None:
        problem = 'it does not use OAuth: correct its headers, or put `"auth": "oauth"` into its entry'
        raise ConfigError(problem, server=name)
    _check_trusted(options, spec)
    return spec


def _check_trusted(options: Options, spec: ServerSpec) -> None:
    """Check that the user trusts an entry of a project's file: its variables and commands are resolved."""
    request = spec.trust_request
    if request is None:
        return
    store = store_named(options.state)
    try:
        agreed = request.is_agreed(store.agreed)
    finally:
        store.close()
    if not agreed:
        raise NotApproved(spec.name, None, f"it {', '.join(request.reasons)}; see mcp-nursery trust {request.file}")


def _grant(tokens: Tokens) -> str:
    issuer = "" if tokens.issuer is None else f" by {tokens.issuer}"
    return issuer + ("" if tokens.scope is None else f", for {tokens.scope}")


@frozen
class _AskPerson:
    """The question to a person: it shows the page, and reads a pasted address at a terminal."""

    browser: bool

    async def __call__(self, request: AuthorizationRequest) -> str | None:
        has_browser = self.browser and _has_browser()
        did = "A browser shows this page" if has_browser else "Open this page in a browser"
        sys.stderr.write(f"{did}, and agree there:\n\n  {request.url}\n\n")
        sys.stderr.flush()  # the answer may come before it is known that the browser was opened
        if has_browser and not await _open_page(request.url):
            sys.stderr.write("No browser could be opened: open the page yourself.\n")
        if not can_ask():
            sys.stderr.flush()
            return None
        sys.stderr.write("If the browser cannot reach this machine, paste its final address here: ")
        sys.stderr.flush()
        return await _read_paste()


async def _open_page(url: str) -> bool:
    """Open the page. True if a browser shows it: after one second that is assumed, since some commands end only with
    the browser."""
    with trio.move_on_after(_BROWSER_TIMEOUT):
        return await SLOW_THREADS.run(webbrowser.open, url, abandon_on_cancel=True)
    return True


def _has_browser() -> bool:
    """True if a browser opens in a window of its own, and not on this terminal."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


async def _read_paste() -> str:
    line = b""
    # Without line editing, because terminals limit the lines that they edit: the address may be longer.
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    raw = list(before)
    raw[3] &= ~termios.ICANON
    termios.tcsetattr(stdin, termios.TCSANOW, raw)
    try:
        while b"\n" not in line and len(line) < _LONGEST_PASTE:
            await trio.lowlevel.wait_readable(stdin)
            part = os.read(stdin, _LONGEST_PASTE)
            line += part or b"\n"
    finally:
        termios.tcsetattr(stdin, termios.TCSANOW, before)
    return line.decode(errors="replace").strip()
