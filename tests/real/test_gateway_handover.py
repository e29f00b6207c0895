"""A gateway whose port another one takes over while clients call: nobody is refused, and nothing fails."""

import signal
import socket
import sys
from contextlib import closing
from functools import partial

import pytest
import trio

from mcp_nursery.supervisor.http_server.listening import bind_socket

from ..lab.gateways import served_over_http
from ..lab.handover import calling
from ..lab.processes import LAB

pytestmark = pytest.mark.slow

COMMAND = ["--", sys.executable, "-I", "-S", str(LAB)]
LAME_DUCK = ["--lame-duck", "20"]
"""Longer than any client is held up on a machine that is busy; it is over when each has closed its connections."""


async def end(process):
    process.send_signal(signal.SIGTERM)
    await process.wait()
    assert process.returncode == 0


async def test_the_next_one_listens_on_the_same_port_before_the_last_one_leaves_it():
    with closing(bind_socket("127.0.0.1", 0, reuse_port=True)) as reserved, trio.fail_after(120):
        options = ["--http", f"127.0.0.1:{reserved.getsockname()[1]}", "--reuse-port", *LAME_DUCK, *COMMAND]
        async with served_over_http(*options) as (process, url), calling(url) as callers:
            await callers.each(lambda answers: len(answers) == 1)
            async with served_over_http(*options):
                await end(process)
                await callers.each(lambda answers: len(answers) == 2)
                await callers.stop()
    assert callers.failures == []


async def test_connections_wait_on_a_socket_of_systemd_until_there_is_a_gateway_again():
    with socket.create_server(("127.0.0.1", 0)) as listening, trio.fail_after(120):
        start = partial(served_over_http, *LAME_DUCK, *COMMAND, listening=listening)
        async with start() as (process, url), calling(url) as callers:
            await callers.each(lambda answers: len(answers) == 1)
            await end(process)
            async with start():
                await callers.each(lambda answers: len(answers) == 2)
                await callers.stop()
    assert callers.failures == []
