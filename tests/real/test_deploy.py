"""The examples of balancers in `deploy/`, with the programs themselves: replicas are replaced while clients call."""

import shutil
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import httpx2
import pytest
import trio

from ..lab.gateways import served_over_http
from ..lab.handover import calling
from ..lab.processes import LAB
from ..lab.raw_clients import NEW

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "deploy"
COMMAND = ["--", sys.executable, "-I", "-S", str(LAB)]
ALONE = """
daemon off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {example};
}}
"""
"""The rest of a configuration of nginx, for whoever may write in a folder alone."""


def free_ports(count):
    """Ports that nobody has."""
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in taken]
    for each in taken:
        each.close()
    return ports


def command_of(program, folder, example):
    if program == "haproxy":
        return ["haproxy", "-db", "-f", str(example)]
    whole = folder / "whole.conf"
    whole.write_text(ALONE.format(folder=folder, example=example))
    return ["nginx", "-p", str(folder), "-e", "stderr", "-c", str(whole)]


@asynccontextmanager
async def balancing(program, folder, own, replicas, *, closing=False):
    """The program with its example, in front of replicas on these ports: its URL. `closing`: HAProxy closes the
    connection after each request."""
    [example] = EXAMPLES.glob(f"{program}.c*")
    text = example.read_text()
    addresses = {"127.0.0.1:8000": own, "10.0.0.11:8000": replicas[0], "10.0.0.12:8000": replicas[1]}
    for address, port in addresses.items():
        assert text.count(address) == 1
        text = text.replace(address, f"127.0.0.1:{port}")
    if closing:
        text = text.replace("    mode http\n", "    mode http\n    option httpclose\n")
    written = folder / example.name
    written.write_text(text)
    run = partial(trio.run_process, command_of(program, folder, written), check=False, stderr=subprocess.PIPE)
    async with trio.open_nursery() as nursery:
        process = await nursery.start(run)
        try:
            async with httpx2.AsyncClient() as http:
                await answering(http, f"http://127.0.0.1:{own}/readyz", process)
            yield f"http://127.0.0.1:{own}/mcp"
        finally:
            process.terminate()


async def answering(http, url, process):
    """Wait until it is ready, and one of its replicas is."""
    with trio.fail_after(60):
        while True:
            assert process.returncode is None
            try:
                if (await http.get(url)).status_code == 200:
                    return
            except httpx2.TransportError:
                await trio.sleep(0.02)


@pytest.fixture
def program(request):
    """A balancer that is installed here."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.mark.night
@pytest.mark.parametrize(
    ("program", "options"),
    [("haproxy", ["--lame-duck", "2"]), ("nginx", ["--lame-duck", "2", "--reuse-port"])],
    indirect=["program"],
)
async def test_replicas_are_replaced_behind_a_balancer_and_no_client_notices(tmp_path, program, options):
    own, *ports = free_ports(3)
    first, second = (partial(served_over_http, "--http", f"127.0.0.1:{port}", *options, *COMMAND) for port in ports)
    with trio.fail_after(180):
        async with (
            first() as (process, _),
            second() as (other, _),
            balancing(program, tmp_path, own, ports) as url,
            calling(url, modes=(NEW, "legacy"), each=1) as callers,
        ):
            await callers.each(lambda answers: len(answers) == 2)
            process.send_signal(signal.SIGTERM)
            await process.wait()
            async with first():
                await callers.each(lambda answers: len(answers) == 3)
                other.send_signal(signal.SIGTERM)
                await other.wait()
                seen = {name: sum(answers.values()) for name, answers in callers.answers.items()}
                await callers.more_than(seen)
                await callers.stop()
    assert callers.failures == []
    assert (process.returncode, other.returncode) == (0, 0)


async def replica(seen, stream):
    """Serves a connection; a POST of `die` ends it as the death of a replica does: read, and without an answer."""
    received = b""
    with suppress(trio.BrokenResourceError):  # HAProxy resets the connections of its checks
        async with stream:
            async for data in stream:
                received += data
                head, whole, body = received.partition(b"\r\n\r\n")
                if not whole or (head.startswith(b"POST") and not body):
                    continue
                received = b""
                if head.startswith(b"POST"):
                    seen.append(body)
                if body == b"die":
                    return
                await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")


@pytest.mark.night
@pytest.mark.parametrize(
    ("program", "closing"), [("haproxy", False), ("haproxy", True), ("nginx", False)], indirect=["program"]
)
async def test_what_is_lost_with_its_replica_is_made_once(tmp_path, program, closing):
    """The page tells of the outcomes: on a connection that had a request, a closed connection, or a 502."""
    seen, (own, *ports) = [], free_ports(3)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for port in ports:
                await nursery.start(partial(trio.serve_tcp, partial(replica, seen), port, host="127.0.0.1"))
            async with balancing(program, tmp_path, own, ports, closing=closing) as url, httpx2.AsyncClient() as http:
                assert (await http.post(url, content=b"go")).status_code == 200
                if program == "nginx" or closing:
                    assert (await http.post(url, content=b"die")).status_code == 502
                else:
                    with pytest.raises(httpx2.RemoteProtocolError):
                        await http.post(url, content=b"die")
                assert seen == [b"go", b"die"]
            nursery.cancel_scope.cancel()


@pytest.mark.night
@pytest.mark.parametrize("program", ["haproxy", "nginx"], indirect=True)
async def test_replicas_that_stand_still_are_slow_and_not_gone(tmp_path, program):
    own, *ports = free_ports(3)
    first, second = (partial(served_over_http, "--http", f"127.0.0.1:{port}", *COMMAND) for port in ports)
    with trio.fail_after(120):
        async with (
            first() as (process, _),
            second() as (other, _),
            balancing(program, tmp_path, own, ports) as url,
            calling(url, modes=(), each=1) as callers,
        ):
            await callers.each(bool)
            seen = {name: sum(answers.values()) for name, answers in callers.answers.items()}
            process.send_signal(signal.SIGSTOP)
            other.send_signal(signal.SIGSTOP)
            # One answer may be on its way. Longer than several checks: who holds slow for gone has nobody left by then.
            with trio.move_on_after(3):
                await callers.more_than({name: count + 2 for name, count in seen.items()})
            process.send_signal(signal.SIGCONT)
            other.send_signal(signal.SIGCONT)
            await callers.more_than({name: count + 2 for name, count in seen.items()})
            await callers.stop()
    assert callers.failures == []
