"""Who may come to `mcp-nursery serve --http`, and what he may use: real gateways, servers and sockets."""

import json
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import httpx2
import pytest
import trio
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.gateway import Access, Principal
from mcp_nursery.supervisor.gateway.auth.bearer_tokens import BearerTokenFile, add_token, remove_token

from ..lab.gateways import PROGRAM, served, served_over_http
from ..lab.processes import LAB, lab
from ..lab.remote import Remote

pytestmark = pytest.mark.slow

LAB_COMMAND = [sys.executable, "-I", "-S", str(LAB)]
BOTH = {"accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}},
}


def token_by_command(file, name, *options):
    command = [PROGRAM, "token", "add", name, "--file", str(file), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def refused(*args, env=None):
    """What `serve` says that cannot be served."""
    done = subprocess.run([PROGRAM, "serve", *args], capture_output=True, text=True, check=False, timeout=60, env=env)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def config_of(tmp_path, *names):
    path = tmp_path / "servers.json"
    path.write_text(
        json.dumps({"mcpServers": {name: {"command": LAB_COMMAND[0], "args": LAB_COMMAND[1:]} for name in names}})
    )
    return path


@asynccontextmanager
async def client_with(url, token, mode="legacy"):
    async with (
        httpx2.AsyncClient(timeout=60, headers={"authorization": f"Bearer {token}"}) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


def served_to(tokens):
    return served_over_http("--token-file", str(tokens), "--", *LAB_COMMAND)


async def all_there(client, wanted):
    listed = set()
    while not listed >= wanted:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        await trio.sleep(0.05)
    return listed


def test_the_network_is_served_only_with_authentication_and_without_clear_tokens(tmp_path):
    tokens = tmp_path / "tokens.toml"
    add_token(tokens, "ann")
    command = ["--", "true"]
    assert "--token-file FILE or --oauth-issuer URL is needed" in refused("--http", "0.0.0.0:0", *command)
    assert "unencrypted" in refused("--http", "0.0.0.0:0", "--token-file", str(tokens), *command)
    assert "needs --http" in refused("--token-file", str(tokens), *command)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[tokens.ann]\nsha256 = 'x'\n", "field 'tokens.ann.sha256': must be 64 hexadecimal digits"),
        ("[tokens.ann]\nsha256 = '%s'\nallow = ['x']\n" % ("0" * 64), "tokens.ann.allow': must be globs"),
        ("[tokens.ann]\nsha256 = '%s'\nexpires = 1\n" % ("0" * 64), "tokens.ann.expires': must be a date"),
        ("[tokens.ann]\nsha256 = '%s'\nadmin = true\n" % ("0" * 64), "field 'tokens.ann.admin': unknown"),
        ("[oauth]\n", "field 'oauth': unknown"),
        ("x", "is no TOML"),
    ],
)
def test_a_file_of_tokens_that_cannot_be_used_is_refused(tmp_path, content, problem):
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(content)
    with pytest.raises(ConfigError) as caught:
        BearerTokenFile(tokens)
    assert problem in str(caught.value)
    assert str(tokens) in str(caught.value)


def test_a_file_of_tokens_that_others_can_write_is_refused(tmp_path):
    tokens = tmp_path / "tokens.toml"
    add_token(tokens, "ann")
    assert tokens.stat().st_mode & 0o777 == 0o600
    tokens.chmod(0o620)
    with pytest.raises(ConfigError, match="others can write it"):
        BearerTokenFile(tokens)


def test_a_token_is_printed_once_and_kept_nowhere(tmp_path):
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("# ours\n")
    made = [token_by_command(tokens, "ann", "--allow", "a/*"), token_by_command(tokens, "bob", "--days", "1")]
    first, second = (done.stdout.strip() for done in made)
    assert [done.returncode for done in made] == [0, 0]
    text = tokens.read_text()
    assert text.startswith("# ours\n")
    assert first != second
    assert first not in text
    assert second not in text
    again = token_by_command(tokens, "ann")
    assert again.returncode == 2
    assert "there is a token of this name" in again.stderr
    assert tokens.read_text() == text
    assert BearerTokenFile(tokens).find(first) == Principal("ann", Access(["a/*"]), sha256(first.encode()).hexdigest())


