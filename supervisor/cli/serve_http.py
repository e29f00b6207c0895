"""`mcp-nursery serve --http`: what a port of one's own needs, and who may come."""

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import trio
from attrs import fields

from mcp_nursery.actors.argument_checks import check_setting
from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.actors.transports.http import grants
from mcp_nursery.supervisor.gateway import (
    Gateway,
    HttpApplication,
    HttpLimits,
    OAuthResource,
    Principal,
    open_http,
)
from mcp_nursery.supervisor.gateway.access import bearer_of
from mcp_nursery.supervisor.gateway.served_names import LOOPBACK, host_name, page_origin
from mcp_nursery.supervisor.gateway.token_file import PREFIX, TokenFile
from mcp_nursery.supervisor.gateway.web_server import Tls, bound, serve_http
from mcp_nursery.supervisor.watch import FileWatch

from .command_server import option_of
from .http_options import HttpServing

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider

    from mcp_nursery.supervisor.gateway.prometheus import Prometheus
    from mcp_nursery.supervisor.status import ServerStatus, SupervisorStatistics

logger: Final = logging.getLogger(__name__)

KEY_PASSWORD: Final = "MCP_NURSERY_TLS_KEY_PASSWORD"  # noqa: S105 - the name of a variable
"""Where the password of a key is: arguments are for everybody on the machine to see."""
_WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with


class HttpFront:
    """All that is ready before the servers start: what is wrong with it ends the command.

    Raises:
        ConfigError: An option cannot work.
    """

    def __init__(self, serving: HttpServing) -> None:
        host, port = _address(serving.address)
        self._limits = _limits(serving.limit)
        read = (serving.token_file, serving.tls_cert, serving.tls_key)
        self._watch = FileWatch([str(each) for each in read if each is not None], self.reload)
        self._tokens = None if serving.token_file is None else TokenFile(serving.token_file)
        self._oauth = _oauth(serving)
        self._tls = _tls(serving)
        self._hosts = _hosts(host, serving.allowed_host)
        self._behind_proxy = serving.behind_proxy
        self._origins = serving.allowed_origin
        for each in self._origins:
            check_setting("--allowed-origin", each, page_origin)
        if host not in grants.LOOPBACK:
            self._check_network(host, serving)
        self._prometheus: Prometheus | None = (
            _needed("prometheus", "--metrics").Prometheus() if serving.metrics else None
        )
        self._listening = bound(host, port)
        self._application: HttpApplication | None = None

    def _check_network(self, host: str, serving: HttpServing) -> None:
        if self._tokens is None and self._oauth is None:
            problem = f"{host} can be reached from the network: --token-file FILE or --oauth-issuer URL is needed"
            raise ConfigError(problem, field="--http")
        if self._tls is None and not serving.behind_proxy:
            problem = "tokens would cross the network in clear: --tls-cert FILE, or --behind-proxy if that ends TLS"
            raise ConfigError(problem, field="--http")

    @property
    def meter_provider(self) -> "MeterProvider | None":
        """Who is told figures; None: nobody."""
        return None if self._prometheus is None else self._prometheus.provider

    def reload(self) -> None:
        """Read tokens and certificates again, at SIGHUP and when their files change. What is wrong with them is logged,
        and changes nothing."""
        for file in (self._tokens, self._tls):
            try:
                if file is not None:
                    file.reload()
            except ConfigError as error:
                logger.warning("not reloaded, it stays as it is: %s", error)
        if self._application is not None:
            self._application.end_clients(lambda client: not self._knows(client))

    def _knows(self, client: Principal | None) -> bool:
        if client is None or self._tokens is None or self._tokens.holds(client):
            return True
        return self._oauth is not None and client.key == self._oauth.issuer

    async def _authenticate(self, scope: MutableMapping[str, Any]) -> Principal | None:
        """By the file of tokens, or an issuer of them; without either, nobody is asked."""
        if self._oauth is None:
            return None if self._tokens is None else await self._tokens.authenticate(scope)
        if self._tokens is not None and (bearer_of(scope) or "").startswith(PREFIX):
            return await self._tokens.authenticate(scope)
        return await self._oauth.authenticate(scope)

    async def serve(
        self, gateway: Gateway, server: str | None, drain: float, stop: Callable[[], Awaitable[object]]
    ) -> None:
        """Serve clients until `stop` returns."""
        limits = self._limits

        async def metrics() -> bytes:
            supervisor = gateway.supervisor
            figures = await trio.to_thread.run_sync(
                _exposition, supervisor.status(), supervisor.statistics(by_tool=False), application.kept
            )
            return figures if self._prometheus is None else figures + await self._prometheus.text()

        opening = open_http(
            gateway,
            server=server,
            hosts=self._hosts,
            origins=self._origins,
            authenticate=self._authenticate,
            oauth=self._oauth,
            limits=limits,
            meter_provider=self.meter_provider,
            metrics=metrics,
        )
        async with opening as application, run_alongside(self._watch.run):
            self._application = application
            self._announce()
            await serve_http(
                gateway,
                application,
                self._listening,
                tls=self._tls,
                connections=limits.connections,
                connections_of_address=None if self._behind_proxy else limits.connections_of_address,
                drain=drain,
                stop=stop,
            )

    def _announce(self) -> None:
        host, port = self._listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        sys.stderr.write(f"serving on {'http' if self._tls is None else 'https'}://{shown}:{port}/mcp\n")
        sys.stderr.flush()


