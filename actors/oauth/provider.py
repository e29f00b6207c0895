"""The driver of the SDK's OAuth providers: they decide which request comes next; here it is sent, and its answer
checked.

Used directly, a provider would let a connection's requests go one at a time, quote answers in its log, and ask a person
in the middle of a request. So it is used only for the way from a refusal to a token; the refusal is one that has come
already, or an empty one.
"""

import re
import warnings
from functools import partial
from typing import Final, Protocol
from urllib.parse import parse_qs, parse_qsl

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError, OAuthTokenError
from mcp.client.auth.exceptions import OAuthRegistrationError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.shared.auth import (
    JWT_BEARER_GRANT_TYPE,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import AnyUrl, ValidationError

from mcp_nursery.actors.records import define, evolve, field

from ..errors import one_line
from ..outcomes import Challenge
from ..secrets import SECRETS
from ..threads import SLOW_THREADS
from .dpop import ALGORITHM, Prover, new_key
from .settings import OAuth, is_loopback
from .token_endpoint import (
    GrantRefused,
    Passing,
    add_client,
    ask,
    check_answer,
    document,
    end_of,
    send,
    token_in,
)
from .tokens import Tokens

_FORM_TYPE = "application/x-www-form-urlencoded"
_TOO_MANY = 429
_UNWELL = (_TOO_MANY, *range(500, 600))
_UNKNOWN_CLIENT: Final = (400, 401, 404, 422)
"""The statuses of an error page for an unknown client. Others, such as 403, may be meant for programs alone."""
_ERRORS = (OAuthFlowError, OAuthRegistrationError, OAuthTokenError, ValidationError, ValueError)
_CLIENT_AUTHENTICATION: Final = "client_secret_basic"
"""The default way to send a secret: every issuer has to accept it (RFC 6749, 2.3.1)."""
_JWT: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
_LARGEST_ASSERTION: Final = 1 << 16
"""Bytes of a file with an assertion: no server reads a longer one."""
_METHOD: Final = "S256"
"""The method of PKCE, which ties a login to its client (RFC 7636). `plain` is no protection from those who can read the
page's address."""
_CLIENT_NAME = "mcp-nursery"
"""The name of the client for issuers, and for the people they ask."""


class Consent(Protocol):
    """A person who can be asked."""

    @property
    def redirect_uri(self) -> str:
        """The place to which the browser comes back."""
        ...

    async def ask(self, url: str) -> AuthorizationCodeResult:
        """Have the person visit this URL; returns what the browser comes back with.

        Raises:
            GrantRefused: The person does not agree.
        """
        ...


@define
class _ProviderTokens:
    """The `TokenStorage` of a provider: the tokens and the client that the provider finds and stores."""

    words: OAuth
    near: bool
    """True if the server, or its issuer, is on this machine."""
    client: OAuthClientInformationFull | None = field(default=None, repr=False)
    token: OAuthToken | None = field(default=None, repr=False)
    prover: Prover | None = None
    """The maker of proofs, if tokens have to be bound to its key."""
    takes_proofs: bool = False
    """True if the issuer's metadata says that it takes such proofs."""
    endpoint: str = ""
    resource: str | None = None
    is_old_client: bool = False
    """True if the client was registered at an earlier login: the issuer may have forgotten it."""
    unwell: Passing | None = None
    """The reason why the metadata last requested is not known. A provider would go on without it, at the server."""

    def check_place(self, url: httpx2.URL) -> None:
        """Check that a server may lead there: one elsewhere must reach nothing that listens on this machine.

        Raises:
            GrantRefused: It may not.
        """
        if url.scheme != "https" and not self.near:
            raise GrantRefused(f"{url.host} is not asked: a server elsewhere may lead to https alone")

    def check_proofs(self, issuer: str) -> None:
        """Check that the issuer binds tokens to a key, if that is wanted.

        Raises:
            GrantRefused: It does not say so.
        """
        if self.prover is not None and not self.takes_proofs:
            raise GrantRefused(
                f"{issuer} does not say that it binds tokens to a key (dpop_signing_alg_values_supported with"
                f" {ALGORITHM}); without dpop, everybody who has its tokens can use them"
            )

    async def get_tokens(self) -> OAuthToken | None:
        """Return None: the stored tokens were refused."""
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep the tokens."""
        self.token = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """The client that is registered already."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Record the registration of the client."""
        self.client, self.is_old_client = client_info, False


async def authorise(
    words: OAuth, url: str, challenge: Challenge, consent: Consent | None = None, known: Tokens | None = None
) -> Tokens:
    """Get tokens for a server, whose URL is without user, password and query. `words.scopes` takes precedence over the
    scopes in the challenge of its refusal. `consent` asks a person, if the grant needs one; `known` are the tokens of
    an earlier consent, with the client registered then.

    Raises:
        Passing: It is not possible now.
        GrantRefused: The issuer or the person refuses.
    """
    if words.assertion_file is not None:
        text = await SLOW_THREADS.run(_read_assertion, words.assertion_file, abandon_on_cancel=True)
        SECRETS.get().learn({text})
        words = evolve(words, assertion=text, assertion_file=None)
    scopes = " ".join(words.scopes) or challenge.scope
    near = is_loopback(url) or is_loopback(words.issuer or "")
    client = _client_of(words, consent, known, scopes)
    kept = _ProviderTokens(words, near, client, is_old_client=client is not None and words.client_id is None)
    if words.dpop:
        kept.prover = Prover((known and known.proof_key) or new_key())
    with warnings.catch_warnings():  # to name no issuer is the user's decision, of which the documentation warns
        warnings.simplefilter("ignore")
        try:
            provider = _provider(words, url, kept, consent)
        except _ERRORS as error:
            raise GrantRefused(one_line(error)) from None
    headers = {MCP_PROTOCOL_VERSION_HEADER: HANDSHAKE_PROTOCOL_VERSIONS[-1]}
    request = httpx2.Request("POST", url, headers=headers)
    await _drive(provider, request, _refusal(request, scopes, challenge), kept)
    if kept.token is None:
        raise GrantRefused("no token came of it")
    token, client = kept.token, kept.client
    return Tokens(
        token.access_token,
        token.refresh_token,
        end_of(token),
        token.scope,
        words.issuer if client is None else client.issuer or words.issuer,
        kept.endpoint,
        kept.resource,
        {} if client is None else client.model_dump(mode="json", exclude_none=True),
        proof_key=None if kept.prover is None else kept.prover.key,
    )


def _refusal(request: httpx2.Request, scopes: str | None, challenge: Challenge) -> httpx2.Response:
    """The refusal to begin with, with the scopes that are to be asked for."""
    said = {"scope": scopes, "resource_metadata": challenge.resource_metadata}
    usable = {name: value for name, value in said.items() if value and value.isascii() and '"' not in value}
    parts = ", ".join(f'{name}="{value}"' for name, value in usable.items())
    return httpx2.Response(401, headers={"www-authenticate": f"Bearer {parts}".strip()}, request=request)


async def _drive(
    provider: httpx2.Auth, request: httpx2.Request, refusal: httpx2.Response, kept: _ProviderTokens
) -> None:
    """Send what the provider wants sent, until it would send the request itself with a token."""
    flow = provider.async_auth_flow(request)
    try:
        await anext(flow)
        response = refusal
        while (outgoing := await flow.asend(response)) is not request:
            response = await _answer(outgoing, kept)
    except StopAsyncIteration:
        return
    except (Passing, GrantRefused):
        raise
    except _ERRORS as error:
        raise (kept.unwell or GrantRefused(one_line(error))) from None
    except Exception:  # a provider may raise anything about a peer's answer, and it has logged that
        raise GrantRefused("what was said on the way to a token makes no sense") from None
    finally:
        await flow.aclose()


async def _answer(outgoing: httpx2.Request, kept: _ProviderTokens) -> httpx2.Response:
    """The answer to a request of the provider, which does not get one that grants nothing: it would quote it."""
    kept.check_place(outgoing.url)
    form = outgoing.headers.get("content-type") == _FORM_TYPE
    if outgoing.method == "POST" and kept.unwell is not None:
        raise kept.unwell
    await outgoing.aread()  # the body is not read yet if it follows a redirect
    if form:
        kept.check_proofs(outgoing.url.host)
        outgoing = _with_grant(outgoing, kept.words) if kept.words.grant == "workload" else outgoing
        response = await ask(outgoing, kept.words.ca_file, kept.prover)
    else:
        response = await send(outgoing, kept.words.ca_file)
    if response.next_request is not None:
        return response
    if outgoing.method != "POST":
        kept.unwell = Passing.of(response) if response.status_code in _UNWELL else None
        if kept.unwell is not None and (response.status_code == _TOO_MANY or kept.unwell.retry_in is not None):
            raise kept.unwell
        algorithms = document(response).get("dpop_signing_alg_values_supported")
        kept.takes_proofs = isinstance(algorithms, list) and ALGORITHM in algorithms  # the last is the issuer's
        return response
    if not form:
        return _registration(response)
    asked = parse_qs(outgoing.content.decode())
    kept.endpoint, kept.resource = str(outgoing.url), next(iter(asked.get("resource", ())), None)
    token = token_in(response, bound=kept.prover is not None).model_dump(mode="json", exclude_none=True)
    return httpx2.Response(200, json=token, request=outgoing)


def _with_grant(outgoing: httpx2.Request, words: OAuth) -> httpx2.Request:
    """The request for a token with the assertion as its grant (RFC 7523, 2.1), instead of as the authentication of the
    client (2.2), as the provider has made it."""
    form = dict(parse_qsl(outgoing.content.decode()))
    if "client_assertion" not in form:  # it follows a redirect
        return outgoing
    del form["client_assertion_type"]
    form |= {"grant_type": JWT_BEARER_GRANT_TYPE, "assertion": form.pop("client_assertion")}
    client = {"client_id": words.client_id, "client_secret": words.client_secret}
    headers = {} if words.client_id is None else add_client(form, client)
    return httpx2.Request("POST", outgoing.url, data=form, headers=headers)


def _registration(response: httpx2.Response) -> httpx2.Response:
    """The answer, if it registers a client."""
    check_answer(response)
    try:
        OAuthClientInformationFull.model_validate_json(response.content)
    except ValidationError:  # whose text quotes it
        raise GrantRefused(f"{response.request.url.host} answered something that is no registration") from None
    return response


def _client_of(
    words: OAuth, consent: Consent | None, known: Tokens | None, scopes: str | None
) -> OAuthClientInformationFull | None:
    """The client that is registered already; None if the client is to register itself, also because the registration is
    for fewer scopes."""
    redirect = [AnyUrl(consent.redirect_uri)] if consent is not None else None
    if words.client_id is not None:
        method = None if words.client_secret is None else _CLIENT_AUTHENTICATION
        return OAuthClientInformationFull(
            client_id=words.client_id,
            client_secret=words.client_secret,
            redirect_uris=redirect,
            token_endpoint_auth_method=method or "none",
            issuer=words.issuer,
        )
    if known is None or not known.client or known.is_client_doubted:
        return None
    try:
        client = OAuthClientInformationFull.model_validate(dict(known.client))
    except ValidationError:
        return None
    may_ask = client.scope is None or set((scopes or "").split()) <= set(client.scope.split())
    return client if client.redirect_uris is not None and client.redirect_uris == redirect and may_ask else None


def _provider(words: OAuth, url: str, kept: _ProviderTokens, consent: Consent | None) -> httpx2.Auth:
    scope = " ".join(words.scopes) or None
    client_id = words.client_id or ""
    if words.grant == "enterprise":
        return IdentityAssertionOAuthProvider(
            url,
            kept,
            client_id,
            words.client_secret or "",
            words.issuer or "",
            partial(_assertion, words),
            scope,
            token_endpoint_auth_method=_CLIENT_AUTHENTICATION,
        )
    if words.grant == "workload":

        async def signed(issuer: str) -> str:
            return await _assertion(words, issuer, url)

        name = client_id or _CLIENT_NAME  # the provider needs one; `_with_grant` does not send it
        return PrivateKeyJWTOAuthProvider(url, kept, name, signed, scope=scope, issuer=words.issuer)
    if words.grant == "client_credentials":
        if words.private_key is None:
            return ClientCredentialsOAuthProvider(
                url, kept, client_id, words.client_secret or "", scope=scope, issuer=words.issuer
            )
        key = SignedJWTParameters(
            issuer=client_id,
            subject=client_id,
            signing_key=words.private_key,
            signing_algorithm=words.signing_algorithm,
        )
        signing = key.create_assertion_provider()
        return PrivateKeyJWTOAuthProvider(url, kept, client_id, signing, scope=scope, issuer=words.issuer)
    if consent is None:
        raise GrantRefused("there is nobody to ask")
    return _for_a_person(words, url, kept, consent)


def _for_a_person(words: OAuth, url: str, kept: _ProviderTokens, consent: Consent) -> httpx2.Auth:
    pages: list[str] = []

    async def take(page: str) -> None:
        if kept.unwell is not None:
            raise kept.unwell
        kept.check_place(httpx2.URL(page))
        _check_issuer(words, provider.context.oauth_metadata)
        _check_pkce(words, provider.context.oauth_metadata)
        kept.check_proofs(httpx2.URL(page).host)
        if kept.is_old_client:
            await _check_client(page, words.ca_file)
        pages.append(page)

    async def ask() -> AuthorizationCodeResult:
        return await consent.ask(pages[-1])

    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(consent.redirect_uri)], client_name=_CLIENT_NAME)
    provider = OAuthClientProvider(url, metadata, kept, take, ask, words.client_metadata_url)
    return provider


