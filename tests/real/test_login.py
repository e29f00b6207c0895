"""`mcp-nursery login`, `logout` and `auth status`: real processes, a real issuer, hosts that run meanwhile."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import termios

import httpx2
import pytest
import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor import load_config, open_supervisor

from ..lab import PROGRAMS
from ..lab.command_line import COMMAND, Screen, process, until
from ..lab.oauth_server import OAuthServer
from ..lab.processes import next_state, status_of

pytestmark = pytest.mark.slow  # a dozen processes, one after the other

S = ServerState
BROWSER = shlex.join([sys.executable, str(PROGRAMS / "oauth_browser.py")]) + " %s"


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    server = OAuthServer(tmp_path_factory.mktemp("issuer"))
    yield server
    server.kill()


@pytest.fixture
def far(issuer, monkeypatch):
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    issuer.control(revoke=True)
    issuer.journal.clear()
    return issuer


@pytest.fixture
def config(far, tmp_path):
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"far": {"url": far.url, "auth": "oauth"}, "other": {"command": "x"}}}))
    return file


def run(*args, **environment):
    """The command, to its end: exit code, what it printed, and what it said beside that."""
    with process(*args, env=environment) as started:
        out, err = started.communicate(timeout=60)
    return started.returncode, out, err


def agree(url):
    with httpx2.Client(timeout=30) as browser:
        page = browser.get(url, follow_redirects=True)
        return browser.get(page.url.join(re.search(r'href="([^"]+)"', page.text)[1])).headers["location"]


def test_login_status_logout(config, far):
    code, out, err = run("login", "far", "--config", config, "--json", BROWSER=BROWSER)
    assert (code, json.loads(out)["authorised"]) == (0, True)
    assert "A browser shows this page" in err
    code, out, _ = run("auth", "status", "--config", config, "--json")
    (status,) = json.loads(out)["servers"]
    assert (status["server"], status["authorised"], status["scope"], status["where"]) == ("far", True, "read", "file")
    assert 3000 < status["expires_in"] <= 3600
    code, out, _ = run("call", "look", "--server", "far", "--yes", "--json", "--config", config)
    assert (code, "seen" in out) == (0, True)
    code, out, _ = run("logout", "far", "--config", config)
    assert (code, out) == (0, "far: tokens removed\n")
    code, _, err = run("call", "look", "--server", "far", "--yes", "--config", config)
    assert (code, "mcp-nursery login far" in err) == (3, True)


@pytest.mark.parametrize(
    "expires",
    [pytest.param(True, id="at a renewal"), pytest.param(False, id="at the page", marks=pytest.mark.night)],
)
def test_the_printed_advice_helps_when_the_issuer_has_forgotten_the_client(config, far, expires):
    login = ("login", "far", "--config", config)
    call = ("call", "look", "--server", "far", "--yes", "--config", config)
    assert run(*login, BROWSER=BROWSER)[0] == 0
    far.control(forget=True, **{"expire" if expires else "revoke": True})
    code, _, err = run(*call)
    assert code == 3
    (advice,) = re.findall(r"mcp-nursery (login \w+)", err)
    assert run(*advice.split(), "--config", config, BROWSER=BROWSER)[0] == 0
    assert run(*call)[0] == 0


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("fat", 2, "did you mean 'far'?"),
        ("other", 2, 'it does not use OAuth: correct its headers, or put `"auth": "oauth"` into its entry'),
    ],
)
def test_a_server_that_has_no_login(config, name, code, told):
    found, _, err = run("login", name, "--config", config)
    assert (found, told in err) == (code, True)


async def test_a_login_brings_a_server_of_a_running_host_back(config, far):
    """P5: nothing is restarted but that server's connection."""
    with trio.fail_after(120):
        async with open_supervisor(load_config(config)) as supervisor, supervisor.events() as events:
            await supervisor.list_tools()
            assert status_of(supervisor, "far").state is S.NEEDS_AUTH
            environment = {**os.environ, "BROWSER": BROWSER}
            command = [*COMMAND, "login", "far", "--config", str(config)]
            await trio.run_process(command, env=environment, capture_stdout=True, capture_stderr=True)
            await next_state(events, S.CONNECTED, "far")
            assert (await supervisor.call_tool("look", server="far")).content[0].text == "seen"


