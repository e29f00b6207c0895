"""How the documentation is built: `python -m sphinx -W -b html docs build/docs`."""

import ast
import inspect
import re
import sys
import textwrap
from importlib import import_module
from importlib.metadata import version as installed
from pathlib import Path

from docutils import nodes
from sphinx.domains.python import PyXRefRole
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.inspect import signature as signature_of
from sphinx.util.inspect import stringify_signature

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "mcp-nursery"
copyright = "the authors of mcp-nursery"  # noqa: A001
version = release = installed("mcp-nursery")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_design",
    "diagrams",
    "generated",
    "screen_picture",
]

html_theme = "furo"
html_title = "mcp-nursery"
html_static_path = ["_static"]
html_css_files = ["diagrams.css"]
html_copy_source = False

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

default_role = "name"
python_maximum_signature_line_length = 88
autodoc_member_order = "bysource"
autodoc_mock_imports = ["agents", "inspect_ai", "langchain_core", "pydantic_ai"]  # most of what would be installed
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": True}
toc_object_entries_show_parents = "hide"


_HOMES = {
    name: f"mcp_nursery.supervisor{home}"
    for home in ("", ".approval", ".calls.fan_out", ".errors", ".events", ".status", ".toolset")
    for name in import_module(f"mcp_nursery.supervisor{home}").__all__
}
"""Where public names are described, of which one stands in the text of another."""
_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*(\(\))?")
_MADE_FOR_USERS = {"Supervisor", "Toolset", "FanOut", "EventStream"}
"""Classes that users get, and never make."""
_PLUMBING = {"connector", "kind", "schemes", "open"}
"""What a transport is asked by the supervisor, not by a user; and what is the same in each of them."""


def setup(app):
    """Shape what autodoc finds."""
    app.add_role("name", _name)
    app.connect("autodoc-process-docstring", _with_sections)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", lambda _app, _what, name, _obj, skip, _options: name in _PLUMBING or skip)


def _name(_role, rawtext, text, *rest):
    """`name` in a docstring: a link if it is a public name, plain code if not."""
    if _NAME.fullmatch(text):
        if home := _HOMES.get(text.partition(".")[0]):
            text = f"{text} <{home}.{text}>"
        return PyXRefRole()("py:obj", rawtext, text, *rest)
    return [nodes.literal(rawtext, text, classes=["code"])], []


def _with_sections(app, what, name, obj, options, lines):  # noqa: PLR0917
    """Read `Args:` and `Raises:`. Not those of fields: napoleon would take what stands before a colon for a type."""
    if what not in ("attribute", "property", "data"):
        lines[:] = GoogleDocstring(lines, Config(), app, what, name, obj, options).lines()
    elif not any(lines):
        lines[:] = _of_cached_property(name)


def _of_cached_property(name):
    """What is written in one: of a class with slots attrs keeps the value's slot and not the function."""
    module, owner, attribute = name.rsplit(".", 2)
    body = ast.parse(textwrap.dedent(inspect.getsource(getattr(sys.modules[module], owner)))).body[0].body
    for it in body:
        if isinstance(it, ast.FunctionDef) and it.name == attribute:
            return (ast.get_docstring(it) or "").splitlines()
    return []


def _signature(_app, what, name, obj, _options, signature, returned):
    """None of what users do not make. A default that is made anew each time attrs calls NOTHING."""
    if what == "class" and name.rpartition(".")[2] in _MADE_FOR_USERS:
        return "", None
    if signature == "(*args: Any, **kwargs: Any)":  # of the stand-in for a base class of a framework
        signature = stringify_signature(
            signature_of(obj.__init__, bound_method=True), show_return_annotation=False, unqualified_typehints=True
        )
    return signature and signature.replace("= NOTHING", "= ..."), returned
