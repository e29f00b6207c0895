"""K12: servers are switched off and on and removed from a file; all else in it stays as people wrote it."""

import difflib
import json
import re
import tomllib
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.config.discovery import EntryOrigin
from mcp_nursery.supervisor.config.document import parse_document
from mcp_nursery.supervisor.config.edits import Edit, apply_edits, edit_text
from mcp_nursery.supervisor.config.loader import read_file

JSONC = """{
  // servers of mine
  "mcpServers": {
    "a": {"command": "x"}, // about a
    /* about b */
    "b": {
      "command": "y" // why y
    },
    "c": {"command": "z", "enabled": true} // about c
  }, // end
  "theme": "dark",
}
"""

TOML = '''model = "o" # the model
[mcp_servers]

# about a
[mcp_servers.a]
command = "x" # why x
args = """
[mcp_servers.b]
"""

# about b
[mcp_servers.b]
# within b
command = "y"
[mcp_servers.b.env]
A = "1"

# about the rest
[other]
x = 1
'''.replace('args = """\n[mcp_servers.b]\n"""', 'description = """\n[mcp_servers.b]\n"""')


def specs(text, file):
    return {
        name: entry.spec for name, entry in read_file(EntryOrigin(file), document=parse_document(text, file)).entries
    }


@pytest.mark.parametrize(
    ("server", "change", "line", "instead"),
    [
        ("a", "disable", '"a": {"command": "x"}', '"a": {"command": "x", "enabled": false}'),
        ("b", "disable", '"y" // why y\n', '"y", // why y\n      "enabled": false\n'),
        ("c", "disable", '"enabled": true', '"enabled": false'),
        ("a", "remove", '    "a": {"command": "x"}, // about a\n', "    // about a\n"),
        ("b", "remove", '    "b": {\n      "command": "y" // why y\n    },\n', ""),
        ("c", "remove", ',\n    "c": {"command": "z", "enabled": true} // about c', "\n    // about c"),
    ],
)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_only_the_entry_is_edited(server, change, line, instead, ending):
    text, expected = (each.replace("\n", ending) for each in (JSONC, JSONC.replace(line, instead)))
    assert line in JSONC
    assert edit_text(text, "f.json", server, change) == expected


def test_it_goes_back_and_forth():
    off = edit_text(JSONC, "f.json", "c", "disable")
    assert edit_text(off, "f.json", "c", "enable") == JSONC
    assert edit_text(off, "f.json", "c", "disable") == off
    assert edit_text(JSONC, "f.json", "c", "enable") == JSONC


@pytest.mark.parametrize(
    ("text", "change", "expected"),
    [
        ('{"mcpServers": {"a": {"command": "x",},}}', "disable", '{"command": "x", "enabled": false,}'),
        ('{"mcpServers": {"a": {\n"command": "x"\n,\n},}}', "disable", '"x"\n,\n"enabled": false,\n'),
        ('{"mcpServers": {"a": {\n\t"command": "x",\n},}}', "disable", '\n\t"command": "x",\n\t"enabled": false,\n}'),
        ('{"mcpServers": {"a": {"command": "x"}, "b": {}}}', "remove", '{"mcpServers": {"b": {}}}'),
        ('{"mcpServers": {"b": {}, "a": {"command": "x"}}}', "remove", '{"mcpServers": {"b": {}}}'),
        ('{"mcpServers": {"b": {}, /* c */ "a": {}}}', "remove", '{"mcpServers": {"b": {} /* c */ }}'),
        ('{"mcpServers": {"a": {} /* c */, "b": {}}}', "remove", '{"mcpServers": {/* c */ "b": {}}}'),
        ('{"mcpServers": {"a": {}}}', "remove", '{"mcpServers": {}}'),
        ('{"mcpServers": {"a": {"command": "x", "enabled": false, "disabled": true}}}', "enable", "true, "),
        ('{"mcpServers": {"a": {"command": "x", "disabled": false}}}', "disable", '"disabled": true'),
    ],
)
def test_however_it_is_written(text, change, expected):
    assert expected in edit_text(text, "f.json", "a", change)


