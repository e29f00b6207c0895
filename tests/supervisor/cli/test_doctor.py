"""`mcp-nursery doctor`: what a bug report needs, and no secret."""

import sys

import pytest

from ...lab.command_line import BROKEN, LAB, MISSING
from ...lab.proxies import only

SECRETS = [f"{place}-Zq7vK2mXw9Lp4Rt8" for place in ("env", "arg", "option", "header", "user", "path", "query", "file")]


def test_a_healthy_server(cli, lab):
    ran = cli("doctor", "--config", lab, "--json")
    assert ran.code == 0
    (server,) = ran.json["servers"]
    assert server["start"]["state"] == "connected"
    assert server["start"]["tools"] > 0
    assert server["start"]["seconds"] > 0
    assert ran.json["files"][0]["servers"] == ["lab"]
    assert ran.json["errors"] == []
    assert {"mcp-nursery", "commit", "python", "platform", "mcp", "trio"} <= set(ran.json["versions"])
    assert ran.json["ports"]["127.0.0.1"] is True
    assert set(ran.json["limits"]) == {"open files", "processes"}


@pytest.mark.parametrize("options", [["--json"], []])
def test_variables_that_are_read_are_shown_without_secrets(cli, config, monkeypatch, options):
    only(monkeypatch, HTTPS_PROXY="http://me:Zq7vK2mXw9Lp4Rt8@proxy.test:3128", no_proxy="example.test,10.0.0.0/8")
    monkeypatch.setenv("MCP_NURSERY_TLS_KEY_PASSWORD", "Zq7vK2mXw9Lp4Rt8")
    monkeypatch.setenv("SSL_CERT_FILE", "/absent/ca.pem")
    ran = cli("doctor", "--no-start", "--config", config(broken=BROKEN), *options)
    assert "Zq7vK2mXw9Lp4Rt8" not in ran.out
    assert "http://proxy.test:3128" in ran.out
    if options:
        shown = ran.json["variables"]
        assert shown["HTTPS_PROXY"] == "http://proxy.test:3128"
        assert shown["no_proxy"] == "example.test,10.0.0.0/8"
        assert shown["SSL_CERT_FILE"] == "/absent/ca.pem"
        assert shown["MCP_NURSERY_TLS_KEY_PASSWORD"] == "[REDACTED:secret]"


def test_without_a_start(cli, config):
    ran = cli("doctor", "--no-start", "--config", config(broken=BROKEN), "--json")
    assert ran.code == 0
    assert ran.json["servers"][0]["start"] is None


def test_servers_that_fail(cli, config):
    ran = cli("doctor", "--config", config(broken=BROKEN), "--json")
    assert ran.code == 3
    assert ran.json["servers"][0]["start"]["state"] == "failed"
    assert ran.json["servers"][0]["start"]["error"]


def test_an_entry_that_cannot_work_is_named_with_its_file(cli, config):
    file = config(missing=MISSING, lab=LAB)
    ran = cli("doctor", "--config", file, "--json")
    assert ran.code == 2
    (error,) = ran.json["errors"]
    assert str(file) in error
    assert "missing" in error


def test_a_file_that_cannot_be_read_is_part_of_the_report(cli, tmp_path):
    file = tmp_path / "bad.json"
    file.write_text("{")
    ran = cli("doctor", "--config", file, "--json")
    assert ran.code == 2
    assert ran.json["files"] == [{"file": str(file), "host": None, "servers": [], "errors": [ran.json["errors"][0]]}]


