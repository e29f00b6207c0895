"""The documentation is complete, and its examples run."""

import ast
import inspect
import re
import textwrap
from pathlib import Path

import pytest

from mcp_nursery import supervisor
from mcp_nursery.supervisor import testing

DOCS = Path(__file__).parent.parent / "docs"
PUBLIC = {name: getattr(module, name) for module in (supervisor, testing) for name in module.__all__}
CLASSES = {name: it for name, it in PUBLIC.items() if inspect.isclass(it)}


def fields_without_a_meaning(owner: type) -> list[str]:
    """Public fields, members and attributes that no text follows."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(tree, ast.ClassDef)
    inits = [it.body for it in tree.body if isinstance(it, ast.FunctionDef) and it.name == "__init__"]
    return [
        name
        for body, assigned in [(tree.body, field), *((init, attribute) for init in inits)]
        for line, after in zip(body, [*body[1:], None], strict=True)
        if (name := assigned(line)) and not name.startswith("_") and not is_text(after)
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


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_field_has_a_meaning(name: str) -> None:
    assert fields_without_a_meaning(CLASSES[name]) == []


def test_the_reference_has_every_public_name_and_no_other() -> None:
    pages = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    assert sorted(re.findall(r"^\.\. auto\w+:: (\w+)$", pages, re.MULTILINE)) == sorted(PUBLIC)


def test_the_architecture_names_the_rooms_there_are() -> None:
    named = re.findall(r"^\| `(\S+)/` \|", (DOCS / "explanation" / "architecture.md").read_text(), re.MULTILINE)
    root = DOCS.parent
    rooms = [
        it.parent.relative_to(root) for top in ("actors", "supervisor") for it in root.glob(f"{top}/**/__init__.py")
    ]
    assert sorted(named) == sorted(map(str, {room for room in rooms if "dialects" not in room.parts}))
