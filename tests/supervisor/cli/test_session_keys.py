"""The keys by which sessions outlive their gateway: where they are, who may read them, and what is refused."""

import json
import os
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.cli.serve_http import HttpFront
from mcp_nursery.supervisor.cli.session_keys import SessionKeyFile, own_key_file
from mcp_nursery.supervisor.gateway import SessionKeys
from mcp_nursery.supervisor.gateway.http.session_ids import SessionStart, open_session, seal_session

START = SessionStart(1_764_140_000.0, "2025-11-25", {}, None)
FIRST, SECOND = "first key, which is long enough for one", "second key, which is long enough for one"


def written(path, *lines, mode=0o600):
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(mode)
    return path


def opens(sealing, opening):
    return open_session(opening, seal_session(sealing, START, None, None), None, None) == START


def test_the_first_key_of_a_file_seals_and_all_open(tmp_path):
    both = SessionKeyFile(written(tmp_path / "both", "", f"  {FIRST}\r", SECOND), 10.0).keys
    first, second = (SessionKeys([key.encode()]) for key in (FIRST, SECOND))
    assert opens(both, first)
    assert not opens(both, second)
    assert opens(first, both)
    assert opens(second, both)
    assert both.max_age == 10


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([FIRST, "x" * 31], "line 2: a key must have 32 bytes or more, and this one has 31"),
        ([FIRST, "", FIRST], "line 3: the key of line 1 again"),
        ([], "line 1: there is no key"),
        (["", " "], "line 1: there is no key"),
        ([f"{number} {FIRST}" for number in range(9)], "line 9: more than 8 keys"),
        (["x" * (65 << 10)], "has more than 65536 bytes"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(tmp_path, lines, problem):
    """Which names the file and the line, and no key."""
    path = written(tmp_path / "keys", *lines)
    with pytest.raises(ConfigError) as caught:
        HttpFront("127.0.0.1:0", replica_key=path)
    assert str(caught.value).startswith(f"{path}: {problem}")
    assert FIRST not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="cannot be read"):
            SessionKeyFile(path, 10.0)


@pytest.mark.parametrize(("mode", "is_refused"), [(0o644, True), (0o620, True), (0o602, True), (0o640, False)])
def test_a_file_that_others_can_read_is_refused(tmp_path, mode, is_refused):
    """One that its group alone can read is not."""
    path = written(tmp_path / "keys", FIRST, mode=mode)
    if not is_refused:
        assert SessionKeyFile(path, 10.0).keys
        return
    with pytest.raises(ConfigError, match="others can read or write it"):
        SessionKeyFile(path, 10.0)


def test_a_file_is_read_again(tmp_path):
    path = written(tmp_path / "keys", FIRST)
    file, second = SessionKeyFile(path, 10.0), SessionKeys([SECOND.encode()])
    written(path, SECOND, FIRST)
    file.reload()
    assert opens(file.keys, second)
    written(path, "short")
    with pytest.raises(ConfigError):
        file.reload()
    assert opens(file.keys, second)


def test_a_user_has_a_key_of_their_own(user_folders):
    path = own_key_file()
    assert path == user_folders / "state" / "mcp-nursery" / "session-keys"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert own_key_file().read_text() == text
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("breaks", [lambda path: path.chmod(0o644), lambda path: path.parent.chmod(0o777)])
def test_a_key_that_others_can_read_or_replace_is_not_used(capsys, breaks):
    """The gateway says so and works without."""
    path = own_key_file()
    breaks(path)
    with pytest.raises(ConfigError):
        own_key_file()
    front = HttpFront("127.0.0.1:0")
    front._listening.close()
    assert front._keys is None
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"sessions end with this gateway, as with --no-resume: {path}: " in said


MAKE = """
import sys
from mcp_nursery.supervisor.cli.session_keys import own_key_file
print("ready", flush=True)
sys.stdin.readline()
print(own_key_file().read_text(), end="")
"""


@pytest.mark.slow
def test_processes_that_make_a_key_at_once_have_the_same():
    run = [sys.executable, "-c", MAKE]
    with ExitStack() as stack:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes = [stack.enter_context(subprocess.Popen(run, **pipes)) for _ in range(4)]
        assert [each.stdout.readline() for each in processes] == ["ready\n"] * 4
        for each in processes:
            each.stdin.write("\n")
            each.stdin.flush()
        made = {each.communicate()[0] for each in processes}
    assert made == {own_key_file().read_text()}


def test_a_process_that_comes_second_takes_the_key_of_the_first(monkeypatch):
    """Though it saw none when it looked."""
    theirs = "theirs, which is long enough for a key"
    path = own_key_file()
    path.unlink()
    link = os.link

    def late(beside, target):
        written(Path(target), theirs)
        link(beside, target)

    monkeypatch.setattr(os, "link", late)
    assert own_key_file().read_text() == f"{theirs}\n"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("given", [{"replica_key": Path("x")}, {"session_max_age": 60.0}])
def test_options_that_exclude_each_other(given):
    with pytest.raises(ConfigError, match="cannot be given together with --no-resume"):
        HttpFront("127.0.0.1:0", no_resume=True, **given)


def test_an_age_that_is_none(tmp_path):
    for age in (-1.0, float("inf")):
        with pytest.raises(ConfigError, match="--session-max-age"):
            HttpFront("127.0.0.1:0", session_max_age=age)


def test_a_new_key_is_printed_and_kept_nowhere(cli, tmp_path):
    made = [cli("key", "new"), cli("key", "new")]
    assert [each.code for each in made] == [0, 0]
    assert len({each.out for each in made}) == 2
    key = written(tmp_path / "keys", made[0].out.strip())
    assert SessionKeyFile(key, 10.0).keys
    assert set(json.loads((cli("key", "new", "--json")).out)) == {"key"}
