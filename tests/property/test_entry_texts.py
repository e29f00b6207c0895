"""No text of an entry stands in a message of a report, however it is put there, and nothing else is taken out."""

from urllib.parse import quote

from hypothesis import example, given
from hypothesis import strategies as st

from mcp_nursery.supervisor.cli.entry_texts import EntryTexts

WORDS = st.text("QXZJ79ÜЖ", min_size=3, max_size=9).filter(lambda text: not (text.isdecimal() and len(text) < 4))
"""Words of characters that no name of a field has."""

ENVIRON = {"outer": "value"}

PLACES = {
    "command": lambda word: {"command": f"program --opt {word}"},
    "assignment": lambda word: {"command": f"{word}=1 program"},
    "arg": lambda word: {"args": ["a", word]},
    "option": lambda word: {"args": [f"--opt={word}"]},
    "short option": lambda word: {"args": [f"-p{word}"]},
    "env": lambda word: {"env": {"name": word}},
    "lines": lambda word: {"env": {"name": f"-----begin\n{word}\n{word} \n-----end"}},
    "default": lambda word: {"env": {"name": f"${{nowhere:-{word}}}"}},
    "around": lambda word: {"env": {"name": f"{word}:${{outer}}"}},
    "json": lambda word: {"env": {"name": f'{{"a": ["{word}"]}}'}},
    "json in a word": lambda word: {"args": [f'"{{\\"a\\":\\"{word}\\"}}"']},
    "header": lambda word: {"headers": {"name": f"Basic {word}"}},
    "user": lambda word: {"url": f"http://{quote(word)}@host/"},
    "path": lambda word: {"url": f"http://host/a/{quote(word)}/b"},
    "query": lambda word: {"url": f"http://host/?a={word}"},
    "unknown": lambda word: {"unheard": {"of": [word]}},
    "helper": lambda word: {"headersHelper": f"print '{word}'"},
    "auth": lambda word: {"auth": {"clientSecret": word}},
}

SEPARATORS = st.sampled_from([" ", "=", "'", '"', ":", "/", ", ", "\n", " a ", "@"])


def alone(word, text):
    """True if the word stands there between other characters than letters and digits."""
    return any(
        text.startswith(word, at) and not (text[at - 1 : at].isalnum() or text[at + len(word) :][:1].isalnum())
        for at in range(len(text))
    )


@given(
    st.lists(st.tuples(st.sampled_from(sorted(PLACES)), WORDS), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), SEPARATORS), min_size=1, max_size=12),
    SEPARATORS,
)
@example([("arg", "XQXQX"), ("arg", "QXQXQJJ")], [(0, ":"), (1, ":")], " ")
def test_no_text_of_an_entry_is_left(placed, said, first):
    texts = EntryTexts.of([PLACES[place](word) for place, word in placed], environ=ENVIRON)
    words = [word for _, word in placed]
    message = first + "".join(words[number % len(words)] + separator for number, separator in said)
    left = texts.leave_out(message)
    assert [word for word in words if alone(word, left) or (len(word) >= 6 and word in left)] == []


@given(st.lists(st.tuples(st.sampled_from(sorted(PLACES)), WORDS), max_size=6), st.text("abcdefgh .,'", max_size=80))
def test_what_stands_in_no_entry_stays(placed, message):
    texts = EntryTexts.of([{"args": [word]} for _, word in placed], environ=ENVIRON)
    assert texts.leave_out(message) == message


@given(*[st.sampled_from(["notes", "zebra", "home", "e:", "project"])] * 2)
def test_what_the_report_says_by_itself_stays(word, other):
    shown = f"/home/{word}/{other}"
    texts = EntryTexts.of([{"args": [word], "cwd": shown}], environ=ENVIRON, shown=[shown])
    assert texts.leave_out(f"{shown}: server: ") == f"{shown}: server: "


@given(WORDS)
def test_what_a_variable_stands_for_is_left_out(word):
    entry = {"env": {"name": "${outer}"}, "headers": {"name": "a ${env:outer}"}}
    assert not alone(word, EntryTexts.of([entry], environ={"outer": word}).leave_out(f"a {word}."))
