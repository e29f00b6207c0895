"""The marks around what a server says to a model: between them nothing is an instruction. Pure.

What cannot stand between them, a tool's description and schema, is at least kept from forging them: `harmless`.
"""

import re
from functools import lru_cache
from unicodedata import normalize

from .finding import finder
from .visible import revealed

TAG = "mcp_tool_output"

_FOREIGN = re.compile(r"[^a-zA-Z0-9._-]")
_TAG_START = re.compile(r"<(?=[\s/]*mcp[\s_-]*tool[\s_-]*output)", re.IGNORECASE | re.ASCII)

_LESS_THAN = "<\uff1c\ufe64\u2039\u3008\u27e8\u2329\u276e\u1438\u02c2\u226e"
_PIECE = 32
"""Characters that are looked at together."""
_LOOKS_LIKE_LESS = re.compile(f"[{_LESS_THAN}]")
_SPELLED_TAG = "<[^0-9a-z<]*" + "[^0-9a-z</]*".join(TAG.replace("_", ""))
"""In ASCII, whatever stands between its letters that is none."""
_ALIKE = str.maketrans(
    {
        **dict.fromkeys(_LESS_THAN, "<"),
        **dict.fromkeys("\u2044\u2215\u29f8", "/"),
        # Cyrillic, Greek and Armenian letters, and small capitals, that look like one of the tag's.
        **dict(zip("\u043c\u0441\u0440\u0442\u043e\u04cf\u03c1\u03bf\u03c4\u03c5", "mcptolpotu", strict=True)),
        **dict(zip("\u03c3\u0585\u057d\u1d0d\u1d04\u1d18\u1d1b\u1d0f\u029f\u1d1c", "coumcptolu", strict=True)),
    }
)


def wrap(body: str, *, server: str, tool: str) -> str:
    """The body, `harmless`, between one opening and one closing mark that say whose words these are."""
    opening = f'<{TAG} server="{clean_name(server)}" tool="{clean_name(tool)}" trust="untrusted">'
    return f"{opening}\n{harmless(body)}\n</{TAG}>"


@lru_cache(maxsize=1024)
def clean_name(name: str) -> str:
    """The name with every character outside `[a-zA-Z0-9._-]` replaced by `_`."""
    return _FOREIGN.sub("_", name)


def harmless(body: str) -> str:
    """The text so that nothing in it begins or ends a block, and nothing is written in it unseen: see `revealed`.

    A `<` that begins the tag, in any case and with white space in it, becomes `&lt;`; in a text that spells the tag
    with invisible, compatible or similar-looking characters, every `<` does.
    """
    body = revealed(body)
    if "<" not in body and (body.isascii() or not any(less in body for less in _LESS_THAN)):
        return body
    if not _spells_tag(body):
        return body
    body = _TAG_START.sub("&lt;", body)
    return _LOOKS_LIKE_LESS.sub("&lt;", body) if _spells_tag(body) else body


def _spells_tag(text: str) -> bool:
    if not text.isascii():
        text = "".join(_in_ascii(text[at : at + _PIECE]) for at in range(0, len(text), _PIECE))
    return finder(_SPELLED_TAG)(text)


def _in_ascii(piece: str) -> str:
    """What can be read in it; in pieces, since accents are put in order, in time quadratic in their number."""
    piece = normalize("NFKD", normalize("NFKD", piece).casefold()).translate(_ALIKE)
    return piece.encode("ascii", "ignore").decode()