@pytest.mark.parametrize(
    ("file", "text", "off"),
    [
        (".mcp.json", '{"mcpServers": {"a": {"command": "x"}}}', '"disabled": true'),
        (".vscode/mcp.json", '{"servers": {"a": {"command": "x"}}}', '"disabled": true'),
        (".codebuddy/mcp.json", '{"servers": [{"name": "b"}, {"name": "a", "command": "x"}]}', '"disabled": true'),
        ("opencode.json", '{"mcp": {"a": {"type": "local", "command": ["x"]}}}', '"enabled": false'),
        ("opencode.json", '{"mcp": {"servers": {"a": {"command": ["x"]}}}}', '"enabled": false'),
        (".vscode/settings.json", '{"sidecar.mcpServers": {"a": {"command": "x"}}}', '"disabled": true'),
        (".gemini/settings.json", '{"mcpServers": {"a": {"command": "x"}}}', ', "mcp": {"excluded": ["a"]}'),
        (".gemini/settings.json", '{"mcpServers": {"a": {"command": "x"}}, "mcp": {}}', '"mcp": {"excluded": ["a"]}'),
        (
            ".gemini/settings.json",
            '{"mcpServers": {"a": {"command": "x"}}, "mcp": {"excluded": ["b" /* c */]}}',
            '["b", "a" /* c */]',
        ),
    ],
)
def test_by_the_words_of_the_host(file, text, off):
    new = edit_text(text, file, "a", "disable")
    assert off in new
    assert not specs(new, file)["a"].enabled
    again = edit_text(new, file, "a", "enable")
    assert specs(again, file) == specs(text, file)
    assert "a" not in specs(edit_text(text, file, "a", "remove"), file)


def test_who_is_excluded_twice_is_not_any_more():
    text = '{"mcpServers": {"a": {"command": "x"}}, "mcp": {"excluded": ["a", "b", "a"]}}'
    assert '"mcp": {"excluded": ["b"]}' in edit_text(text, ".gemini/settings.json", "a", "enable")


def test_who_is_not_allowed_is_allowed():
    text = '{"mcpServers": {"a": {"command": "x"}}, "mcp": {"allowed": [], "excluded": ["a"]}}'
    assert '"mcp": {"allowed": ["a"], "excluded": []}' in edit_text(text, ".gemini/settings.json", "a", "enable")


@pytest.mark.parametrize(
    ("server", "change", "part", "instead"),
    [
        ("b", "disable", '"y"\n[mcp', '"y"\nenabled = false\n[mcp'),
        ("a", "disable", '"""\n\n# about b', '"""\nenabled = false\n\n# about b'),
        ("b", "remove", TOML[TOML.index("[mcp_servers.b]\n#") : TOML.index("# about the rest")], ""),
        ("a", "remove", TOML[TOML.index("[mcp_servers.a]") : TOML.index("# about b")], ""),
    ],
)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_toml(server, change, part, instead, ending):
    text, expected = (each.replace("\n", ending) for each in (TOML, TOML.replace(part, instead)))
    assert part in TOML
    assert edit_text(text, "config.toml", server, change) == expected


@pytest.mark.parametrize("rest", ["", "\n[other]\nx = 1\n"])
def test_toml_without_its_last_server(rest):
    """The table that is left empty is said, as in JSON: the file has no servers, and not nothing to do with them."""
    text = f'x = 1\n\n# mine\n[mcp_servers.a]\ncommand = "x"\n[mcp_servers.a.env]\nA = "1"\n{rest}'
    assert edit_text(text, "f.toml", "a", "remove") == f"x = 1\n\n# mine\n[mcp_servers]\n{rest.lstrip()}"


def test_toml_without_a_last_line_end():
    text = 'x = 1\r\n[mcp_servers.a]\r\ncommand = "x"'
    assert edit_text(text, "f.toml", "a", "disable") == f"{text}\r\nenabled = false\r\n"


