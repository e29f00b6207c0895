"""The client that the suite starts, all of it through the public API: `python -m tests.conformance.client URL`."""

import logging
import sys
from http import HTTPStatus
from typing import Any

import trio
from mcp_types import ElicitResult

from mcp_nursery.supervisor import (
    HttpTransport,
    MemoryStore,
    OAuth,
    ServerError,
    ServerSpec,
    Supervisor,
    open_supervisor,
)
from mcp_nursery.supervisor.callbacks import AuthorizationRequest, Callbacks
from mcp_nursery.supervisor.errors import SkillMismatch
from mcp_nursery.supervisor.events import StateChanged
from mcp_nursery.supervisor.skills import Skill
from mcp_nursery.supervisor.status import ServerState

from . import script

SUITE = "suite"
PATIENCE = 15
"""Seconds."""


agreed: list[AuthorizationRequest] = []
"""What the person has agreed to."""


async def elicit(message) -> ElicitResult:
    """Accept the form as it stands."""
    return ElicitResult(action="accept", content=script.filled_in(message.params.requested_schema))


async def authorize(request: AuthorizationRequest) -> str:
    """Agree as a person does: where the browser is sent back to."""
    agreed.append(request)
    return await script.agree(request.url)


def oauth(url: str) -> OAuth | None:
    """How it is authorised; None where the scenario wants nobody authorised."""
    context = script.CONTEXT
    client = {name: context[name] for name in ("client_id", "client_secret") if name in context}
    match script.SCENARIO.split("/"):
        case ["auth", "client-credentials-basic"]:
            return OAuth(grant="client_credentials", **client)
        case ["auth", "client-credentials-jwt"]:
            key = {"private_key": context["private_key_pem"], "signing_algorithm": context["signing_algorithm"]}
            return OAuth(grant="client_credentials", **client, **key)
        case ["auth", "enterprise-managed-authorization"]:
            return OAuth(grant="enterprise", **client, issuer=script.issuer(url), assertion=script.assertion)
        case ["auth", "wif-jwt-bearer"]:
            return OAuth(grant="workload", **client, issuer=script.issuer(url), assertion=context["valid_jwt"])
        case ["auth", name]:
            dpop = name in ("dpop", "dpop-nonce")
            return OAuth(**client, client_metadata_url=script.CLIENT_METADATA_URL, dpop=dpop)
        case _:
            return None


CALLBACKS = Callbacks(elicit=elicit, authorize=authorize)


async def main(url: str) -> None:
    logging.basicConfig(level=logging.INFO)
    with trio.fail_after(script.TIME):
        await play(url)


async def connected(supervisor: Supervisor) -> None:
    """Wait until it is; the person may have to agree first, who tries once more when that was not enough.

    Raises:
        trio.TooSlowError: Nothing comes of it.
    """
    tries = 1
    async with supervisor.events() as events:
        while supervisor.status()[0].state is not ServerState.CONNECTED:
            with trio.fail_after(PATIENCE):
                event = await events.receive()
            was_refused = isinstance(event, StateChanged) and event.new is ServerState.NEEDS_AUTH
            if was_refused and len(agreed) == tries == 1:
                tries += 1
                await supervisor.start_server(SUITE)


async def answer_of(supervisor: Supervisor, name: str, arguments: dict[str, Any]) -> str:
    """What a tool says, or why it is refused: one scenario lists a tool that it does not have. Where a person has to
    agree to more first, it is called again."""
    for left in reversed(range(PATIENCE)):
        try:
            return (await supervisor.call_tool(name, arguments, server=SUITE)).full_text
        except ServerError as refused:
            if refused.code != HTTPStatus.FORBIDDEN or not left:
                return str(refused)
        await trio.sleep(1)
    raise AssertionError


async def play(url: str) -> None:
    spec = ServerSpec(SUITE, HttpTransport(url, auth=oauth(url)))
    async with open_supervisor([spec], callbacks=CALLBACKS, state=MemoryStore()) as supervisor:
        await connected(supervisor)
        tools = {tool.tool: tool.input_schema for tool in await supervisor.list_tools(SUITE)}
        for name, arguments in script.calls(tools):
            print(name, await answer_of(supervisor, name, arguments))
        for skill in await supervisor.list_skills(SUITE):
            if "verify" in script.SCENARIO:
                await use(supervisor, skill)


async def use(supervisor: Supervisor, skill: Skill) -> None:
    """Read a skill as a host does for its model: whatever is not as it was listed ends that."""
    try:
        for file in skill.files or ():
            print((await supervisor.read_skill_file(file.uri, server=SUITE)).text)
    except SkillMismatch as wrong:
        print(wrong)


if __name__ == "__main__":
    trio.run(main, sys.argv[-1])
