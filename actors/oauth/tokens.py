"""Tokens, and where they are kept: the supervisor has the stores, and connections find theirs in `VAULT`."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Protocol

import trio
from attrs.validators import instance_of, optional

from mcp_nursery.actors.records import evolve, field, frozen

from ..overrides import override
from .settings import OAuth

_IS_TEXT = instance_of(str)
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_DOUBTED = "mcp_nursery_doubted"


def _of_client(_tokens: object, _attribute: object, client: Mapping[str, Any]) -> None:
    said = [client.get(name) for name in ("client_id", "client_secret", "token_endpoint_auth_method")]
    if not all(each is None or isinstance(each, str) for each in said):
        raise TypeError("a client is described in text")


def _of_curve(_tokens: object, _attribute: object, key: str | None) -> None:
    if key is not None and not 0 < int(key, 16) < _ORDER:
        raise ValueError("a key of P-256 is a number below the order of the curve")


@frozen
class Tokens:
    """The tokens of a grant, and all that is needed to renew them. Secrets in it are shown nowhere.

    Raises:
        TypeError, ValueError: They come from a damaged file.
    """

    access: str = field(repr=False, validator=_IS_TEXT)
    refresh: str | None = field(default=None, repr=False, validator=optional(_IS_TEXT))
    expires_at: float | None = field(default=None, validator=optional(instance_of((int, float))))
    """The time at which `access` expires, in seconds since 1970; None if unknown."""
    scope: str | None = field(default=None, validator=optional(_IS_TEXT))
    """The scope that was granted."""
    issuer: str | None = field(default=None, validator=optional(_IS_TEXT))
    """The issuer that granted them."""
    token_endpoint: str = field(default="", validator=_IS_TEXT)
    """The endpoint that renews them."""
    resource: str | None = field(default=None, validator=optional(_IS_TEXT))
    """The resource that they were asked for."""
    client: Mapping[str, Any] = field(factory=dict[str, Any], repr=False, validator=[instance_of(dict), _of_client])
    """The client that they were granted to, as it was registered."""
    wanted: str | None = field(default=None, validator=optional(_IS_TEXT))
    """Scopes that a server found missing: the next consent asks for them."""
    login: str = field(default="", validator=_IS_TEXT)
    """The login that they come from; renewed ones have the same."""
    proof_key: str | None = field(default=None, repr=False, validator=_of_curve)
    """The private key that they are bound to, as a hexadecimal number; None if they are not bound. The next login uses
    it, too."""

    @property
    def is_client_doubted(self) -> bool:
        """True if a login with this client has begun, and nobody came back from the issuer's page: it may show an error
        there. The next login registers another client."""
        return bool(self.client.get(_DOUBTED))

    def doubt_client(self, doubted: bool) -> "Tokens":  # noqa: FBT001
        """The same tokens, whose client is doubted or not. The mark is part of the client: older versions that share
        the tokens read that."""
        client = {name: value for name, value in self.client.items() if name != _DOUBTED}
        return evolve(self, client=client | ({_DOUBTED: True} if doubted else {}))

    @property
    def secrets(self) -> set[str]:
        """The values that may not be shown."""
        secrets = (self.access, self.refresh, self.client.get("client_secret"), self.proof_key)
        return {text for text in secrets if text}


def join_scopes(some: str | None, others: str | None) -> str | None:
    """The scopes of both, each once; None if there are none."""
    return " ".join(dict.fromkeys(f"{some or ''} {others or ''}".split())) or None


@frozen
class TokenKey:
    """The key of tokens: a client, a resource, and an issuer if one was configured."""

    resource: str
    """The server's URL without user, password and query."""
    client: str = ""
    issuer: str = ""

    @classmethod
    def of(cls, url: str, words: OAuth) -> "TokenKey":
        """The key of a server at `url`."""
        return cls(url, words.client_id or words.client_metadata_url or "", words.issuer or "")

    @property
    def digest(self) -> str:
        """A name for the key that is valid as a file name."""
        return sha256("\0".join((self.resource, self.client, self.issuer)).encode()).hexdigest()[:32]


class TokensUnreadable(Exception):
    """The stored tokens cannot be read or written. Nothing was deleted."""


class TokensDamaged(TokensUnreadable):
    """The stored tokens are of no use to anybody; the next login replaces them."""

    def __init__(self) -> None:
        super().__init__("what is kept is damaged; log in again")


class TokenStore(Protocol):
    """The store of the tokens of one key."""

    async def read(self) -> Tokens | None:
        """The stored tokens.

        Raises:
            TokensUnreadable: They cannot be read.
        """
        ...

    async def write(self, tokens: Tokens) -> None:
        """Replace the stored tokens.

        Raises:
            TokensUnreadable: They cannot be written.
        """
        ...

    def locked(self) -> AbstractAsyncContextManager[None]:
        """Hold the lock of the tokens, among all processes of this user.

        Raises:
            TokensUnreadable: On entering: another process holds it for too long, or there can be no lock.
        """
        ...


class Vault(Protocol):
    """A store of tokens for each key."""

    def store(self, key: TokenKey) -> TokenStore:
        """The store of these tokens."""
        ...


class MemoryTokens(TokenStore):
    """A store that lasts as long as the process."""

    def __init__(self) -> None:
        self._tokens: Tokens | None = None
        self._lock = trio.Lock()

    @override
    async def read(self) -> Tokens | None:
        return self._tokens

    @override
    async def write(self, tokens: Tokens) -> None:
        self._tokens = tokens

    @override
    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None, None]:
        async with self._lock:
            yield


class MemoryVault(Vault):
    """A vault that lasts as long as the process."""

    def __init__(self) -> None:
        self._stores: dict[TokenKey, MemoryTokens] = {}

    @override
    def store(self, key: TokenKey) -> MemoryTokens:
        return self._stores.setdefault(key, MemoryTokens())


_FORGETFUL = MemoryVault()

VAULT: ContextVar[Vault] = ContextVar("mcp_nursery_vault", default=_FORGETFUL)
"""The vault in which a connection finds its tokens."""

LOG_IN: ContextVar[Callable[[], Awaitable["Tokens"]] | None] = ContextVar("mcp_nursery_log_in", default=None)
"""Asks a person to agree to what is wanted; None where nobody can be asked."""
