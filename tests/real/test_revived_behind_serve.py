"""Q33: servers that have failed for good, behind `serve`: nobody watches, and each next call brings one back."""

import json
import sys

import pytest

from ..lab.processes import LAB
from ..lab.raw_clients import NEW, OLD, answer_in, opened, request
from .test_first_lists import client_of, listed

pytestmark = pytest.mark.slow

SERVERS = ("one", "two", "three")


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("front", ["stdio", "http"])
async def test_none_of_many_that_failed_stays_away(front, version, tmp_path):
    """Their ladders have no step left after the first loss."""
    entry = {"command": sys.executable, "args": ["-I", "-S", str(LAB)], "restartDelays": []}
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": dict.fromkeys(SERVERS, entry)}))

    async with client_of(front, version, ["--config", str(file)]) as client:

        async def call(tool, **arguments):
            said = await client.ask(request(version, 3, "tools/call", name=tool, arguments=arguments))
            return answer_in(said[-1:], 3)["result"]

        await opened(client, version)
        before = await listed(client, version)
        assert {f"{server}_echo" for server in SERVERS} <= before
        for server in SERVERS:
            assert (await call(f"{server}_crash"))["isError"]
        assert await listed(client, version) == before
        for server in SERVERS:
            assert (await call(f"{server}_echo", text="here"))["content"][0]["text"] == "here"
        assert await listed(client, version) == before
