"""Text as a person can read all of it. Pure."""

import json
import re

_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""What Unicode calls printable and nobody sees: variation selectors, fillers, the empty Braille cell."""


def visible(text: str) -> str:
    """The text with every character escaped that cannot be seen, or that a terminal obeys: nothing is left out of what
    a person agrees to, and it is one line."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() and not _BLANK.match(char) else json.dumps(char)[1:-1] for char in text)
