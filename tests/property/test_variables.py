"""K5, L17 for any text: what a header can hold, what an error can show, and that nothing is expanded twice."""

import json
import os
from contextlib import suppress
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.config import discover_config, load_config
from mcp_nursery.supervisor.config.loader import load_project
from mcp_nursery.supervisor.config.variables import (
    Surroundings,
    UnresolvedVariable,
    expand,
    expand_header,
    unresolved_in_header,
)
from mcp_nursery.supervisor.transports import UnusableTransport

SECRET = "s3cr3t-of-the-process"
names = st.sampled_from(["A", "B", "HOME", "PLANTED", "userHome", "workspaceFolder"])
variables = st.builds(
    "${{{}{}{}}}".format,
    st.sampled_from(["", "env:", "x:"]),
    names,
    st.sampled_from(["", ":-", ":-d", ":-${A}", ":-}"]),
)
pieces = st.one_of(variables, st.sampled_from(["$", "{", "}", "${", "!", ":-", "x"]), st.text(max_size=3))
texts = st.lists(pieces, max_size=6).map("".join)
values = st.one_of(texts, st.text(max_size=5))
blocks = st.dictionaries(names, values)


@given(texts, blocks, st.dictionaries(names.filter(str.isupper), values.filter(lambda text: "\0" not in text)))
def test_a_header_knows_nothing_but_its_servers_block(text, own, environ):
    """K5: whatever it says, the outcome is a function of text and block: the same in another process."""
    expanded = expand_header(text, own)
    with patch.dict(os.environ, {name: f"other {value}" for name, value in environ.items()}):
        assert expand_header(text, own) == expanded
    assert bool(unresolved_in_header(text, own)) <= ("${" in text)
    if "${" not in text:
        assert expanded == text


@given(texts, blocks, st.dictionaries(names, st.just(SECRET)))
def test_expansion_reads_the_process_only_where_it_may(text, own, environ):
    """K5: with nothing of the process in the block, no header holds anything of it; elsewhere it may."""
    with patch.dict(os.environ, environ):
        assert SECRET not in expand_header(text, own)
    around = Surroundings(own, environ, "/work", "/home/me")
    assert SECRET not in repr(around)
    with suppress(UnresolvedVariable):
        expand(text, around.find)
        return
    with pytest.raises(UnresolvedVariable) as caught:
        expand(text, around.find)
    assert SECRET not in repr(caught.value)


@given(st.lists(st.one_of(names.map("${{{}}}".format), st.text(alphabet="ab $}", max_size=3)), max_size=6), blocks)
def test_nothing_is_expanded_twice(parts, own):
    """K5: each variable stands for its value to the letter, also where that looks like a variable."""
    assume(all(part.startswith("${") or "$" not in part for part in parts))
    for part in parts:
        assume(not part.startswith("${") or part[2:-1] in own)
    expected = "".join(own[part[2:-1]] if part.startswith("${") else part for part in parts)
    assert expand_header("".join(parts), own) == expected
    assert expand("".join(parts), own.get) == expected


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(["type", "command", "args", "env", "url", "headers", "cwd", "enabled", "headersHelper", "odd"])
entries = st.one_of(
    json_values,
    st.dictionaries(keys, json_values, max_size=5),
    st.fixed_dictionaries({"command": texts, "args": st.lists(texts, max_size=2), "env": blocks}),
    st.fixed_dictionaries({"url": texts, "headers": blocks, "env": blocks}),
)


@given(st.dictionaries(st.sampled_from(["a", "b", ""]), entries, max_size=3))
def test_any_entries(tmp_path_factory, servers):
    """K3, K7: the only error is ConfigError; of a project's file, whatever starts a process asks."""
    file = tmp_path_factory.mktemp("any") / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    for load in (load_config, load_project, lambda path: discover_config(path.parent, user=False)):
        try:
            config = load(file)
        except ConfigError:
            pytest.fail("every entry is its own server's affair")
        assert config.errors == ()
        for spec in config.servers:
            asks = spec.trust_request is not None
            if load is load_config or isinstance(spec.transport, UnusableTransport):
                assert not asks
            elif spec.transport.kind == "stdio":
                assert asks
            if load is not load_config:
                assert not spec.trust_hints or isinstance(spec.transport, UnusableTransport)
