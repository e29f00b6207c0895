"""The settings for the authorisation of a server's user; `renewal` uses them. Light to import."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from mcp_nursery.actors.records import field, frozen

from ..argument_checks import check_setting, one_of, several, true_or_false
from ..errors import ConfigError

Grant = Literal["authorization_code", "client_credentials", "enterprise", "workload"]
"""`authorization_code`: a person agrees in a browser (with PKCE). `client_credentials`: the client authorises itself.
`enterprise`: an identity provider has agreed, and its assertion is presented. `workload`: the platform that the host
runs on has given it a token (JWT), which is presented as an assertion (RFC 7523)."""

Assertion = Callable[[str, str], Awaitable[str]]
"""Called with the issuer and the server's resource; returns the assertion for them: of the identity provider (ID-JAG),
or of the workload's platform."""


_NEEDED: Final[dict[Grant, tuple[str, ...]]] = {
    "authorization_code": (),
    "client_credentials": ("client_id",),
    "enterprise": ("client_id", "client_secret", "issuer", "assertion"),
    "workload": ("issuer", "assertion"),
}
"""The settings that a grant cannot do without."""


def _hide(value: object) -> str:
    return "None" if value is None else "…"


def _of_grants(_words: object, attribute: Any, value: object) -> None:
    check_setting(attribute.name, value, one_of(Grant))


def _yes_or_no(_words: object, attribute: Any, value: object) -> None:
    check_setting(attribute.name, value, true_or_false)


def _port(_words: object, attribute: Any, value: object) -> None:
    if value is not None and not (isinstance(value, int) and 0 < value < 1 << 16):
        raise ConfigError("must be a port, 1 to 65535", field=attribute.name)


def _loopback(_words: object, attribute: Any, value: str | None) -> None:
    if value is not None and not is_loopback(value):
        raise ConfigError("an http URL of this machine wanted: http://127.0.0.1:PORT/…", field=attribute.name)


LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
"""Host names that lead to this machine alone."""


def is_loopback(url: str) -> bool:
    """True if a URL leads to a port of this machine."""
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and parts.hostname in LOOPBACK and bool(parts.port)
    except ValueError:
        return False


@frozen(kw_only=True)
class OAuth:
    """OAuth 2.1 as MCP has it: the server that refuses a request without a token names its issuer.

    Tokens are kept for later runs. Secrets in it are shown nowhere.

    Raises:
        ConfigError: A value cannot work, or one that the grant needs is missing.
    """

    grant: Grant = field(default="authorization_code", validator=_of_grants)
    """The way in which the client gets a token."""
    scopes: Sequence[str] = field(default=(), converter=several)
    """The scopes to ask for; by default those that the server names."""
    client_id: str | None = None
    """The registered client; by default the client registers itself, where the issuer allows it."""
    client_secret: str | None = field(default=None, repr=_hide)
    """The client's secret, if it has one."""
    private_key: str | None = field(default=None, repr=_hide)
    """For `client_credentials` instead of a secret: the key in PEM format that signs the client's assertion."""
    signing_algorithm: str = "RS256"
    """The algorithm that `private_key` signs with."""
    assertion: Assertion | str | None = field(default=None, repr=_hide)
    """For `enterprise` and `workload`: a function that gets an assertion, or the assertion itself."""
    assertion_file: str | None = None
    """The path of a file with the assertion instead, which is read for each token, as the platform may have written
    another."""
    issuer: str | None = None
    """The issuer that the client is registered with: secret and assertion are sent nowhere else. `enterprise` and
    `workload` need it."""
    client_metadata_url: str | None = None
    """The URL of the client's metadata, with which it needs no registration."""
    dpop: bool = field(default=False, validator=_yes_or_no)
    """True if tokens have to be bound to a key that never leaves this machine, of which each request brings a proof
    (RFC 9449): others can do nothing with such a token. An issuer that does not support it is refused."""
    require_pkce: bool = field(default=True, validator=_yes_or_no)
    """True if an issuer has to declare support of PKCE with S256 before a person is asked there. Some with OpenID
    Connect support it undeclared. PKCE is used in any case."""
    redirect_port: int | None = field(default=None, validator=_port)
    """The port of this machine to which the browser comes back; by default one that is free."""
    redirect_uri: str | None = field(default=None, validator=_loopback)
    """The whole URL to which the browser comes back; default `http://127.0.0.1:PORT/callback`."""

    ca_file: str | None = None
    """A PEM file of authorities that requests to the issuer trust besides the usual ones. Default: that of the
    transport."""

    def __attrs_post_init__(self) -> None:
        for name in self._missing():
            raise ConfigError(f"missing, and {self.grant} needs it", field=name)

    def _missing(self) -> list[str]:
        missing = [name for name in _NEEDED[self.grant] if getattr(self, name) is None]
        if self.assertion_file is not None and "assertion" in missing:
            missing.remove("assertion")
        if self.grant == "client_credentials" and self.client_secret is None and self.private_key is None:
            missing.append("client_secret")
        return missing

    @property
    def needs_person(self) -> bool:
        """True if a person has to agree in a browser."""
        return self.grant == "authorization_code"

    @property
    def secrets(self) -> set[str]:
        """The values that may not be shown."""
        assertion = self.assertion if isinstance(self.assertion, str) else None
        return {text for text in (self.client_secret, self.private_key, assertion) if text}
