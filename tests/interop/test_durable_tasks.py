"""Tasks of FastMCP that a worker has in Redis: the same call by clients of every kind, while the server of the tasks is
killed and the gateway is replaced. Each client has its one result, and each task has run once."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
import trio
from mcp.client import Client

from mcp_nursery.supervisor import HttpTransport, ServerSpec, open_supervisor
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.integrations.langchain import supervised_tools
from mcp_nursery.supervisor.portal import open_supervisor_thread

from ..lab.gateways import PROGRAM, served_over_http
from ..lab.remote import free_port
from . import installing
from .listening import listening
from .test_fastmcp_tasks import SCRIPT, TASKS

pytestmark = pytest.mark.interop

FOREIGN = """
import asyncio, sys
from fastmcp import Client

async def main(url, tool, caller, folder):
    async with Client(url) as client:
        print((await client.call_tool(tool, {"caller": caller, "folder": folder})).content[0].text)

asyncio.run(main(*sys.argv[1:]))
"""
"""A client of FastMCP, which knows Tasks."""


@contextmanager
def redis():
    """The URL of a Redis of its own."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed")
    port = free_port()
    with listening([program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"], {}, port):
        yield f"redis://127.0.0.1:{port}/0"


class Tasks:
    """The server of the tasks, at one port all along, and the worker that runs them."""

    def __init__(self, stack: ExitStack, folder):
        with installing.needed_by_test(TASKS):
            self.python = str(installing.python_with(TASKS))
        self.folder, self._asked, self._port = folder, folder / "asked", free_port()
        self._environment = {"FASTMCP_DOCKET_URL": stack.enter_context(redis())}
        command = [self.python, "-I", "-m", "fastmcp_tasks.worker_cli", "worker", f"{SCRIPT}:server"]
        environment = {**os.environ, **self._environment, "FASTMCP_DOCKET_CONCURRENCY": "20"}
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        worker = stack.enter_context(subprocess.Popen(command, env=environment, **quiet))
        stack.callback(worker.kill)
        self.url = f"http://127.0.0.1:{self._port}/mcp"
        self.spec = ServerSpec("tasks", HttpTransport(self.url))
        self.config = folder / "servers.json"
        self.config.write_text(json.dumps({"mcpServers": {"tasks": {"url": self.url}}}))

    def arguments(self, caller):
        return {"caller": caller, "folder": str(self.folder)}

    def serve(self):
        """The server for one life. It runs no task itself."""
        environment = {**self._environment, "FASTMCP_DOCKET_CONCURRENCY": "0", "ASKED": str(self._asked)}
        return listening([self.python, "-I", str(SCRIPT), str(self._port)], environment, self._port)

    @property
    def known(self):
        """The number of tasks that somebody has asked for, and whose handle has come therefore."""
        return len({*self._asked.read_text().split()}) if self._asked.exists() else 0

    @property
    def ledger(self):
        path = self.folder / "ledger"
        return Counter(path.read_text().splitlines()) if path.exists() else Counter()


async def library(tasks, caller, _gateway):
    async with open_supervisor([tasks.spec]) as supervisor:
        await supervisor.wait_connected("tasks")
        return (await supervisor.call_tool("outlast", tasks.arguments(caller), server="tasks")).full_text


async def plain_code(tasks, caller, _gateway):
    def call():
        with open_supervisor_thread([tasks.spec]) as supervisor:
            supervisor.wait_connected("tasks")
            return supervisor.call_tool("outlast", tasks.arguments(caller), server="tasks").full_text

    return await trio.to_thread.run_sync(call, abandon_on_cancel=True)


async def langchain(tasks, caller, _gateway):
    async def call():
        allowed = ApprovalRules(allowed=["*"])
        async with open_supervisor_thread([tasks.spec], approval_rules=allowed) as supervisor:
            await supervisor.wait_connected("tasks")
            (tool,) = [each for each in await supervised_tools(supervisor) if each.name.endswith("outlast")]
            said = await tool.ainvoke(tasks.arguments(caller))
            return said if isinstance(said, str) else said[0]["text"]

    return await trio.to_thread.run_sync(asyncio.run, call(), abandon_on_cancel=True)


async def command(tasks, caller, _gateway):
    arguments = json.dumps(tasks.arguments(caller))
    options = ["call", "--yes", "mcp_tasks_outlast", "--args", arguments, "--config", str(tasks.config)]
    return (await trio.run_process([PROGRAM, *options], capture_stdout=True)).stdout.decode().strip()


async def handshake_host(tasks, caller, gateway):
    async with Client(gateway, mode="legacy") as client:
        return (await client.call_tool("tasks_outlast", tasks.arguments(caller))).content[0].text


async def fastmcp_client(tasks, caller, gateway):
    options = [tasks.python, "-I", "-c", FOREIGN, gateway, "tasks_outlast", caller, str(tasks.folder)]
    return (await trio.run_process(options, capture_stdout=True)).stdout.decode().strip()


CALLERS = [library, plain_code, langchain, command, handshake_host, fastmcp_client]


async def test_each_caller_has_the_one_result(tmp_path):
    results = {}
    with ExitStack() as stack, trio.fail_after(120):
        tasks = Tasks(stack, tmp_path)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        gateway = partial(served_over_http, "--drain", "60", "--config", str(tasks.config), listening=listener)
        life = stack.enter_context(ExitStack())
        life.enter_context(tasks.serve())
        async with gateway() as (process, url), trio.open_nursery() as nursery:

            async def call(caller):
                results[caller.__name__] = await caller(tasks, caller.__name__, url)

            for caller in CALLERS:
                nursery.start_soon(call, caller)
            begun = {f"begun {caller.__name__}": 1 for caller in CALLERS}
            while tasks.known < len(CALLERS) or tasks.ledger != begun:  # noqa: ASYNC110 - of other processes
                await trio.sleep(0.1)
            life.close()
            process.send_signal(signal.SIGTERM)
            life.enter_context(tasks.serve())
            async with gateway():
                (tmp_path / "end").touch()
                while len(results) < len(CALLERS):  # noqa: ASYNC110 - of several processes
                    await trio.sleep(0.1)
    for caller, result in results.items():
        assert f"for {caller}" in result.splitlines()  # between marks, where it is for a model
    assert tasks.ledger == {f"{word} {caller.__name__}": 1 for word in ("begun", "ended") for caller in CALLERS}
