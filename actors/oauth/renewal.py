"""Requests with a token, which is renewed once for all requests that find it expired.

A request that gets a 401 needs another token. The first such request starts a task that gets one, and all wait for
that. The task goes on when the request is cancelled: the issuer may have used up the refresh token, and its answer must
be kept. The task holds the lock of the tokens, among all processes, and reads them again first: another process may
have renewed them. Nothing is deleted but a refresh token that its issuer refuses as such, and a client that registered
itself and that its issuer does not know any more: the next login registers another.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

import httpx2
import trio

from mcp_nursery.actors.records import define, evolve, field

from ..errors import NurseryError, StartFailed, one_line
from ..http.auth import INSUFFICIENT_SCOPE, USE_NONCE, AuthUnavailable, challenge_of
from ..nurseries import open_bare_nursery
from ..outcomes import Challenge
from ..secrets import SECRETS
from ..threads import BRIEF_THREADS
from .settings import OAuth
from .token_endpoint import CLIENT_REFUSED, GrantRefused, Passing, refresh
from .tokens import LOG_IN, VAULT, TokenKey, Tokens, TokenStore, TokensUnreadable, join_scopes

if TYPE_CHECKING:
    from .dpop import Prover
    from .provider import Consent

logger: Final = logging.getLogger(__name__)

_RENEWAL_PAUSES = (1.0, 2.0, 4.0)
"""Seconds between tries to renew a token while its issuer cannot be reached. All requests that need it wait."""
_EXCHANGE = 10.0
"""Seconds from the challenge to a token: with all tries less than others wait for the tokens' lock."""
_ASKED = 10
"""Times that a person is asked for more while a connection lasts: a server may want another scope each time."""
_WANTED = 4000
"""Characters of scopes that are remembered for the next consent."""
_MOST_NONCES = 3
"""Nonces of a server that a request tries: the server may change them while the request is on its way."""
_UNAUTHORISED = 401


@define(eq=False)
class _Renewal:
    """One attempt to get another token, for all requests that wait."""

    used: str | None = field(repr=False)
    """The token that was refused."""
    challenge: Challenge
    steps_up: bool
    """True if the token is valid, but lacks a scope."""
    done: trio.Event = field(factory=trio.Event)
    scope: trio.CancelScope = field(factory=lambda: trio.CancelScope(shield=True))
    """The scope that ends it. The connection's own end does not: an issuer's answer must be kept."""
    problem: str | None = None
    """The reason why it is unknown whether there is another token."""
    retry_in: float | None = None
    """Seconds for which the issuer wants to be asked nothing; None if it did not say."""
    refusal: str | None = None
    """The reason why a client that authorises itself gets no token: nobody else would see it."""


