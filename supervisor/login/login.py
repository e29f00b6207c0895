"""A login: a person agrees, and the tokens are kept for every host of this user. It has a time limit of its own."""

from secrets import token_hex
from typing import Any

import httpx2

from mcp_nursery.actors.callbacks import AuthorizationRequest, Authorize
from mcp_nursery.actors.errors import AuthorizationFailed, StartFailed
from mcp_nursery.actors.http.address import Address
from mcp_nursery.actors.http.auth import challenge_of
from mcp_nursery.actors.oauth.renewal import authorise
from mcp_nursery.actors.oauth.settings import OAuth
from mcp_nursery.actors.oauth.token_endpoint import CLIENT_REFUSED, GrantRefused, Passing, send
from mcp_nursery.actors.oauth.tokens import (
    TokenKey,
    Tokens,
    TokensDamaged,
    TokenStore,
    TokensUnreadable,
    Vault,
    join_scopes,
)
from mcp_nursery.actors.outcomes import Challenge
from mcp_nursery.actors.records import evolve, frozen
from mcp_nursery.actors.secrets import SECRETS
from mcp_nursery.actors.transports.http.headers import resolve

from ..spec import ServerSpec
from .redirect import open_redirect
from .vault import resolved_transport


async def log_in(spec: ServerSpec, vault: Vault, authorize: Authorize) -> Tokens:
    """Have a person authorise a server. Returns the tokens, which are kept.

    Raises:
        AuthorizationFailed: The login got no token. Stored tokens are kept.
        ConfigError: It has no OAuth.
        StartFailed: A variable of its configuration has no value, or a command failed.
    """
    transport = await resolved_transport(spec)
    words: OAuth = transport.authorisation
    SECRETS.get().learn(words.secrets)
    address = Address.of(transport.url)
    store = vault.store(TokenKey.of(address.bare, words))
    try:
        known = await _known(store)
        challenge = await _challenge(transport, address, known)
        if words.needs_person:
            tokens = await _ask_person(_Login(spec.name, words, address.bare, challenge, authorize), store, known)
        else:
            tokens = await authorise(words, address.bare, challenge, known=known)
        tokens = evolve(tokens, login=token_hex(8))
        SECRETS.get().learn(tokens.secrets)
        async with store.locked():
            await store.write(tokens)
    except (Passing, GrantRefused, TokensUnreadable) as error:
        problem = str(error)
    else:
        return tokens
    raise AuthorizationFailed(spec.name, problem)


async def _known(store: TokenStore) -> Tokens | None:
    """The stored tokens, unless they are damaged: the login replaces them then."""
    try:
        return await store.read()
    except TokensDamaged:
        return None


@frozen
class _Login:
    """A login for which a person is asked."""

    server: str
    words: OAuth
    url: str
    challenge: Challenge
    authorize: Authorize

    async def attempt(self, known: Tokens | None) -> Tokens:
        """Ask the person once.

        Raises:
            Passing, GrantRefused: See `authorise`.
        """
        async with open_redirect(self.server, self.words, known, self.authorize) as person:
            return await authorise(self.words, self.url, self.challenge, person, known)


async def _ask_person(login: _Login, store: TokenStore, known: Tokens | None) -> Tokens:
    """Have a person agree. A client that registered itself at an earlier login is used again; if its issuer refuses it,
    another is registered, and the person is asked once more. From the moment at which the issuer's page is shown, which
    may be an error, until the person comes back from there, the client is doubted: the next login registers another.

    Raises:
        Passing, GrantRefused: See `authorise`.
        TokensUnreadable: The tokens cannot be read or written.
    """
    if known is None or not known.client or known.is_client_doubted or login.words.client_id is not None:
        return await login.attempt(known)
    shown = False

    async def show(request: AuthorizationRequest) -> str | None:
        nonlocal shown
        await _doubt(store, doubted=True)
        shown = True
        return await login.authorize(request)

    try:
        return await evolve(login, authorize=show).attempt(known)
    except Passing:
        await _doubt(store, doubted=False)
        raise
    except GrantRefused as refusal:
        if refusal.code is None and shown:
            raise GrantRefused(f"{refusal}; log in again, and another client is registered for it") from None
        if refusal.code not in CLIENT_REFUSED:
            await _doubt(store, doubted=False)
            raise
    return await login.attempt(evolve(known, client={}))


async def _doubt(store: TokenStore, *, doubted: bool) -> None:
    """Have the client of the stored tokens doubted, or not."""
    async with store.locked():
        stored = await store.read()
        if stored is not None and stored.client:
            await store.write(stored.doubt_client(doubted))


async def _challenge(transport: Any, address: Address, known: Tokens | None) -> Challenge:
    """The challenge of the server, with what was granted before."""
    try:
        headers = {**await resolve(transport.headers), "accept": "application/json, text/event-stream"}
    except StartFailed as error:
        raise GrantRefused(str(error)) from None
    if transport.kind == "sse":
        request = httpx2.Request("GET", address.complete(address.url), headers=headers)
    else:
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        request = httpx2.Request("POST", address.complete(address.url), headers=headers, json=ping)
    challenge = challenge_of(await send(request, transport.authorisation.ca_file)) or Challenge()
    granted = None if known is None else join_scopes(known.scope, known.wanted)
    return evolve(challenge, scope=join_scopes(granted, challenge.scope)) if known and known.wanted else challenge