@pytest.mark.parametrize("pastes", ["url", "code"])
def test_what_the_browser_ends_at_can_be_pasted(config, far, pastes):
    """A terminal, and a browser on another machine."""
    screen = Screen()
    command = [*COMMAND, "login", "far", "--config", str(config)]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), screen.slave)
    with subprocess.Popen(command, **streams, start_new_session=True) as started:
        until(lambda: "paste its final address" in screen.text)
        url = re.search(r"https?://\S+authorize\?\S+", screen.text)[0]
        back = agree(url)
        os.write(screen.master, (back if pastes == "url" else httpx2.URL(back).params["code"]).encode() + b"\n")
        assert started.wait(60) == 0, screen.text
    until(lambda: "far: authorised" in screen.text)
    screen.close()


def test_who_comes_back_with_another_state_changes_nothing(config, far):
    """A page that knows the port can send the browser there, and nobody is logged in as somebody else."""
    with process("login", "far", "--config", str(config)) as started:
        said = ""
        while "authorize?" not in said:
            said += started.stderr.readline()
        url = re.search(r"https?://\S+", said)[0]
        back = httpx2.URL(agree(url))
        for wrong in ("?code=x&state=forged", "?code=x", "?error=access_denied", "/more?code=x"):
            answer = httpx2.get(str(back.copy_with(query=None)) + wrong, timeout=60)
            assert answer.status_code in (400, 404)
        assert httpx2.get(str(back), timeout=60).status_code == 200
        assert started.wait(60) == 0


def test_who_does_not_agree_is_told_so(config, far):
    with process("login", "far", "--config", str(config)) as started:
        said = ""
        while "authorize?" not in said:
            said += started.stderr.readline()
        url = httpx2.URL(re.search(r"https?://\S+", said)[0])
        back = f"{url.params['redirect_uri']}?error=access_denied&state={url.params['state']}"
        assert "was not authorised" in httpx2.get(back, timeout=60).text
        _, err = started.communicate(timeout=60)
    assert (started.returncode, "far: not authorised: it was not authorised: access_denied" in err) == (3, True)
    assert "Traceback" not in err


def test_a_project_s_entry_has_to_be_trusted_first(far, tmp_path, monkeypatch):
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"far": {"url": far.url, "auth": "oauth"}}}))
    monkeypatch.chdir(tmp_path)
    code, _, err = run("login", "far")
    assert (code, "uses your tokens" in err) == (4, True)
    assert not far.journal.path.exists() or far.journal.count("registration") == 0


def test_who_never_logged_in_is_not_authorised(config):
    code, out, _ = run("auth", "status", "--config", config)
    assert (code, out.splitlines()[1].split("\t")[:2]) == (0, ["far", "no"])


def test_a_browser_that_stays_open_holds_nobody_up(config, far, tmp_path):
    """Some commands end when the window is closed. The page's address is shown before that, and can be used."""
    stays = tmp_path / "browser.py"
    stays.write_text("import os, time\nparent = os.getppid()\nwhile os.getppid() == parent:\n    time.sleep(0.05)\n")
    environment = {"BROWSER": shlex.join([sys.executable, str(stays)]) + " %s"}
    with process("login", "far", "--config", str(config), env=environment) as started:
        said = ""
        while "authorize?" not in said:
            said += started.stderr.readline()
        assert httpx2.get(agree(re.search(r"https?://\S+", said)[0]), timeout=60).status_code == 200
        assert started.wait(30) == 0


def test_who_gives_up_leaves_a_terminal_as_it_was(config, far):
    """Ctrl-C, in the middle of the consent."""
    screen = Screen()
    before = termios.tcgetattr(screen.slave)
    command = [*COMMAND, "login", "far", "--config", str(config)]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), screen.slave)
    with subprocess.Popen(command, **streams, start_new_session=True) as started:
        until(lambda: "paste its final address" in screen.text)
        until(lambda: termios.tcgetattr(screen.slave) != before)
        os.kill(started.pid, signal.SIGINT)
        assert started.wait(30) == 130
    assert termios.tcgetattr(screen.slave) == before
    assert "Traceback" not in screen.text
    screen.close()
