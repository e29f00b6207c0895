"""`mcp-nursery serve -- COMMAND` at the end of a pipe: all is written before anything is answered, and then it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from ..lab.gateways import PROGRAM
from ..lab.processes import LAB, is_alive

pytestmark = pytest.mark.slow

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "pipe", "version": "1"}}


def request(number, method, **params):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def call(number, tool, **arguments):
    return request(number, "tools/call", name=tool, arguments=arguments)


def modern(message):
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    return message | {"params": message["params"] | {"_meta": meta}}


def lines(*messages):
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


def serving(journal, *options):
    return [PROGRAM, "serve", *options, "--", sys.executable, "-I", "-S", str(LAB), f"journal={journal.path}"]


def answers(output):
    return {message["id"]: message for message in map(json.loads, output.splitlines()) if "id" in message}


def text_of(answer):
    return answer["result"]["content"][0]["text"]


@pytest.mark.parametrize("initialized", [True, False])
@pytest.mark.parametrize("given", ["pipe", "file"])
def test_what_is_written_behind_initialize_waits_for_it_and_keeps_its_order(journal, given, initialized, tmp_path):
    calls = [call(number, "commit", token=f"t{number}") for number in range(2, 12)]
    told = [{"jsonrpc": "2.0", "method": "notifications/initialized"}] if initialized else []
    written = lines(request(1, "initialize", **HELLO), *told, request(90, "tools/list"), *calls)
    if given == "pipe":
        done = subprocess.run(serving(journal), input=written, capture_output=True, timeout=60, check=True)
    else:
        file = tmp_path / "requests"
        file.write_bytes(written)
        with file.open() as stdin:
            done = subprocess.run(serving(journal), stdin=stdin, capture_output=True, timeout=60, check=True)
    answered = answers(done.stdout)
    assert answered.keys() == {1, 90, *range(2, 12)}
    assert [text_of(answered[number]) for number in range(2, 12)] == ["committed"] * 10
    assert journal.details("commit") == [f"t{number}" for number in range(2, 12)]


def test_requests_without_a_session_are_answered_before_the_end(journal):
    written = lines(*(modern(call(number, "commit", token=f"t{number}", takes=0.2)) for number in range(5)))
    done = subprocess.run(serving(journal), input=written, capture_output=True, timeout=60, check=True)
    assert [text_of(answer) for _, answer in sorted(answers(done.stdout).items())] == ["committed"] * 5
    assert journal.details("commit") == [f"t{number}" for number in range(5)]


def test_a_request_before_any_initialize_is_refused(journal):
    written = lines(request(1, "tools/list"))
    done = subprocess.run(serving(journal), input=written, capture_output=True, timeout=60, check=True)
    assert answers(done.stdout)[1]["error"]["message"].endswith("initialize comes first")


def test_large_answers_are_written_whole_to_a_slow_reader(journal):
    written = lines(request(1, "initialize", **HELLO), call(2, "big", size=3_000_000), call(3, "echo", text="x"))
    with subprocess.Popen(serving(journal), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(written)
        process.stdin.close()
        time.sleep(1)  # nobody reads: the pipe is full
        answered = answers(process.stdout.read())
    assert len(text_of(answered[2])) == 3_000_000
    assert text_of(answered[3]) == "x"


@pytest.mark.parametrize("how", ["the reader goes", "SIGTERM"])
def test_it_ends_at_once_if_nobody_waits_for_what_is_under_way(journal, how):
    written = lines(request(1, "initialize", **HELLO), call(2, "sleep", seconds=600))
    command = serving(journal, "--drain", "600")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(written)
        process.stdin.close()
        assert b'"id":1' in process.stdout.readline()
        if how == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdout.close()
        assert process.wait(60) == 0
    assert not is_alive(process.pid)


def test_a_client_that_reads_no_more_ends_it_with_the_next_answer(journal):
    with subprocess.Popen(serving(journal), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(lines(request(1, "initialize", **HELLO)))
        process.stdin.flush()
        assert b'"id":1' in process.stdout.readline()
        process.stdout.close()
        process.stdin.write(lines(call(2, "sleep", seconds=600), call(3, "echo", text="x")))
        process.stdin.flush()
        assert process.wait(30) == 0


DEEP = b"[" * 2000 + b"]" * 2000
NO_MESSAGES = {
    b"hello": (None, -32700),
    b"[1": (None, -32700),
    b'"text"': (None, -32600),
    b"[]": (None, -32600),
    b'{"jsonrpc":"2.0","id":null,"method":"ping"}': (None, -32600),
    b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}': (None, -32600),
    b'{"jsonrpc":"2.0","id":6,"method":6}': (6, -32600),
    b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":' + DEEP + b"}}": (7, -32600),
    b'{"jsonrpc":"2.0","id":8,"method":"ping","params":{"x":"' + b"x" * (17 << 20) + b'"}}': (8, -32600),
    b'{"jsonrpc":"2.0","id":9,"method":"ping","par': (9, -32600),
}


def test_every_line_that_is_no_message_is_answered_and_a_last_one_needs_no_newline(journal):
    written = b"\n".join([lines(request(1, "initialize", **HELLO)), *NO_MESSAGES, lines(call(99, "echo", text="x"))])
    done = subprocess.run(serving(journal), input=written[:-1], capture_output=True, timeout=60, check=True)
    said = [message for message in map(json.loads, done.stdout.splitlines()) if "error" in message]
    assert [(message["id"], message["error"]["code"]) for message in said] == list(NO_MESSAGES.values())
    assert text_of(answers(done.stdout)[99]) == "x"


@pytest.mark.parametrize("given", ["a command", "a file"])
def test_a_host_is_shown_what_its_servers_write_to_standard_error_to_the_end(given, tmp_path):
    script = "echo begins $KEY >&2; cat >/dev/null; echo ends >&2"
    command, args, env = "sh", ["-c", script], {"KEY": "a-long-secret-key"}
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"one": {"command": command, "args": args, "env": env}}}))
    options = ["--config", str(file)] if given == "a file" else ["--env", "KEY=a-long-secret-key", "--", command, *args]
    with subprocess.Popen(
        [PROGRAM, "serve", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as gateway:
        gateway.stdin.write(lines(request(1, "initialize", **HELLO)))
        gateway.stdin.flush()
        prefix = "one: " if given == "a file" else ""
        assert gateway.stderr.readline().decode() == f"{prefix}begins [REDACTED:config]\n"
        gateway.send_signal(signal.SIGTERM)
        assert f"{prefix}ends\n" in gateway.stderr.read().decode()
        assert gateway.wait(20) == 0


def test_a_host_that_does_not_read_the_log_holds_nothing_up(journal):
    unread, log = os.pipe()
    os.set_blocking(log, False)
    with suppress(BlockingIOError):
        while True:
            os.write(log, b"x" * 4096)
    os.set_blocking(log, True)
    with subprocess.Popen(serving(journal), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as process:
        process.stdin.write(lines(request(1, "initialize", **HELLO), call(2, "crash"), request(3, "ping")))
        process.stdin.flush()
        assert {json.loads(process.stdout.readline())["id"] for _ in range(3)} == {1, 2, 3}
        process.stdin.close()
        assert process.wait(30) == 0
    os.close(log)
    os.close(unread)


@pytest.mark.parametrize(
    ("command", "why"),
    [(["no-such-program"], "not found on PATH"), (["sh", "-c", "echo sorry >&2; exit 3"], "exited with code 3: sorry")],
)
def test_a_host_is_told_in_time_that_its_server_cannot_be_started(command, why):
    began = time.monotonic()
    with subprocess.Popen(
        [PROGRAM, "serve", "--", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as gateway:
        gateway.stdin.write(lines(request(1, "initialize", **HELLO)))
        gateway.stdin.flush()
        assert any(why in line.decode() for line in iter(gateway.stderr.readline, b""))
        assert why in json.loads(gateway.stdout.readline())["error"]["message"]
        assert time.monotonic() - began < 18  # the ladder takes 22 s
        gateway.stdin.close()
        assert gateway.wait(20) == 0


def test_the_log_says_why_a_project_that_nobody_trusts_has_no_tools(tmp_path):
    entry = {"command": sys.executable, "args": ["-I", "-S", str(LAB)]}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"lab": entry}}))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen([PROGRAM, "serve"], cwd=tmp_path, **pipes) as gateway:
        gateway.stdin.write(lines(request(1, "initialize", **HELLO)))
        gateway.stdin.flush()
        said = gateway.stderr.readline()
        gateway.send_signal(signal.SIGTERM)
        assert gateway.wait(20) == 0
    assert b"blocked: not trusted: it starts a process; review it with `mcp-nursery trust" in said