class Authorisation(httpx2.Auth):
    """The authorisation of the requests of one connection to a server, whose URL is without user, password and query.
    `tokens` are those kept in the store, and are renewed in the nursery. `log_in` asks a person; None if nobody can be
    asked."""

    def __init__(
        self,
        words: OAuth,
        url: str,
        store: TokenStore,
        tokens: Tokens | None,
        nursery: trio.Nursery,
        *,
        log_in: Callable[[], Awaitable[Tokens]] | None = None,
    ) -> None:
        self._words = words
        self._url = url
        self._store = store
        self._tokens: Tokens | None = None
        self._prover: Prover | None = None
        """The maker of proofs for the tokens, if they are bound to a key."""
        self._nursery = nursery
        self._log_in = log_in
        self._renewal: _Renewal | None = None
        self._asked_for: set[str] = set()
        """Scopes that a person was asked to add, once each: a server may refuse whatever is granted."""
        self._asks = False
        """True while a person is being asked."""
        if tokens is not None:
            self._take(tokens)

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send the request with a token, renewed where the server requires it. A refusal that no token can mend is
        returned to the caller.

        Raises:
            AuthUnavailable: It is not known now whether a token can mend it.
            GrantRefused: The client authorises itself, and the issuer refuses.
        """
        is_renewed, nonces = False, 0
        while True:
            used = self._authorise(request)
            response = yield request
            challenge = challenge_of(response) or Challenge()
            if self._wants_nonce(response, challenge):
                if nonces == _MOST_NONCES:
                    raise AuthUnavailable(
                        f"{request.url.host} takes no proof with the nonce that it gives ({USE_NONCE})"
                    )
                nonces += 1
                continue
            steps_up = challenge.error == INSUFFICIENT_SCOPE
            if is_renewed or (response.status_code != _UNAUTHORISED and not steps_up):
                return
            if await self._another(used, challenge, steps_up=steps_up) is None:
                return
            is_renewed, nonces = True, 0

    def _authorise(self, request: httpx2.Request) -> str | None:
        """Put the token into a request, and a proof of the key that it is bound to; returns the token."""
        access = self._access
        if access is not None:
            request.headers["authorization"] = f"{'Bearer' if self._prover is None else 'DPoP'} {access}"
            if self._prover is not None:
                self._prover.prove(request, access)
        return access

    def _wants_nonce(self, response: httpx2.Response, challenge: Challenge) -> bool:
        """True if the server has refused a request because its proof lacks the nonce that the answer brings. The nonce
        of any answer is used from now on."""
        return self._prover is not None and self._prover.learn(response) and challenge.error == USE_NONCE

    async def settle(self, grace: float) -> None:
        """Wait until no token is being renewed, for at most `grace` seconds: then the renewal is given up."""
        while self._renewal is not None:
            self._renewal.scope.deadline = min(self._renewal.scope.deadline, trio.current_time() + grace)
            await self._renewal.done.wait()

    @property
    def _access(self) -> str | None:
        return None if self._tokens is None else self._tokens.access

    async def _another(self, used: str | None, challenge: Challenge, *, steps_up: bool) -> str | None:
        """Another token than the one that was used; None if there is none."""
        while self._renewal is not None and self._renewal.steps_up is not steps_up:
            await self._renewal.done.wait()
        renewal = self._renewal
        if renewal is None and self._access == used:
            renewal = self._renewal = _Renewal(used, challenge, steps_up)
            self._nursery.start_soon(self._renew, renewal)
        if renewal is not None:
            await renewal.done.wait()
            if renewal.problem is not None:
                raise AuthUnavailable(renewal.problem, renewal.retry_in)
            if renewal.refusal is not None and not steps_up:
                raise GrantRefused(renewal.refusal)
        return None if self._access == used else self._access

    async def _renew(self, renewal: _Renewal) -> None:
        try:
            with renewal.scope:
                await self._renew_alone(renewal)
        except Passing as error:
            renewal.problem, renewal.retry_in = str(error), error.retry_in
        except TokensUnreadable as error:
            renewal.problem = str(error)
        except GrantRefused as refusal:
            logger.info("there is no other token: %s", refusal)
            renewal.refusal = None if self._words.needs_person else str(refusal)
        except Exception:
            logger.exception("the renewal of a token ended with an unforeseen error; please report it")
            renewal.problem = "the renewal of a token ended with an unforeseen error, which the log has"
        finally:
            self._renewal = None
            renewal.done.set()

    async def _renew_alone(self, renewal: _Renewal) -> None:
        async with self._store.locked():
            stored = _fitting(self._words, await self._store.read())
            if stored is None or stored.access == renewal.used:
                stored = await self._obtain(stored, renewal)
            if stored is not None:
                self._take(stored)

    def _take(self, tokens: Tokens) -> None:
        SECRETS.get().learn(tokens.secrets)
        self._tokens = tokens
        if tokens.proof_key is not None and (self._prover is None or self._prover.key != tokens.proof_key):
            from .dpop import Prover  # loaded already: see `open_authorisation`

            self._prover = Prover(tokens.proof_key)

    async def _obtain(self, stored: Tokens | None, renewal: _Renewal) -> Tokens | None:
        """New tokens, which are stored already; None if there are none."""
        if not self._words.needs_person:
            return await self._kept(await _patiently(partial(self._exchange, stored, renewal)))
        if stored is None:
            return None
        if renewal.steps_up:
            wanted = join_scopes(stored.wanted, renewal.challenge.scope)
            if wanted != stored.wanted and len(wanted or "") <= _WANTED:
                await self._store.write(evolve(stored, wanted=wanted))
            self._ask_for(renewal.challenge.scope or "")
            return None
        if stored.refresh is None:
            return None
        try:
            return await self._kept(await _patiently(partial(refresh, stored, self._words, self._prover)))
        except GrantRefused as refusal:
            if refusal.code == "invalid_grant":
                await self._store.write(evolve(stored, refresh=None))
            elif refusal.code in CLIENT_REFUSED and self._words.client_id is None:
                await self._store.write(evolve(stored, refresh=None, client={}))
            raise

    def _ask_for(self, scope: str) -> None:
        """Have a person add this scope, unless one is being asked. No request waits for that: it may take a while, and
        later requests have the new token."""
        if self._log_in is None or self._asks or scope in self._asked_for or len(self._asked_for) == _ASKED:
            return
        self._asked_for.add(scope)
        self._asks = True
        self._nursery.start_soon(self._ask, self._log_in)

    async def _ask(self, log_in: Callable[[], Awaitable[Tokens]]) -> None:
        try:
            self._take(await log_in())
        except NurseryError as error:
            logger.warning("nothing was added to what a token is for: %s", one_line(error))
        finally:
            self._asks = False

    async def _exchange(self, stored: Tokens | None, renewal: _Renewal) -> Tokens:
        """A token for the client's own credentials."""
        granted = stored.scope if stored is not None and renewal.steps_up else None
        challenge = evolve(renewal.challenge, scope=join_scopes(granted, renewal.challenge.scope))
        with trio.move_on_after(_EXCHANGE):
            return await authorise(self._words, self._url, challenge, known=stored)
        raise Passing(f"there was no token within {_EXCHANGE:g} s")

    async def _kept(self, tokens: Tokens) -> Tokens:
        """Use and store the tokens. They are used even if that fails."""
        self._take(tokens)
        try:
            await self._store.write(tokens)
        except TokensUnreadable as error:
            logger.warning("a renewed token could not be kept for later: %s", error)
        return tokens


