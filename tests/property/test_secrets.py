"""Whatever of an entry is secret is found in what is said, by whatever way it came and in whatever way it is quoted."""

import json
from base64 import b64encode
from html import escape
from urllib.parse import quote, quote_plus

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_nursery.supervisor.config.deferred import Resolver
from mcp_nursery.supervisor.config.discovery import EntryOrigin
from mcp_nursery.supervisor.config.entry import read_entry
from mcp_nursery.supervisor.security.redaction import Redactor

secrets = (  # whatever it is, where a name or a place says that it is one
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40)
    .filter(lambda text: "${" not in text)  # begins a variable, whose value is not known before a connect
    .map(lambda text: f"Zq{text}Zq")
)

letters = st.characters(categories=["Ll", "Lu", "Nd"], max_codepoint=126)
keys = (  # what looks like one, wherever it stands
    st.text(letters, min_size=16, max_size=40).map(lambda text: f"Zq8{text}7vX")
    | st.text("0123456789abcdef", min_size=24, max_size=64).map(lambda text: f"a1b2{text}")
    | st.uuids(version=4).map(str).filter(lambda text: sum(map(str.isalpha, text)) > 8)
    | st.binary(min_size=24, max_size=64).map(lambda data: f"x9{b64encode(data).decode()}")
    | st.text("!#$%^&*", min_size=1, max_size=8).map(lambda text: f"hunter{text}2horse")
)

words = st.sampled_from(
    [
        "development",
        "production",
        "staging",
        "verbose",
        "disabled",
        "required",
        "localhost",
        "notes",
        "project",
        "English",
        "information",
        "OpenAI",
        "JavaScript",
        "PostgreSQL",
        "utf8",
        "python3",
        "sha256",
    ]
)
numbers = st.integers(0, 10**9).map(str)
plain = (
    words
    | numbers
    | st.builds("{}-{}".format, words, st.integers(0, 99))
    | st.builds("{0}_{1}".format, words, words.filter(str.isalpha))
    | st.lists(words, min_size=2, max_size=3).map(lambda parts: "/home/" + "/".join(parts))
    | st.builds("http://{}:{}/{}".format, words.filter(str.isalpha), st.integers(1, 65535), words)
    | st.builds("{}.{}@example.com".format, words.filter(str.isalpha), words.filter(str.isalpha))
    | st.dates().map(str)
    | st.sampled_from(["en_US.UTF-8", "Europe/Berlin", "us-east-1", "gpt-4o-mini", "1.2.3", "192.168.100.200:65535"])
    | st.sampled_from(["xterm-256color", "llama3.1:8b", "arn:aws:iam::123456789012:role/notes"])
)
"""What people set variables to, and then read in each text."""


def local(**said):
    return lambda secret: {"command": "x", **{key: value(secret) for key, value in said.items()}}


def remote(url="https://host/mcp", **said):
    return lambda secret: {"url": url.format(quote(secret, safe="")), **{key: v(secret) for key, v in said.items()}}


ANYWHERE = {
    "env": local(env=lambda secret: {"ANY": secret}),
    "json in env": local(env=lambda secret: {"HEADERS": json.dumps({"X": [{"Y": secret}]})}),
    "header": remote(headers=lambda secret: {"X-Any": secret}),
    "query": remote("https://host/mcp?a=b&c={0}"),
    "fragment": remote("https://host/mcp#{0}"),
}
"""Of what stands here, what looks like a key is a secret."""

PLACES = {
    "env": local(env=lambda secret: {"ANY_KEY": secret}),
    "url in env": local(env=lambda secret: {"DB": f"postgres://someone:{quote(secret, safe='')}@db/x"}),
    "json in env": local(env=lambda secret: {"HEADERS": json.dumps({"X": [{"Y": f"Bearer {secret}"}]})}),
    "option": local(args=lambda secret: ["-y", "package", "--api-key", secret]),
    "option with value": local(args=lambda secret: ["package", f"--token={secret}"]),
    "header as option": local(args=lambda secret: ["mcp-remote", "--header", f"Authorization: Bearer {secret}"]),
    "url as argument": local(args=lambda secret: ["mcp-remote", f"https://h/?key={quote(secret, safe='')}"]),
    "container's option": lambda secret: {"image": "x", "args": ["--password", secret]},
    "user": remote("https://{0}@host/mcp"),
    "password": remote("https://someone:{0}@host/mcp"),
    "query": remote("https://host/mcp?a=b&key={0}"),
    "fragment": remote("https://host/mcp#token={0}"),
    "header": remote(headers=lambda secret: {"X-Any-Key": secret}),
    "scheme": remote(headers=lambda secret: {"Authorization": f"Bearer {secret}"}),
    "basic": remote(headers=lambda secret: {"Authorization": f"Basic {b64encode(f'me:{secret}'.encode()).decode()}"}),
    "client's secret": remote(
        auth=lambda secret: {"type": "oauth", "grant": "client_credentials", "clientId": "me", "clientSecret": secret}
    ),
    "key that signs": remote(
        auth=lambda secret: {"type": "oauth", "grant": "client_credentials", "clientId": "me", "privateKey": secret}
    ),
    "secret beside a variable": remote(
        auth=lambda secret: {"type": "oauth", "clientId": "${X}", "clientSecret": secret}
    ),
    "literal beside a variable": lambda secret: {
        "url": f"https://host/mcp?key={quote(secret, safe='')}",
        "headers": {"A": "${B}"},
        "env": {"B": "${env:HOME}"},
    },
}

