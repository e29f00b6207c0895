"""Pages that follow from the code: the command line, and the keys of a configuration file. Written in Markdown."""

import json
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import click
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

from mcp_nursery.supervisor.cli.app import app
from mcp_nursery.supervisor.cli.options import PROGRAM


def commands() -> Iterator[str]:
    """A section for each command."""
    for name, command in _each(app):
        shown = {parameter: _shown(parameter) for parameter in command.params if getattr(parameter, "help", None)}
        arguments = [shown[it] for it in shown if it.param_type_name == "argument"]
        yield from (f"### {name}", "", command.help.strip(), "")
        yield from ("```text", " ".join([PROGRAM, name, "[OPTIONS]", *arguments]), "```", "")
        yield from ("| | |", "|---|---|")
        yield from (f"| `{shown[it]}` | {it.help}{_default(it)} |" for it in shown)
        yield ""


def _each(group: click.Group, before: str = "") -> Iterator[tuple[str, Any]]:
    """The commands of a group, and of the groups in it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _each(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _shown(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar)
    value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    return ", ".join((*parameter.opts, *parameter.secondary_opts)).replace("|", r"\|") + value.replace("|", r"\|")


def _default(parameter: Any) -> str:
    """The default of an option, where its help does not say it."""
    if isinstance(parameter.default, bool):
        (usual,) = parameter.opts if parameter.default else parameter.secondary_opts
    elif isinstance(parameter.default, (str, int, float)):
        usual = f"{parameter.default:g}" if isinstance(parameter.default, float) else str(parameter.default)
    else:
        return ""
    return f" Default: `{usual}`."


def keys() -> Iterator[str]:
    """A row for each key of a server's entry, from the JSON Schema that `mcp-nursery check --schema` prints."""
    schema = json.loads((files("mcp_nursery.supervisor.config") / "schema.json").read_text())
    yield from ("| key | meaning | default |", "|---|---|---|")
    for key, said in schema["$defs"]["server"]["properties"].items():
        default = f"`{json.dumps(said['default'])}`" if "default" in said else ""
        kinds = " or ".join(dict.fromkeys(_kinds(said)))
        yield f"| `{key}` | {said.get('description', '')} <br> {kinds} | {default} |"


def _kinds(said: dict[str, Any]) -> Iterator[str]:
    for each in said.get("anyOf", ()):
        yield from _kinds(each)
    if "const" in said or "enum" in said:
        values = said.get("enum", [said.get("const")])
        yield ", ".join(f"`{json.dumps(value)}`" for value in values if value is not None)
    elif "type" in said:
        kinds = [said["type"]] if isinstance(said["type"], str) else said["type"]
        yield from (f"*{kind}*" for kind in kinds if kind != "null")


_WRITERS: dict[str, Callable[[], Iterator[str]]] = {"commands": commands, "configuration-keys": keys}


class Generated(Directive):
    """`{generated} commands`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The text, as if it stood here."""
        lines = StringList(list(_WRITERS[self.arguments[0]]()), source=self.arguments[0])
        holder = nodes.section()
        holder.document = self.state.document
        self.state.nested_parse(lines, 0, holder, match_titles=True)
        return holder.children


def setup(app: Any) -> dict[str, bool]:
    """Tell Sphinx."""
    app.add_directive("generated", Generated)
    return {"parallel_read_safe": True}
