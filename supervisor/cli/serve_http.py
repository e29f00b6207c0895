"""`mcp-nursery serve --http`: the port, its TLS, and the clients that it admits."""

import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from mcp_nursery.actors.argument_checks import check_setting, finite_seconds_or_none, seconds_or_none
from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.actors.oauth import settings
from mcp_nursery.actors.records import fields
from mcp_nursery.actors.threads import BRIEF_THREADS
from mcp_nursery.supervisor.gateway import (
    Gateway,
    HttpApplication,
    HttpLimits,
    OAuthResource,
    Principal,
    open_http,
)
from mcp_nursery.supervisor.gateway.auth.bearer_tokens import PREFIX, BearerTokenFile
from mcp_nursery.supervisor.gateway.auth.principal import bearer_of
from mcp_nursery.supervisor.gateway.client_status import ClientsStatus
from mcp_nursery.supervisor.gateway.http.application import serve_http
from mcp_nursery.supervisor.gateway.http.served_names import LOOPBACK_NAMES, host_name, page_origin
from mcp_nursery.supervisor.gateway.sealing import MAX_AGE, SessionKeys, random_keys
from mcp_nursery.supervisor.http_server.listening import bind_socket, inherited_socket, listen
from mcp_nursery.supervisor.http_server.server import Tls
from mcp_nursery.supervisor.watch import FileWatch

from .addresses import host_and_port
from .output import note, warn
from .session_keys import SessionKeyFile, own_key_file

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider

    from mcp_nursery.supervisor.gateway.metrics import TelemetryFigures
    from mcp_nursery.supervisor.status import ServerStatus, SupervisorStatistics

    from .web.page import WebPage
    from .web.replicas import ReplicaReport, Replicas
    from .web.visitors import Visitors

logger: Final = logging.getLogger(__name__)

KEY_PASSWORD: Final = "MCP_NURSERY_TLS_KEY_PASSWORD"  # noqa: S105 - the name of a variable
"""The variable with the password of a key: all users of the machine can read arguments."""
LAST_REQUESTS: Final = 2.0
"""Seconds of `--lame-duck` if another process listens, too: for the next request of each connection that is open."""
_WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with


