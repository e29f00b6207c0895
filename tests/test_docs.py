"""The documentation is complete, and its examples run."""

import ast
import inspect
import json
import re
import shlex
import textwrap
from functools import cache
from importlib import import_module
from pathlib import Path

import click

from mcp_nursery.supervisor import Supervisor, load_config
from mcp_nursery.supervisor.cli.app import app

from .supervisor.test_public_api import PUBLIC_MODULES

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {str(page.relative_to(DOCS)): page.read_text() for page in DOCS.rglob("*.md")}


@cache  # not while tests are collected: four frameworks are imported
def public() -> dict[str, object]:
    return {name: getattr(module, name) for module in map(import_module, PUBLIC_MODULES) for name in module.__all__}


def fields_without_a_meaning(owner: type) -> list[str]:
    """Public fields, members and attributes that no text follows; methods that are made of others have their text."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(tree, ast.ClassDef)
    inits = [it.body for it in tree.body if isinstance(it, ast.FunctionDef) and it.name == "__init__"]
    return [
        name
        for body, assigned in [(tree.body, field), *((init, attribute) for init in inits)]
        for line, after in zip(body, [*body[1:], None], strict=True)
        if (name := assigned(line)) and not name.startswith("_") and not is_text(after)
        if not (inspect.isfunction(vars(owner).get(name)) and inspect.getdoc(vars(owner)[name]))
    ]


def field(line: ast.stmt) -> str | None:
    match line:
        case ast.AnnAssign(annotation=ast.Subscript(value=ast.Name("ClassVar"))):
            return None
        case ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]):
            return name
        case _:
            return None


def attribute(line: ast.stmt) -> str | None:
    match line:
        case ast.AnnAssign(target=ast.Attribute(ast.Name("self"), name)):
            return name
        case ast.Assign(targets=[ast.Attribute(ast.Name("self"), name)]):
            return name
        case _:
            return None


def is_text(line: ast.stmt | None) -> bool:
    match line:
        case ast.Expr(ast.Constant(str())):
            return True
        case _:
            return False


def test_every_public_field_has_a_meaning() -> None:
    classes = {name: it for name, it in public().items() if inspect.isclass(it)}
    assert len(classes) > 100
    assert {name: missing for name, it in classes.items() if (missing := fields_without_a_meaning(it))} == {}


def test_the_reference_has_every_public_name_and_no_other() -> None:
    pages = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    assert sorted(re.findall(r"^\.\. (?:auto\w+|data):: (\w+)$", pages, re.MULTILINE)) == sorted(public())


def test_the_architecture_names_the_rooms_there_are() -> None:
    named = re.findall(r"^\| `(\S+)/` \|", (DOCS / "explanation" / "architecture.md").read_text(), re.MULTILINE)
    root = DOCS.parent
    rooms = [
        it.parent.relative_to(root) for top in ("actors", "supervisor") for it in root.glob(f"{top}/**/__init__.py")
    ]
    assert sorted(named) == sorted(map(str, {room for room in rooms if "dialects" not in room.parts}))


def blocks(language: str) -> list[tuple[str, str, str]]:
    """Each block of the documentation, after its page and the line before it."""
    block = re.compile(rf"^([^\n]*)\n```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [(page, before, body) for page, text in PAGES.items() for before, body in block.findall(text)]


def test_every_whole_program_is_one_that_is_run() -> None:
    starts = re.compile(r"^(trio\.run|anyio\.run|asyncio\.run|run_virtual|def test_\w+)\(", re.MULTILINE)
    programs = [(page, before) for page, before, body in blocks("python") if starts.search(body)]
    assert len(programs) > 10
    assert [page for page, before in programs if not re.match("<!-- (run|serve|test): ", before)] == []


def test_the_command_lines_use_what_there_is() -> None:
    """Commands and options."""
    lines = [line for _, _, body in blocks("console") for line in body.splitlines()]
    words = [
        shlex.split(line.partition("mcp-nursery ")[2]) for line in lines if re.match(r"\$ (.* -- )?mcp-nursery ", line)
    ]
    assert len(words) > 20
    for said in words:
        command: click.Command = app
        rest = said
        while isinstance(command, click.Group):
            found = command.get_command(click.Context(command), rest[0])
            assert found is not None, shlex.join(said)
            command, rest = found, rest[1:]
        known = {option for parameter in command.params for option in parameter.opts}
        own = rest[: rest.index("--")] if "--" in rest else rest
        assert [word for word in own if word.startswith("-") and word not in known] == [], shlex.join(said)


def test_every_configuration_works(tmp_path: Path) -> None:
    configurations = [body for _, _, body in blocks("json") if "mcpServers" in json.loads(body)]
    assert configurations
    for body in configurations:
        (tmp_path / "servers.json").write_text(body)
        config = load_config(tmp_path / "servers.json")
        assert config.servers
        assert not config.warnings


def test_the_pieces_of_code_use_what_there_is() -> None:
    """Keywords of what is called, and methods of a supervisor. What is run proves itself."""
    calls: list[tuple[str, ast.Call, set[str]]] = []
    for page, _, body in blocks("python"):
        piece = [*ast.walk(compile(body, page, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))]
        imports = [one for one in piece if isinstance(one, ast.ImportFrom) and "mcp_nursery" not in (one.module or "")]
        others = {each.asname or each.name for one in imports for each in one.names}
        calls += [(page, call, others) for call in piece if isinstance(call, ast.Call)]
    checked = 0
    for page, call, others in calls:
        match call.func:
            case ast.Name(name) if name in public() and name not in others:
                called = public()[name]
            case ast.Attribute(ast.Name("supervisor"), name):
                called = getattr(Supervisor, name)
            case _:
                continue
        known = inspect.signature(called).parameters
        said = [word.arg for word in call.keywords if word.arg is not None]  # what `**` holds is not written there
        assert [word for word in said if word not in known] == [], f"{page}: {ast.unparse(call)}"
        checked += 1
    assert checked > 40
