"""The README's examples run, and its set-up lines are those of CI."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_nursery.supervisor import ServerSpec, open_supervisor
from mcp_nursery.supervisor.testing import run_virtual

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_embedding_example_runs(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[0])
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "hello ['mcp_lab_echo', 'mcp_lab_now']\n"
    assert done.stderr == ""


@pytest.mark.parametrize("answer", ["y", "n"])
def test_the_host_example_runs(tmp_path: Path, answer: str) -> None:
    """T19: list, ask at the terminal, call, show what the model gets."""
    script = tmp_path / "host.py"
    script.write_text(next(example for example in EXAMPLES if "as_toolset" in example))
    done = subprocess.run(
        [sys.executable, script], input=f"{answer}\n", capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stderr == ""
    listed, asked_and_shown = done.stdout.split("mcp_lab_echo {", 1)
    assert [line.split(" - [MCP: lab] ")[0] for line in listed.splitlines()] == ["mcp_lab_echo", "mcp_lab_now"]
    shown = asked_and_shown.removeprefix('"text": "hello"}: call it? [y/N] ')
    opening = '<mcp_tool_output server="lab" tool="echo" trust="untrusted">'
    if answer == "y":
        assert shown == f"{opening}\nhello\n</mcp_tool_output>\n"
    else:
        assert shown.startswith("MCP error: NotApproved\nserver: lab\ntool: echo\ntransport: stdio\n")
        assert shown.endswith(f"{opening}\nlab: echo: not approved: denied\n</mcp_tool_output>\n")


def test_the_testing_example_runs() -> None:
    example = next(example for example in EXAMPLES if "ScriptedServer(" in example)
    names = {"open_supervisor": open_supervisor, "ServerSpec": ServerSpec, "ran": []}
    exec(example.replace("assert", "ran.append(True); assert"), names)
    assert names["ran"] == [True]
    assert run_virtual is names["run_virtual"]


def test_ci_uses_the_readmes_set_up_lines() -> None:
    run = (ROOT / ".ci" / "run").read_text()
    lines = re.findall(
        r"^    python3 -m venv \.venv && \.venv/bin/(pip install .*?) && \.venv/bin/(.*)$", README, re.MULTILINE
    )
    assert [(install, command.split()[0]) for install, command in lines] == [
        ("pip install -q .", "mcp-nursery"),
        ("pip install -q '.[test]'", "pytest"),
    ]
    assert all(f'"$venv/bin/pip" {install.removeprefix("pip ")}' in run for install, _ in lines)


def test_the_matrix_of_faults_is_the_one_that_is_proven() -> None:
    printed = subprocess.run(
        [sys.executable, ROOT / "tests" / "real" / "fault_matrix.py"], capture_output=True, text=True, check=True
    )
    assert f"\n\n{printed.stdout}\n" in README


def test_every_path_it_names_exists() -> None:
    paths = re.findall(r"^\| `((?:supervisor|actors)/[^`]+)` \|", README, re.MULTILINE)
    assert paths
    assert [path for path in paths if not (ROOT / path).is_file()] == []