class HttpFront:
    """The HTTP side of `serve`. It is made before the servers start, so that an invalid option ends the command first.

    `commands.py` explains its arguments, which are the options that need `--http`; `address` is the value of `--http`.

    Raises:
        ConfigError: An option cannot work.
    """

    def __init__(
        self,
        address: str,
        *,
        token_file: Path | None = None,
        oauth_issuer: str | None = None,
        oauth_jwks: str | None = None,
        audience: Sequence[str] = (),
        scope: Sequence[str] = (),
        public_url: str | None = None,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        behind_proxy: bool = False,
        allowed_host: Sequence[str] = (),
        allowed_origin: Sequence[str] = (),
        metrics: bool = False,
        limit: Sequence[str] = (),
        reuse_port: bool = False,
        lame_duck: float | None = None,
        replica_key: Path | None = None,
        no_resume: bool = False,
        session_max_age: float | None = None,
        ui: bool = False,
    ) -> None:
        host, port = host_and_port(address, "--http")
        check_setting("--lame-duck", lame_duck, seconds_or_none)
        self._limits = _limits(limit)
        read = (token_file, tls_cert, tls_key, replica_key)
        self._watch = FileWatch([str(each) for each in read if each is not None], self.reload)
        self._tokens = None if token_file is None else BearerTokenFile(token_file)
        self._oauth = _oauth(oauth_issuer, audience=audience, scope=scope, public_url=public_url, jwks=oauth_jwks)
        self._tls = _tls(tls_cert, tls_key)
        self._hosts = _hosts(host, allowed_host)
        self._behind_proxy = behind_proxy
        self._origins = allowed_origin
        for each in self._origins:
            check_setting("--allowed-origin", each, page_origin)
        if host not in settings.LOOPBACK:
            self._check_network(host)
        self._keys = _session_keys(replica_key, session_max_age, resume=not no_resume)
        self._telemetry: TelemetryFigures | None = _telemetry_figures() if metrics else None
        self._visitors = self._make_visitors() if ui else None
        inherited = inherited_socket(os.environ, host, port)
        self._listening = inherited or bind_socket(host, port, reuse_port=reuse_port)
        self._binds_shared = reuse_port and inherited is None
        self._passed_on = inherited is not None
        self._shared = reuse_port or self._passed_on
        self._lame_duck = LAST_REQUESTS * self._shared if lame_duck is None else lame_duck
        self._application: HttpApplication | None = None
        self._replicas: Replicas | None = None

    @property
    def session_keys(self) -> SessionKeys | None:
        """The keys of its sessions; None: they end with the gateway."""
        return None if self._keys is None else self._keys.keys

    def _make_visitors(self) -> "Visitors":
        """Make the visitors of the page. They log in if clients need tokens."""
        from .web.visitors import Visitors

        if self._tokens is None and self._oauth is None:
            return Visitors(None, self.session_keys)
        with _installed("--ui"):
            return Visitors(self._authenticate, self.session_keys or random_keys(), secure=self._behind_proxy)

    def _check_network(self, host: str) -> None:
        if self._tokens is None and self._oauth is None:
            problem = f"{host} can be reached from the network: --token-file FILE or --oauth-issuer URL is needed"
            raise ConfigError(problem, field="--http")
        if self._tls is None and not self._behind_proxy:
            problem = (
                "tokens would cross the network unencrypted: add --tls-cert FILE, or --behind-proxy if a proxy ends TLS"
            )
            raise ConfigError(problem, field="--http")

    @property
    def meter_provider(self) -> "MeterProvider | None":
        """The provider of `--metrics`; None without it."""
        return None if self._telemetry is None else self._telemetry.provider

    def reload(self) -> None:
        """Read tokens, certificates and keys again, at SIGHUP and when their files change. An error in a file is
        logged, and its former content stays in use."""
        for file in (self._tokens, self._tls, self._keys):
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
        """Authenticate a request by the token file or the issuer; without either, all are admitted."""
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
            statuses, statistics = supervisor.status(), supervisor.statistics(by_tool=False)
            return await BRIEF_THREADS.run(_exposition, statuses, statistics, application.kept, self._telemetry)

        async with (
            self._open_page(gateway) as page,
            open_http(
                gateway,
                server=server,
                hosts=self._hosts,
                origins=self._origins,
                authenticate=self._authenticate,
                oauth=self._oauth,
                limits=limits,
                meter_provider=self.meter_provider,
                metrics=metrics,
                page=page,
            ) as application,
            run_alongside(self._watch.run),
        ):
            self._application = application
            if self._binds_shared:
                listen(self._listening)
            self._announce()
            async with run_alongside(partial(self._report, gateway, application)):
                await serve_http(
                    gateway,
                    application,
                    self._listening,
                    tls=self._tls,
                    connections=limits.connections,
                    connections_of_address=None if self._behind_proxy else limits.connections_of_address,
                    lame_duck=self._lame_duck,
                    shared=self._shared,
                    passed_on=self._passed_on,
                    drain=drain,
                    stop=stop,
                )

    @asynccontextmanager
    async def _open_page(self, gateway: Gateway) -> "AsyncGenerator[WebPage | None, None]":
        """The page, if `--ui` is given."""
        if self._visitors is None:
            yield None
            return
        from .web.acts import PageHost
        from .web.page import open_page

        host = PageHost(gateway.supervisor, self._end_session, self._clients, self._replica_reports)
        async with open_page(host, self._visitors) as page:
            yield page

    async def _report(self, gateway: Gateway, application: HttpApplication) -> None:
        """Report to replicas that share the state, even if there is no page here: others may have one."""
        if gateway.session_notes.others_write:
            from .web.replicas import Replicas, own_name

            self._replicas = Replicas(gateway.session_notes, own_name(self._listening.getsockname()[1]))
            await self._replicas.run(gateway.supervisor, application)

    def _replica_reports(self) -> "Mapping[str, ReplicaReport]":
        return {} if self._replicas is None else self._replicas.reports

    def _clients(self) -> ClientsStatus:
        assert self._application is not None  # it serves the page that asks
        return self._application.clients()

    async def _end_session(self, key: str) -> bool:
        assert self._application is not None  # as above
        return await self._application.end_session(key)

    def _announce(self) -> None:
        host, port = self._listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        origin = f"{'http' if self._tls is None else 'https'}://{shown}:{port}"
        note(f"serving on {origin}/mcp")
        if self._visitors is not None:
            note(f"the page is at {origin}/ui")


