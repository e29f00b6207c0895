"""Calls that one replica has made tasks of, at another that shares its database: real processes, and PostgreSQL."""

import json
import signal
import sys

import pytest
import trio

from ..lab.gateways import served_over_http
from ..lab.processes import LAB
from ..lab.raw_clients import NEW, http_client, request

pytestmark = pytest.mark.slow

TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
LONG = 600
"""Seconds that no test waits for."""


async def ask(client, method, **params):
    (*_, said) = await client.ask(request(NEW, 1, method, able=TASKS, **params))
    return json.loads(said)["result"]


async def begin(client, seconds, label):
    made = await ask(client, "tools/call", name="sleep", arguments={"seconds": seconds, "label": label})
    assert (made["resultType"], made["status"], made["ttlMs"]) == ("task", "working", None)
    return made["taskId"]


async def end(client, task):
    """The end of a task, as a client is told that asks as often as it is to."""
    while True:
        said = await ask(client, "tasks/get", taskId=task)
        if said["status"] != "working":
            return said
        await trio.sleep(said["pollIntervalMs"] / 1000)


@pytest.fixture
def replica(tmp_path, monkeypatch, database):
    """Begins a gateway whose calls become tasks after a second."""
    monkeypatch.setenv("MCP_NURSERY_STATE", database)
    key = tmp_path / "key"
    key.write_text("a" * 44)
    key.chmod(0o600)
    lab = [sys.executable, "-I", "-S", str(LAB), f"journal={tmp_path / 'journal'}"]
    return lambda: served_over_http("--tasks", "1", "--replica-key", str(key), "--", *lab)


async def test_another_replica_hands_out_what_one_has_made(replica):
    with trio.fail_after(120):
        async with (
            replica() as (_, one),
            replica() as (_, two),
            http_client(one, NEW) as client,
            http_client(two, NEW) as other,
        ):
            task = await begin(client, 3, "slow")
            said = await end(other, task)
            assert said["result"]["content"] == [{"type": "text", "text": "slow"}]
            assert await ask(client, "tasks/get", taskId=task) == said
            task = await begin(client, LONG, "cancelled")
            assert await ask(other, "tasks/cancel", taskId=task) == {"resultType": "complete"}
            assert (await end(other, task))["status"] == "cancelled"


async def test_the_task_of_a_replica_that_was_killed_has_failed_within_ten_seconds(replica, tmp_path):
    with trio.fail_after(120):
        async with replica() as (process, one), replica() as (_, two), http_client(one, NEW) as client:
            task = await begin(client, LONG, "lost")
            process.send_signal(signal.SIGKILL)
            await process.wait()
            async with http_client(two, NEW) as other:
                with trio.fail_after(10):
                    said = await end(other, task)
                assert said["status"] == "failed"
                assert "the server may have acted" in said["error"]["message"]
                assert said["error"]["data"] == {"delivery": "unknown"}
                assert await end(other, task) == said
    assert (tmp_path / "journal").read_text().count("sleep ") == 1
