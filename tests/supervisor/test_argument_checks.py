"""Arguments with a fixed set of values: a typing error is refused where it comes in, and nothing is done."""

import inspect
import json
import math
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args, get_origin

import pytest
from mcp_types import LoggingLevel

import mcp_nursery.supervisor as public
from mcp_nursery.actors import callbacks
from mcp_nursery.supervisor import (
    Call,
    ConfigError,
    OAuth,
    ServerSpec,
    StdioTransport,
    UnknownTool,
    discover_config,
    load_config,
    open_supervisor,
)
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.calls.fan_out import Until
from mcp_nursery.supervisor.testing import ScriptedServer

RESEND = "'safe', 'always' or 'never'"
WHEN_DOWN = "seconds >= 0, 'wait', 'fail', 'reconnect', 'hold' or None"
UNTIL = "'all', 'first' or a number of successes >= 1"
TRUTH = "True or False"
SECONDS = "seconds >= 0"
LEVELS = "'debug', 'info', 'notice', 'warning', 'error', 'critical', 'alert' or 'emergency'"

PROTOCOL = (
    "'auto', 'handshake', 'handshake-first', '2024-11-05', '2025-03-26', '2025-06-18', '2025-11-25' or '2026-07-28'"
)
GRANTS = "'authorization_code', 'client_credentials', 'enterprise' or 'workload'"
ROOTS = 'an async function, a list of paths and file:// URIs, or "cwd"'

ARGUMENTS = {
    ("Call", "resend"): [("Never", RESEND), (None, RESEND), (["never"], RESEND), (True, RESEND)],
    ("Call", "when_down"): [
        *[("Fail", WHEN_DOWN), ("Reconnect", WHEN_DOWN), (False, WHEN_DOWN)],
        *[(math.nan, WHEN_DOWN), (-0.5, WHEN_DOWN)],
    ],
    ("Supervisor.call_tool", "resend"): [("Never", RESEND), (None, RESEND), (["never"], RESEND), (True, RESEND)],
    ("Supervisor.call_tool", "when_down"): [("Fail", WHEN_DOWN), ("Reconnect", WHEN_DOWN), (False, WHEN_DOWN)],
    ("Call", "meta"): [(["a"], "a mapping or None"), ("abc", "a mapping or None")],
    ("Supervisor.call_tool", "meta"): [("abc", "a mapping or None")],
    ("Supervisor.request", "meta"): [(["a"], "a mapping or None")],
    ("Supervisor.request", "for_models"): [("no", TRUTH), (None, TRUTH)],
    ("Supervisor.request", "follow_tasks"): [("no", TRUTH), (1, TRUTH)],
    ("Supervisor.fan_out", "until"): [("First", UNTIL), (0, UNTIL), (True, UNTIL), (1.5, UNTIL), (None, UNTIL)],
    ("Supervisor.broadcast", "until"): [("First", UNTIL), (0, UNTIL), (True, UNTIL), (1.5, UNTIL), (None, UNTIL)],
    **{
        (f"Supervisor.{name}", argument): [(value, wanted)]
        for name in ("read_resource", "get_prompt", "request", "submit", "start_task")
        for argument, value, wanted in (("resend", "Never", RESEND), ("when_down", "Fail", WHEN_DOWN))
    },
    ("Supervisor.find_tool", "when_down"): [("Fail", WHEN_DOWN)],
    ("Supervisor.complete", "resend"): [("Never", RESEND)],
    ("Supervisor.complete", "when_down"): [("Fail", WHEN_DOWN), (-1, WHEN_DOWN), (math.nan, WHEN_DOWN)],
    ("Supervisor.list_resources", "refresh"): [("no", TRUTH)],
    ("Supervisor.list_prompts", "refresh"): [("no", TRUTH)],
    ("Supervisor.list_skills", "refresh"): [("no", TRUTH)],
    ("Supervisor.read_resource", "refresh"): [("no", TRUTH)],
    ("Supervisor.as_toolset", "search"): [("no", TRUTH)],
    ("Supervisor.statistics", "by_tool"): [("no", TRUTH)],
    ("Supervisor.reload", "restart"): [("no", "True, False or names of servers")],
    ("Supervisor.reload", "drain"): [(-1, SECONDS)],
    ("Supervisor.stop_server", "drain"): [(math.nan, SECONDS)],
    ("Supervisor.remove_server", "drain"): [("no", SECONDS), (None, SECONDS), (True, SECONDS)],
    ("Supervisor.list_tools", "refresh"): [("no", TRUTH), (1, TRUTH), (None, TRUTH)],
    ("Callbacks", "roots"): [("/work", ROOTS), (["https://far.example"], ROOTS), (7, ROOTS)],
    ("Supervisor.set_roots", "roots"): [("/work", ROOTS), (None, ROOTS)],
    ("Callbacks", "log_level"): [("loud", LEVELS), (None, LEVELS), (20, LEVELS)],
    ("discover_config", "project"): [("no", TRUTH), (None, TRUTH)],
    ("discover_config", "user"): [("no", TRUTH), (None, TRUTH)],
    ("StdioTransport", "inherit_env"): [("no", TRUTH), (None, TRUTH)],
    ("discover_config", "hosts"): [("no", TRUTH), (0, TRUTH)],
}
"""Arguments of functions and calls: refused with a ValueError."""

