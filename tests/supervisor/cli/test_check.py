import json
import os

import pytest

from ...lab.command_line import LAB
from ...lab.proxies import only

SHAPE = ["name", "transport", "source", "trusted", "error"]


def test_a_good_file(cli, lab):
    ran = cli("check", "--config", lab, "--json")
    assert (ran.code, ran.err) == (0, "")
    (server,) = ran.json["servers"]
    assert list(server) == SHAPE
    assert server == {"name": "lab", "transport": "stdio", "source": str(lab), "trusted": True, "error": None}
    assert ran.json == {"ok": True, "servers": [server], "errors": []}


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A client on PATH."""
    (tmp_path / "docker").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.usefixtures("docker")
def test_every_transport(cli, config, monkeypatch):
    """K2: by its name, whatever word the file has for it."""
    monkeypatch.setenv("IMAGE", "mcp/time")
    file = config(
        a=LAB,
        b={"image": "mcp/time"},
        c={"url": "https://x"},
        d={"type": "sse-ide", "url": "https://x"},
        e={"url": "wss://x"},
        f={"type": "docker", "image": "${IMAGE}"},
    )
    ran = cli("check", "--config", file, "--json")
    assert ran.code == 0
    assert [server["transport"] for server in ran.json["servers"]] == ["stdio", "docker", "http", "sse", "ws", "docker"]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"command": "nonesuch"}, "command 'nonesuch' was not found on PATH"),
        ({"command": "npx -y foo"}, "command 'npx -y foo' was not found on PATH; put its arguments into args"),
        ({"command": "/nonesuch"}, "command '/nonesuch' does not exist"),
        ({"command": "${NONESUCH}"}, "field 'command' is unusable: variable ${NONESUCH} is not set"),
        ({**LAB, "env": {"A": "${env:NONESUCH}"}}, "field 'env.A' is unusable: variable ${env:NONESUCH} is not set"),
        ({**LAB, "args": ["${NONESUCH}"]}, "field 'args' is unusable: variable ${NONESUCH} is not set"),
        ({**LAB, "cwd": "/nonesuch"}, "cwd '/nonesuch' does not exist"),
        ({**LAB, "envFile": "/nonesuch"}, "field 'envFile' is unusable: cannot be read: No such file or directory"),
        (
            {"url": "https://x", "caFile": "/nonesuch"},
            "field 'caFile' is unusable: /nonesuch: it does not exist",
        ),
        ({"url": "https://${NONESUCH}"}, "field 'url' is unusable: variable ${NONESUCH} is not set"),
        ({"url": "${SCHEME}://x"}, "must be a URL that begins with http:// or https://"),
        ({**LAB, "env": {"A": "!exit 1"}, "args": ["${A}"]}, None),
        ({"command": "${NONESUCH:-sh}"}, None),
        ({"command": "nonesuch", "enabled": False}, None),
    ],
)
def test_what_cannot_work_here_and_now(cli, config, monkeypatch, entry, problem):
    """K2, K5: programs, folders and variables are looked for, and nothing is run."""
    monkeypatch.setenv("SCHEME", "pigeon")
    ran = cli("check", "--config", (file := config(s=entry)))
    assert ran.code == (0 if problem is None else 2)
    assert ran.err == ("" if problem is None else f"mcp-nursery: {file}: server 's': {problem}\n")


def test_a_variable_of_the_environment_that_requests_would_use(cli, config, monkeypatch, tmp_path):
    """K2, K5: a fault of the servers that are reached with it, and of no other."""
    only(monkeypatch, HTTP_PROXY="socks4://me:5ecret@proxy:1")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "absent.pem"))
    urls = {
        "far": "http://far.test",
        "near": "http://localhost:1",
        "secure": "wss://far.test",
        "old": "http://10.0.0.1",
    }
    ran = cli("check", "--config", config(lab=LAB, **{name: {"url": url} for name, url in urls.items()}), "--json")
    assert ran.code == 2
    errors = {server["name"]: server["error"] for server in ran.json["servers"]}
    assert {name for name, error in errors.items() if error is None} == {"lab", "near"}
    assert "server 'far': HTTP_PROXY=socks4://proxy:1 cannot be used: " in errors["far"]
    assert f"SSL_CERT_FILE={tmp_path}/absent.pem cannot be used: it does not exist; " in errors["secure"]
    assert "5ecret" not in ran.out


def test_a_header_that_would_be_sent_with_a_blank_at_its_end(cli, config):
    """K5: an unset variable leaves it."""
    entry = {"url": "https://far.test", "headers": {"Authorization": "Bearer ${UNSET}"}}
    ran = cli("check", "--config", config(s=entry), "--json")
    assert ran.code == 2
    (server,) = ran.json["servers"]
    assert "the header Authorization begins or ends with a blank, where ${UNSET} has no value" in server["error"]


def test_a_file_of_variables_is_read_only_if_it_may_be(cli, tmp_path, monkeypatch):
    """K7: a project's entry names it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"s": {**LAB, "envFile": "nonesuch"}}}))
    assert cli("check").code == 0
    assert cli("trust", "--yes").code == 0
    assert "envFile" in cli("check").err


