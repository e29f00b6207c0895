"""The address of an HTTP server, without secrets in logs; and what a failure to reach it means."""

import errno
import os
import socket
import ssl
from collections.abc import Iterator
from http import HTTPStatus

import httpx2

from mcp_nursery.actors.records import field, frozen

from ..errors import StartFailed, leaves, one_line
from .environment import why_untrusted
from .failures import Evidence, Fault
from .header_rules import problem_with_header
from .routes import Unroutable, WrongCredentials, proxy_of

_NOTHING_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)
"""Errors that say nothing about the server: this machine has no room for a connection at the moment."""


class _Unshown(httpx2.URL):
    """A URL whose text, in logs and errors, lacks user, password and query. It is requested whole."""

    def __str__(self) -> str:
        return bare_url(self)

    def __repr__(self) -> str:
        return f"URL({bare_url(self)!r})"


@frozen
class Address:
    """The address of an endpoint."""

    bare: str
    """The URL without user, password and query, for the SDK and logs."""
    _whole: httpx2.URL = field(repr=False)
    auth: httpx2.Auth | None = field(repr=False)
    """The authorisation: by default the user and password in the URL."""

    @classmethod
    def of(cls, url: str, auth: httpx2.Auth | None = None) -> "Address":
        """Parse a URL; `auth` takes precedence over its user and password.

        Raises:
            StartFailed: The URL is not valid.
        """
        try:
            whole = httpx2.URL(url)
            whole.raw_host.decode("ascii").encode("idna")  # as it is looked up: labels may be empty or too long
        except (httpx2.InvalidURL, UnicodeError):
            raise StartFailed("the url is not valid", retriable=False) from None  # the text would show it
        if auth is None and (whole.username or whole.password):
            auth = httpx2.BasicAuth(whole.username, whole.password)
        return cls(bare_url(whole), whole.copy_with(username="", password="", fragment=None), auth)

    @property
    def url(self) -> httpx2.URL:
        """The URL that requests are built with; `complete` makes it whole."""
        return httpx2.URL(self.bare)

    @property
    def host(self) -> str:
        """Host and port, as people read them."""
        return self._whole.netloc.decode("ascii")

    def complete(self, url: httpx2.URL) -> httpx2.URL:
        """The URL to request: with the endpoint's query, if it is the endpoint's."""
        return _Unshown(self._whole if str(url) == self.bare else url)

    def has_same_origin(self, url: httpx2.URL) -> bool:
        """True if the endpoint's headers may go there."""
        mine = self._whole
        return (url.scheme, url.host, url.port) == (mine.scheme, mine.host, mine.port)


def evidence_of(error: httpx2.RequestError, address: Address) -> Evidence:
    """The evidence in a failed request. The error's own text may hold a URL."""
    if isinstance(error, Unroutable):
        return Evidence(str(error), Fault.UNUSABLE)
    request = _request_of(error)
    if isinstance(error, httpx2.LocalProtocolError):  # h11 refuses to send a header that authorisation has made
        problem = None if request is None else _fault_of_headers(request)
        return Evidence(problem or "the request is not valid HTTP", Fault.UNUSABLE)
    proxy = None if request is None else proxy_of(request)
    if isinstance(error, httpx2.ProxyError):
        refused = str(error).startswith(f"{HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:d} ")
        refused = refused or isinstance(error, WrongCredentials)
        problem = f"{proxy} did not connect to {address.host}: {one_line(error, 80)}"
        return Evidence(problem, Fault.UNUSABLE if refused else Fault.UNREACHED)
    return _evidence_of_cause(error, address.host if proxy is None else f"{address.host} through {proxy}")


def _request_of(error: httpx2.RequestError) -> httpx2.Request | None:
    """The request that failed; None for an error that a host's own authorisation has raised."""
    try:
        return error.request
    except RuntimeError:
        return None


def _evidence_of_cause(error: httpx2.RequestError, host: str) -> Evidence:
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                problem = f"the certificate of {host} is not trusted: {why_untrusted(cause)}"
                return Evidence(problem, Fault.UNTRUSTED)
            case ssl.SSLError() if isinstance(error, httpx2.ConnectError):
                return Evidence(f"TLS with {host} failed: {cause.reason or 'no reason given'}", Fault.UNREACHED)
            case socket.gaierror():
                return Evidence(f"{host} cannot be resolved: {cause.strerror}", Fault.UNREACHED)
            case OSError(errno=int(number)) if number and not isinstance(cause, ssl.SSLError):
                return Evidence(*_describe(error, host, os.strerror(number), number))  # Trio's has the address, too
            case OSError(strerror=str(words)) if words:
                return Evidence(*_describe(error, host, words))
            case _:
                continue
    return Evidence(*_describe(error, host, _words_of(error)))


def _fault_of_headers(request: httpx2.Request) -> str | None:
    encoded = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw)
    problems = (problem_with_header(name, value, encoding="latin-1") for name, value in encoded)
    return next(filter(None, problems), None)


def _words_of(error: httpx2.RequestError) -> str:
    """The words for an error without a cause of the system's: the library's own may quote a server."""
    match error:
        case httpx2.RemoteProtocolError():
            ended = "isconnected" in str(error) or "closed" in str(error)
            return "it ended too early" if ended else "the answer is not valid HTTP"
        case httpx2.TimeoutException():
            return "it took too long"
        case httpx2.DecodingError():
            return "the answer cannot be decoded"
        case httpx2.NetworkError():
            return "it ended"
        case _:
            return "no reason is known"


def _describe(error: httpx2.RequestError, host: str, words: str, number: int = 0) -> tuple[str, Fault]:
    if number in _NO_ROOM:
        return f"no room for a connection to {host}: {words}", Fault.BROKEN  # of this request: others go on
    if isinstance(error, _NOTHING_SENT):
        return f"cannot connect to {host}: {words}", Fault.UNREACHED
    return f"the connection to {host} broke: {words}", Fault.BROKEN


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The causes of an error, those in groups included."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        cause = waiting.pop(0)
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        waiting += (*leaves(cause), cause.__cause__, cause.__context__)


def bare_url(url: httpx2.URL) -> str:
    """The URL without user, password, query and fragment. Built by hand: the text of a copied `_Unshown` would come
    from here again."""
    host = f"[{url.host}]" if ":" in url.host else url.host
    port = "" if url.port is None else f":{url.port}"
    return f"{url.scheme}://{host}{port}{url.raw_path.partition(b'?')[0].decode('ascii')}"
