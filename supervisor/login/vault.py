"""The vault of the tokens of a supervisor's servers, and the tokens that a server uses. Light to import."""

import os
from pathlib import Path
from typing import Any

import trio

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.oauth.settings import OAuth
from mcp_nursery.actors.oauth.tokens import MemoryVault, TokenKey, TokenStore, Vault
from mcp_nursery.actors.overrides import override

from ..config.deferred import DeferredTransport, Resolver
from ..spec import ServerSpec
from ..storage.sqlite import SqliteStore
from ..storage.store import Store
from .token_files import TokenFile, TokenFolder
from .token_table import TokenRow, TokenTable


def vault_of(store: Store) -> Vault:
    """The vault that belongs to a store; in memory, if the store is."""
    return lasting_vault(store) if isinstance(store, SqliteStore) or store.shared else MemoryVault()


def lasting_vault(store: Store) -> TokenFolder | TokenTable:
    """The folder `tokens` beside a state file, or the tokens in a database."""
    if store.shared:
        from ..storage.postgres import PostgresStore

        if isinstance(store, PostgresStore):
            return TokenTable(store.database)
    file = store if isinstance(store, SqliteStore) else SqliteStore()
    return TokenFolder(Path(os.path.abspath(file.path)).parent / "tokens")


def words_of(spec: ServerSpec) -> OAuth | None:
    """The authorisation of a server's requests, unresolved; None if it is no `OAuth`."""
    transport: Any = spec.transport
    auth = getattr(transport.transport if isinstance(transport, DeferredTransport) else transport, "auth", None)
    return auth if isinstance(auth, OAuth) else None


async def resolved_transport(spec: ServerSpec) -> Any:
    """The transport of a spec with all its text resolved.

    Raises:
        ConfigError: It has no OAuth.
        StartFailed: A variable has no value, or a command failed.
    """
    if words_of(spec) is None:
        raise ConfigError('it has no OAuth: `"auth": "oauth"` gives it that', server=spec.name)
    transport: Any = spec.transport
    return await Resolver(transport).transport() if isinstance(transport, DeferredTransport) else transport


class ServerVault(Vault):
    """The vault of all servers as one of them uses it, with the tokens that its last connection had."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._used: TokenStore | None = None

    @override
    def store(self, key: TokenKey) -> TokenStore:
        self._used = self._vault.store(key)
        return self._used

    async def changed(self) -> None:
        """Wait until the tokens that the last connection had have changed. Waits for ever if it had none, or if they
        are in memory, where nobody else changes them."""
        if isinstance(self._used, TokenFile | TokenRow):
            await self._used.changed()
        else:
            await trio.sleep_forever()
