"""What a command line says of the one server that it gives."""

import json

import pytest

from mcp_nursery.supervisor import ConfigError, RestartPolicy
from mcp_nursery.supervisor.cli.command_server import CommandServer
from mcp_nursery.supervisor.cli.runtime import Options
from mcp_nursery.supervisor.cli.serve import _choose_servers
from mcp_nursery.supervisor.spec import Liveness


def spec(*, call_seconds=None, **given):
    return CommandServer(**given).spec(["/bin/some-server.sh", "-v"], call_seconds=call_seconds)


def test_what_is_not_said_is_as_an_entry_has_it():
    made = spec()
    assert (made.name, made.transport.command, made.transport.args) == ("some-server", "/bin/some-server.sh", ("-v",))
    assert (made.policy, made.liveness, made.restart, made.protocol) == (None, None, "permanent", "auto")
    assert (made.revive, made.call_timeout, made.connect_timeout) == (None, None, None)
    assert made.transport.inherit_env


def test_what_is_said():
    made = spec(
        name="mine",
        cwd="/srv",
        env=["A=1", "B=x=y", "C="],
        restart="transient",
        restart_delays="0.5, 1,2",
        stable_after_seconds=60.0,
        connect_seconds=5.0,
        call_seconds=7.0,
        idle_seconds=90.0,
        liveness="20,3",
        protocol="handshake",
    )
    assert (made.name, made.transport.cwd) == ("mine", "/srv")
    assert made.transport.env == {"A": "1", "B": "x=y", "C": ""}
    assert made.policy == RestartPolicy(delays=(0.5, 1, 2), stable_after=60)
    assert made.liveness == Liveness(interval=20, timeout=3)
    assert (made.restart, made.protocol) == ("transient", "handshake")
    assert (made.connect_timeout, made.call_timeout, made.idle_limit) == (5, 7, 90)


@pytest.mark.parametrize(
    ("said", "revive"),
    [("never", "never"), ("on_call", "on_call"), ("60", 60), ("on_call,7.5", ("on_call", 7.5))],
)
def test_what_ends_a_failure(said, revive):
    assert spec(revive=said).revive == revive


def test_no_restarts():
    assert spec(restart_delays="").policy == RestartPolicy(delays=())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"restart_delays": "2,x"}, "'--restart-delays': must be seconds with commas, such as 2,5,15, not '2,x'"),
        ({"restart_delays": "-1"}, "'--restart-delays': restart delays are finite seconds >= 0"),
        ({"restart_delays": "nan"}, "'--restart-delays': restart delays are finite seconds >= 0"),
        ({"stable_after_seconds": -1.0}, "'--stable-after-seconds': must be"),
        ({"restart": "maybe"}, "'--restart': must be 'permanent', 'transient' or 'temporary'"),
        ({"connect_seconds": float("inf")}, "'--connect-seconds': must be"),
        ({"idle_seconds": -1.0}, "'--idle-seconds': must be"),
        ({"revive": "x"}, "'--revive': must be never, on_call, finite seconds > 0, or on_call,SECONDS, not 'x'"),
        ({"revive": "0"}, "'--revive': must be never"),
        ({"revive": "5,on_call"}, "'--revive': must be never"),
        ({"revive": "never,5"}, "'--revive': must be never"),
        ({"revive": "on_call,nan"}, "'--revive': must be never"),
        ({"liveness": "0"}, "'--liveness': must be finite seconds > 0"),
        ({"liveness": ""}, "'--liveness': must be SECONDS or SECONDS,SECONDS"),
        ({"protocol": "3"}, "'--protocol': must be 'auto', 'handshake'"),
        ({"name": ""}, "'--name': must not be empty"),
        ({"cwd": ""}, "'--cwd': must not be empty"),
        ({"env": ["A=1", "s3cret-value"]}, "'--env': must be NAME=VALUE"),
        ({"env": ["=s3cret-value"]}, "'--env': must be NAME=VALUE"),
    ],
)
def test_what_cannot_work_is_one_line_that_names_the_option(given, problem):
    with pytest.raises(ConfigError) as refused:
        spec(**given)
    assert problem in str(refused.value)
    assert "s3cret-value" not in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--name", "x"], "field '--name': needs a server given as -- COMMAND"),
        (["--env", "A=1"], "field '--env': needs a server given as -- COMMAND"),
        (["--idle-seconds", "x", "--", "true"], "Invalid value for '--idle-seconds'"),
        (["--unattended", "ask", "--", "true"], "field '--unattended': must be 'allow' or 'deny', not 'ask'"),
        (["--pins", "no", "--", "true"], "field '--pins': must be 'report' or 'block', not 'no'"),
        (["--hold", "nan", "--", "true"], "field '--hold': must be seconds >= 0, not nan"),
        (["--answer-within", "-1", "--", "true"], "field '--answer-within': must be seconds >= 0, not -1.0"),
        (["--drain", "-1", "--", "true"], "field '--drain': must be seconds >= 0, not -1.0"),
        (["--call-seconds", "-1", "--", "true"], "field '--timeout': must be seconds >= 0, not -1.0"),
        (["--restart", "no", "--", "true"], "must be 'permanent', 'transient' or 'temporary', not 'no'"),
        (["--deny", "", "--", "true"], "field '--deny': must be SERVER/TOOL, and not empty"),
        (["--limit", "idle=1", "--", "true"], "field '--limit': needs --http HOST:PORT"),
        (["--tls-cert", "x", "--", "true"], "field '--tls-cert': needs --http HOST:PORT"),
        (["--lame-duck", "1", "--", "true"], "field '--lame-duck': needs --http HOST:PORT"),
        (["--http", "127.0.0.1:0", "--lame-duck", "-1", "--", "true"], "'--lame-duck': must be seconds >= 0, not -1.0"),
        (["--http", "127.0.0.1:0", "--oauth-jwks", "x", "--", "true"], "'--oauth-jwks': needs --oauth-issuer"),
        (["--http", "127.0.0.1:0", "--public-url", "x", "--", "true"], "'--public-url': needs --oauth-issuer"),
    ],
)
def test_the_command_says_it_in_one_line(cli, options, problem):
    done = cli("serve", *options)
    assert done.code == 2
    assert problem in done.err
    assert len(done.err.splitlines()) == 1


def test_who_denies_what_is_not_there_is_told(cli):
    globs = ["--deny", "gti/push", "--deny", "g*/push", "--ask", "*"]
    done = cli("serve", *globs, "--http", "x", "--name", "git", "--", "true")
    warning, _ = done.err.splitlines()
    assert warning == "mcp-nursery: warning: --deny 'gti/push' matches no server; the servers are git"


def test_what_is_served_comes_back_by_itself_unless_its_entry_says_otherwise(tmp_path):
    """Also what comes into the file later."""
    file = tmp_path / "servers.json"

    def write(*said):
        entries = {f"s{number}": {"command": "x"} | one for number, one in enumerate(said)}
        file.write_text(json.dumps({"mcpServers": entries}))

    write({}, {"revive": "never"}, {"revive": "on_call"}, {"revive": 60})
    given = _choose_servers(Options(config=[file]), [], CommandServer(), 5)
    assert [one.revive for one in given.servers] == [("on_call", 300), "never", "on_call", 60]
    write({}, {})
    assert [one.revive for one in given.reread().servers] == [("on_call", 300)] * 2
    [only, never] = (_choose_servers(Options(), ["x"], CommandServer(revive=how), None) for how in (None, "never"))
    assert (only.revive, never.revive) == (("on_call", 300), "never")
