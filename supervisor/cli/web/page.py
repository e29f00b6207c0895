"""The page over HTTP: the answers under `/ui`.

Each document is made here, whole, so that it can be read without a script. A script that comes with it follows the
changes of its parts over one stream of events: only what has changed is sent, and a part is replaced when it arrives.
Acts are forms: an act that cannot be undone is asked about first, and its outcome is shown on the next page.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache, partial
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from secrets import token_urlsafe
from typing import Final
from urllib.parse import parse_qsl

import trio

from mcp_nursery.actors.errors import UnknownServer
from mcp_nursery.actors.nurseries import open_bare_nursery
from mcp_nursery.supervisor.gateway import Refused
from mcp_nursery.supervisor.gateway.auth.principal import RETRY_AFTER
from mcp_nursery.supervisor.gateway.http.exchange import Attendance, HttpExchange, Message

from .acts import ACTS, FormFields, PageHost, confirm_page, perform, pressed, sign_in_form
from .clients_page import ClientsPage, TasksPage
from .history import History
from .layout import MOST_LISTED_PAGES, Flash, LivePage, document, short, url
from .live_updates import Feed, Feeds, PageKey
from .markup import h
from .overview import Overview
from .server_page import LISTS, TABS, ServerPage
from .tool_page import ToolPage
from .visitors import BROWSER, MOST_SECONDS, TOKEN, Visitor, Visitors, check_origin, remember, set_cookie

MOST_FOLLOWERS: Final = 64
"""Streams of changes at once: a browser has one for each page that is looked at."""
MOST_OF_VISITOR: Final = 16
"""Streams of changes of one visitor."""
MOST_FLASHES: Final = 1_000
"""Browsers whose message was not shown yet."""
LARGEST_FORM: Final = 16 << 10
"""Bytes of a form without arguments of a tool."""
LARGEST_ARGUMENTS: Final = 1 << 20
"""Bytes of a form with arguments of a tool."""
MOST_ARGUMENTS: Final = 8
"""Forms with arguments that are read at once."""
ARGUMENTS_OF_VISITOR: Final = 2
"""Forms with arguments that are read at once for one visitor."""
MOST_LOGINS: Final = 8
"""Forms of visitors who are not logged in that are read at once."""
LOGIN_SECONDS: Final = 5.0
"""Seconds in which the form of a visitor who is not logged in has to arrive."""
FORM_SECONDS: Final = 30.0
"""Seconds in which any other form has to arrive."""
MOST_DOCUMENTS: Final = 8
"""Documents that are under way to one visitor."""
MOST_USED: Final = 10_000
"""Forms of tools that were sent, and are recorded so that none is used twice."""
KEPT_IMAGES: Final = 16
"""Images of results that are kept for browsers: the latest ones."""
MOST_FIELDS: Final = 1_000
"""Fields of a form, or of an address."""
MOST_DIGITS: Final = 16
"""Digits of a number in an address."""
_GONE: Final = b'{"gone": true}'
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
"""Headers of every response: nothing runs but what comes from here, and no other page frames or reads this one."""


class Limit:
    """At most so many of something at once, and so many for one visitor."""

    def __init__(self, most: float, most_of_visitor: int) -> None:
        self._most = most
        self._most_of_visitor = most_of_visitor
        self._counts: Counter[str] = Counter()

    def has_room(self, who: str) -> bool:
        """True if there may be one more."""
        return self._counts.total() < self._most and self._counts[who] < self._most_of_visitor

    @contextmanager
    def hold(self, who: str) -> Generator[None, None, None]:
        """Count one for as long as the block lasts.

        Raises:
            Refused: There are too many.
        """
        if not self.has_room(who):
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many at once", RETRY_AFTER)
        self._counts[who] += 1
        try:
            yield
        finally:
            self._counts[who] -= 1
            self._counts += Counter()  # in place: this removes counts of zero


class WebPage:
    """The page of a supervisor, and perhaps of the gateway in front of it. See `open_page`."""

    def __init__(
        self,
        host: PageHost,
        history: History,
        attendance: Attendance,
        visitors: Visitors,
        feeds: Feeds,
    ) -> None:
        self._host = host
        self._supervisor = host.supervisor
        self._history = history
        self._attendance = attendance
        self._visitors = visitors
        self._feeds = feeds
        self._streams = Limit(MOST_FOLLOWERS, MOST_OF_VISITOR)
        self._documents = Limit(math.inf, MOST_DOCUMENTS)
        self._arguments = Limit(MOST_ARGUMENTS, ARGUMENTS_OF_VISITOR)
        self._strangers = Limit(MOST_LOGINS, MOST_LOGINS)
        self._used: OrderedDict[str, None] = OrderedDict()
        self._flashes: OrderedDict[str, Flash] = OrderedDict()
        self._images: OrderedDict[tuple[str, str], tuple[str, bytes]] = OrderedDict()

    async def __call__(self, exchange: HttpExchange, scope: Message) -> Callable[[HttpExchange], Awaitable[None]]:
        """Identify the visitor of a request. Returns the function that answers the request.

        Raises:
            Refused: A page of another origin has sent it, or its address cannot be read.
        """
        exchange.answer_headers.update(SAFETY)
        check_origin(exchange)
        visitor = await self._visitors.identify(exchange, scope)
        exchange.client = visitor.principal
        query = _fields(bytes(scope.get("query_string", b"")))
        return partial(self._serve, visitor, query, scope)

    async def _serve(self, visitor: Visitor, query: FormFields, scope: Message, exchange: HttpExchange) -> None:
        path = exchange.path.removeprefix("/ui").rstrip("/") or "/"
        if visitor.is_new:
            set_cookie(exchange, BROWSER, visitor.browser, secure=self._is_secure(scope))
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
        elif path == "/image":
            await self._send_image(visitor, query.get("id", ""), exchange)
        else:
            with self._documents.hold(visitor.who):
                if path == "/tool":
                    await self._show_tool(visitor, query, exchange)
                else:
                    await self._show(path, visitor, query, exchange)

    async def _show_tool(self, visitor: Visitor, query: FormFields, exchange: HttpExchange) -> None:
        server, tool = query.get("server", ""), query.get("tool", "")
        shown = self._tool_page(visitor, server, tool)
        await self._send(exchange, shown.document({}), status=shown.status)

    def _tool_page(self, visitor: Visitor, server: str, tool: str) -> ToolPage:
        keep_image = partial(self._keep_image, visitor)
        return ToolPage(self._supervisor, visitor, server, tool, use=self._use, keep_image=keep_image)

    def _keep_image(self, visitor: Visitor, kind: str, content: bytes) -> str:
        """The address at which this visitor finds an image of a result for a while."""
        name = token_urlsafe(16)
        remember(self._images, (visitor.who, name), (kind, content), KEPT_IMAGES)
        return url("/image", id=name)

    async def _send_image(self, visitor: Visitor, name: str, exchange: HttpExchange) -> None:
        if (visitor.who, name) not in self._images:
            raise Refused(HTTPStatus.NOT_FOUND, "not found")
        kind, content = self._images[visitor.who, name]
        await exchange.answer(content, kind=kind.encode())

    def _is_secure(self, scope: Message) -> bool:
        return self._visitors.secure or scope.get("scheme") == "https"

    # -- documents ------------------------------------------------------------------------------------------------

    async def _feed(self, path: str, visitor: Visitor, query: FormFields) -> Feed:
        """The feed of the page at this path.

        Raises:
            Refused: There is no such page.
            UnknownServer: The page is about a server that is not configured.
        """
        name, may_act, clients = query.get("name", ""), visitor.may_act, self._host.clients
        asked = _number(query.get("number", "")) or 1
        number = min(asked, MOST_LISTED_PAGES) if path in (*LISTS, "/tasks") else 1
        make: Callable[[], LivePage]
        if path == "/":
            make = partial(Overview, self._history, self._host.replicas, may_act=may_act)
        elif path in TABS and name:
            make = partial(ServerPage, self._supervisor, self._history, name, path, may_act=may_act, page=number)
        elif path == "/clients" and clients is not None:
            make = partial(ClientsPage, clients, may_act=may_act)
        elif path == "/tasks":
            make = partial(TasksPage, self._supervisor, number)
        else:
            raise Refused(HTTPStatus.NOT_FOUND, "not found")
        return await self._feeds.open(PageKey(path, name if path in TABS else "", may_act, number), make)

    async def _show(self, path: str, visitor: Visitor, query: FormFields, exchange: HttpExchange) -> None:
        try:
            feed = await self._feed(path, visitor, query)
        except UnknownServer as error:
            gone = document("Not here", visitor, h("p", short(error)))
            await self._send(exchange, gone, status=HTTPStatus.NOT_FOUND)
            return
        about = {each: query[each] for each in ("name", "number") if each in query}
        live = url("/live", page=path, feed=feed.id, since=f"{feed.generation}", **about)
        flash = self._flashes.pop(visitor.browser, None)
        shown = document(feed.page.title, visitor, feed.page.content(feed.shown), live=live, flash=flash)
        await self._send(exchange, shown)

    async def _ask_for_token(self, visitor: Visitor, exchange: HttpExchange, problem: str | None = None) -> None:
        status = HTTPStatus.FORBIDDEN if visitor.principal is not None else HTTPStatus.UNAUTHORIZED
        await self._send(exchange, sign_in_form(visitor, problem), status=status)

    async def _send(self, exchange: HttpExchange, text: str, *, status: int = HTTPStatus.OK) -> None:
        await exchange.answer(text.encode(errors="replace"), status, _HTML)

    # -- changes --------------------------------------------------------------------------------------------------

    async def _follow(self, visitor: Visitor, query: FormFields, exchange: HttpExchange) -> None:
        """Send the changes of a page, until its browser goes."""
        who = visitor.who
        exchange.begin_stream()
        if not self._streams.has_room(who):
            await exchange.event(b'{"full": true}')
            await exchange.end()
            return
        with self._streams.hold(who):
            self._attendance.begin(exchange)
            try:
                await exchange.open_stream()
                await self._send_page(visitor, query, exchange)
                await exchange.end()
            finally:
                await self._attendance.end(exchange)

    async def _send_page(self, visitor: Visitor, query: FormFields, exchange: HttpExchange) -> None:
        try:
            feed = await self._feed(query.get("page", "/"), visitor, query)
        except UnknownServer:
            await exchange.event(_GONE)
            return
        since = query.get("since", "") if query.get("feed") == feed.id else ""
        with feed.followed():
            await _send_changes(feed, _number(since), exchange, partial(self._visitors.holds, visitor))

    # -- forms ----------------------------------------------------------------------------------------------------

    async def _post(self, path: str, visitor: Visitor, scope: Message, exchange: HttpExchange) -> None:
        if path in ("/act", "/tool") and not visitor.may_act:
            raise Refused(HTTPStatus.FORBIDDEN, "this token may look and not act: it needs --allow /ui/act")
        if path == "/tool":
            await self._try_tool(visitor, exchange)
            return
        form = await self._small_form(visitor, exchange)
        if path == "/login" and self._visitors.needs_token:
            await self._log_in(form, visitor, scope, exchange)
        elif path == "/logout":
            self._visitors.log_out(visitor)
            set_cookie(exchange, TOKEN, "", seconds=0, secure=self._is_secure(scope))
            await _redirect(exchange, "/ui")
        elif path == "/act":
            await self._act(form, visitor, exchange)
        else:
            raise Refused(HTTPStatus.NOT_FOUND, "not found")

    async def _small_form(self, visitor: Visitor, exchange: HttpExchange) -> FormFields:
        """The fields of a form without arguments. Few forms of visitors who are not logged in are read at once, and
        within a short time."""
        if visitor.may_look:
            return await self._form(visitor, exchange, LARGEST_FORM, FORM_SECONDS)
        if visitor.is_new:
            self._visitors.check_form(visitor, "")
        with self._strangers.hold(""):
            return await self._form(visitor, exchange, LARGEST_FORM, LOGIN_SECONDS)

    async def _form(self, visitor: Visitor, exchange: HttpExchange, largest: int, seconds: float) -> FormFields:
        """The fields of a form of ours."""
        form = await _read_form(exchange, largest, seconds)
        self._visitors.check_form(visitor, form.get("csrf", ""))
        return form

    async def _try_tool(self, visitor: Visitor, exchange: HttpExchange) -> None:
        with self._arguments.hold(visitor.who):
            form = await self._form(visitor, exchange, LARGEST_ARGUMENTS, FORM_SECONDS)
        page = self._tool_page(visitor, form.get("server", ""), form.get("tool", ""))
        await self._send(exchange, await page.answer(form), status=page.status)

    def _use(self, once: str) -> bool:
        """Use a form up. False if it was used before."""
        if once in self._used:
            return False
        remember(self._used, once, None, MOST_USED)
        return True

    async def _log_in(self, form: FormFields, visitor: Visitor, scope: Message, exchange: HttpExchange) -> None:
        token = form.get("token", "").strip()
        principal = await self._visitors.principal_of(token, scope) if token else None
        sealed = None if principal is None else self._visitors.seal(token, visitor.browser)
        problem = None
        if principal is None:
            problem = "No client has this token, or it has expired."
        elif not principal.access.has_page:
            problem = "This token may not look at the page: it needs --allow /ui."
        elif sealed is None:
            problem = "This token is too long for a browser to keep."
        if problem is not None or sealed is None:
            await self._ask_for_token(visitor, exchange, problem)
            return
        set_cookie(exchange, TOKEN, sealed, seconds=MOST_SECONDS, secure=self._is_secure(scope))
        await _redirect(exchange, "/ui")

    async def _act(self, form: FormFields, visitor: Visitor, exchange: HttpExchange) -> None:
        try:
            form = pressed(form)
        except ValueError:
            raise Refused(HTTPStatus.BAD_REQUEST, "no such act") from None
        name = form.get("act", "")
        act = ACTS.get(name)
        if act is None:
            raise Refused(HTTPStatus.BAD_REQUEST, "no such act")
        question = None if form.get("sure") == "yes" else act.question(self._host, form)
        if question is not None:
            await self._send(exchange, confirm_page(visitor, act, question, form))
            return
        remember(self._flashes, visitor.browser, await perform(name, self._host, form), MOST_FLASHES)
        await _redirect(exchange, act.back(form))


async def _send_changes(feed: Feed, since: int | None, exchange: HttpExchange, may_go_on: Callable[[], bool]) -> None:
    """Send the changes of a page, and standard error, until the page is gone or its visitor may no longer see it."""
    lines = 0
    while not feed.is_gone:
        if not may_go_on():
            return
        changed, message, text = feed.changed, feed.message(since), feed.lines_since(lines)
        since, lines = feed.generation, feed.lines
        for each in (message, text):
            if each is not None:
                await exchange.event(each)
        await changed.wait()
    await exchange.event(_GONE)


def _number(text: str) -> int | None:
    """The number that an address has; None if it has none."""
    return int(text) if text.isdecimal() and text.isascii() and len(text) < MOST_DIGITS else None


def _fields(encoded: bytes) -> FormFields:
    """The fields of a form, or of an address.

    Raises:
        Refused: The fields cannot be read.
    """
    try:
        return dict(parse_qsl(encoded.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST, "these fields cannot be read") from None


async def _read_form(exchange: HttpExchange, largest: int, seconds: float) -> FormFields:
    """The fields of a form.

    Raises:
        Refused: The request has no form, or one that is too large.
    """
    kind = exchange.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "not a form")
    body, more = bytearray(), True
    with trio.move_on_after(seconds) as slow:
        while more:
            message = await exchange.receive()
            if message["type"] == "http.disconnect":
                raise Refused(HTTPStatus.BAD_REQUEST, "the form is not whole")
            body += message.get("body", b"")
            more = bool(message.get("more_body"))
            if len(body) > largest:
                raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the form is too large")
    if slow.cancelled_caught:
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, "the form took too long")
    return _fields(bytes(body))


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
    """The page of a host, for as long as the block lasts."""
    history = History(host.supervisor)
    async with open_bare_nursery() as nursery:
        feeds = Feeds(history, nursery)
        nursery.start_soon(history.run)
        nursery.start_soon(feeds.run)
        try:
            yield WebPage(host, history, Attendance(nursery), visitors, feeds)
        finally:
            nursery.cancel_scope.cancel()