def test_an_entry_of_a_project_is_blocked_and_not_started(cli, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config(".mcp.json", lab=LAB)
    ran = cli("doctor", "--json")
    assert ran.code == 4
    (server,) = ran.json["servers"]
    assert server["blocked"]
    assert server["start"]["state"] == "blocked"


@pytest.mark.parametrize("options", [["--json"], [], ["--no-start", "--json"], ["--no-start"]])
def test_no_secret_is_shown(cli, config, tmp_path, monkeypatch, options):
    env, arg, option, header, user, path, query, in_file = SECRETS
    monkeypatch.setenv("DOCTOR_TOKEN", f"outer-{env}")
    (tmp_path / "variables").write_text(f"FILE_TOKEN={in_file}\n")
    says = "import os, sys; print(*sys.argv, *os.environ.values(), file=sys.stderr); sys.exit(3)"
    local = {"command": sys.executable, "args": ["-c", says, "--api-key", option], "env": {"API_KEY": env}}
    url = f"http://u:{user}@127.0.0.1:1/{path}?token={query}"
    file = config(
        local={**local, "restartDelays": []},
        reads={**local, "env": {"A": "${DOCTOR_TOKEN}"}, "envFile": str(tmp_path / "variables"), "restartDelays": []},
        bare={"command": "/nonexistent/command", "args": [arg]},
        remote={"type": "http", "url": url, "headers": {"Authorization": f"Bearer {header}"}, "restartDelays": []},
    )
    ran = cli("doctor", "--config", file, *options)
    assert "API_KEY" in ran.out
    assert [secret for secret in SECRETS if secret in ran.out + ran.err] == []
    if "--json" in options:
        assert ran.json["servers"]


def test_what_is_plain_is_left_out_of_messages_as_well(cli, config, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCTOR_WORD", "zebra")
    monkeypatch.setenv("DOCTOR_PIN", "4711")
    pem = tmp_path / "variables"
    pem.write_text("WORD=giraffe\n")
    says = (
        "import os, sys; print(*sys.argv[2:], *map(os.environ.get, os.environ['NAMES'].split()), file=sys.stderr);"
        "sys.exit(3)"
    )
    key = "-----BEGIN KEY-----\nplainline\nAbCdEfGhIjKlMnOp\n-----END KEY-----"
    env = {
        "NAMES": "A B C D E WORD",
        "A": "hunter",
        "B": "${DOCTOR_WORD}",
        "C": "${DOCTOR_PIN}",
        "D": "${DOCTOR_NOWHERE:-walrus}",
        "E": key,
    }
    local = {
        "command": sys.executable,
        "args": ["-c", says, "-", "--pass", "badger", "-pferret"],
        "env": env,
        "envFile": str(pem),
        "restartDelays": [],
    }
    line = {"command": "mcp-program-otter --token weasel"}
    swapped = {"command": "TOKEN=Zq7vK2mXw9Lp4Rt8 program"}
    remote = {"type": "http", "url": "http://127.0.0.1:1/hooks/lynx", "headers": {"X-User": "ocelot"}}
    file = config(local=local, line=line, swapped=swapped, remote={**remote, "restartDelays": []})
    words = ["zebra", "4711", "giraffe", "hunter", "walrus", "badger", "ferret", "weasel", "lynx", "ocelot"]
    words += ["plainline", "AbCdEfGhIjKlMnOp", "Zq7vK2m"]
    for form in ["--json"], []:
        ran = cli("doctor", "--config", file, *form)
        assert [word for word in words if word in ran.out + ran.err] == []
    started = {each["name"]: each["start"] for each in cli("doctor", "--config", file, "--json").json["servers"]}
    said = "\n".join(started["local"]["stderr"])
    for place in "env.A", "env.B", "env.D", "env.E", "env.WORD", "args.5":
        assert f"[{place}]" in said


def test_an_entry_of_a_project_that_is_blocked_says_no_argument(cli, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config(".mcp.json", lab={**LAB, "args": [*LAB["args"], "badger"], "env": {"A": "hunter"}})
    ran = cli("doctor", "--no-start", "--json")
    assert ran.json["servers"][0]["blocked"]
    assert "badger" not in ran.out
    assert "hunter" not in ran.out


def test_the_first_lines_are_shown_and_a_lazy_server_is_started(cli, config):
    says = "import sys; [print(n, file=sys.stderr) for n in range(1000, 1900)]; sys.exit(3)"
    entry = {"command": sys.executable, "args": ["-c", says], "restartDelays": [], "lazy": True}
    (server,) = cli("doctor", "--config", config(lab=entry), "--json").json["servers"]
    assert server["start"]["state"] == "failed"
    assert server["start"]["stderr"] == ["[args.1]", *map(str, range(1001, 1010))]


def test_a_variable_without_a_value_is_named(cli, config):
    entry = {"command": sys.executable, "args": ["-c", "1", "--x=lynx${NOT_SET_ANYWHERE}"]}
    ran = cli("doctor", "--no-start", "--config", config(lab=entry), "--json")
    assert "variable ${NOT_SET_ANYWHERE} is not set" in ran.json["servers"][0]["error"]
    assert "lynx" not in ran.out


def test_colours_hide_nothing(cli, config):
    says = "import os, sys; sys.exit('as \\x1b[36m' + os.environ['A'] + '\\x1b[0m, ' + 'q ' * 1997 + os.environ['B'])"
    entry = {"command": sys.executable, "args": ["-c", says], "env": {"A": "goat", "B": "walrus"}, "restartDelays": []}
    for form in ["--json"], []:
        ran = cli("doctor", "--config", config(lab=entry), *form)
        assert "goat" not in ran.out
        assert "wal" not in ran.out


@pytest.mark.parametrize(
    "url",
    ["https://${LOGIN:-bob:pw@hunterhost}/x", "http://user:pa@ssword/xyz@127.0.0.1:1/p", "http://al/ice:pass@wonder/x"],
)
def test_a_host_is_shown_only_where_it_is_one(cli, config, url):
    ran = cli("doctor", "--no-start", "--config", config(web={"type": "http", "url": url}), "--json")
    assert ran.json["servers"][0]["starts"] == "(not shown)"


@pytest.mark.parametrize(("arguments", "secret"), [(["--pin", "321"], "321"), (["--password=debug"], "debug")])
def test_what_follows_the_name_of_a_secret_is_left_out_however_plain(cli, config, arguments, secret):
    says = "import sys; sys.exit(' '.join(map(str.upper, sys.argv)) + ' ' + sys.argv[-1].rpartition('=')[2])"
    entry = {"command": sys.executable, "args": ["-c", says, *arguments], "restartDelays": []}
    ran = cli("doctor", "--config", config(lab=entry), "--json")
    assert secret not in str(ran.json["servers"][0]["start"])


def test_a_command_that_prints_headers_is_no_error(cli, config):
    entry = {"type": "http", "url": "http://127.0.0.1:1/", "headersHelper": "echo {}", "restartDelays": []}
    ran = cli("doctor", "--no-start", "--config", config(lab=entry), "--json")
    assert ran.code == 0
    assert ran.json["servers"][0]["error"] is None


def test_a_folder_that_was_removed_is_part_of_the_report(cli, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    ran = cli("doctor", "--no-start", "--json")
    assert ran.code == 2
    assert "working directory does not exist" in ran.json["errors"][0]
