"""A login: a person agrees, and the tokens are kept for every host of this user. It has a time limit of its own."""

from secrets import token_hex
from typing import Any

import httpx2
from attrs import evolve

from mcp_nursery.actors.callbacks import Authorize
from mcp_nursery.actors.errors import AuthorizationFailed, ConfigError, StartFailed
from mcp_nursery.actors.http.address import Address
from mcp_nursery.actors.http.auth import challenge_of
from mcp_nursery.actors.oauth.renewal import authorise
from mcp_nursery.actors.oauth.settings import OAuth
from mcp_nursery.actors.oauth.token_endpoint import GrantRefused, Passing, send
from mcp_nursery.actors.oauth.tokens import TokenKey, Tokens, TokensUnreadable, Vault, join_scopes
from mcp_nursery.actors.outcomes import Challenge
from mcp_nursery.actors.secrets import SECRETS
from mcp_nursery.actors.transports.http.headers import resolve

from ..config.deferred import DeferredTransport, Resolver
from ..spec import ServerSpec
from .redirect import open_redirect
from .vault import words_of


async def resolved(spec: ServerSpec) -> Any:
    """The transport of a spec with all its text resolved.

    Raises:
        ConfigError: It has no OAuth.
        StartFailed: A variable has no value, or a command failed.
    """
    if words_of(spec) is None:
        raise ConfigError('it has no OAuth: `"auth": "oauth"` gives it that', server=spec.name)
    transport: Any = spec.transport
    return await Resolver(transport).transport() if isinstance(transport, DeferredTransport) else transport


async def log_in(spec: ServerSpec, vault: Vault, authorize: Authorize) -> Tokens:
    """Have a person authorise a server. Returns the tokens, which are kept.

    Raises:
        AuthorizationFailed: The login got no token. Stored tokens are kept.
        ConfigError: It has no OAuth.
        StartFailed: A variable of its configuration has no value, or a command failed.
    """
    transport = await resolved(spec)
    words: OAuth = transport.auth
    SECRETS.get().learn(words.secrets)
    address = Address.of(transport.url)
    store = vault.store(TokenKey.of(address.bare, words))
    try:
        known = await store.read()
        challenge = await _challenge(transport, address, known)
        if words.needs_person:
            async with open_redirect(spec.name, words, known, authorize) as person:
                tokens = await authorise(words, address.bare, challenge, person, known)
        else:
            tokens = await authorise(words, address.bare, challenge)
        tokens = evolve(tokens, login=token_hex(8))
        SECRETS.get().learn(tokens.secrets)
        async with store.locked():
            await store.write(tokens)
    except (Passing, GrantRefused, TokensUnreadable) as error:
        problem = str(error)
    else:
        return tokens
    raise AuthorizationFailed(spec.name, problem)


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
    challenge = challenge_of(await send(request)) or Challenge()
    granted = None if known is None else join_scopes(known.scope, known.wanted)
    return evolve(challenge, scope=join_scopes(granted, challenge.scope)) if known and known.wanted else challenge
