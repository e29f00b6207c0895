"""The same client on the bare SDK, for comparison: what it fails too need be no fault of the supervisor."""

import sys
from urllib.parse import parse_qs, urlsplit

import httpx2
import trio
from mcp import Client, MCPError
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata
from mcp_types import ElicitResult
from pydantic import AnyUrl

from . import script

REDIRECT_URI = "http://localhost:3000/callback"
"""Nobody listens there: who agrees reads where to from the answer."""


class Storage:
    """Keeps tokens, and the client that was registered, for as long as this program runs."""

    tokens = client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client_info):
        self.client = client_info


class Person:
    """Agrees to whatever page is shown."""

    async def visit(self, url):
        self._back = await script.agree(url)

    async def code(self):
        parameters = {name: values[0] for name, values in parse_qs(urlsplit(self._back).query).items()}
        return AuthorizationCodeResult(**{name: parameters.get(name) for name in ("code", "state", "iss")})


def auth_of(url):
    """What authorises its requests; None where the scenario wants nobody authorised."""
    context, storage = script.CONTEXT, Storage()
    match script.SCENARIO.removeprefix("auth/"):
        case "client-credentials-basic":
            return ClientCredentialsOAuthProvider(url, storage, context["client_id"], context["client_secret"])
        case "client-credentials-jwt":
            key = SignedJWTParameters(
                issuer=context["client_id"],
                subject=context["client_id"],
                signing_algorithm=context["signing_algorithm"],
                signing_key=context["private_key_pem"],
            )
            return PrivateKeyJWTOAuthProvider(url, storage, context["client_id"], key.create_assertion_provider())
        case "enterprise-managed-authorization":
            return IdentityAssertionOAuthProvider(
                url,
                storage,
                context["client_id"],
                context["client_secret"],
                script.issuer(url),
                script.assertion,
                token_endpoint_auth_method="client_secret_basic",
            )
        case scenario if scenario != script.SCENARIO:
            return by_a_person(url, storage)


def by_a_person(url, storage):
    person = Person()
    if "client_id" in script.CONTEXT:
        secret = script.CONTEXT.get("client_secret")
        storage.client = OAuthClientInformationFull(
            client_id=script.CONTEXT["client_id"],
            client_secret=secret,
            redirect_uris=[AnyUrl(REDIRECT_URI)],
            token_endpoint_auth_method="client_secret_basic" if secret else "none",
        )
    metadata = OAuthClientMetadata(
        client_name="conformance",
        redirect_uris=[AnyUrl(REDIRECT_URI)],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
    )
    return OAuthClientProvider(
        url, metadata, storage, person.visit, person.code, client_metadata_url=script.CLIENT_METADATA_URL
    )


async def elicit(_context, params):
    """Accept the form as it stands."""
    return ElicitResult(action="accept", content=script.filled_in(params.requested_schema))


async def main(url):
    with trio.fail_after(script.TIME):
        await play(url)


async def play(url):
    async with httpx2.AsyncClient(auth=auth_of(url), timeout=30) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, elicitation_callback=elicit) as client:
            tools = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
            for name, arguments in script.calls(tools):
                try:
                    print(name, await client.call_tool(name, arguments))
                except MCPError as refused:  # one scenario lists a tool that it does not have
                    print(refused)


if __name__ == "__main__":
    trio.run(main, sys.argv[-1])
