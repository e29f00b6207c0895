import pytest

from .harness import LAB

SHAPE = ["name", "transport", "source", "trusted", "error"]


def test_a_good_file(cli, lab):
    ran = cli("check", "--config", lab, "--json")
    assert (ran.code, ran.err) == (0, "")
    (server,) = ran.json["servers"]
    assert list(server) == SHAPE
    assert server == {"name": "lab", "transport": "stdio", "source": str(lab), "trusted": True, "error": None}
    assert ran.json == {"ok": True, "servers": [server], "errors": []}


def test_every_transport(cli, config):
    """K2: by its name, whatever word the file has for it."""
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
