"""The page over HTTP: what answers under `/ui`.

Each document is made here, whole, so that it can be read without a script. A script that comes with it follows the
changes of its parts over one stream of events: only what has changed is sent, and a part is replaced as it is sent.
Acts are forms: what one does is asked about first where it cannot be undone, and its outcome stands on the next page.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from secrets import token_urlsafe
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

import orjson
import trio

from mcp_nursery.actors.errors import NurseryError, UnknownServer
from mcp_nursery.actors.nurseries import open_bare_nursery, run_alongside
from mcp_nursery.supervisor.gateway import Refused
from mcp_nursery.supervisor.gateway.auth.principal import RETRY_AFTER
from mcp_nursery.supervisor.gateway.http.exchange import Attendance, HttpExchange, Message

from ..output import safe_text
from .acts import ACTS, FormFields, PageHost, confirm_page, perform
from .clients_page import ClientsPage
from .history import History
from .layout import Flash, document, url
from .markup import Html, h
from .overview import Overview
from .server_page import ServerPage
from .sign_in import sign_in_form
from .tool_page import ToolPage
from .visitors import BROWSER, MOST_SECONDS, TOKEN, Visitor, Visitors, check_origin, cookie

PULSE: Final = 1.0
"""Seconds between two looks at what changes without an event: calls, sessions."""
THROTTLE: Final = 0.1
"""Seconds between two messages to one browser: an event is seen within 0.2 s."""
MOST_PAGES: Final = 64
"""Streams of changes at once: a browser has one for each page that is open."""
MOST_RENDERED: Final = 64
"""Documents that were sent whose stream of changes has yet to come; of others it begins with all parts."""
MOST_FLASHES: Final = 1_000
"""Browsers whose message was not shown yet."""
LARGEST_FORM: Final = 1 << 20
"""Bytes of a form."""
MOST_FIELDS: Final = 1_000
"""FormFields of a form."""
_AT_ONCE: Final = 25
"""Parts that are made in one turn of the loop."""
_HTML: Final = b"text/html; charset=utf-8"
_KINDS: Final = {"css": b"text/css; charset=utf-8", "js": b"text/javascript; charset=utf-8", "svg": b"image/svg+xml"}
SAFETY: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every response: nothing runs that does not come from here, and no other page frames or reads this one."""

AnyPage: TypeAlias = Overview | ServerPage | ClientsPage
Signatures: TypeAlias = dict[str, object]
"""The parts that a browser was sent: by the id of each, all that it shows."""


