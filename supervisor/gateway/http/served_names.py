"""The names that a gateway is served under. Requests for others are refused, so that a page of another site, which can
give its own name the address of this machine, does not reach the gateway.
"""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from mcp_nursery.actors.argument_checks import check_argument

from ..auth.principal import Refused

LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
"""The names by which a client of this machine calls a gateway."""

_HOST_PATTERN: Final = r"(\[[0-9a-fA-F:.]+\]|[0-9a-zA-Z._-]+)"
_HOST_NAME: Final = re.compile(_HOST_PATTERN)
_AUTHORITY: Final = re.compile(rf"{_HOST_PATTERN}(:[0-9]*)?")
_ORIGIN: Final = re.compile(rf"([a-zA-Z][0-9a-zA-Z+.-]*)://{_HOST_PATTERN}(:[0-9]+)?")
_DEFAULT_PORTS: Final = frozenset([("http", ":80"), ("https", ":443")])
"""Ports that browsers leave out."""


def host_name(value: object) -> str | None:
    """A check of a host as `Host` names it, without the port."""
    fits = isinstance(value, str) and _HOST_NAME.fullmatch(value)
    return None if fits else "a name or an address without a port, such as gw.example.com or [::1]"


def page_origin(value: object) -> str | None:
    """A check of an origin as browsers send it."""
    found = _ORIGIN.fullmatch(value) if isinstance(value, str) else None
    fits = found is not None and (found[1].lower(), found[3]) not in _DEFAULT_PORTS
    return None if fits else "what browsers send, without a path or a usual port, such as https://app.example.com"


class ServedNames:
    """The names that are served: the hosts that `Host` and `Origin` may name, whatever the port (None: any host, and
    origins of this machine), and other origins.

    Raises:
        ValueError: A name is not a host or an origin.
    """

    def __init__(self, hosts: Collection[str] | None, origins: Collection[str]) -> None:
        for each in hosts or ():
            check_argument("hosts", each, host_name)
        for each in origins:
            check_argument("origins", each, page_origin)
        self._hosts = None if hosts is None else frozenset(map(str.lower, hosts))
        self._local = frozenset(LOOPBACK_NAMES) if self._hosts is None else self._hosts
        self._origins = frozenset(map(str.lower, origins))

    def check(self, headers: Mapping[str, str], lines: Collection[tuple[str, str]]) -> None:
        """Refuse a request for another host, or of a page of another origin. The headers have lower-case names; `lines`
        are all of them, also those of equal names.

        Raises:
            Refused: `Host` or `Origin` names another, or is there twice.
        """
        if len(lines) != len(headers):
            for name in ("host", "origin"):
                if sum(name == each for each, _ in lines) > 1:
                    raise Refused(HTTPStatus.BAD_REQUEST, f"{name} is there twice")
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None or self._hosts is not None:
            named = _parse_host(host or "")
            if named is None or (self._hosts is not None and named not in self._hosts):
                raise Refused(HTTPStatus.MISDIRECTED_REQUEST, "this host is not served here")
        if origin is not None and origin.lower() not in self._origins:
            found = _ORIGIN.fullmatch(origin)
            if found is None or found[2].lower() not in self._local:
                raise Refused(HTTPStatus.FORBIDDEN, "this origin is not served here")


@lru_cache(maxsize=64)
def _parse_host(authority: str) -> str | None:
    """The host of `HOST` or `HOST:PORT`; None if it is neither. Cached: clients send the same again and again."""
    found = _AUTHORITY.fullmatch(authority)
    return None if found is None else found[1].lower()
