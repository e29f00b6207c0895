"""How the documentation is built: `python -m sphinx -W -b html docs build/docs`."""

import sys
from importlib.metadata import version as installed
from pathlib import Path

from sphinx.ext.napoleon import Config, GoogleDocstring

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "mcp-nursery"
copyright = "the authors of mcp-nursery"  # noqa: A001
version = release = installed("mcp-nursery")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "diagrams",
    "generated",
]

html_theme = "furo"
html_title = "mcp-nursery"
html_static_path = ["_static"]
html_css_files = ["diagrams.css"]
html_copy_source = False

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

# `name` in a docstring: a link if it is a public name, plain code if not.
default_role = "py:obj"
python_maximum_signature_line_length = 88
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": True}
toc_object_entries_show_parents = "hide"


def setup(app):
    """Shape what autodoc finds."""
    app.connect("autodoc-process-docstring", _with_sections)
    app.connect("autodoc-process-signature", _without_nothing)
    app.connect("autodoc-skip-member", _without_plumbing)


def _with_sections(app, what, name, obj, options, lines):  # noqa: PLR0917
    """Read `Args:` and `Raises:`. Not those of fields: napoleon would take what stands before a colon for a type."""
    if what not in ("attribute", "property", "data"):
        lines[:] = GoogleDocstring(lines, Config(), app, what, name, obj, options).lines()


def _without_nothing(_app, _what, _name, _obj, _options, signature, returned):
    """A default that is made anew each time: attrs calls it NOTHING."""
    return signature and signature.replace("= NOTHING", "= ..."), returned


def _without_plumbing(_app, _what, name, _obj, skip, _options):
    return True if name in _PLUMBING else skip


_PLUMBING = {"connector", "kind", "schemes"}
"""What a transport is asked by the supervisor, not by a user; and what is the same in each of them."""
