"""The exports are what they claim, and importing them is cheap."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

import mcp_nursery.actors
import mcp_nursery.supervisor
from mcp_nursery import actors
from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.supervisor import errors, transports
from mcp_nursery.supervisor.calls.fan_out import FanOut
from mcp_nursery.supervisor.events import EventStream

ROOT = Path(__file__).parents[2]
ACCEPTED = """
from mcp_nursery.supervisor import (open_supervisor, load_config, RestartPolicy, ServerSpec, StdioTransport,
                                    HttpTransport, SseTransport, WebSocketTransport, InProcessTransport, Approval)
from mcp_nursery.supervisor import (NurseryError, ConfigError, UnknownTool, NotApproved, CallError, ServerDown,
                                    ServerBusy, BreakerOpen, ConnectionLost, CallTimeout, ServerError, InvalidResult)
"""
"""What programs start with."""

PUBLIC_MODULES = [
    "mcp_nursery.supervisor",
    *(
        f"mcp_nursery.supervisor.{name}"
        for name in (
            *("approval", "callbacks", "calls.fan_out", "calls.relayed", "calls.task_handles"),
            *("config", "errors", "events"),
            *(
                "gateway",
                "gateway.client_status",
                "integrations.inspect_ai",
                "integrations.langchain",
                "integrations.offered",
                "integrations.openai_agents",
                "integrations.pydantic_ai",
                "notices",
                "portal",
                "resources",
                "security.redaction",
                "skills",
                "spec",
                "status",
                "stderr",
                "testing",
                "toolset",
            ),
        )
    ),
]
"""What users import from."""

MODULES = sorted(
    module.name
    for package in (mcp_nursery.actors, mcp_nursery.supervisor)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    if not module.name.endswith("__main__")
)
FRAMEWORKS = {
    f"mcp_nursery.supervisor.integrations.{name}"
    for name in ("inspect_ai", "langchain", "openai_agents", "pydantic_ai")
}
"""Modules that need a framework, which an extra brings."""


def with_lanes(modules: list[str]) -> list[Any]:
    """The modules as parameters of a test."""
    return [pytest.param(name, marks=pytest.mark.push) if name in FRAMEWORKS else name for name in modules]


PURE = ["decisions", "catalogue", "resources", "tools"]


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", with_lanes(PUBLIC_MODULES))
def test_every_export_is_there(module):
    for name in importlib.import_module(module).__all__:
        exported = getattr(sys.modules[module], name)
        if inspect.isclass(exported) or inspect.isfunction(exported):
            assert exported.__name__ == name


@pytest.mark.parametrize("module", with_lanes(PUBLIC_MODULES))
def test_all_is_sorted_and_listed_once(module):
    exported = importlib.import_module(module).__all__
    assert sorted(set(exported)) == exported


def test_few_names_are_at_the_root():
    assert len(mcp_nursery.supervisor.__all__) <= 31
    assert mcp_nursery.supervisor.__all__ == dir(mcp_nursery.supervisor)


def test_every_error_is_among_the_errors():
    of_ours = {name for name, it in vars(actors.errors).items() if inspect.isclass(it) and issubclass(it, NurseryError)}
    assert of_ours - {"StartFailed"} < set(errors.__all__)


def test_type_checkers_see_what_is_exported():
    """They read the stub, which says what is loaded: what it imports is what it lists."""
    body = ast.parse((ROOT / "supervisor" / "__init__.pyi").read_text()).body
    seen = [alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
    (listed,) = (ast.literal_eval(node.value) for node in body if isinstance(node, ast.Assign))
    assert sorted(seen) == listed == mcp_nursery.supervisor.__all__


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="nonsense"):
        mcp_nursery.supervisor.nonsense  # noqa: B018


@pytest.mark.slow
def test_star_import():
    assert python("from mcp_nursery.supervisor import *; print(open_supervisor.__name__)") == "open_supervisor"


@pytest.mark.slow
def test_the_accepted_imports():
    """ACCEPTANCE.md's import lines work in a fresh interpreter."""
    assert python(ACCEPTED + "print(ServerDown.__mro__[1].__name__)") == "CallError"


@pytest.mark.parametrize("module", ["mcp_nursery.supervisor", "mcp_nursery.actors"])
def test_importing_is_lazy(module):
    """`import mcp` alone takes most of a second: a bare import brings neither it nor Trio."""
    code = (
        f"import sys, {module}; print([name for name in ('mcp', 'mcp_types', 'trio', 'rich') if name in sys.modules])"
    )
    assert python(code) == "[]"


@pytest.mark.slow
def test_errors_and_specs_come_without_the_sdk():
    """What a program needs to describe its servers and catch errors does not load `mcp`."""
    code = "import sys; from mcp_nursery.supervisor import ServerSpec, StdioTransport, RestartPolicy, NurseryError"
    assert python(code + "; print('mcp' in sys.modules)") == "False"


def test_decisions_are_pure():
    """Neither trio nor mcp at import time: of all modules one after another, and the first that brings one is named."""
    pure = [name for name in MODULES if name.split(".")[2] in PURE]
    assert len(pure) > len(PURE)
    code = f"""
import importlib, sys
for module in {pure}:
    importlib.import_module(module)
    if brought := [name for name in ("mcp", "mcp_types", "trio") if name in sys.modules]:
        sys.exit(f"{{module}} brings {{brought}}")
"""
    assert python(code) == ""


@pytest.mark.parametrize("module", with_lanes(MODULES))
def test_every_module_imports(module):
    importlib.import_module(module)


@pytest.mark.slow
def test_the_ground_floor_stands_alone():
    """House rule 1: actors never import supervisor."""
    imports = ", ".join(name for name in MODULES if name.startswith("mcp_nursery.actors"))
    code = f"import sys, {imports}; print([name for name in sys.modules if name.startswith('mcp_nursery.supervisor')])"
    assert python(code) == "[]"


def test_the_package_list_is_complete():
    """Every folder with Python in it is a package of the wheel, and no other."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        "mcp_nursery." + ".".join(file.parent.relative_to(ROOT).parts)
        for top in ("actors", "supervisor")
        for file in (ROOT / top).rglob("*.py")
    }
    assert sorted(listed) == sorted(found)
    assert len(set(listed)) == len(listed)


def test_every_package_has_an_init():
    folders = {file.parent for top in ("actors", "supervisor") for file in (ROOT / top).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_typed():
    """`Typing :: Typed` is claimed and package data names it: both packages carry the marker."""
    assert (ROOT / "supervisor" / "py.typed").exists()
    assert (ROOT / "actors" / "py.typed").exists()


def test_what_users_hold_has_no_more_than_they_need():
    """Whatever has no underscore is promised: no inner step of ours is among it."""

    def public(cls: type) -> set[str]:
        return {name for name in vars(cls) if not name.startswith("_")}

    assert public(mcp_nursery.supervisor.Call) == {
        *("name", "arguments", "server", "timeout", "idle_timeout", "when_down", "resend", "on_progress", "meta")
    }
    assert {"running", "start", "close"}.isdisjoint(public(mcp_nursery.supervisor.Supervisor))
    assert public(FanOut) == {"stop", "until_met"}
    assert "publish" not in public(EventStream)


def test_a_type_checker_refuses_what_is_no_transport() -> None:
    """`ServerSpec("x", 42)`: one `Any` in a union makes anything right."""
    kinds = get_args(transports.Transport)
    assert Any not in kinds
    assert transports.CustomTransport in kinds
