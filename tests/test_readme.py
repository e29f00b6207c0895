"""What the README and the documentation show is run as a user would run it, and the set-up lines are those of CI.

A comment before a block says what it is: `<!-- file: NAME -->` is saved; `<!-- run: NAME -->` is saved and run, with
`; input: TEXT` on standard input; `<!-- prints -->` is what the last one prints; `<!-- test: NAME -->` is
run by pytest; `<!-- serve: NAME -->` is a service.
"""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from runpy import run_path
from typing import Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import httpx2
import pytest
import trio
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

PAGES = {str(page.relative_to(ROOT / "docs")): page.read_text() for page in (ROOT / "docs").rglob("*.md")}
SHORT = ("tutorial.md", "howto/agent-host.md", "howto/calls.md", "howto/resources.md")
"""Pages whose programs end within a few seconds: those of the others take ten each, and are for the night."""
BLOCK = re.compile(
    r"<!-- (file|run|test|prints|serve)(?:: (\S+?))?(?:; input: (.*?))? -->\n```\w+\n(.*?)```", re.DOTALL
)

MODEL_LOOP = next(body for _, name, _, body in BLOCK.findall(PAGES["howto/agent-host.md"]) if name == "model.py")


def run(script: Path, *options: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, script.name]
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # this run's, with its paths
    return subprocess.run(
        command, cwd=script.parent, env=env, input=given, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_the_embedding_example_runs(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[0])
    done = run(script)
    assert done.stdout == "hello ['mcp_lab_echo', 'mcp_lab_now']\n"
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["y", "n"])
def test_the_host_example_runs(tmp_path: Path, answer: str) -> None:
    """The model wants a call, a person is asked at the terminal, and the model gets the result or the refusal."""
    script = tmp_path / "host.py"
    script.write_text(MODEL_LOOP)
    done = run(script, given=f"{answer}\n")
    assert done.stderr == ""
    assert done.returncode == 0
    question = 'mcp_lab_echo {"text": "hello"}: call it? [y/N] '
    assert done.stdout.startswith(question)
    shown = done.stdout.removeprefix(question)
    opening = '<mcp_tool_output server="lab" tool="echo" trust="untrusted">'
    if answer == "y":
        assert shown == f"{opening}\nhello\n</mcp_tool_output>\n"
    else:
        assert shown.startswith("MCP error: NotApproved\n")
        assert "\nacted: no\n" in shown
        assert "\nserver: lab\ntool: echo\ntransport: stdio\n" in shown
        assert shown.endswith(f"{opening}\nlab: echo: not approved: denied\n</mcp_tool_output>\n")


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 110


def test_ci_runs_the_readmes_own_lines() -> None:
    """Each line that makes an environment, and each is found by what it runs at its end."""
    found = run_path(str(ROOT / ".ci" / "readme"))["lines"]()
    made = [line.strip() for line in README.splitlines() if "python3 -m venv" in line]
    assert made == list(found.values())
    assert [line.rpartition("/")[2].split()[0] for line in made[:2]] == ["mcp-nursery", "pytest"]
    asked = re.findall(r"^ *\.ci/readme ([a-z ]+?) *(?:#.*)?$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert sorted(" ".join(asked).split()) == sorted(found)


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link.partition("#")[0]).is_file()] == []


def test_the_table_of_the_readme_has_the_titles_of_the_pages() -> None:
    table = [row for row in README.splitlines() if row.startswith("| a")]
    links = [link for row in table for link in re.findall(r"\[([^]]+)\]\(docs/([^)]+)\)", row)]
    assert links
    assert [name for name, page in links if not re.match(rf"# {name}(:|\n)", PAGES[page])] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        page if page in SHORT else pytest.param(page, marks=pytest.mark.night)
        for page, text in PAGES.items()
        if re.search("<!-- (run|test)", text)
    ],
)
def test_the_examples_of_a_page_run(page: str, tmp_path: Path) -> None:
    printed = ""
    for what, name, given, body in BLOCK.findall(PAGES[page]):
        if what == "prints":
            assert printed == body
            continue
        (tmp_path / name).write_text(body)
        if what == "run":
            done = run(tmp_path / name, given=f"{given}\n" if given else "")
            assert done.returncode == 0, done.stderr
            printed = done.stdout
        elif what == "test":
            done = run(tmp_path / name, "-m", "pytest", "-q")
            assert "1 passed" in done.stdout, done.stdout


@pytest.mark.slow
def test_asyncio_learns_that_the_trio_side_has_failed(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGES["howto/threads-and-asyncio.md"])
    (program,) = [body for _, name, _, body in blocks if name == "with_asyncio.py"]
    names = '("one", "two", "three")'
    assert names in program
    (tmp_path / "failing.py").write_text(program.replace(names, '("one", "one")'))
    done = run(tmp_path / "failing.py")
    assert done.returncode == 1
    assert "ConfigError" in done.stderr


@contextmanager
def service(page: str, folder: Path) -> Iterator[str]:
    """The service of a page, and where it listens. It ends at SIGTERM."""
    (script,) = [body for what, _, _, body in BLOCK.findall(PAGES[page]) if what == "serve"]
    (folder / "service.py").write_text(script)
    with subprocess.Popen(
        [sys.executable, "service.py"], cwd=folder, env={**os.environ, "PORT": "0"}, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            listens = next(line for line in process.stderr if "Running on" in line)
            yield re.search(r"http://\S+", listens)[0]
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


@pytest.mark.slow
def test_the_web_service_serves_and_ends(tmp_path: Path) -> None:
    with service("howto/web-service.md", tmp_path) as address:
        call = Request(f"{address}/tools/mcp_lab_echo", data=b'{"text": "hello"}')
        assert json.load(urlopen(call)) == {"text": "hello", "is_error": False}
        for body in (b"{", b"[1]", b"\xff"):
            with pytest.raises(HTTPError) as refused:
                urlopen(Request(f"{address}/tools/mcp_lab_echo", data=body))
            with refused.value:
                assert refused.value.code == 400
        assert json.load(urlopen(f"{address}/servers")) == {"lab": "connected"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_mounted_gateway_serves_and_ends(tmp_path: Path, mode: Literal["legacy", "2026-07-28"]) -> None:
    token = {"Authorization": "Bearer token-of-ann"}
    with service("howto/mounting.md", tmp_path) as address, trio.fail_after(60):
        for path, echo in [("mcp", "lab_echo"), ("mcp/lab", "echo")]:
            async with (
                httpx2.AsyncClient(timeout=60, headers=token) as http,
                Client(streamable_http_client(f"{address}/tools/{path}", http_client=http), mode=mode) as client,
            ):
                result = await client.call_tool(echo, {"text": "hello"})
                assert [block.text for block in result.content if isinstance(block, TextContent)] == ["hello"]
        for path in ("servers", "tools/mcp"):
            async with httpx2.AsyncClient(timeout=60) as http:  # Hypercorn closes a connection whose body nobody read
                refused = await http.post(f"{address}/{path}", json={})
            assert refused.status_code == 401
        async with httpx2.AsyncClient(timeout=60, headers=token) as http:
            assert (await http.get(f"{address}/servers")).json() == {"lab": "connected"}


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_the_python_of_a_page_is_python(page: str) -> None:
    text = README if page == "README.md" else PAGES[page]
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        compile(block, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_matrix_of_faults_is_the_one_that_is_proven() -> None:
    printed = subprocess.run(
        [sys.executable, ROOT / "tests" / "real" / "fault_matrix.py"], capture_output=True, text=True, check=True
    )
    assert f"\n\n{printed.stdout}\n" in PAGES["explanation/faults.md"]