SETTINGS = {
    ("ServerSpec", "restart"): [("Temporary", "'permanent', 'transient' or 'temporary'")],
    ("ServerSpec", "revive"): [
        ("on-call", "'on_call', 'never', finite seconds > 0, or ('on_call', seconds)"),
        (True, "'on_call', 'never', finite seconds > 0"),
    ],
    ("ServerSpec", "protocol"): [("Handshake", PROTOCOL), ("2026-07", PROTOCOL), (None, PROTOCOL), (["auto"], "")],
    ("ServerSpec", "instances"): [("own", "'shared', 'session' or 'single'")],
    ("ServerSpec", "on_disconnect"): [("go on", "'cancel' or 'keep'")],
    ("ServerSpec", "trust_hints"): [("no", TRUTH), (None, TRUTH)],
    ("ServerSpec", "lazy"): [("no", "True, False or 'cached'"), (1, "True, False or 'cached'")],
    ("ServerSpec", "enabled"): [("false", TRUTH), (0, TRUTH)],
    ("ServerSpec", "policy"): [("exponential", "a RestartPolicy or None")],
    ("ServerSpec", "liveness"): [(True, "a Liveness or None")],
    ("OAuth", "grant"): [("password", GRANTS), (None, GRANTS), (["enterprise"], "")],
    ("OAuth", "require_pkce"): [("no", TRUTH), (None, TRUTH)],
    ("OAuth", "dpop"): [("required", TRUTH), (None, TRUTH)],
    ("open_supervisor", "lazy"): [("no", "True, False, 'cached' or None"), (1, "True, False, 'cached' or None")],
    ("open_supervisor", "pins"): [("Block", "'report' or 'block'"), (None, "'report' or 'block'")],
    ("open_supervisor", "wait_for"): [("none", "'all' or 'uncached'"), (None, "'all' or 'uncached'")],
    ("open_supervisor", "drop_placeholders"): [("no", TRUTH)],
    ("open_supervisor", "control"): [("no", TRUTH)],
    ("open_supervisor", "docker"): [("yes", "'auto' or None"), (True, "'auto' or None")],
    ("open_supervisor", "watch"): [("no", TRUTH)],
    ("open_supervisor", "gate"): [(math.nan, SECONDS), (-1, SECONDS), ("0", SECONDS), (None, SECONDS), (True, SECONDS)],
    ("open_supervisor", "drain"): [(math.nan, SECONDS), (-1, SECONDS), (None, SECONDS)],
    ("open_supervisor", "shutdown_timeout"): [(math.nan, SECONDS), (-1, SECONDS), (None, SECONDS)],
    ("open_supervisor", "override"): [("all", "a list of texts is needed")],
    ("open_supervisor", "trust"): [(True, "an async function or None"), ("all", "an async function or None")],
    ("open_supervisor", "approve"): [(True, "an async function or None"), ("allow", "an async function or None")],
    ("open_supervisor", "approval_rules"): [(["*"], "an ApprovalRules or None")],
    ("open_supervisor", "policy"): [("exponential", "a RestartPolicy or None")],
    ("open_supervisor", "callbacks"): [(None, "a Callbacks")],
    ("open_supervisor", "roots"): [("/work", ROOTS), ([7], ROOTS)],
}
"""Settings: refused with a ConfigError that names the field."""

IN_FILES = {
    "restart": ["Temporary", True],
    "protocol": ["Handshake", True],
    "instances": ["own", True],
    "revive": ["on-call", True, 0],
    "lazy": ["no", 1],
    "enabled": ["false", 0],
    "type": ["htttp", True],
}
"""Keys of an entry in a file: the error of that server."""

OURS = {"ApprovalRules.decide", "DefinitionsChanged", "StateChanged", "Tool", "ToolHints", "ToolOutcome", "ToolResult"}
OURS |= {"MemoryStore.remember_era"}
"""Made and called by the library; hosts read them."""


def cases(table):
    return [
        pytest.param(*key, value, wanted, id=f"{key[0]} {key[1]}={value!r}")
        for key, values in table.items()
        for value, wanted in values
    ]


