"""What a client under test does, whatever the scenario: call every tool, with arguments that its schema asks for."""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2

TIME = 150
"""Seconds a client gives itself."""

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: Mapping[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
"""What the scenario gives its client: credentials, or the calls to make."""

_OF_A_TYPE = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}


def calls(tools: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each call to make: a tool's name and its arguments. Tools are given with their input schemas."""
    if "toolCalls" in CONTEXT:
        for call in CONTEXT["toolCalls"]:
            yield call["name"], call["arguments"]
    elif "json_schema_echo" in tools:  # wants to see what became of the other tool's schema
        yield "json_schema_echo", {"schema": dict(tools["json_schema_2020_12_tool"])}
    else:
        for name, schema in tools.items():
            yield name, filled_in(schema)


def filled_in(schema: Mapping[str, Any]) -> dict[str, Any]:
    """An object of this schema: its defaults, and something of the right type where there is none."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    return {name: one.get("default", _OF_A_TYPE.get(one.get("type"), "test")) for name, one in properties.items()}


CLIENT_METADATA_URL = "https://conformance-test.local/client-metadata.json"
"""Where the suite says that its clients describe themselves."""


async def agree(url: str) -> str:
    """Agree as a person does in a browser: where the browser is sent back to, with the answer."""
    async with httpx2.AsyncClient() as browser:
        response = await browser.get(url)
    return response.headers["location"]


def issuer(url: str) -> str:
    """Who issues tokens for this server: users of an enterprise's grant are told beforehand."""
    described = urlsplit(url)._replace(path=f"/.well-known/oauth-protected-resource{urlsplit(url).path}")
    return httpx2.get(described.geturl()).json()["authorization_servers"][0]


async def assertion(issuer: str, resource: str) -> str:
    """The assertion of the enterprise's identity provider that its user may use this resource."""
    wanted = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
        "subject_token": CONTEXT["idp_id_token"],
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
        "client_id": CONTEXT["idp_client_id"],
        "audience": issuer,
        "resource": resource,
    }
    async with httpx2.AsyncClient() as client:
        response = await client.post(CONTEXT["idp_token_endpoint"], data=wanted)
    return response.raise_for_status().json()["access_token"]
