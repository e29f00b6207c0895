"""Files of variables: what is in them, and that nothing of it is shown when one is refused."""

import os

import pytest

from mcp_nursery.supervisor.config.value_sources import ENV_FILE_LIMIT, EnvFileError, read_env_file


def test_lines(tmp_path):
    file = tmp_path / ".env"
    file.write_bytes(
        b'\xef\xbb\xbf# a comment\r\n\r\nA=1\r\nexport B = two words \n  C=\'# ${A} "x"\' # said\nD=""\n'
        b"E=a#b #c\nF=\nG.h-i=#\nA=2\nJ==x\nK='a'b'\n"
    )
    assert read_env_file(str(file)).variables == {
        "A": "2",
        "B": "two words",
        "C": '# ${A} "x"',
        "D": "",
        "E": "a#b",
        "F": "",
        "G.h-i": "",
        "J": "=x",
        "K": "a'b",
    }


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"A=1\nhunter2\n", "line 2 is not NAME=VALUE"),
        (b"=hunter2", "line 1 is not NAME=VALUE"),
        (b"1A=hunter2", "line 1 is not NAME=VALUE"),
        (b"A='hunter2", "line 1 is not NAME=VALUE"),
        (b'A="hunter2" b', "line 1 is not NAME=VALUE"),
        (b"A=hunter2\0", "line 1 is not NAME=VALUE"),
        (b"A=\xe4", "not UTF-8"),
        (b"#" * (ENV_FILE_LIMIT + 1), "not a regular file of at most 1 MiB"),
    ],
)
def test_what_is_refused(tmp_path, content, problem):
    """L17."""
    file = tmp_path / ".env"
    file.write_bytes(content)
    with pytest.raises(EnvFileError) as caught:
        read_env_file(str(file))
    assert problem in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_what_is_no_file(tmp_path):
    """A pipe holds nobody up."""
    os.mkfifo(tmp_path / "pipe")
    for path, problem in [
        ("none", "No such file"),
        (".", "Is a directory"),
        ("pipe", "not a regular file"),
        ("a\0", "not"),
    ]:
        with pytest.raises(EnvFileError, match=problem):
            read_env_file(str(tmp_path / path))
