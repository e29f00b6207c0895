"""Where the tokens of a supervisor's servers are kept, and which of them a server has. Light to import."""

import os
from pathlib import Path
from typing import Any

import trio

from mcp_nursery.actors.transports.http.grants import OAuth
from mcp_nursery.actors.transports.http.tokens import MemoryVault, TokenKey, TokenStore, Vault

from ..config.deferred import DeferredTransport
from ..spec import ServerSpec
from ..storage.sqlite import SqliteStore
from ..storage.store import Store
from .token_files import TokenFile, TokenFolder


def vault_of(store: Store) -> Vault:
    """Beside the state file, in a folder `tokens`; in memory, if there is no such file."""
    return token_folder(store) if isinstance(store, SqliteStore) else MemoryVault()


def token_folder(store: SqliteStore) -> TokenFolder:
    """The folder beside a state file."""
    return TokenFolder(Path(os.path.abspath(store.path)).parent / "tokens")


def words_of(spec: ServerSpec) -> OAuth | None:
    """How a server's requests are authorised, unresolved; None if not in words of ours."""
    transport: Any = spec.transport
    auth = getattr(transport.transport if isinstance(transport, DeferredTransport) else transport, "auth", None)
    return auth if isinstance(auth, OAuth) else None


class ServerVault:
    """The vault of all servers as one of them uses it: which tokens its last connection had.

    Args:
        vault: Of all servers.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._used: TokenStore | None = None

    def store(self, key: TokenKey) -> TokenStore:
        """See `Vault`."""
        self._used = self._vault.store(key)
        return self._used

    async def changed(self) -> None:
        """Wait until the tokens that the last connection had are others. It may have had none, and then nobody changes
        them; and what is in memory is changed by nobody else."""
        if isinstance(self._used, TokenFile):
            await self._used.changed()
        else:
            await trio.sleep_forever()
