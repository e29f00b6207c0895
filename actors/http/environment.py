"""The environment as input: proxies and certificate authorities, besides those of one server. No other module reads
these variables.

A variable is checked when a request would use it, and for that request alone: a proxy that cannot be used breaks no
server that is reached without one. Loopback is reached without one, unless `NO_PROXY` holds `<-loopback>`, which is how
browsers spell it.
"""

import os
import re
import ssl
import stat
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, lru_cache
from importlib import import_module
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final, Literal, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from mcp_nursery.actors.records import field, frozen

from ..errors import one_line
from ..threads import SLOW_THREADS

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

PROXY_VARIABLES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
"""The variables about proxies, each in lower or upper case; lower case takes precedence."""
AUTHORITY_VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""The variables about certificate authorities; the first that is set counts."""
ASKED_FOR_LOOPBACK: Final = "<-loopback>"
"""The entry of `NO_PROXY` with which loopback is reached through proxies, too."""

_UNKNOWN_AUTHORITY: Final = (18, 19, 20, 21)
"""OpenSSL's codes for a certificate, valid perhaps, of an authority that is not among those that are trusted."""
_SCHEMES: Final = ("http", "https", "socks5", "socks5h")
_AS_HTTP: Final = {"ws": "http", "wss": "https"}
"""The scheme whose variable counts for WebSockets."""
_PORTS: Final = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_ENDS_WITH_PORT: Final = re.compile(r"[^:]:\d+$")
_HASHED: Final = re.compile(r"[0-9a-f]{8}\.\d+")
"""The name by which OpenSSL finds an authority in a folder."""
_MOST_CONTEXTS: Final = 16
"""Contexts that are kept."""
_LOADING: Final = threading.Lock()
"""The lock held while the authorities are loaded: many first connections begin at once."""


_AFTER_HOST: Final = re.compile(r"[/?#]")
_NO_PORT: Final = re.compile(r":(?!\d+$)[^\]:]*$")
"""A text in the place of a port that is no port: a password, perhaps."""


def why_untrusted(error: ssl.SSLCertVerificationError) -> str:
    """The reason why a certificate is not trusted; if its authority is not known, with the settings that name one."""
    if error.verify_code not in _UNKNOWN_AUTHORITY:
        return error.verify_message
    return (
        f"{error.verify_message}; name its authority in ca_file (caFile in a file), or for all servers in SSL_CERT_FILE"
    )


def shown_variables() -> dict[str, str]:
    """The variables above that are set, by their names as they are set, without users and passwords."""
    names = sorted(name for name in os.environ if os.environ[name] and name.lower() in PROXY_VARIABLES)
    proxies = {name: os.environ[name] if name.lower() == "no_proxy" else _shown(os.environ[name]) for name in names}
    return proxies | {name: value for name in AUTHORITY_VARIABLES if (value := os.environ.get(name))}


class EnvironmentUnusable(Exception):
    """A variable of the environment that a request would use, or the `ca_file` of its server, cannot be used. One line:
    which, its value without secrets, and the way out."""

    def __init__(self, variable: str, shown: str, problem: str, advice: str) -> None:
        self.shown = shown
        """The value that cannot be used."""
        self.problem = problem
        """The problem alone."""
        super().__init__(f"{variable}={one_line(shown, 200)} cannot be used: {problem}; {advice}")


@frozen
class Proxy:
    """A proxy that the environment names."""

    variable: str
    """The variable that names it."""
    shown: str
    """The URL without user and password."""
    url: "httpx2.URL" = field(repr=False)

    @property
    def is_socks(self) -> bool:
        """True if it speaks SOCKS, and not HTTP."""
        return self.url.scheme.startswith("socks")

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self.url.port or _PORTS[self.url.scheme]

    def __str__(self) -> str:
        return f"the proxy {self.shown} ({self.variable})"


