"""The page of the commands: `run --web` and `serve --http --ui`."""

import json
import re
import signal
import socket
from contextlib import contextmanager

import httpx2
import pytest

from mcp_nursery.supervisor.gateway.auth.bearer_tokens import add_token

from ....lab.command_line import LAB, process

ADDRESS = re.compile(r"the page is at (http://\S+)/ui\n")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "servers.json"
    path.write_text(json.dumps({"mcpServers": {"lab": LAB}}))
    return path


@contextmanager
def started(*args):
    """The command: its process, and the origin of its page."""
    host = process(*args)
    try:
        line = ""
        while not (found := ADDRESS.search(line)):
            more = host.stderr.readline()
            assert more, line
            line += more
        yield host, found[1]
    finally:
        host.send_signal(signal.SIGTERM)
        host.communicate(timeout=60)


@pytest.mark.slow
def test_run_shows_a_page_to_browsers_of_this_machine(config, tmp_path):
    with started("run", "--web", "127.0.0.1:0", "--config", config, "--state", tmp_path / "state") as (host, origin):
        answer = httpx2.get(origin, follow_redirects=True)
        assert answer.url == f"{origin}/ui"
        assert "lab" in answer.text
        links = re.findall(r"<nav.*?</nav>", answer.text, re.DOTALL)[0]
        for link in re.findall('href="(.*?)"', links):
            assert httpx2.get(f"{origin}{link}").status_code == 200, link
        assert "/ui/clients" not in links  # there is no gateway
        assert httpx2.get(f"{origin}/ui/clients").status_code == 404
        assert httpx2.get(f"{origin}/mcp").status_code == 404
        assert httpx2.get(f"{origin}/ui", headers={"host": "evil.example"}).status_code == 421
    assert host.returncode == 0


@pytest.mark.slow
def test_serve_shows_a_page_to_who_has_a_token(config, tmp_path):
    tokens = tmp_path / "tokens.toml"
    add_token(tokens, "alice")
    options = ["--config", config, "--token-file", tokens, "--state", tmp_path / "state"]
    with started("serve", "--http", "127.0.0.1:0", "--ui", *options) as (host, origin):
        assert httpx2.get(f"{origin}/ui").status_code == 401
    assert host.returncode == 0


@pytest.mark.slow
def test_serve_without_tokens_shows_clients_and_their_sessions(config, tmp_path):
    options = ["--config", config, "--state", tmp_path / "state"]
    with started("serve", "--http", "127.0.0.1:0", "--ui", *options) as (_, origin):
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "me", "version": "7"}}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        accept = {"accept": "application/json, text/event-stream"}
        assert httpx2.post(f"{origin}/mcp", json=asked, headers=accept).status_code == 200
        with httpx2.Client() as browser:
            shown = browser.get(f"{origin}/ui/clients").text
            assert "me 7" in shown
            key = re.search(r"session=(\w+)", shown)[1]
            csrf = re.search(r'name="csrf" value="(\w+)"', shown)[1]
            form = {"csrf": csrf, "act": "end_session", "session": key, "sure": "yes"}
            assert browser.post(f"{origin}/ui/act", data=form).status_code == 303
            assert "has ended" in browser.get(f"{origin}/ui/clients").text


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["run", "--web", "0.0.0.0:1"], "'--web': 0.0.0.0 can be reached from the network"),
        (["run", "--web", "8000"], "'--web': must be HOST:PORT"),
        (["serve", "--ui"], "'--ui': needs --http"),
    ],
)
def test_what_cannot_be_served_is_wrong_usage(config, args, problem):
    host = process(*args, "--config", config)
    _, said = host.communicate(timeout=60)
    assert host.returncode == 2
    assert problem in said
    assert "Traceback" not in said


def test_a_port_that_is_taken_is_said(config):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host = process("run", "--web", f"127.0.0.1:{taken.getsockname()[1]}", "--config", config)
        _, said = host.communicate(timeout=60)
    assert host.returncode == 2
    assert "'--web': cannot listen on 127.0.0.1" in said