def test_it_starts_nothing(cli, config, tmp_path):
    file = config(lab={"command": "touch", "args": [str(tmp_path / "started")]})
    assert cli("check", "--config", file).code == 0
    assert not (tmp_path / "started").exists()


def test_one_bad_entry_is_its_servers_error(cli, config):
    file = config(lab=LAB, bad={"args": []}, worse=7)
    ran = cli("check", "--config", file, "--json")
    assert ran.code == 2
    assert ran.json["ok"] is False
    errors = {server["name"]: server["error"] for server in ran.json["servers"]}
    assert errors["lab"] is None
    assert "command" in errors["bad"]
    assert sorted(ran.json["errors"]) == sorted([errors["bad"], errors["worse"]])


def test_in_words(cli, config):
    file = config(lab=LAB, bad={"args": []})
    ran = cli("check", "--config", file)
    assert ran.code == 2
    assert [line.split("\t")[::3] for line in ran.out.splitlines()] == [
        ["SERVER", "ENTRY"],
        ["lab", "ok"],
        ["bad", "unusable"],
    ]
    assert len(ran.err.splitlines()) == 1
    assert str(file) in ran.err


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "{}", '{"mcpServers": []}', '{"mcpServers": {"a": {}, "a": {}}}', "\xff", None],
    ids=["empty", "not-json", "array", "number", "no-servers", "wrong-type", "duplicate", "latin-1", "no-file"],
)
def test_a_broken_file(cli, tmp_path, text):
    file = tmp_path / "broken.json"
    if text is not None:
        file.write_bytes(text.encode("latin-1"))
    ran = cli("check", "--config", file, "--json")
    assert ran.code == 2
    assert ran.json["ok"] is False
    assert ran.json["servers"] == []
    (error,) = ran.json["errors"]
    assert str(file) in error
    for command in (["status"], ["tools"], ["call", "x"]):
        ran = cli(*command, "--config", file, "--json")
        assert ran.code == 2
        assert ran.json["error"]["type"] == "ConfigError"
        assert ran.json["error"]["message"] == error
    ran = cli("run", "--config", file)
    assert (ran.code, ran.out, ran.err) == (2, "", f"mcp-nursery: {error}\n")


def test_whose_file_it_is(cli, config, tmp_path):
    """K4: a reader is told the host, not the file alone."""
    (tmp_path / ".cursor").mkdir()
    own, cursor = config("own.json", lab=LAB), config(".cursor/mcp.json", lab=LAB, more=LAB)
    ran = cli("check", "--config", own, "--config", cursor)
    assert ran.code == 0
    rows = [line.split(maxsplit=2) for line in ran.out.splitlines()[1:]]
    assert [(name, rest.rsplit(maxsplit=1)[0]) for name, _, rest in rows] == [
        ("lab", f"Cursor ({cursor})"),
        ("more", f"Cursor ({cursor})"),
    ]
    assert ran.err == f"mcp-nursery: mcp:lab via Cursor ({cursor}) overrides mcp:lab via {own}\n"


def test_several_files(cli, config, tmp_path):
    good, other = config("a.json", lab=LAB), config("b.json", lab={"args": []}, more=LAB)
    ran = cli("check", "--config", good, "--config", other, "--json")
    assert ran.code == 2
    assert {server["name"]: server["source"] for server in ran.json["servers"]} == {
        "lab": str(other),
        "more": str(other),
    }
    ran = cli("check", "--config", good, "--config", tmp_path / "none.json", "--json")
    assert [server["name"] for server in ran.json["servers"]] == ["lab"]
    assert len(ran.json["errors"]) == 1


def test_warnings_go_to_stderr(cli, config):
    file = config(lab={**LAB, "colour": "red"})
    for args in (["check"], ["status"]):
        ran = cli(*args, "--config", file, "--json")
        assert ran.code == 0
        assert "colour" in ran.err
        assert len(ran.err.splitlines()) == 1
        assert ran.json