def proxy_for(url: str) -> Proxy | None:
    """The proxy for requests to this URL, of HTTP or of a WebSocket; None if they go straight to the server.

    Raises:
        EnvironmentUnusable: It cannot be used.
    """
    parts = urlsplit(url)
    scheme, host = _AS_HTTP.get(parts.scheme, parts.scheme), (parts.hostname or "").rstrip(".")
    named = getproxies()
    found = next((name for name in (scheme, "all") if named.get(name)), None)
    if found is None:
        return None
    excepted = [entry.strip().lower() for entry in named.get("no", "").split(",")]
    if is_loopback_host(host) and ASKED_FOR_LOOPBACK not in excepted:
        return None
    if any(_is_excepted(entry, scheme, host, parts.port or _PORTS.get(scheme)) for entry in excepted):
        return None
    return _parse(_variable_of(f"{found}_proxy", named[found]), named[found], host)


def is_loopback_host(host: str) -> bool:
    """True if a host is this machine, by its address or by its name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_excepted(entry: str, scheme: str, host: str, port: int | None) -> bool:
    """True if an entry of `NO_PROXY` covers a server: a network, a domain, perhaps with a port, or `*`. An entry that
    cannot be read covers nothing, as with other programs."""
    for_scheme, _, entry = entry.rpartition("://")
    if for_scheme not in ("", "all", scheme):
        return False
    with suppress(ValueError):
        return ip_address(host) in ip_network(entry.strip("[]"), strict=False)
    name, _, for_port = entry.rpartition(":") if _ENDS_WITH_PORT.search(entry) else (entry, "", port)
    name = name.strip("[]")
    if not name or int(for_port or 0) != (port or 0):
        return False
    domain = name.removeprefix("*").removeprefix(".")
    return name in ("*", host) or host.endswith(f".{domain}")


def _variable_of(lower: str, value: str) -> str:
    """The name of the variable with this value, as it is set; macOS has settings of the system besides."""
    names = (name for name in sorted(os.environ, reverse=True) if name.lower() == lower and os.environ[name] == value)
    return next(names, "the system's settings")


def _parse(variable: str, value: str, host: str) -> Proxy:
    import httpx2

    whole, shown = _whole(value), _shown(value)
    advice = f"correct or unset it, or name {host} in NO_PROXY"
    problem = None
    try:
        url, _ = httpx2.URL(whole), urlsplit(whole)  # which refuses brackets that httpx2 takes
        url.raw_host.decode("ascii").encode("idna")  # as it is looked up: labels may be empty or too long
    except (httpx2.InvalidURL, ValueError):
        raise EnvironmentUnusable(variable, shown, "it is not a URL", advice) from None
    if url.scheme not in _SCHEMES:
        problem = f"proxies are {', '.join(f'{each}://' for each in _SCHEMES)}"
    elif not url.host or url.port == 0:
        problem = "it names no host" if not url.host else "it names no port"
    elif url.scheme.startswith("socks") and not _has_socks():
        problem, advice = "SOCKS needs an extra", f"pip install 'mcp-nursery[socks]', or name {host} in NO_PROXY"
    if problem is not None:
        raise EnvironmentUnusable(variable, shown, problem, advice)
    return Proxy(variable, shown, url)


def _whole(value: str) -> str:
    return value.strip() if "://" in value else f"http://{value.strip()}"


def _shown(value: str) -> str:
    """The value for a proxy without user, password, path and query."""
    scheme, _, rest = _whole(value).partition("://")
    host = _AFTER_HOST.split(rest.rpartition("@")[2], maxsplit=1)[0]
    return f"{scheme}://{_NO_PORT.sub(':…', host)}"


def _has_socks() -> bool:
    try:
        import_module("socksio")
    except ImportError:
        return False
    return True


# -- certificate authorities ------------------------------------------------------------------------------------------


async def authorities(ca_file: str | None = None) -> ssl.SSLContext:
    """The context with the system's authorities, or with those that `SSL_CERT_FILE` or `SSL_CERT_DIR` names, and with
    those of a file. Loaded in a thread, since that takes tens of milliseconds in which no call would make progress, or
    for ever where the disk of a file has gone.

    Raises:
        EnvironmentUnusable: The variable or the file names none.
    """
    return await SLOW_THREADS.run(_authorities, ca_file, abandon_on_cancel=True)


async def context_for(scheme: str, proxy: Proxy | None, ca_file: str | None = None) -> ssl.SSLContext:
    """The context for requests to a server whose own authorities are in a file, if any; without TLS, one that trusts
    nobody and costs nothing.

    Raises:
        EnvironmentUnusable: The environment or the file names authorities that cannot be used.
    """
    with_tls = scheme in ("https", "wss") or (proxy is not None and proxy.url.scheme == "https")
    return await authorities(ca_file) if with_tls else _nobody()


@cache
def _nobody() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _authorities(ca_file: str | None) -> ssl.SSLContext:
    named = next(((name, value) for name in AUTHORITY_VARIABLES if (value := os.environ.get(name))), (None, ""))
    with _LOADING:
        return _load(*named, ca_file, None if ca_file is None else _stamp(ca_file))


_Variable = Literal["SSL_CERT_FILE", "SSL_CERT_DIR"]


def _stamp(path: str) -> object:
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # loading it says more
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@lru_cache(maxsize=_MOST_CONTEXTS)
def _load(variable: _Variable | None, value: str, ca_file: str | None, stamp: object) -> ssl.SSLContext:
    """The context, with the authorities of a file, too, if there is one; `stamp` changes with the file. A later value
    is loaded anew."""
    del stamp
    context = _made(variable, value)
    if ca_file is not None:
        _named("ca_file", ca_file, lambda: _add_file(context, ca_file))
    return context


def _add_file(context: ssl.SSLContext, path: str) -> None:
    _check_file(path)
    context.load_verify_locations(path)


def _made(variable: _Variable | None, value: str) -> ssl.SSLContext:
    import httpx2

    if variable is None:
        return httpx2.create_ssl_context(trust_env=False)
    if variable == "SSL_CERT_FILE":
        return _named(variable, value, lambda: _of_file(value))
    return _named(variable, value, lambda: _of_folders(value))


def _of_file(value: str) -> ssl.SSLContext:
    _check_file(value)
    return ssl.create_default_context(cafile=value)


def _of_folders(value: str) -> ssl.SSLContext:
    _check_folders(value.split(os.pathsep))
    return ssl.create_default_context(capath=value)


def _named(name: str, value: str, load: Callable[[], T]) -> T:
    """The loaded authorities.

    Raises:
        EnvironmentUnusable: This value of a variable, or of `ca_file`, names none.
    """
    try:
        return load()
    except ssl.SSLError:
        problem = "it is no file of certificates in PEM format"
    except FileNotFoundError:
        problem = "it does not exist"
    except OSError as error:
        problem = os.strerror(error.errno or 0)
    except ValueError:  # a path with a NUL in it
        problem = "it is not a path"
    except _NoAuthority as error:
        problem = str(error)
    advice = "correct it, or leave it out" if name == "ca_file" else "correct it, or unset it"
    raise EnvironmentUnusable(name, value, problem, f"{advice} for the system's authorities")


class _NoAuthority(Exception):
    """OpenSSL would find no authority: the reason."""


def _check_file(path: str) -> None:
    """Check that a file has an end: a pipe that nobody writes would be waited for, and held up all other loads.

    Raises:
        OSError: The file cannot be looked at.
        _NoAuthority: It is a pipe or a device.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise _NoAuthority("it is not a file")


def _check_folders(folders: Iterable[str]) -> None:
    """Check that authorities will be found. OpenSSL itself says nothing about a folder that it cannot use.

    Raises:
        OSError: None of the folders can be read.
        _NoAuthority: No folder has one.
    """
    fault: Exception = _NoAuthority("no certificate in it is named by its hash, as `openssl rehash` does")
    for folder in folders:
        try:
            if any(_HASHED.fullmatch(name) for name in os.listdir(folder)):
                return
        except OSError as error:
            fault = error
    raise fault