def _exposition(
    statuses: "Sequence[ServerStatus]",
    statistics: "SupervisorStatistics",
    kept: "Mapping[str, int]",
    telemetry: "TelemetryFigures | None",
) -> bytes:
    # it takes 0.1 s to load, so this runs in a thread, at the first request
    from mcp_nursery.supervisor.gateway.metrics import exposition

    return exposition(statuses, statistics, kept, telemetry)


def _telemetry_figures() -> "TelemetryFigures":
    from mcp_nursery.supervisor.gateway.metrics import TelemetryFigures

    with _installed("--metrics"):
        return TelemetryFigures()


@contextmanager
def _installed(option: str) -> Generator[None, None, None]:
    """Refuse an option if a package that it needs is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(str(error), field=option) from None


def _hosts(host: str, named: Iterable[str]) -> Sequence[str] | None:
    """The values that `Host` may have. A gateway that listens on all addresses without named hosts accepts any: it
    needs a token, which no browser adds by itself."""
    if host in _WILDCARDS and not named:
        return None
    own = f"[{host.partition('%')[0]}]" if ":" in host else host
    check_setting("--http", own, host_name)
    for each in named:
        check_setting("--allowed-host", each, host_name)
    return [*LOOPBACK_NAMES, *([] if host in _WILDCARDS else [own]), *named]


def _oauth(
    issuer: str | None, *, audience: Sequence[str], scope: Sequence[str], public_url: str | None, jwks: str | None
) -> OAuthResource | None:
    if issuer is None:
        given = {"--audience": audience, "--scope": scope, "--public-url": public_url, "--oauth-jwks": jwks}
        for option in (option for option, value in given.items() if value):
            raise ConfigError("needs --oauth-issuer", field=option)
        return None
    url = public_url or next((_origin(each) for each in audience if "://" in each), None)
    if url is None:
        problem = "is needed unless an --audience is a URL: the address by which clients call this gateway"
        raise ConfigError(problem, field="--public-url")
    try:
        with _installed("--oauth-issuer"):
            return OAuthResource(issuer, url, audiences=audience, scopes=scope, jwks=jwks)
    except ConfigError as error:
        options = {"issuer": "--oauth-issuer", "--oauth-issuer": "--oauth-issuer", "jwks": "--oauth-jwks"}
        raise ConfigError(error.problem, field=options.get(str(error.field), "--public-url")) from None


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _tls(cert: Path | None, key: Path | None) -> Tls | None:
    if cert is None:
        if key is not None:
            raise ConfigError("needs --tls-cert", field="--tls-key")
        return None
    return Tls(cert, key, os.environ.get(KEY_PASSWORD))


def _session_keys(file: Path | None, max_age: float | None, *, resume: bool) -> SessionKeyFile | None:
    """The keys of sessions that outlive this gateway; None: they end with it."""
    given = {"--replica-key": file, "--session-max-age": max_age}
    if not resume:
        for option in (option for option, value in given.items() if value is not None):
            raise ConfigError("cannot be given together with --no-resume", field=option)
        return None
    check_setting("--session-max-age", max_age, finite_seconds_or_none)
    age = MAX_AGE if max_age is None else max_age
    try:
        with _installed("--replica-key"):
            return SessionKeyFile(own_key_file() if file is None else file, age)
    except ConfigError as error:
        if file is not None:
            raise
        warn(f"warning: sessions end with this gateway, as with --no-resume: {error}")
        return None


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
