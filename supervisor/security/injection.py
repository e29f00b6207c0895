"""Signs that a result tries to instruct the model. Pure, and advisory: they block nothing and change nothing.

Each is a sentence that an ordinary text hardly has; who wants to be missed will be. A text *about* such attacks that
quotes one has its sign too.

All of a text is looked at, and most texts have no sign, so what counts is how fast that is known. Every sign has a
stem: three letters that are rare elsewhere, which are found at ten gigabytes a second. What follows a stem is read
where it stands, and only if that fits, what comes before it.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import product
from typing import Final

import jsonschema_rs
from attrs import frozen

from mcp_nursery.actors.steps import Steps

Finder = Callable[[str], bool]
"""Whether something is in a text.

Raises UnicodeEncodeError for a text with half a character, which cannot be written as UTF-8.
"""


@cache
def finder(*patterns: str) -> Finder:
    """One that finds any of these regular expressions, in any case, in time linear in the text."""
    # A validator for the sake of its regular expressions: they read up to ten gigabytes a second, where `re` takes a
    # tenth of a second for a megabyte.
    schema = {"anyOf": [{"pattern": f"(?i){pattern}"} for pattern in patterns]}
    return jsonschema_rs.validator_for(schema, pattern_options=jsonschema_rs.RegexOptions()).is_valid


SIGNALS: Final = (
    "ignore-previous",
    "disregard-previous",
    "fake-system-role",
    "chatml-system",
    "bracketed-system",
    "new-instructions",
    "fake-authorization",
    "mode-switch",
)
"""The names of all signs."""

_SPACE = r"\s\x1c-\x1f\x85\u200b\ufeff"
"""White space as ECMA-262 and as Unicode have it, and what has no width."""

_DASHES = "\u2010-\u2015\u2022\u2026"

_QUOTES = "\"'`\u2018-\u201f\u00ab\u00bb"

_ESCAPED = r"\\(?:[nrtbfv]|u[0-9a-f]+)|&nbsp;|<[^<>]*>"
"""White space in JSON and in HTML, and how HTML sets words off."""

_MARKUP = rf"[{_SPACE}*_>#~|\\{_QUOTES}{_DASHES}-]|{_ESCAPED}"

_BREAK = rf"(?:[,.:;!/()\[\]]|{_MARKUP})"

_GAP, _ANY_GAP = f"{_BREAK}+", f"{_BREAK}*"

_OPENING = rf"(?m:^|\\[nrt]|[\r.!?:>*#)(\]\[}}{{|{_QUOTES}{_DASHES}-])(?:{_MARKUP})*"

_FEW = rf"(?:[{_SPACE}*_~\\{_QUOTES}]|\\[nrt]){{0,4}}"

_ALL = rf"(?:(?:all|any|every|each|the|your|my|our|its|of|these|those|this|that|and|or|other){_GAP}){{0,4}}"

_EARLIER = r"(?:previous|prior|above|earlier|preceding|foregoing|former|past|existing|original|initial|system)"

_WORDS = rf"(?:(?:safety|security|system|content|given){_GAP})?(?:instruction|prompt|directive|guideline|direction)s?"

_WHAT_CAME_BEFORE = (
    rf"{_GAP}(?:{_ALL}{_EARLIER}{_GAP}(?:(?:{_EARLIER}|and|or){_GAP}){{0,3}}"
    rf"(?:{_WORDS}|(?:rules|orders|commands)[^a-z])"
    rf"|(?:all|any|every|your){_GAP}(?:(?:of|the|your|my|these|those){_GAP}){{0,2}}{_WORDS}"
    rf"|(?:everything|anything|all|what(?:ever)?){_GAP}(?:(?:that|you|i|we|was|were|is|has|been|have){_GAP}){{0,3}}"
    rf"(?:above|before{_GAP}this|(?:said|told|given|written){_GAP}(?:before|above|earlier|so{_GAP}far))"
    rf"|the{_GAP}above{_GAP}(?:and{_GAP})?(?:instead|say|do|print|reveal|output|tell|translate){_GAP})"
)

_TO_A_MODEL = (
    rf"(?:you{_GAP}(?:must|are|will|should|have|may|can|need|shall|now)|ignore|disregard|forget{_GAP}|override"
    rf"|bypass|reveal|exfiltrate|leak{_GAP}|obey|comply{_GAP}|from{_GAP}now{_GAP}on|do{_GAP}not{_GAP}|never{_GAP}"
    rf"|always{_GAP}|grant{_GAP}|act{_GAP}as|pretend|(?:the{_GAP})?assistant{_GAP}(?:must|is|will|should|may)"
    rf"|the{_GAP}user{_GAP}(?:has|is|wants)|new{_GAP}(?:instruction|directive|task|objective)"
    rf"|all{_GAP}(?:previous|prior|safety|restrictions|filters)|send{_GAP}(?:all|the|your|this|every|any)"
    rf"|(?:execute|run|call|invoke|use){_GAP}the{_GAP}(?:following|tool|command)|delete{_GAP}(?:all|every|the)"
    rf"|disable{_GAP}(?:all|safety|your|the{_GAP}(?:filter|safety))|respond{_GAP}|answer{_GAP}only|print{_GAP}your)"
)

_ORDER = (
    rf"(?:{_TO_A_MODEL}|(?:e-?mail|send|forward|upload|post|delete|remove|run|execute|call|reveal|print|output|show"
    rf"|reply|say|write|read|open|fetch|download|install|transfer|give|disable|stop|leak|share|tell|copy|approve|allow"
    rf"|skip|switch|begin|start|instead|treat|follow){_GAP}(?:all|any|every|the|your|this|that|me|us|it|them|my|no"
    rf"|only|with|to|as|by){_GAP})"
)

_PLEASE = rf"(?:(?:please|now|just|so|and|then|you{_GAP}(?:must|should|will)){_GAP}){{0,3}}"

_MARK = rf"(?:{_GAP}(?:message|prompt|notice|override|instructions?|note))?"

_BRACKET = rf"[\[<]{_FEW}"

_SAYS = rf"{_MARK}{_FEW}[:\uff1a]{_ANY_GAP}"

_ARE = rf"s?(?:{_GAP}for{_GAP}(?:you|the{_GAP}(?:assistant|model|ai|agent)))?{_FEW}[:=]{_ANY_GAP}{_ORDER}"

_NEW = rf"(?:new|updated|revised|real|actual|important){_GAP}(?:system{_GAP})?"

_ROLE = r"(?:user|system|administrator|admin|operator|developer|human|security team|anthropic|openai)"

_ADVERB = rf"(?:(?:already|previously|explicitly|fully|hereby|now|also){_GAP}){{0,2}}(?:pre-?)?"

_A_ROLE = rf"{_OPENING}(?:the|your|this){_GAP}{_ROLE}{_GAP}"

_AUTHORISED = (
    rf"{_GAP}{_ADVERB}(?:authori[sz]ed|approved|granted){_GAP}(?:you|this|all|any|these|every|full|unrestricted"
    rf"|it[{_SPACE}.,;:!]|the{_GAP}(?:assistant|agent|following|tool|deletion|transfer|action|request|operation))"
)

_BY = rf"d{_GAP}by{_GAP}(?:(?:the|your){_GAP}{_ROLE}|anthropic|openai)"

_THIS_IS = (
    rf"(?:you{_GAP}(?:are|have{_GAP}been)|(?:action|request|operation|command|call|tool|task|step|transfer)"
    rf"{_GAP}(?:is|has{_GAP}been|was)){_GAP}{_ADVERB}"
)

_FULL = (
    rf"{_GAP}(?:now{_GAP})?have{_GAP}{_ADVERB}(?:been{_GAP}(?:given|granted){_GAP})?(?:full|root|unrestricted){_GAP}"
    rf"(?:permission|authori[sz]ation|access{_GAP}to{_GAP}(?:all|every))"
)

_NOW_IN = (
    rf"(?:{_GAP}are|['\u2019]re){_GAP}now{_GAP}(?:(?:in|operating|running|entering|an?|the|under){_GAP}){{0,3}}"
    rf"(?:developer|admin(?:istrator)?|debug|god|root|dan|jailbreak(?:ed)?|unrestricted|unfiltered|uncensored|sudo"
    rf"|maintenance|superuser|privileged|override|evil)(?:{_GAP}(?:mode|assistant|ai|model|agent)|[.,!:;\n{_QUOTES}*)]|\\|$)"
)

_A_MODE = (
    rf"{_GAP}(?:(?:an?|the|your){_GAP})?"
    rf"(?:(?:god|dan|jailbreak|unrestricted|unfiltered|uncensored|do{_GAP}anything{_GAP}now){_GAP}mode"
    rf"|(?:developer|admin(?:istrator)?|root|sudo|privileged|override){_GAP}mode{_GAP}(?:(?:and|now){_GAP})?{_TO_A_MODEL})"
)

_CHATML = rf"{_FEW}(?:im_start|start_header_id|role|start){_FEW}\|>{_FEW}(?:system|developer)"

_PIECE: Final = 128 << 10
"""Characters that are looked at in one go: ten milliseconds if everything in them is escaped."""

_OVERLAP: Final = 4096
"""Of them, those that were looked at before."""

_LONG_S = "\u017f"
"""An s in all but its bytes, as far as patterns go that mind no case."""

_ESCAPE = "\\u00"

_ASCII: Final = {f"{code:02x}": chr(code) for code in (9, 10, 13, *range(0x20, 0x7F))}
"""What an ASCII character is after that, in JSON."""

_ESCAPED_LETTER = r"(?-i:\\u00)(?:0[9ad]|[2-7])"

_UNSEEN = ("\u00ad", "\u200b\u200c\u200d\u200e\u200f\ufe0e\ufe0f\ufeff", "\u2060\u2061\u2062\u2063\u2064")
"""What may stand between letters and has no width; in small lots of one length in UTF-8, since more than ten are
searched for ten times as slowly, and all of a lot by no more bytes than its shortest has."""

_TAGS: Final = {0xE0000 + code: chr(code) for code in range(0x20, 0x7F)}
"""An alphabet that models read and people do not see."""

_TAG_LETTERS = "".join(chr(0xE0000 + ord(vowel)) for vowel in "aeioAEIO")
"""No sign is without one of these."""


@frozen
class _Sign:
    name: str
    before: str
    """What stands before the stem."""
    stem: str
    """Three letters without a k, which has a third spelling."""
    link: str
    """What joins the stem to what follows."""
    then: str
    """What follows; signs of a group share it, to be quick to compile."""

    @property
    def end(self) -> str:
        """The sign from its stem on."""
        return f"{self.stem}{self.link}{self.then}"


_GROUPS: Final = (
    (
        _Sign("ignore-previous", "i", "gno", "r(?:e|ing)", _WHAT_CAME_BEFORE),
        _Sign("disregard-previous", "disr", "ega", "rd(?:ing)?", _WHAT_CAME_BEFORE),
        _Sign("disregard-previous", "ove", "rri", "d(?:e|ing)", _WHAT_CAME_BEFORE),
        _Sign("disregard-previous", f"{_OPENING}{_PLEASE}fo", "rge", "t", _WHAT_CAME_BEFORE),  # not "models forget"
        _Sign(
            "new-instructions",
            rf"(?:your|follow{_GAP}(?:the|these)){_GAP}(?:new|updated|revised|real|actual){_GAP}instr",
            "uct",
            "ions",
            rf"{_GAP}(?:are|follow|instead|from{_GAP}now)",
        ),
        _Sign("new-instructions", f"{_NEW}instr", "uct", "ion", _ARE),
        _Sign("new-instructions", f"{_NEW}d", "ire", "ctive", _ARE),
        _Sign("fake-authorization", "", "you", "", _FULL),
        _Sign("fake-authorization", _A_ROLE, "hav", "e", _AUTHORISED),
        _Sign("mode-switch", "", "you", "", _NOW_IN),
    ),
    (
        _Sign("fake-system-role", _OPENING, "sys", f"tem{_SAYS}", _TO_A_MODEL),
        _Sign("fake-system-role", f"{_OPENING}deve", "lop", f"er{_SAYS}", _TO_A_MODEL),
        _Sign("bracketed-system", _BRACKET, "sys", rf"(?:tem)?{_MARK}{_FEW}[\]>]{{1,2}}{_ANY_GAP}", _TO_A_MODEL),
        _Sign("bracketed-system", _BRACKET, "sys", "", rf"tem{_GAP}override{_FEW}\]"),
        _Sign("fake-authorization", _A_ROLE, "has", "", _AUTHORISED),
        _Sign("fake-authorization", f"{_THIS_IS}a", "uth", "ori[sz]e", _BY),
        _Sign("fake-authorization", f"{_THIS_IS}a", "ppr", "ove", _BY),
        _Sign("fake-authorization", f"{_THIS_IS}gra", "nte", "", _BY),
        _Sign("mode-switch", "e", "nte", "r(?:ing)?", _A_MODE),
        _Sign("mode-switch", "sw", "itc", rf"h(?:ing)?{_GAP}(?:in)?to", _A_MODE),
        _Sign("mode-switch", "acti", "vat", "(?:e|ing)", _A_MODE),
    ),
    (_Sign("chatml-system", "", r"<\|", "", _CHATML),),
)
"""No more than eight stems in each but the last: the search takes sixty-four literals at once."""

PATTERNS: Final = tuple((sign.name, sign.before + sign.end) for group in _GROUPS for sign in group)
"""What the signs are, as regular expressions that mind no case: the whole truth, slow to look for."""


def scan(text: str) -> tuple[str, ...]:
    """The signs in a text, however long, in the order of `SIGNALS`.

    Looked at as it is, and once more with letters that are escaped as in JSON and without what nobody sees.
    """
    if text.isascii() and "\\" not in text and not _suspect()(text):
        return ()  # as most texts: nothing in it can hide
    try:
        return _scan(text)
    except UnicodeEncodeError:
        return _scan(text.encode("utf-8", "replace").decode())  # it has half a character


def scan_in_pieces(text: str) -> Steps[tuple[str, ...]]:
    """As `scan`, of a text of any length. A sign longer than 4096 characters may be missed where pieces meet."""
    found: set[str] = set()
    for at in range(0, len(text), _PIECE):
        begin, end = max(0, at - _OVERLAP), at + _PIECE
        # What is cut off is neither the beginning of a line nor the end of the text.
        cut = ("x" if begin else "", "x" if end < len(text) else "")
        found.update(scan(text[begin:end].join(cut)))
        yield
    return tuple(name for name in SIGNALS if name in found)


def _scan(text: str) -> tuple[str, ...]:
    found, revealed = _signs(text), _revealed(text)
    if revealed != text:
        found |= _signs(revealed)
    return tuple(sorted(found, key=SIGNALS.index)) if found else ()


def _revealed(text: str) -> str:
    if "\\" in text and finder(_ESCAPED_LETTER)(text):
        text = _unescaped(text)
    if not text.isascii() and _may_hide(text):
        text = text.replace(_LONG_S, "s")
        for char in "".join(_UNSEEN):
            text = text.replace(char, "")
        if any(letter in text for letter in _TAG_LETTERS):
            text = text.translate(_TAGS)
    return text


def _may_hide(text: str) -> bool:
    try:
        return b"\xad" in text.encode("latin-1")  # quick to know, and of all that nobody sees it has the soft hyphen
    except UnicodeEncodeError:
        return _hiding()(text)


@cache
def _hiding() -> Finder:
    """Whether a text has anything that nobody sees, or takes for what it is."""
    return finder(*(f"(?-i:[{lot}])" for lot in (_LONG_S + _UNSEEN[0], *_UNSEEN[1:], _TAG_LETTERS)))


def _unescaped(text: str) -> str:
    """ASCII characters for their escapes, also for those of JSON in JSON. By pieces: most texts have few."""
    first, *rest = text.split(_ESCAPE)
    pieces = [first.rstrip("\\")]
    for piece in rest:
        letter = _ASCII.get(piece[:2].lower())
        pieces.append((_ESCAPE + piece if letter is None else letter + piece[2:]).rstrip("\\"))
    return "".join(pieces)


def prepare() -> None:
    """Compile what every text is looked at with, once a process. It takes a few hundredths of a second at most."""
    _suspect()
    _hiding()
    finder(_ESCAPED_LETTER)


def _signs(text: str) -> set[str]:
    if not _suspect()(text):
        return set()
    signs = (sign for group in _GROUPS if finder(_ends(group))(text) for sign in group)
    return {sign.name for sign in signs if finder(sign.end)(text) and finder(sign.before + sign.end)(text)}


@cache
def _suspect() -> Finder:
    """Whether a text has the end of any sign, or something like it."""
    return finder(*map(_ends, _GROUPS))


def _ends(group: Sequence[_Sign]) -> str:
    """Any stem, then any link and what follows that: more than the ends of the signs, and quicker to compile."""
    ends = (
        f"(?:{'|'.join(dict.fromkeys(sign.link for sign in group if sign.then == then))}){then}"
        for then in dict.fromkeys(sign.then for sign in group)
    )
    return f"{_spellings(sign.stem for sign in group)}(?:{'|'.join(ends)})"


def _spellings(stems: Iterable[str]) -> str:
    """All stems in one case, then all in another, and so on.

    The search tells literals apart by their place in the list, modulo 16: what shares a place is confused.
    """
    of_each = [
        ["".join(one) for one in product(*zip(stem, stem.upper(), strict=True))] for stem in dict.fromkeys(stems)
    ]
    one_case_after_another = (spelled for one_case in zip(*of_each, strict=True) for spelled in one_case)
    return f"(?-i:{'|'.join(dict.fromkeys(one_case_after_another))})"
