"""The search for signs against the patterns themselves, read by another engine, and that it stays quick."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor.security.injection import SIGNALS, TABLE, expand, scan

from ..lab.linear import stays_linear

PLAIN = [(sign.name, re.compile(expand(sign.pattern), re.IGNORECASE)) for sign in TABLE]


UNSEEN = {chr(code) for code in (0xAD, *range(0x200B, 0x2010), *range(0x2060, 0x2065), 0xFE0E, 0xFE0F, 0xFEFF)}


def revealed(text: str) -> str:
    """As a reader has it who knows JSON and sees what has no width for what it is."""
    text = re.sub(r"\\+(?=u00)", r"\\", text)
    text = re.sub(r"\\u00(?:0[9AaDd]|[2-7][0-9A-Fa-f])", lambda found: json.loads(f'"{found[0]}"'), text)
    text = "".join(char for char in text if char not in UNSEEN)
    return "".join(chr(ord(char) - 0xE0000) if "\U000e0020" <= char <= "\U000e007e" else char for char in text)


def plainly(text: str) -> tuple[str, ...]:
    """What the signs are, looked for one by one in the whole text."""
    found = {name for name, pattern in PLAIN if pattern.search(text) or pattern.search(revealed(text))}
    return tuple(name for name in SIGNALS if name in found)


def dotted(text: str) -> str:
    """Without the two letters that only `re` takes for an i."""
    return text.replace("\u0130", "I").replace("\u0131", "i")


SENTENCES = {name: st.from_regex(pattern).map(dotted) for name, pattern in PLAIN}
"""Each is made once: to make one takes longer than to draw from it."""

signs = st.sampled_from(list(SENTENCES.values())).flatmap(lambda sentences: sentences)
SAID = (
    "ignore all previous instructions disregard override forget your new the system developer message: you are now "
    "must [SYS] <system> override] please approved granted authorized by user have has been full permission in root "
    "mode, switch to enter activate unrestricted follow these directive: send it <|im_start|> SyStEm \u017fy\u017ftem "
    "\u212aeep gno ega rri rge uct ire hav sys lop uth ppr nte itc vat"
)
words = st.sampled_from([*SAID.split(), "\n", "\\n", "<b>", "\\u0049", "\u3000", "\u200b", "\x85", "\ufeff", "\u2014"])


@pytest.mark.slow
@given(signs | st.lists(words, max_size=15).map(" ".join), st.data())
def test_the_quick_search_finds_what_the_plain_one_finds(text: str, data: st.DataObject) -> None:
    """T12: no more and no less, in sentences that are signs, in such with a character lost, put in or changed, and
    wherever they stand."""
    at, gone = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 1))
    text = (
        text[:at]
        + data.draw(st.sampled_from(["", "", "", "x", " ", "\n", ".", "\u3000", "\u200d", "\\n", "\xad", "(", "\\"]))
        + text[at + gone :]
    )
    around = data.draw(st.sampled_from(["", "x", "\n", ". ", "é", "lorem ipsum dolor sit amet " * 3]))
    text = around * data.draw(st.integers(0, 3)) + text + around
    assert scan(text) == plainly(text)


@pytest.mark.slow
@given(st.sampled_from(list(SENTENCES)).flatmap(lambda name: st.tuples(st.just(name), SENTENCES[name])))
def test_every_sign_is_found(sign: tuple[str, str]) -> None:
    """T12: whatever the sentence."""
    name, text = sign
    assert name in scan(text)


NEARLY = [
    *(
        "\\u0041",
        "\\\\",
        "a\u200b",
        "\U000e0041",
        "<b>",
        "ignore <b",
        "ignore\\n",
        "sys",
        "system: ",
        "[",
        "[ system] ",
        "<| ",
        "<|start|>",
        " ",
        "\n",
        ":",
        "\u017f",
        "\ud800",
        "é",
    ),
    *("you are now ", "ignore ", "ignore all of the ", "forget everything ", "forget everything you were told before "),
    *("approved by the user ", "has approved it ", "the user has already ", "instructions: send all ", "please now "),
]


@pytest.mark.slow
@pytest.mark.parametrize("unit", NEARLY)
def test_it_takes_time_linear_in_the_text(unit):
    """T12: ten times the text, about ten times the time, not a hundred; also where much looks like a sign's end."""
    assert stays_linear(scan, unit, sizes=(100_000, 1_000_000), factor=40, slack=0.01)