async def authorise(
    words: OAuth, url: str, challenge: Challenge, consent: "Consent | None" = None, known: Tokens | None = None
) -> Tokens:
    """Get tokens: see `provider.authorise`, which is loaded in a thread when it is first needed."""
    provider = await BRIEF_THREADS.run(import_module, f"{__package__}.provider")
    tokens: Tokens = await provider.authorise(words, url, challenge, consent, known)
    return tokens


async def _patiently(attempt: Callable[[], Awaitable[Tokens]]) -> Tokens:
    """Try again for some seconds while the issuer cannot be reached.

    Raises:
        Passing: It is not possible now; at once if the issuer wants a longer rest than the requests should wait.
    """
    for pause in _RENEWAL_PAUSES:
        try:
            return await attempt()
        except Passing as error:
            if (error.retry_in or 0.0) > pause:
                raise
            logger.info("a token is not renewed yet: %s", error)
        await trio.sleep(pause)
    return await attempt()


@asynccontextmanager
async def open_authorisation(auth: OAuth, url: str, grace: float) -> AsyncGenerator[httpx2.Auth, None]:
    """Authorise the requests of a connection to `url` while the block lasts. A renewal that is under way when the block
    is left has `grace` seconds to be stored.

    Raises:
        StartFailed: On entering: the tokens cannot be read.
    """
    SECRETS.get().learn(auth.secrets)
    if auth.dpop:
        await BRIEF_THREADS.run(import_module, f"{__package__}.dpop")
    store = VAULT.get().store(TokenKey.of(url, auth))
    try:
        tokens = _fitting(auth, await store.read())
    except TokensUnreadable as error:
        raise StartFailed(f"the tokens cannot be read: {error}", retriable=True, needs_auth=True) from error
    async with open_bare_nursery() as nursery:
        authorisation = Authorisation(auth, url, store, tokens, nursery, log_in=LOG_IN.get())
        try:
            yield authorisation
        finally:
            with trio.CancelScope(shield=True):  # bounded by `grace`
                await authorisation.settle(grace)
            nursery.cancel_scope.cancel()


def _fitting(words: OAuth, tokens: Tokens | None) -> Tokens | None:
    """The tokens that are kept; None if they are not bound to a key, as the settings say, or no longer say."""
    return tokens if tokens is not None and (tokens.proof_key is not None) is words.dpop else None