def _exposition(
    statuses: "Sequence[ServerStatus]", statistics: "SupervisorStatistics", kept: "Mapping[str, int]"
) -> bytes:
    from mcp_nursery.supervisor.gateway.exposition import exposition  # takes 0.1 s: in a thread, and if somebody asks

    return exposition(statuses, statistics, kept)


def _needed(name: str, option: str) -> Any:
    """A module of the gateway that needs what the extra installs.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return import_module(f"mcp_nursery.supervisor.gateway.{name}")
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        raise ConfigError(f"{missing} is missing: pip install 'mcp-nursery[gateway]'", field=option) from None


def _address(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise ConfigError(f"must be HOST:PORT, such as 127.0.0.1:8000, not {address!r}", field="--http")
    return host, int(port)


def _hosts(host: str, named: Iterable[str]) -> Sequence[str] | None:
    """What `Host` may name. Who listens everywhere and names nothing is reached by names that he knows best: there a
    token is asked for, which no browser adds by itself."""
    if host in _WILDCARDS and not named:
        return None
    own = f"[{host.partition('%')[0]}]" if ":" in host else host
    check_setting("--http", own, host_name)
    for each in named:
        check_setting("--allowed-host", each, host_name)
    return [*LOOPBACK, *([] if host in _WILDCARDS else [own]), *named]


def _oauth(serving: HttpServing) -> OAuthResource | None:
    if serving.oauth_issuer is None:
        for name in ("audience", "scope", "public_url", "oauth_jwks"):
            if getattr(serving, name):
                raise ConfigError("needs --oauth-issuer", field=option_of(name))
        return None
    url = serving.public_url or next((_origin(each) for each in serving.audience if "://" in each), None)
    if url is None:
        problem = "is needed where no --audience is a URL: what clients call this gateway"
        raise ConfigError(problem, field="--public-url")
    _needed("issuer", "--oauth-issuer")
    try:
        return OAuthResource(
            serving.oauth_issuer, url, audiences=serving.audience, scopes=serving.scope, jwks=serving.oauth_jwks
        )
    except ConfigError as error:
        options = {"issuer": "--oauth-issuer", "jwks": "--oauth-jwks"}
        raise ConfigError(error.problem, field=options.get(str(error.field), "--public-url")) from None


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _tls(serving: HttpServing) -> Tls | None:
    if serving.tls_cert is None:
        if serving.tls_key is not None:
            raise ConfigError("needs --tls-cert", field="--tls-key")
        return None
    return Tls(serving.tls_cert, serving.tls_key, os.environ.get(KEY_PASSWORD))


def _limits(given: Iterable[str]) -> HttpLimits:
    kinds: Mapping[str, object] = {each.name: each.default for each in fields(HttpLimits)}
    chosen: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        name = name.replace("-", "_")
        if name not in kinds:
            raise ConfigError(f"must be NAME=NUMBER with one of {', '.join(kinds)}, not {text!r}", field="--limit")
        kind = int if isinstance(kinds[name], int) else float
        try:
            chosen[name] = kind(value)
        except ValueError:
            whole = "whole " if kind is int else ""
            raise ConfigError(f"{name} must be a {whole}number, not {value!r}", field="--limit") from None
        try:
            HttpLimits(**chosen)
        except ValueError as error:
            raise ConfigError(str(error), field="--limit") from None
    return HttpLimits(**chosen)