class WebPage:
    """The page of a supervisor, and perhaps of the gateway in front of it. See `open_page`."""

    def __init__(
        self,
        host: PageHost,
        history: History,
        attendance: Attendance,
        visitors: Visitors,
    ) -> None:
        self._host = host
        self._supervisor = host.supervisor
        self._history = history
        self._attendance = attendance
        self._visitors = visitors
        self._streams = 0
        self._rendered: OrderedDict[str, Signatures] = OrderedDict()
        self._flashes: OrderedDict[str, Flash] = OrderedDict()

    async def __call__(self, exchange: HttpExchange, scope: Message) -> Callable[[HttpExchange], Awaitable[None]]:
        """Identify the visitor of a request. Returns what answers it.

        Raises:
            Refused: A page of another origin has sent it.
        """
        exchange.answer_headers.update(SAFETY)
        check_origin(exchange)
        visitor = await self._visitors.identify(exchange, scope)
        exchange.client = visitor.principal
        query = dict(parse_qsl(bytes(scope.get("query_string", b"")).decode("latin-1"), max_num_fields=MOST_FIELDS))
        return partial(self._serve, visitor, query, scope)

    async def _serve(self, visitor: Visitor, query: FormFields, scope: Message, exchange: HttpExchange) -> None:
        path = exchange.path.removeprefix("/ui").rstrip("/") or "/"
        if visitor.is_new:
            secure = scope.get("scheme") == "https"
            exchange.answer_headers["set-cookie"] = cookie(BROWSER, visitor.browser, secure=secure)
        if exchange.method == "POST":
            await self._post(path, visitor, scope, exchange)
        elif exchange.method != "GET":
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "method not allowed", {"allow": "GET, POST"})
        elif path.startswith("/static/"):
            await _send_file(path.removeprefix("/static/"), exchange)
        elif not visitor.may_look:
            await self._ask_for_token(visitor, exchange)
        elif path == "/live":
            await self._follow(visitor, query, exchange)
        elif path == "/tool":
            shown = ToolPage(self._supervisor, visitor, query.get("server", ""), query.get("tool", ""))
            await self._send(exchange, shown.document({}), status=shown.status)
        else:
            await self._show(path, visitor, query, exchange)

    # -- documents ------------------------------------------------------------------------------------------------

    def _page(self, path: str, visitor: Visitor, query: FormFields) -> AnyPage:
        """The page at this path.

        Raises:
            Refused: There is none.
        """
        if path == "/":
            return Overview(self._supervisor, self._history, visitor)
        if path == "/server" and "name" in query:
            return ServerPage(self._supervisor, self._history, visitor, query["name"])
        if path == "/clients" and self._host.clients is not None:
            return ClientsPage(self._host.clients, self._host.replicas, visitor)
        raise Refused(HTTPStatus.NOT_FOUND, "not found")

    async def _show(self, path: str, visitor: Visitor, query: FormFields, exchange: HttpExchange) -> None:
        page = self._page(path, visitor, query)
        self._history.refresh()
        try:
            parts = page.parts()
        except UnknownServer as error:
            gone = document("Not here", visitor, h("p", str(error)))
            await self._send(exchange, gone, status=HTTPStatus.NOT_FOUND)
            return
        made = await _rendered([(part, part.render) for part in parts])
        name = token_urlsafe(9)
        self._rendered[name] = {part.id: part.signature for part in parts}
        while len(self._rendered) > MOST_RENDERED:
            self._rendered.popitem(last=False)
        live = _live_url(path, name, query)
        flash = self._flashes.pop(visitor.browser, None)
        content = page.content(list(zip(parts, made, strict=True)))
        await self._send(exchange, document(page.title, visitor, content, live=live, flash=flash))

    async def _ask_for_token(self, visitor: Visitor, exchange: HttpExchange, problem: str | None = None) -> None:
        status = HTTPStatus.FORBIDDEN if visitor.principal is not None else HTTPStatus.UNAUTHORIZED
        await self._send(exchange, sign_in_form(visitor, problem), status=status)

    async def _send(self, exchange: HttpExchange, text: str, *, status: int = HTTPStatus.OK) -> None:
        await exchange.answer(text.encode(errors="replace"), status, _HTML)

    # -- changes --------------------------------------------------------------------------------------------------

    async def _follow(self, visitor: Visitor, query: FormFields, exchange: HttpExchange) -> None:
        """Send the changes of a page, until its browser goes."""
        page = self._page(query.get("page", "/"), visitor, query)
        if self._streams >= MOST_PAGES:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open", RETRY_AFTER)
        exchange.begin_stream()
        self._streams += 1
        self._attendance.begin(exchange)
        try:
            await exchange.open_stream()
            known = self._rendered.pop(query.get("rendered", ""), None)
            async with run_alongside(partial(self._follow_stderr, page, exchange)):
                await self._send_changes(page, known, exchange)
            await exchange.end()
        finally:
            await self._attendance.end(exchange)
            self._streams -= 1

    async def _send_changes(self, page: AnyPage, known: Signatures | None, exchange: HttpExchange) -> None:
        sent: Signatures = known or {}
        whole = known is None  # the browser has a page that is not known here: what is gone since has to go there, too
        while True:
            changed = self._history.changed
            try:
                parts = page.parts()
            except UnknownServer:
                await exchange.event(b'{"gone": true}')
                return
            fresh = [part for part in parts if part.id not in sent or sent[part.id] != part.signature]
            there = {part.id for part in parts}
            message: dict[str, Any] = {}
            if fresh:
                message["put"] = await _rendered([(part, part.render) for part in fresh])
            if gone := sent.keys() - there:
                message["drop"] = sorted(gone)
            if whole:
                message["all"] = sorted(there)
            if message:
                await exchange.event(orjson.dumps(message))
            sent, whole = {part.id: part.signature for part in parts}, False
            await trio.sleep(THROTTLE)
            with trio.move_on_after(PULSE) as pulse:
                await changed.wait()
            if pulse.cancelled_caught:
                self._history.refresh()

    async def _follow_stderr(self, page: AnyPage, exchange: HttpExchange) -> None:
        if not isinstance(page, ServerPage):
            return
        with suppress(NurseryError):  # it was removed, or its servers are borrowed: there are no lines
            async with self._supervisor.stderr(page.title) as lines:
                async for line in lines:
                    more = [line]
                    with suppress(trio.WouldBlock, trio.EndOfChannel):
                        while len(more) < _AT_ONCE:
                            more.append(lines.receive_nowait())
                    await exchange.event(orjson.dumps({"text": [["stderr", safe_text("\n".join(more)) + "\n"]]}))
                    await trio.sleep(THROTTLE)

    # -- forms ----------------------------------------------------------------------------------------------------

    async def _post(self, path: str, visitor: Visitor, scope: Message, exchange: HttpExchange) -> None:
        form = await _form(exchange)
        self._visitors.check_form(visitor, form.get("csrf", ""))
        secure = scope.get("scheme") == "https"
        if path == "/login" and self._visitors.needs_token:
            await self._log_in(form, visitor, scope, exchange)
        elif path == "/logout":
            exchange.answer_headers["set-cookie"] = cookie(TOKEN, "", seconds=0, secure=secure)
            await _redirect(exchange, "/ui")
        elif path not in ("/act", "/tool"):
            raise Refused(HTTPStatus.NOT_FOUND, "not found")
        elif not visitor.may_act:
            raise Refused(HTTPStatus.FORBIDDEN, "this token may look and not act: it needs --allow /ui/act")
        elif path == "/tool":
            page = ToolPage(self._supervisor, visitor, form.get("server", ""), form.get("tool", ""))
            await self._send(exchange, await page.answer(form), status=page.status)
        else:
            await self._act(form, visitor, exchange)

    async def _log_in(self, form: FormFields, visitor: Visitor, scope: Message, exchange: HttpExchange) -> None:
        token = form.get("token", "").strip()
        principal = await self._visitors.principal_of(token, scope) if token else None
        if principal is None:
            await self._ask_for_token(visitor, exchange, "No client has this token, or it has expired.")
            return
        if not principal.access.has_page:
            await self._ask_for_token(visitor, exchange, "This token may not look at the page: it needs --allow /ui.")
            return
        sealed = self._visitors.seal(token, visitor.browser)
        if sealed is None:
            await self._ask_for_token(visitor, exchange, "This token is too long for a browser to keep.")
            return
        secure = scope.get("scheme") == "https"
        exchange.answer_headers["set-cookie"] = cookie(TOKEN, sealed, seconds=MOST_SECONDS, secure=secure)
        await _redirect(exchange, "/ui")

    async def _act(self, form: FormFields, visitor: Visitor, exchange: HttpExchange) -> None:
        act = ACTS.get(form.get("act", ""))
        if act is None:
            raise Refused(HTTPStatus.BAD_REQUEST, "no such act")
        question = None if form.get("sure") == "yes" else act.question(self._host, form)
        if question is not None:
            await self._send(exchange, confirm_page(visitor, act, question, form))
            return
        flash = await perform(act, self._host, form)
        self._flashes[visitor.browser] = flash
        while len(self._flashes) > MOST_FLASHES:
            self._flashes.popitem(last=False)
        await _redirect(exchange, act.back(form))