async def test_nobody_comes_in_without_a_valid_token(tmp_path):
    tokens = tmp_path / "tokens.toml"
    token, over = add_token(tokens, "ann"), add_token(tokens, "old", expires=datetime.now(UTC))
    given = [
        {},
        {"authorization": "Bearer x"},
        {"authorization": f"Basic {token}"},
        {"authorization": f"Bearer {over}"},
    ]
    with trio.fail_after(60):
        async with served_to(tokens) as (_, url), httpx2.AsyncClient(timeout=60) as http:
            for headers in given:
                said = await http.post(url, headers=BOTH | headers, json=INITIALIZE)
                assert said.status_code == 401
                assert said.headers["www-authenticate"].startswith("Bearer")
            twice = [("authorization", f"Bearer {token}"), ("authorization", "Bearer x"), *BOTH.items()]
            assert (await http.post(url, headers=twice, json=INITIALIZE)).status_code == 401
            assert (await http.get(url.replace("/mcp", "/healthz"))).status_code == 200
            assert (await http.get(url.replace("/mcp", "/metrics"))).status_code == 401
            async with client_with(url, token) as client:
                assert (await client.call_tool("echo", {"text": "x"})).content[0].text == "x"


async def test_a_session_belongs_to_its_token(tmp_path):
    tokens = tmp_path / "tokens.toml"
    ann, bob = ({"authorization": f"Bearer {add_token(tokens, name)}"} for name in ("ann", "bob"))
    with trio.fail_after(60):
        async with served_to(tokens) as (_, url), httpx2.AsyncClient(timeout=60) as http:
            begun = await http.post(url, headers=BOTH | ann, json=INITIALIZE)
            session = {"mcp-session-id": begun.headers["mcp-session-id"]}
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            assert (await http.post(url, headers=BOTH | bob | session, json=ping)).status_code == 404
            assert (await http.delete(url, headers=bob | session)).status_code == 404
            assert (await http.get(url, headers=BOTH | bob | session)).status_code == 404
            assert (await http.post(url, headers=BOTH | ann | session, json=ping)).json()["result"] == {}


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_token_uses_what_it_may_and_knows_of_nothing_else(tmp_path, mode):
    tokens = tmp_path / "tokens.toml"
    part = add_token(tokens, "part", allow=["first/*", "second/echo"])
    config = config_of(tmp_path, "first", "second", "third")
    with trio.fail_after(60):
        async with served_over_http("--token-file", str(tokens), "--config", str(config)) as (_, url):
            async with client_with(url, part, mode) as client:
                listed = await all_there(client, {"first_crash", "second_echo"})
                assert {name for name in listed if not name.startswith("first_")} == {"second_echo"}
                assert (await client.call_tool("second_echo", {"text": "x"})).content[0].text == "x"
                for hidden in ("second_crash", "third_echo"):
                    with pytest.raises(MCPError) as caught:
                        await client.call_tool(hidden, {})
                    assert "third" not in str(caught.value).replace(hidden, "")
            async with client_with(f"{url}/second", part, mode) as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["echo"]
                with pytest.raises(MCPError, match="Unknown tool: crash"):
                    await client.call_tool("crash", {})
            async with httpx2.AsyncClient(timeout=60, headers=BOTH | {"authorization": f"Bearer {part}"}) as http:
                for server in ("third", "nowhere"):
                    said = await http.post(f"{url}/{server}", json=INITIALIZE)
                    assert (said.status_code, said.text) == (404, f"no server named '{server}'")


async def test_search_finds_what_a_token_may_use_and_nothing_else(tmp_path):
    tokens = tmp_path / "tokens.toml"
    part = add_token(tokens, "part", allow=["first/*", "second/echo"])
    config = config_of(tmp_path, "first", "second", "third")
    with trio.fail_after(60):
        async with (
            served_over_http("--search", "--token-file", str(tokens), "--config", str(config)) as (_, url),
            client_with(url, part) as client,
        ):
            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(listed) == {"find_tools", "call_tool"}
            assert "third" not in (listed["find_tools"].description or "")
            for words in ("echo", "crash"):
                found = (await client.call_tool("find_tools", {"query": words, "limit": 20})).content[0].text
                assert f"first_{words}" in found
                assert ("second_echo" in found) == (words == "echo")
                assert "second_crash" not in found
                assert "third" not in found
            said = await client.call_tool("call_tool", {"name": "second_echo", "arguments": {"text": "x"}})
            assert said.content[0].text == "x"
            for hidden in ("second_crash", "third_echo"):
                refused = await client.call_tool("call_tool", {"name": hidden, "arguments": {}})
                assert refused.is_error
                assert "third" not in refused.content[0].text.replace(hidden, "")


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_token_is_told_to_nobody(tmp_path, mode):
    """Neither to servers, nor in the log, however much of that is shown."""
    tokens, remote = tmp_path / "tokens.toml", Remote("modern", tmp_path)
    token, wrong = add_token(tokens, "ann"), "mcpn_wrong"
    config = tmp_path / "servers.json"
    config.write_text(json.dumps({"mcpServers": {"far": {"type": "http", "url": remote.url}}}))
    log = b""
    try:
        with trio.fail_after(60):
            options = ["--verbose", "--metrics", "--token-file", str(tokens), "--config", str(config)]
            async with served_over_http(*options) as (process, url), httpx2.AsyncClient(timeout=60) as http:
                async with client_with(url, token, mode) as client:
                    await all_there(client, {"far_look"})
                    await client.call_tool("far_look", {})
                refused = await http.post(url, headers=BOTH | {"authorization": f"Bearer {wrong}"}, json=INITIALIZE)
                assert wrong not in refused.text
                process.terminate()
                while more := await process.stderr.receive_some():
                    log += more
    finally:
        remote.kill()
    heard = (tmp_path / "headers").read_text()
    assert "mcp-method" in heard.lower()
    for secret in (token, wrong):
        assert secret not in heard
        assert secret not in log.decode()


