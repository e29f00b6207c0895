"""The options of `mcp-nursery serve --http`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from mcp_nursery.actors.errors import ConfigError

from .command_server import option_of


@frozen
class HttpServing:
    """How it is served over HTTP."""

    address: str
    """Where to listen, as `HOST:PORT`."""
    token_file: Path | None = None
    """The file of tokens that let clients in."""
    oauth_issuer: str | None = None
    """Whose access tokens let clients in."""
    oauth_jwks: str | None = None
    """Where its keys are, if its metadata does not say."""
    audience: Sequence[str] = ()
    """For whom access tokens are, besides for the address that is asked."""
    scope: Sequence[str] = ()
    """What access tokens need."""
    public_url: str | None = None
    """What clients call it, without `/mcp`."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_proxy: bool = False
    """Whether something before it ends TLS."""
    allowed_host: Sequence[str] = ()
    """Other names that it is reached by."""
    allowed_origin: Sequence[str] = ()
    """Origins whose pages may use it."""
    metrics: bool = False
    """Whether `/metrics` has what OpenTelemetry is told, too."""
    limit: Sequence[str] = ()
    """`NAME=NUMBER`, by the names of `HttpLimits`."""


def serving_over_http(address: str | None, **given: Any) -> HttpServing | None:
    """What was given of it; None if it is not served over HTTP.

    Raises:
        ConfigError: Options that have no meaning then.
    """
    chosen = {name: value for name, value in given.items() if value}
    if address is not None:
        return HttpServing(address, **chosen)
    if chosen:
        raise ConfigError("needs --http HOST:PORT", field=option_of(min(chosen)))
    return None