def _live_url(path: str, rendered: str, query: FormFields) -> str:
    return url("/live", page=path, rendered=rendered, **({"name": query["name"]} if "name" in query else {}))


async def _rendered(renders: Sequence[tuple[Any, Callable[[], Html]]]) -> list[Html]:
    """The markup of parts, some in each turn of the loop."""
    made: list[Html] = []
    for number, (_, render) in enumerate(renders, 1):
        made.append(render())
        if number % _AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    return made


async def _form(exchange: HttpExchange) -> FormFields:
    """The fields of a form.

    Raises:
        Refused: It is no form, or too large.
    """
    kind = exchange.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "not a form")
    body, more = bytearray(), True
    with trio.move_on_after(30) as slow:
        while more:
            message = await exchange.receive()
            if message["type"] == "http.disconnect":
                raise Refused(HTTPStatus.BAD_REQUEST, "the form is not whole")
            body += message.get("body", b"")
            more = bool(message.get("more_body"))
            if len(body) > LARGEST_FORM:
                raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the form is too large")
    if slow.cancelled_caught:
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, "the form took too long")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST, "not a form") from None


async def _redirect(exchange: HttpExchange, where: str) -> None:
    exchange.answer_headers["location"] = where
    await exchange.end(HTTPStatus.SEE_OTHER)


@lru_cache
def _static(name: str) -> tuple[bytes, str]:
    """A file that comes with the page, and its digest."""
    content = (files("mcp_nursery.supervisor.cli.web") / "static" / name).read_bytes()
    return content, f'"{sha256(content).hexdigest()[:32]}"'


async def _send_file(name: str, exchange: HttpExchange) -> None:
    if name not in ("live.js", "style.css", "icon.svg"):
        raise Refused(HTTPStatus.NOT_FOUND, "not found")
    content, tag = _static(name)
    exchange.answer_headers.update({"etag": tag, "cache-control": "no-cache"})
    if exchange.headers.get("if-none-match") == tag:
        await exchange.end(HTTPStatus.NOT_MODIFIED)
    else:
        await exchange.answer(content, kind=_KINDS[name.rpartition(".")[2]])


@asynccontextmanager
async def open_page(host: PageHost, visitors: Visitors) -> AsyncGenerator[WebPage, None]:
    """The page of a host, for as long as the block lasts.

    Args:
        host: All that it shows and acts on.
        visitors: Who may look and act.
    """
    history = History(host.supervisor)
    async with open_bare_nursery() as nursery:
        nursery.start_soon(history.run)
        try:
            yield WebPage(host, history, Attendance(nursery), visitors)
        finally:
            nursery.cancel_scope.cancel()