async def test_at_sighup_tokens_are_read_again_and_a_revoked_one_ends_all_that_is_its(tmp_path):
    tokens = tmp_path / "tokens.toml"
    ann, bob = (add_token(tokens, name) for name in ("ann", "bob"))
    with trio.fail_after(60):
        async with (
            served_to(tokens) as (process, url),
            httpx2.AsyncClient(timeout=30) as http,
            client_with(url, bob) as other,
        ):
            own = BOTH | {"authorization": f"Bearer {ann}"}
            begun = await http.post(url, headers=own, json=INITIALIZE)
            session = {"mcp-session-id": begun.headers["mcp-session-id"]}
            async with http.stream("GET", url, headers=own | session) as stream:
                assert stream.status_code == 200
                tokens.write_text(tokens.read_text()[tokens.read_text().index("[tokens.bob]") :])
                carol = add_token(tokens, "carol")
                process.send_signal(signal.SIGHUP)
                async for _ in stream.aiter_bytes():
                    pass  # until it ends
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            assert (await http.post(url, headers=own | session, json=ping)).status_code == 401
            assert (await other.call_tool("echo", {"text": "x"})).content[0].text == "x"
            async with client_with(url, carol) as client:
                assert (await client.call_tool("echo", {"text": "y"})).content[0].text == "y"


async def test_a_token_that_is_taken_out_is_refused_without_a_signal(tmp_path):
    """Who may come in hangs on no signal, which may be forgotten, or ignored."""
    tokens = tmp_path / "tokens.toml"
    ann, bob = (add_token(tokens, name) for name in ("ann", "bob"))
    with trio.fail_after(60):
        async with (
            served_to(tokens) as (_, url),
            client_with(url, bob) as other,
            httpx2.AsyncClient(timeout=30) as http,
        ):
            own = BOTH | {"authorization": f"Bearer {ann}"}
            begun = await http.post(url, headers=own, json=INITIALIZE)
            session = {"mcp-session-id": begun.headers["mcp-session-id"]}
            async with http.stream("GET", url, headers=own | session) as stream:
                assert stream.status_code == 200
                remove_token(tokens, "ann")
                carol = add_token(tokens, "carol")
                async for _ in stream.aiter_bytes():
                    pass  # until it ends
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            assert (await http.post(url, headers=own | session, json=ping)).status_code == 401
            assert (await other.call_tool("echo", {"text": "x"})).content[0].text == "x"
            async with client_with(url, carol) as client:
                assert (await client.call_tool("echo", {"text": "y"})).content[0].text == "y"


async def test_a_file_of_tokens_that_was_broken_meanwhile_changes_nothing(tmp_path):
    tokens = tmp_path / "tokens.toml"
    token, log = add_token(tokens, "ann"), b""
    with trio.fail_after(60):
        async with served_to(tokens) as (process, url), client_with(url, token) as client:
            tokens.write_text("a = " + "[" * 100_000)
            process.send_signal(signal.SIGHUP)
            while b"not reloaded, it stays as it is" not in log:
                log += await process.stderr.receive_some()
            assert (await client.call_tool("echo", {"text": "x"})).content[0].text == "x"


