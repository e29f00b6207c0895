"""Nothing of what calls are given and give is traced or measured, however they end."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor import Call, MemoryStore, NurseryError, RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.testing import Life, Refusal, ScriptedServer, run_virtual

from ..lab.recording import Recording

secrets = st.text(st.characters(categories=["Ll", "Lu", "Nd"], max_codepoint=126), min_size=8).map("Zq{}".format)


async def gives(arguments):
    return arguments


async def says(arguments):
    return json.dumps(arguments)


async def fails(arguments):
    raise ValueError(json.dumps(arguments))


async def refuses(arguments):
    raise Refusal(-32602, json.dumps(arguments), arguments)


@pytest.mark.slow
@given(
    secret=secrets,
    tool=st.sampled_from(["gives", "says", "fails", "refuses", "dies"]),
    bulk=st.booleans(),
)
def test_no_secret_is_exported(secret, tool, bulk):
    """In arguments, results, errors and their data, progress, `_meta`, names nobody has, and what a process says."""
    recording, server = Recording(), ScriptedServer(Life(stderr=f"dying of {secret}"), Life(refuses=f"no {secret}"))

    async def dies(arguments):
        server.crash()

    server.tools = {"gives": gives, "says": says, "fails": fails, "refuses": refuses, "dies": dies}
    lab = ServerSpec("lab", server.transport, policy=RestartPolicy(delays=(2,)))

    async def use():
        async with open_supervisor([lab], state=MemoryStore(), **recording.providers) as supervisor:
            made = [
                Call(tool, {"key": secret}, server="lab", meta={"key": secret}),
                Call(secret, {"key": secret}),
                Call(secret, server="lab"),
                Call(tool, {"key": secret}, server=secret),
            ]
            if bulk:
                await supervisor.gather(made)
                return
            for call in made:
                with suppress(NurseryError):
                    await supervisor.call_tool(call.name, call.arguments, server=call.server, meta=call.meta)

    run_virtual(use)
    assert len(recording.named(f"tools/call {tool}")) == 1
    assert len(recording.named("tools/call")) == 3
    assert recording.points("mcp_nursery.calls")
    assert secret not in recording.everything()