def test_toml_goes_back_and_forth():
    on = edit_text(edit_text(TOML, "config.toml", "a", "disable"), "config.toml", "a", "enable")
    assert on == TOML.replace('"""\n\n', '"""\nenabled = true\n\n')
    assert edit_text('[mcp_servers.a]\ncommand="x"', "f.toml", "a", "disable").endswith('"x"\nenabled = false\n')


@pytest.mark.parametrize(
    ("file", "text", "change"),
    [
        ("f.toml", 'mcp_servers = {a = {command = "x"}}', "remove"),
        ("f.toml", 'mcp_servers.a.command = "x"', "disable"),
        ("opencode.json", '{"mcp": {"a": {"command": ["x"]}, "servers": {"a": {"command": ["y"]}}}}', "remove"),
        ("f.json", '{"mcpServers": {"a": {"disabled": "no"}}}', "disable"),
        ("f.json", '{"mcpServers": {"a": 1}}', "disable"),
        (".gemini/settings.json", '{"mcpServers": {"a": {}}, "mcp": 1}', "disable"),
    ],
)
def test_what_cannot_be_done_alone_is_not_done(file, text, change):
    with pytest.raises(ConfigError, match=rf"^{file}: server 'a': .*by hand"):
        edit_text(text, file, "a", change)


def test_a_server_that_is_not_there():
    with pytest.raises(ConfigError, match="no such server"):
        edit_text(JSONC, "f.json", "d", "remove")


space = st.text(" \t\n", max_size=3)
letters = st.text('ab"/*\\,{}', max_size=5)
comments = st.builds(lambda text: f"/*{text.replace('/', '')}_*/", letters) | st.builds("//{}\n".format, letters)
gaps = st.one_of(space, st.builds("{}{}{}".format, space, comments, space), st.builds("\r\n{}".format, space))
END = st.sampled_from(["", ","])


@st.composite
def written(draw, value):
    """The value as JSON with comments, and anything that may stand between its parts."""
    if not isinstance(value, dict):
        return json.dumps(value)
    parts = [
        f"{draw(gaps)}{json.dumps(key)}{draw(gaps)}:{draw(gaps)}{draw(written(part))}{draw(gaps)}"
        for key, part in value.items()
    ]
    return f"{{{','.join(parts)}{draw(END) if parts else ''}{draw(gaps)}}}"


entries = st.fixed_dictionaries(
    {"command": letters.map("x{}".format)},
    optional={"disabled": st.booleans(), "enabled": st.booleans(), "description": letters},
)
documents = st.dictionaries(st.sampled_from(["a", "b", 'c"d', "//e"]), entries, min_size=1).flatmap(
    lambda servers: st.tuples(
        st.sampled_from(sorted(servers)), written({"other": {}, "mcpServers": servers, "x": "/* no comment */"})
    )
)


def comments_of(text):
    found = re.findall(r'"(?:\\.|[^"\\])*"|(//[^\n]*|/\*.*?\*/)', text, re.DOTALL)
    return [each.rstrip("\r") for each in found if each]


@given(documents)
def test_whatever_is_written_around(drawn):
    name, text = drawn
    before = specs(text, "f.json")
    off = edit_text(text, "f.json", name, "disable")
    on = edit_text(off, "f.json", name, "enable")
    assert [specs(each, "f.json")[name].enabled for each in (off, on)] == [False, True]
    assert comments_of(text) == comments_of(off) == comments_of(on)
    if before[name].enabled:
        assert specs(on, "f.json") == before
    assert edit_text(on, "f.json", name, "enable") == on
    without = edit_text(text, "f.json", name, "remove")
    assert specs(without, "f.json").keys() == before.keys() - {name}
    assert set(comments_of(without)) <= set(comments_of(text))


toml_names = st.sampled_from(["a", "b", '"c d"', "'x.y'", '"\\u0061b"'])
toml_comments = st.sampled_from(["", " # c", " # enabled = true", "\t# [mcp_servers.a]"])
toml_blanks = st.sampled_from([[], [""], ["# between"], ["  ", "# [mcp_servers.b]"]])
TEXTS = ['"x"', '"""\n[mcp_servers.a]\nenabled = false\n"""', "'''\n# no\n[x]\n'''"]
OTHERS = [*TEXTS, "[[1, 2],\n[3]]", '{A = "1"}', '[\n  "a", # c\n  "[mcp_servers.b]",\n]']