QUOTES = {
    "as it is": str,
    "in JSON": lambda secret: json.dumps(secret)[1:-1],
    "in HTML": escape,
    "in percent": lambda secret: quote(secret, safe=""),
    "in a path": quote,
    "in a form": quote_plus,
    "in small percent": lambda secret: "".join(
        f"%{byte:02x}" if quote(chr(byte), safe="") != chr(byte) else chr(byte) for byte in secret.encode()
    ),
}


def spec_of(entry):
    return read_entry("s", entry, number=1, origin=EntryOrigin("/f.json")).spec


@given(secret=secrets, place=st.sampled_from(sorted(PLACES)), way=st.sampled_from(sorted(QUOTES)))
@example(secret="p@ss:w/rd %41&x", place="password", way="as it is")
@example(secret="a+b c=d&e#f", place="query", way="as it is")
def test_no_secret_of_an_entry_is_shown(secret, place, way):
    """T9, L17: planted anywhere in an entry, quoted in any way, and in what is shown of the entry itself."""
    spec = spec_of(PLACES[place](secret))
    shown = Redactor().also_of(spec.transport).text(f"before {QUOTES[way](secret)} after")
    assert shown.startswith("before [REDACTED:")
    assert shown.endswith("] after")
    assert secret not in f"{spec!r}{spec.transport}"


@given(key=keys, place=st.sampled_from(sorted(ANYWHERE)), way=st.sampled_from(sorted(QUOTES)))
@example(key="AB12-CD34-EF56-GH78", place="env", way="as it is")
@example(key="abcd efgh ijkl mnop", place="header", way="as it is")
def test_what_looks_like_a_key_is_shown_nowhere(key, place, way):
    """T9, L17: under a name that says nothing."""
    spec = spec_of(ANYWHERE[place](key))
    shown = Redactor().also_of(spec.transport).text(f"before {QUOTES[way](key)} after")
    assert shown.startswith("before [REDACTED:")
    assert shown.endswith("] after")


@given(value=plain, place=st.sampled_from(sorted(ANYWHERE)), beside=keys)
def test_no_plain_word_is_cut_out(value, place, beside):
    """L16: whatever variables, headers and URLs hold, alone or beside a key."""
    entry = ANYWHERE[place](value)
    said = f"Notes of {value} for you."
    assert Redactor().also_of(spec_of(entry).transport).text(said) == said
    entry.setdefault("env", {})["OTHER"] = beside
    assert Redactor().also_of(spec_of(entry).transport).text(said) == said


@given(value=plain)
def test_no_plain_word_of_the_host_is_cut_out(value):
    """L16: of a variable that was put in, and of a whole environment that was passed on."""
    spec = spec_of({"command": "x", "args": ["${env:MODE}"], "env": {"A": "${MODE}"}, "inheritEnv": True})
    said = f"Notes of {value} for you."
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODE", value)
        patch.setenv("MODE_TOKEN", "opensesame")
        resolver = Resolver(spec.transport)
        transport = trio.run(resolver.transport)
        redactor = Redactor.of(resolver.secrets).also_of(transport)
    assert redactor.text(said) == said
    assert redactor.text("with opensesame") == "with [REDACTED:config]"


COOKIE = st.text(st.characters(categories=["Ll", "Lu", "Nd"], max_codepoint=126), min_size=8).map("Zq{}".format)


@given(secret=COOKIE, user=COOKIE)
def test_parts_of_a_header_are_found(secret, user):
    """T9: one cookie of several; and what a client makes of user and password of a URL."""
    cookies = spec_of({"url": "https://h/", "headers": {"Cookie": f"theme=dark; session={secret}"}})
    assert secret not in Redactor().also_of(cookies.transport).text(f"no session {secret}")
    url = spec_of({"url": f"https://{user}:{secret}@h/"})
    basic = b64encode(f"{user}:{secret}".encode()).decode()
    assert basic not in Redactor().also_of(url.transport).text(f"not for Basic {basic}")


def test_what_is_no_secret_stays():
    """T9: an error has to name packages, folders, hosts and paths."""
    spec = spec_of({"command": "npx", "args": ["-y", "@scope/server-files", "--root", "/srv/files", "--verbose=false"]})
    said = "npx: @scope/server-files: /srv/files is no folder (--verbose=false)"
    assert Redactor().also_of(spec.transport).text(said) == said
    remote = spec_of({"url": "https://example.com:8443/path/mcp?key=opensesame"})
    said = "https://example.com:8443/path/mcp refused"
    assert Redactor().also_of(remote.transport).text(said) == said