async def _check_client(page: str, ca_file: str | None) -> None:
    """Check that the issuer still knows the client, before a person is sent to its page: nobody else sees an error that
    it shows there.

    Raises:
        GrantRefused: It does not.
    """
    try:
        response = await send(httpx2.Request("GET", page, headers={"accept": "text/html"}), ca_file)
    except (Passing, GrantRefused):
        return  # which says nothing about the client
    if response.status_code in _UNKNOWN_CLIENT and "www-authenticate" not in response.headers:
        host = response.request.url.host
        raise GrantRefused(f"{host} does not know the client any more: HTTP {response.status_code}", "invalid_client")


def _check_issuer(words: OAuth, found: OAuthMetadata | None) -> None:
    """Check that the issuer that was found is the one that was configured, before anybody is asked there."""
    issuer = "none" if found is None else str(found.issuer)
    if words.issuer is not None and issuer.rstrip("/") != words.issuer.rstrip("/"):
        raise GrantRefused(f"the server leads to another issuer than the one that is configured: {one_line(issuer)}")


def _check_pkce(words: OAuth, found: OAuthMetadata | None) -> None:
    """Check that the issuer supports PKCE, before a person is asked: a code that others see on its way is then of no
    use to them. Without metadata, as in the first version with logins, there is nothing to check."""
    if not words.require_pkce or found is None or _METHOD in (found.code_challenge_methods_supported or ()):
        return
    raise GrantRefused(
        f"{one_line(found.issuer)} does not say that it supports PKCE with {_METHOD}"
        " (code_challenge_methods_supported); if it does, require_pkce=False, or requirePkce in a file, uses it anyway"
    )


async def _assertion(words: OAuth, issuer: str, resource: str) -> str:
    given = words.assertion
    return await given(issuer, resource) if callable(given) else given or ""


def _read_assertion(path: str) -> str:
    """The assertion in a file, and no text that is none: settings may name any file.

    Raises:
        Passing: There is none now.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(_LARGEST_ASSERTION).decode("ascii", "replace").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its path is none"
    else:
        if _JWT.fullmatch(text):
            return text
        reason = "no JWT is in it"
    shown = one_line(path, 200)
    raise Passing(f"assertion_file (assertionFile): {reason}: {shown}; the platform has to put a JWT there")