@st.composite
def toml_files(draw):
    """A file with servers, and the name of one of them."""
    lines = ["x = 1", *draw(toml_blanks), *draw(st.sampled_from([[], ["[mcp_servers]"]]))]
    names = draw(st.lists(toml_names, min_size=1, max_size=3, unique=True))
    for name in names:
        indent = draw(st.sampled_from(["", "  ", "\t"]))
        fields = ['command = "x"', f"description = {draw(st.sampled_from(TEXTS))}"]
        fields += draw(
            st.sampled_from([[], [f"other = {draw(st.sampled_from(OTHERS))}"], ["env.A = 'x'", "env.B = 'y'"]])
        )
        fields += draw(st.sampled_from([[], ["enabled = false"], ["enabled\t=  true"]]))
        header = draw(st.sampled_from(["[mcp_servers.{}]", "  [ mcp_servers . {} ]", '["mcp_servers".{}]']))
        lines.append(header.format(name) + draw(toml_comments))
        for each in fields:
            lines += [indent + each + draw(toml_comments), *draw(toml_blanks)]
        lines += draw(st.sampled_from([[], [f"[mcp_servers.{name}.tools.t]", 'approval_mode = "auto"'], ["# after"]]))
    lines += draw(st.sampled_from([[], ["[[list]]", "y = 1", "[[list]]", "y = 2"]]))
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    text = "\n".join(lines).replace("\n", ending) + draw(st.sampled_from(["", ending]))
    return text, next(iter(tomllib.loads(f"{draw(st.sampled_from(names))} = 1")))


@given(toml_files())
def test_whatever_toml_is_written_around(drawn):
    """One line is another, or there is one more; what is taken out is all that is not there any more."""
    text, name = drawn
    on, off, without = (edit_text(text, "f.toml", name, change) for change in ("enable", "disable", "remove"))
    assert [specs(each, "f.toml")[name].enabled for each in (on, off)] == [True, False]
    assert specs(without, "f.toml").keys() == specs(text, "f.toml").keys() - {name}
    for each in (on, off):
        before, after = text.splitlines(), each.splitlines()
        ways = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
        assert len(ways) in {0, len(after) - len(before), 2}
        assert all("enabled" in way for way in ways)
    kept = [line for line in without.splitlines() if line != "[mcp_servers]"]
    assert is_subsequence(kept, text.splitlines())
    assert ("\r" in text) == ("\r" in without)


def is_subsequence(part, whole):
    left = iter(whole)
    return all(each in left for each in part)


SEVERAL_JSON = """{
  // ours
  "mcpServers": {
    "a": {"command": "one"}, // the first
    "b": {"command": "two", "args": ["x,y"]},
    /* with a comment before */
    "c": {"command": "three"},
    "d": {"command": "four"}, "e": {"command": "five"}
  },
  "other": [1, 2]
}
"""
SEVERAL_TOML = """# ours
[mcp_servers.a]
command = "one" # the first

[mcp_servers.b]
command = "two"
[mcp_servers.b.env]
A = "[x]"

# between
[mcp_servers.c]
command = "three"
[mcp_servers.d]
command = "four"
[mcp_servers.e]
command = "five"

[other]
x = 1
"""


@pytest.mark.parametrize(
    ("file", "root", "text"), [("a.json", "mcpServers", SEVERAL_JSON), ("a.toml", "mcp_servers", SEVERAL_TOML)]
)
def test_several_at_once_are_edited_as_one_after_the_other(file, root, text):
    few = [names for count in range(1, 4) for names in permutations("abcde", count)]
    for names in (*few, *permutations("abcde")):
        steps = [Edit("remove", (root, name)) for name in names]
        one_by_one = text
        at_once = apply_edits(text, file, steps)
        for step in sorted(steps, key=lambda step: step.path, reverse=True):
            one_by_one = apply_edits(one_by_one, file, [step])
        assert at_once == one_by_one