async def given(where: str, argument: str, value: object) -> None:
    """Give this value to that argument, everything else being right."""
    server = ScriptedServer(prompts={"greet": print})
    spec = ServerSpec("lab", server.transport)
    match where:
        case "Call":
            Call("mcp_lab_echo", **{argument: value})
        case "Callbacks":
            Callbacks(**{argument: value})
        case "ServerSpec":
            ServerSpec("lab", server.transport, **{argument: value})
        case "OAuth" | "StdioTransport":
            {"OAuth": OAuth, "StdioTransport": partial(StdioTransport, "x")}[where](**{argument: value})
        case "discover_config":
            discover_config(**{argument: value})
        case "open_supervisor":
            async with open_supervisor([spec], **{argument: value}):
                pass
        case "Supervisor.fan_out":
            calls = [Call("mcp_lab_echo")]
            async with open_supervisor([spec]) as supervisor, supervisor.fan_out(calls, **{argument: value}):
                pass
        case "Supervisor.complete":
            async with open_supervisor([spec]) as supervisor:
                await supervisor.complete(supervisor.prompts[0], "name", **{argument: value})
        case "Supervisor.broadcast":
            async with open_supervisor([spec]) as supervisor, supervisor.broadcast("echo", **{argument: value}):
                pass
        case _:
            async with open_supervisor([spec]) as supervisor:
                given = {
                    "call_tool": ["mcp_lab_echo"],
                    "submit": ["mcp_lab_echo"],
                    "start_task": ["mcp_lab_echo"],
                    "find_tool": ["mcp_lab_echo"],
                    "read_resource": ["x:/"],
                    "get_prompt": ["mcp_lab_greet"],
                    "request": ["lab", "ping"],
                    "stop_server": ["lab"],
                    "remove_server": ["lab"],
                }
                method = where.removeprefix("Supervisor.")
                await getattr(supervisor, method)(*given.get(method, ()), **{argument: value})
    raise AssertionError(f"taken, with {len(server.calls)} calls")


@pytest.mark.parametrize(("where", "argument", "value", "wanted"), cases(ARGUMENTS))
async def test_an_argument_is_refused(autojump_clock, where, argument, value, wanted):
    with pytest.raises(ValueError, match=f"^{argument} must be ") as caught:
        await given(where, argument, value)
    shown = "a list" if isinstance(value, list) else repr(value)
    assert str(caught.value) == f"{argument} must be {wanted}, not {shown}"


@pytest.mark.parametrize(("where", "argument", "value", "wanted"), cases(SETTINGS))
async def test_a_setting_is_refused(autojump_clock, where, argument, value, wanted):
    with pytest.raises(ConfigError) as caught:
        await given(where, argument, value)
    told = str(caught.value)
    assert wanted in told
    assert "\n" not in told
    if argument != "override":
        assert (caught.value.field, caught.value.server) == (argument, "lab" if where == "ServerSpec" else None)
        assert ("a list" if isinstance(value, list) else repr(value)) in told


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in IN_FILES.items() for value in values])
def test_a_key_of_a_file_is_refused(tmp_path, key, value):
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"servers": {"lab": {"command": "true", key: value}}}))
    (spec,) = load_config(file).servers
    with pytest.raises(ConfigError, match=key) as caught:
        spec.transport.connector(close_grace=1)
    assert caught.value.server == "lab"
    assert "\n" not in str(caught.value)


def is_enumerated(annotation: object) -> bool:
    if isinstance(annotation, str):
        return any(name in annotation for name in ("bool", "Literal", "Level"))
    if annotation is bool or get_origin(annotation) is Literal:
        return True
    return get_origin(annotation) is not Callable and any(map(is_enumerated, get_args(annotation)))


def public_functions():
    for name in public.__all__:
        exported = getattr(public, name)
        if not callable(exported) or name in OURS or (isinstance(exported, type) and issubclass(exported, Exception)):
            continue
        yield name, exported
        for method, function in vars(exported).items():
            is_public = method == "__call__" or not method.startswith("_")
            if inspect.isfunction(function) and is_public and f"{name}.{method}" not in OURS:
                yield f"{name}.{method}", function


def test_every_argument_with_a_fixed_set_of_values_is_tried_here():
    """By its type: a new one is added to the tables above, and to what validates it."""
    found = {
        (where, parameter.name)
        for where, function in public_functions()
        for parameter in inspect.signature(function).parameters.values()
        if is_enumerated(parameter.annotation)
    }
    assert found <= ARGUMENTS.keys() | SETTINGS.keys()
    assert len(found) >= 18
    assert is_enumerated(Until)


async def test_the_near_miss_that_executed_twice(autojump_clock):
    """`Never` was taken for leave to send again. A tool that nobody knows shows that the other values are taken."""
    async with open_supervisor([ServerSpec("lab", ScriptedServer().transport)]) as supervisor:
        for resend in ("safe", "always", "never"):
            for when_down in ("wait", "fail", "reconnect", "hold", 0, 1.5, math.inf, None):
                with pytest.raises(UnknownTool):
                    await supervisor.call_tool("mcp_lab_none", resend=resend, when_down=when_down)


def test_the_levels_are_those_of_the_protocol():
    assert get_args(callbacks._LEVELS) == get_args(LoggingLevel)


def test_nothing_of_a_long_value_but_its_beginning_is_shown():
    with pytest.raises(ConfigError) as caught:
        ServerSpec("lab", StdioTransport("x"), restart="x" * 1000)
    assert len(str(caught.value)) < 200
