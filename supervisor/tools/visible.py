"""Text as a person can read all of it. Pure."""

import json
import re

_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""What Unicode calls printable and nobody sees: variation selectors, fillers, the empty Braille cell."""

_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_TAGS = {0xE0000 + code: chr(code) if chr(code).isprintable() else "" for code in range(0x80)}
_FLAGS = ("gbeng", "gbsct", "gbwls")
_FLAG = f"\U0001f3f4(?:{'|'.join(''.join(chr(0xE0000 + ord(letter)) for letter in flag) for flag in _FLAGS)})\U000e007f"
_HIDDEN = re.compile(f"(?P<flag>{_FLAG})|[\U000e0000-\U000e007f]+|[{_SELECTORS}](?P<more>[{_SELECTORS}]+)")


def revealed(text: str) -> str:
    """The text with what is written in characters that models read and nobody sees shown as `[hidden: …]`: letters of
    Unicode's tag block, but for the three flags that are spelled with them, and rows of variation selectors."""
    return text if text.isascii() else _HIDDEN.sub(_revealed, text)


def _revealed(found: re.Match[str]) -> str:
    if found["flag"]:
        return found[0]
    said = f"{len(found[0])} variation selectors" if found["more"] else found[0].translate(_TAGS)
    return f"[hidden: {said}]"


def visible(text: str) -> str:
    """The text with every character escaped that cannot be seen, or that a terminal obeys: nothing is left out of what
    a person agrees to, and it is one line."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() and not _BLANK.match(char) else json.dumps(char)[1:-1] for char in text)
