"""Signs that a result tries to instruct the model. Pure, and advisory: they block nothing and change nothing.

Each is a sentence that an ordinary text hardly has; who wants to be missed will be. A text *about* such attacks that
quotes one has its sign too.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import jsonschema_rs
from attrs import frozen

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

_GAP = r"[\s*_>#\"'`,.:;-]{1,20}"
_OPENING = r"(?m:^|\\[nrt]|[.!?:>*#\"'`)\]}-])[\s*_>#\"'`-]{0,20}"

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
_BRACKET = r"[\[<]\s{0,4}"
_FAKE_ROLE = rf"(?:system|developer){_MARK}[*_\"'`]{{0,3}}\s{{0,4}}:{_GAP}?{_TO_A_MODEL}"
_INSTRUCTIONS = (
    rf"(?:instruction|directive)s?(?:{_GAP}for{_GAP}(?:you|the{_GAP}(?:assistant|model|ai|agent)))?\s{{0,4}}[:=]"
    rf"{_GAP}?{_ORDER}"
)
_NEW = rf"(?:new|updated|revised|real|actual|important){_GAP}(?:system{_GAP})?"

_ROLE = r"(?:user|system|administrator|admin|operator|developer|human|security team|anthropic|openai)"
_ADVERB = rf"(?:(?:already|previously|explicitly|fully|hereby|now|also){_GAP}){{0,2}}(?:pre-?)?"
_AUTHORISED = (
    rf"(?:authori[sz]ed|approved|granted){_GAP}(?:you|this|all|any|these|every|full|unrestricted|it[\s.,;:!]"
    rf"|the{_GAP}(?:assistant|agent|following|tool|deletion|transfer|action|request|operation))"
)
_AUTHORISED_BY = rf"(?:authori[sz]ed|approved|granted){_GAP}by{_GAP}(?:(?:the|your){_GAP}{_ROLE}|anthropic|openai)"
_THIS_IS = (
    rf"(?:you{_GAP}(?:are|have{_GAP}been)|(?:action|request|operation|command|call|tool|task|step|transfer)"
    rf"{_GAP}(?:is|has{_GAP}been|was)){_GAP}"
)
_HAVE_FULL = (
    rf"you{_GAP}(?:now{_GAP})?have{_GAP}{_ADVERB}(?:been{_GAP}(?:given|granted){_GAP})?(?:full|root|unrestricted){_GAP}"
    rf"(?:permission|authori[sz]ation|access{_GAP}to{_GAP}(?:all|every))"
)

_NOW_IN = (
    rf"(?:you{_GAP}are|you're){_GAP}now{_GAP}(?:(?:in|operating|running|entering|an?|the|under){_GAP}){{0,3}}"
    rf"(?:developer|admin(?:istrator)?|debug|god|root|dan|jailbreak(?:ed)?|unrestricted|unfiltered|uncensored|sudo"
    rf"|maintenance|superuser|privileged|override|evil)(?:{_GAP}(?:mode|assistant|ai|model|agent)|[.,!:;\n])"
)
_SWITCH_TO = (
    rf"(?:switch(?:ing)?{_GAP}(?:in)?to|enter(?:ing)?|activat(?:e|ing)){_GAP}(?:(?:an?|the|your){_GAP})?"
    rf"(?:(?:god|dan|jailbreak|unrestricted|unfiltered|uncensored|do{_GAP}anything{_GAP}now){_GAP}mode"
    rf"|(?:developer|admin(?:istrator)?|root|sudo|privileged|override){_GAP}mode{_GAP}(?:(?:and|now){_GAP})?{_TO_A_MODEL})"
)


@frozen
class _Sign:
    name: str
    pattern: str
    """Begins with letters, which makes it quick to look for."""
    before: str = ""
    """What must stand before it."""


_GROUPS: Final = (
    (
        _Sign("ignore-previous", rf"ignor(?:e|ing){_WHAT_CAME_BEFORE}"),
        _Sign("disregard-previous", rf"(?:disregard(?:ing)?|overrid(?:e|ing)){_WHAT_CAME_BEFORE}"),
        _Sign("disregard-previous", rf"forget{_WHAT_CAME_BEFORE}", before=_OPENING + _PLEASE),  # not "models forget"
        _Sign(
            "new-instructions",
            rf"(?:your|follow{_GAP}(?:the|these)){_GAP}(?:new|updated|revised|real|actual){_GAP}instructions{_GAP}"
            rf"(?:are|follow|instead|from{_GAP}now)",
        ),
        _Sign("fake-authorization", _HAVE_FULL),
        _Sign("mode-switch", _NOW_IN),
    ),
    (
        _Sign("fake-system-role", _FAKE_ROLE, before=_OPENING),
        _Sign("new-instructions", _INSTRUCTIONS, before=_NEW),
    ),
    (
        _Sign("chatml-system", r"<\|\s*(?:im_start|start_header_id|role|start)\s*\|>\s*(?:system|developer)"),
        _Sign("bracketed-system", rf"sys(?:tem)?{_MARK}\s{{0,4}}[\]>]{{1,2}}{_GAP}?{_TO_A_MODEL}", before=_BRACKET),
        _Sign("bracketed-system", rf"system{_GAP}override\s{{0,4}}\]", before=_BRACKET),
    ),
    (
        _Sign(
            "fake-authorization",
            _AUTHORISED,
            before=rf"{_OPENING}(?:the|your|this){_GAP}{_ROLE}{_GAP}(?:has|have){_GAP}{_ADVERB}",
        ),
        _Sign("fake-authorization", _AUTHORISED_BY, before=_THIS_IS + _ADVERB),
    ),
    (_Sign("mode-switch", _SWITCH_TO),),
)
"""Signs looked for in one pass each group; a few beginnings together are as quick as one."""
_STEMS = r"ignor|disregard|forget|overrid|sys|developer|<\||instruction|directive|authori|approve|grant|access|now|mode"
"""One of these is in every sign, and in few short texts."""
_SHORT = 2000
"""Characters up to which a look for the stems is worth it."""


def scan(text: str) -> tuple[str, ...]:
    """The signs in a text, however long, in the order of `SIGNALS`."""
    try:
        if len(text) < _SHORT and not _finder(_STEMS)(text):
            return ()
        groups = [group for any_of_them, group in _groups() if any_of_them(text)]
        found = {sign.name for group in groups for sign in group if _finder(sign.before + sign.pattern)(text)}
    except UnicodeEncodeError:
        return scan(text.encode("utf-8", "replace").decode())  # it has half a character
    return tuple(sorted(found, key=SIGNALS.index)) if found else ()


def prepare() -> None:
    """Compile all patterns, once a process. It takes a tenth of a second, which no call should wait for."""
    for pattern in (
        _STEMS,
        *map(_any_of, _GROUPS),
        *(sign.before + sign.pattern for group in _GROUPS for sign in group),
    ):
        _finder(pattern)


_Finder = Callable[[str], bool]


def _any_of(group: Sequence[_Sign]) -> str:
    return "|".join(sign.pattern for sign in group)


@cache
def _groups() -> Sequence[tuple[_Finder, Sequence[_Sign]]]:
    return [(_finder(_any_of(group)), group) for group in _GROUPS]


@cache
def _finder(pattern: str) -> _Finder:
    # A validator for the sake of its regular expressions: one linear pass, at best a tenth of a millisecond a megabyte,
    # where `re` takes a tenth of a second.
    options = jsonschema_rs.RegexOptions()
    return jsonschema_rs.validator_for({"pattern": f"(?i){pattern}"}, pattern_options=options).is_valid
