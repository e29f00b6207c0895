"""The page of one replica shows all that share its database: real processes, and PostgreSQL."""

import re
import signal
import sys

import httpx2
import pytest
import trio

from ..lab.gateways import served_over_http
from ..lab.processes import LAB

pytestmark = pytest.mark.slow


async def test_all_replicas_are_shown_by_name_and_one_that_was_killed_goes(monkeypatch, tmp_path, database):
    monkeypatch.setenv("MCP_NURSERY_STATE", database)
    key = tmp_path / "key"
    key.write_text("a" * 44)
    key.chmod(0o600)
    options = ["--replica-key", str(key), "--", sys.executable, "-I", "-S", str(LAB)]
    with trio.fail_after(180):
        async with (
            served_over_http("--ui", *options) as (first, url),
            served_over_http(*options) as (second, _),  # it has no page, and is shown on the other's
            httpx2.AsyncClient() as http,
        ):
            page = url.replace("/mcp", "/ui")

            async def pids():
                return set(re.findall(r"\((\d+)\)</td>", (await http.get(page)).text))

            while await pids() != {str(first.pid), str(second.pid)}:  # noqa: ASYNC110 - other processes report
                await trio.sleep(0.2)
            assert "1 of 1 connected" in (await http.get(page)).text
            second.send_signal(signal.SIGKILL)
            while await pids() != {str(first.pid)}:  # noqa: ASYNC110 - as above
                await trio.sleep(0.2)