async def test_at_sighup_the_configuration_is_read_again(tmp_path):
    config = config_of(tmp_path, "first")
    served = served_over_http("--config", str(config), "--timeout", "30")  # which changes what is read, each time
    with trio.fail_after(60):
        async with served as (process, url), Client(url, mode="legacy") as client:
            await all_there(client, {"first_echo"})
            config_of(tmp_path, "first", "second")
            process.send_signal(signal.SIGHUP)
            await all_there(client, {"first_echo", "second_echo"})


async def test_a_token_that_expires_ends_its_streams(tmp_path):
    path = tmp_path / "tokens.toml"
    add_token(path, "bob")
    tokens = BearerTokenFile(path)
    with trio.fail_after(60):
        async with (
            served([lab()], only="lab", http={"authenticate": tokens.authenticate}) as (_, url),
            httpx2.AsyncClient(timeout=30) as http,
        ):
            token = add_token(path, "ann", expires=datetime.now(UTC) + timedelta(seconds=1))
            tokens.reload()
            headers = BOTH | {"authorization": f"Bearer {token}"}
            begun = await http.post(url, headers=headers, json=INITIALIZE)
            session = {"mcp-session-id": begun.headers["mcp-session-id"]}
            async with http.stream("GET", url, headers=headers | session) as stream:
                assert stream.status_code == 200
                async for _ in stream.aiter_bytes():
                    pass
            assert (await http.post(url, headers=headers | session, json=INITIALIZE)).status_code == 401


async def test_hosts_and_origins(tmp_path):
    names = ["--allowed-host", "gw.example.com", "--allowed-origin", "https://app.example.org"]
    wanted = {
        ("127.0.0.1", None): 200,
        ("gw.example.com", None): 200,
        ("gw.example.com:8443", "https://gw.example.com"): 200,
        ("gw.example.com", "https://app.example.org"): 200,
        ("gw.example.com", "https://evil.example"): 403,
        ("gw.example.com", "http://app.example.org"): 403,
        ("evil.example", None): 421,
    }
    with trio.fail_after(60):
        async with served_over_http(*names, "--", *LAB_COMMAND) as (_, url), httpx2.AsyncClient(timeout=60) as http:
            for (host, origin), status in wanted.items():
                headers = BOTH | {"host": host} | ({} if origin is None else {"origin": origin})
                assert (await http.post(url, headers=headers, json=INITIALIZE)).status_code == status, (host, origin)


async def test_figures_are_for_those_who_may_use_everything(tmp_path):
    tokens = tmp_path / "tokens.toml"
    full, part = add_token(tokens, "full"), add_token(tokens, "part", allow=["*/echo"])
    figures = add_token(tokens, "figures", allow=["/metrics"])
    with trio.fail_after(60):
        async with (
            served_over_http("--metrics", "--token-file", str(tokens), "--", *LAB_COMMAND) as (_, url),
            client_with(url, full) as client,
            httpx2.AsyncClient(timeout=60) as http,
        ):
            await client.call_tool("echo", {"text": "x"})
            place = url.replace("/mcp", "/metrics")
            assert (await http.get(place)).status_code == 401
            assert (await http.get(place, headers={"authorization": f"Bearer {part}"})).status_code == 403
            said = await http.get(place, headers={"authorization": f"Bearer {figures}"})
            lines = [line.partition("{")[0] + line.rpartition("}")[2] for line in said.text.splitlines()]
            assert {"mcp_nursery_gateway_sessions 1.0", "mcp_nursery_servers 1.0"} <= set(lines)
            assert "mcp_nursery_gateway_refused_total 1.0" in lines
            assert any(line.startswith("mcp_nursery_calls_total") for line in lines)
            assert "mcp_nursery_server_connected 1.0" in lines
            assert full not in said.text
            nothing = await http.post(url, headers=BOTH | {"authorization": f"Bearer {figures}"}, json=INITIALIZE)
            assert nothing.status_code == 404  # of the only server it may use nothing


def test_what_is_not_installed_is_named():
    code = "import sys; sys.modules['opentelemetry.sdk'] = None; from mcp_nursery.supervisor.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", "--http", "127.0.0.1:0", "--metrics", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said, _, advice = done.stderr.partition(" is missing: ")
    assert said.startswith("mcp-nursery: field '--metrics': opentelemetry.sdk")
    assert advice == "pip install 'mcp-nursery[otel]'\n"


def test_without_them_nothing_of_the_extra_is_loaded():
    code = (
        "import sys; from mcp_nursery.supervisor.cli import serve; from mcp_nursery.supervisor import open_supervisor;"
        "print([name for name in ('prometheus_client', 'opentelemetry.sdk') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
