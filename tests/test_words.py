"""One word for each thing: a docstring names its noun first, and no name stands for two things."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for package in ("actors", "supervisor") for path in (ROOT / package).rglob("*.py"))
NO_NOUN = re.compile(
    r"(What|Whose|Who|Where|When|How|Whether|Which|Why|Whoever|Whatever|It|Its|They|Those|These|That|This)\b"
)
UNWANTED = re.compile(
    r"\b(he|him|himself|his|hither|it is said|lest|na?ught|nought|thereof|whence|whoever|whomever|whosoever)\b",
    re.IGNORECASE,
)
"""Words of no use here: a docstring says user, client or caller, and no word is older than its reader."""
PRONOUN = re.compile(r"\b(it|itself|one|ones|such|them|they|these|those|theirs|what|whatever|whoever)\b", re.IGNORECASE)
MOST_PRONOUNS, MOST_SHARE = 2, 0.2
"""Pronouns that a sentence may have, and their share of its words beyond them: a reader should meet the noun again."""
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
SHARED = {
    "Headers", "INVALID_PARAMS", "INVALID_REQUEST", "KeyPath", "METHOD_NOT_FOUND", "Message", "PARSE_ERROR", "Receive",
    "SESSION", "Send", "logger",
}  # fmt: skip
"""Public names that stand for the same thing in each of the modules that have them."""


def docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        body = getattr(node, "body", ())
        for statement in body if isinstance(body, list) else ():  # of a lambda or a condition it is an expression
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield text.strip()


def public_names(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        match statement:
            case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(ROOT)) for file in FILES])
def test_a_docstring_names_its_noun_first(file):
    assert [text for text in docstrings(ast.parse(file.read_text())) if NO_NOUN.match(text)] == []


def test_a_docstring_without_a_noun_is_found():
    assert NO_NOUN.match(next(docstrings(ast.parse('"""What is wrong with it."""'))))
    assert not NO_NOUN.match(next(docstrings(ast.parse('"""The fault of it."""'))))


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(ROOT)) for file in FILES])
def test_docstrings_have_no_unwanted_words(file):
    assert [text for text in docstrings(ast.parse(file.read_text())) if UNWANTED.search(text)] == []


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_pages_have_no_unwanted_words(page):
    assert [line for line in page.read_text().splitlines() if UNWANTED.search(line)] == []


def sentences_of_pronouns(text):
    """The sentences with too many pronouns for their length. Code between backquotes counts as a word."""
    for sentence in re.split(r"(?<=[.:;?!])\s", re.sub(r"`[^`]*`", "code", text)):
        pronouns, words = len(PRONOUN.findall(sentence)), len(re.findall(r"[A-Za-z']+", sentence))
        if pronouns > MOST_PRONOUNS and pronouns >= words * MOST_SHARE:
            yield " ".join(sentence.split())


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(ROOT)) for file in FILES])
def test_docstrings_say_the_noun_again(file):
    found = [sentence for text in docstrings(ast.parse(file.read_text())) for sentence in sentences_of_pronouns(text)]
    assert found == []


def test_a_sentence_of_pronouns_is_found():
    assert [*sentences_of_pronouns("A server. It is not what one of them says.")] == [
        "It is not what one of them says."
    ]
    assert [*sentences_of_pronouns("The server is not what its entry says.")] == []


def test_an_unwanted_word_is_found():
    assert UNWANTED.search("Told to whoever asks.")
    assert not UNWANTED.search("The history of this.")


def test_no_public_name_stands_for_two_things():
    modules = defaultdict(list)
    for file in FILES:
        for name in public_names(ast.parse(file.read_text())):
            if not name.startswith("_") and len(name) > 1:  # those of one letter are variables for types
                modules[name].append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in modules.items() if len(files) > 1 and name not in SHARED} == {}
