"""Which values are plain: words, numbers, places and versions that nobody keeps secret. Pure.

What is plain is cut out of no text, or texts would have holes: `development` of a variable that selects a mode. All
that is not sure to be plain counts as secret. So a value is looked at in its words, and is plain only if each of them
looks like one that people write: none that mixes letters and digits, or capitals and small letters, as keys do.
"""

import re
from typing import Final

from .secret_patterns import SECRET_NAME

_MOST_MIXED: Final = 1
"""Words with letters and digits in them, such as `utf8`, that a plain value may have: the groups of a key are more."""
_MOST_MIXED_IN_PLACE: Final = 3
"""Of those, as many as the path of a file may have: `/usr/lib/x86_64/python3.11`."""
_MOST_SIZES: Final = 2
"""Of those, sizes and versions that do not count: `llama3.1:8b`, `mistral-7b-instruct-v0.3`."""
_MOST_DIGITS: Final = 17
"""Digits of a plain value: a date with its time, an address with its port."""
_LONGEST_NUMBER: Final = 14
"""Digits of a plain number."""
_LONG_WORD: Final = 8
"""Letters of a word from which on it has to be one that can be spoken."""

_SECRET_NAME: Final = re.compile(SECRET_NAME)
_TELLING_NAME: Final = re.compile(
    r"(?i:(?:^|[_.-])(?:key|pat|pw|pin|t?otp|auth|creds?|jwt|dsn|sid|sig|salt|seed|cert|signature|bearer|mnemonic|webhook|"
    r"hmac|seed[_-]?phrase|(?:ssh|gpg|pgp|rsa|aes|tls|ssl)key|conn(?:ection)?[_-]?str(?:ing)?)s?(?:[_-]?\d+)?$)"
    r"|(?<=[a-z])(?:Key|Pat|Pin|Auth|Cert|Sig)s?$"
    r"|(?i:[a-z](?<!by)(?<!com)(?<!over)(?<!under)(?<!sur)(?<!tres)pass$|[a-z](?<!old)pwd?$)"
    r"|(?i:(?:otp|mfa|2fa|sms|pin|auth|access|security|recovery|backup|unlock|login|verification)[_-]?codes?$)"
    r"|(?i:auth[_-]?(?:header|basic|string|data)$)"
)
"""How other names of something secret end, where they name a variable, a header or a part of a URL's query. In texts
and in JSON they name too much else."""
_SWITCH: Final = re.compile(
    r"(?i:true|false|none|null|enabled|disabled|required|optional|default|anonymous|basic|bearer|digest|oauth2?|"
    r"authorization|x-[a-z]+(?:-[a-z]+)*)"
)
"""What stands under such a name and says only whether, how, or in which header there is something."""
_PLACE: Final = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\][\w .@+-]+){2,}[/\\]?")
"""A file or a folder: what a variable names that says where a secret is kept."""

_STRANGE: Final = re.compile(
    r"[^\w \-.,/\\:@~]|:(?!//|[/\\]|\d{1,5}(?!\d)|$)|//[^/]*@|@(?![\w-]+[./])|~(?!/)|\b(?:bearer|basic|token)\s",
    re.IGNORECASE,
)
"""What no plain value has: other signs than those of words, paths, hosts with ports, mail addresses and packages."""
_GROUPS_OF_FOUR: Final = re.compile(r"[a-z]{4}(?:[ -][a-z]{4}){3,}")
"""Passwords for one application, as mail providers make them."""
_ARN: Final = re.compile(r"arn:aws[a-z-]*(?::[a-z\d-]*){2}:\d{0,12}:")
"""How the name of a resource at Amazon begins."""
_WORDS: Final = re.compile(r"[^\W_]+")
_LETTERS: Final = re.compile(r"[A-Z]{1,16}|[A-Z]{0,5}[a-z]{1,16}(?:[A-Z][a-z]{1,15}){0,3}[A-Z]{0,5}")
_MIXED: Final = re.compile(
    r"[A-Z]?[a-z]{1,12}\d{1,4}|[A-Z]{1,12}\d{1,4}|\d{1,4}[A-Za-z]{1,2}|[A-Za-z\d]{1,4}|"
    r"\d{1,3}(?:color|xlarge)|ed25519|utf8mb[34]"
)
_SIZE: Final = re.compile(r"[A-Za-z]\d{1,2}|\d{1,3}[A-Za-z]")
_UNSPEAKABLE: Final = re.compile(
    r"[bcdfghjklmnpqrstvwxz]{6}|^[^aeiouy]+$|q[^ul]|j[^aeious]|v[^aeiouyrs]|[bcdfghjkmpqstvwxz]x|[cfghjkmpqtvwxz]j|[cfghjkpqwxz]v|"
    r"[bdfghjklmpqtvwxyz]q|[bcfghjkmpqsvwx]z|z[bcdfghjkmnpqrsvwx]|x[bfgjkqrvw]|[cfgjqv]b|[fgjqv]c|[bcjqv]f|[cfjqv]g|"
    r"[jqv][mntw]|[fgjqvwx]k|[jv]l|cw|[bfghj]w",
    re.IGNORECASE,
)
"""Letters that do not stand together in words: random ones do, in all but a few in a hundred of such length."""
_ROUGH: Final = 3
"""Letters for each capital in the midst of a word, at least: `JavaScript`, not `aKdEp`."""


def tells_secret(name: str, value: str) -> bool:
    """Whether what goes by this name is secret, however plain it is. Where a file is, is none."""
    if _SECRET_NAME.search(name) is None and (_TELLING_NAME.search(name) is None or _SWITCH.fullmatch(value)):
        return False
    return _PLACE.fullmatch(value) is None or not is_plain(value)


def is_plain(value: str) -> bool:
    """Whether a value under a name that says nothing is surely no secret."""
    if _ARN.match(value):
        value = value.replace(":", "/")
    if not value.isprintable() or _STRANGE.search(value) or _GROUPS_OF_FOUR.fullmatch(value):
        return False
    words = _WORDS.findall(value)
    mixed = [word for word in words if not (word.isalpha() or word.isdecimal())]
    sizes = min(sum(_SIZE.fullmatch(word) is not None for word in mixed), _MOST_SIZES)
    digits = sum(map(str.isdecimal, value))
    most = _MOST_MIXED if _PLACE.fullmatch(value) is None else _MOST_MIXED_IN_PLACE
    return len(mixed) - sizes <= most and digits <= _MOST_DIGITS and all(map(_is_written, words))


def _is_written(word: str) -> bool:
    """Whether people write such a word, or number."""
    if word.isdecimal():
        return len(word) <= _LONGEST_NUMBER
    if not word.isascii():
        return word.isalpha()
    if not word.isalpha():
        return _MIXED.fullmatch(word) is not None
    if _LETTERS.fullmatch(word) is None or _capitals_within(word) * _ROUGH > len(word):
        return False
    return len(word) < _LONG_WORD or _UNSPEAKABLE.search(word) is None


def _capitals_within(word: str) -> int:
    return 0 if word.isupper() else sum(map(str.isupper, word[1:]))
