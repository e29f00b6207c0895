"""The secret values of an entry: those with the name or the looks of a secret. The program and its place are not
secret. Pure.

A server can quote what it is given in whole or in part, as it came or as it was read: a URL's password percent-encoded
or plain, the token behind its scheme, one cookie of many.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, cast
from urllib.parse import unquote, unquote_plus, urlsplit

from mcp_nursery.actors.json_parsing import parse_json
from mcp_nursery.actors.oauth.settings import OAuth
from mcp_nursery.actors.process.command import is_about_network

from .secret_patterns import SECRET_NAME

# -- plain values: words, numbers, places and versions that nobody keeps secret ---------------------------------------
#
# Plain values are not cut out of texts, or these would have holes: `development` of a variable that selects a mode. A
# value that is not surely plain counts as secret. So a value is split into words, and is plain only if each of them
# looks like one that people write, and does not mix letters and digits, or capitals and small letters, as keys do.

_MOST_MIXED: Final = 1
"""Words with letters and digits in them, such as `utf8`, that a plain value may have: a key has more."""
_MOST_MIXED_IN_PLACE: Final = 3
"""Such words that the path of a file may have: `/usr/lib/x86_64/python3.11`."""
_MOST_SIZES: Final = 2
"""Such words that do not count, as sizes or versions: `llama3.1:8b`, `mistral-7b-instruct-v0.3`."""
_MOST_DIGITS: Final = 17
"""Digits of a plain value: a date with its time, an address with its port."""
_LONGEST_NUMBER: Final = 14
"""Digits of a plain number."""
_LONG_WORD: Final = 8
"""Letters from which on a word has to be pronounceable."""

_SECRET_NAME: Final = re.compile(SECRET_NAME)
_TELLING_NAME: Final = re.compile(
    r"(?i:(?:^|[_.-])(?:key|pat|pw|pin|t?otp|auth|creds?|jwt|dsn|sid|sig|salt|seed|cert|signature|bearer|mnemonic|webhook|"
    r"hmac|seed[_-]?phrase|(?:ssh|gpg|pgp|rsa|aes|tls|ssl)key|conn(?:ection)?[_-]?str(?:ing)?)s?(?:[_-]?\d+)?$)"
    r"|(?<=[a-z])(?:Key|Pat|Pin|Auth|Cert|Sig)s?$"
    r"|(?i:[a-z](?<!by)(?<!com)(?<!over)(?<!under)(?<!sur)(?<!tres)pass$|[a-z](?<!old)pwd?$)"
    r"|(?i:(?:otp|mfa|2fa|sms|pin|auth|access|security|recovery|backup|unlock|login|verification)[_-]?codes?$)"
    r"|(?i:auth[_-]?(?:header|basic|string|data)$)"
)
"""Endings of other names of secrets, where they name a variable, a header or a part of a URL's query. In texts and in
JSON they name too much else."""
_SWITCH: Final = re.compile(
    r"(?i:true|false|none|null|enabled|disabled|required|optional|default|anonymous|basic|bearer|digest|oauth2?|"
    r"authorization|x-[a-z]+(?:-[a-z]+)*)"
)
"""Values under such a name that say only whether, how, or in which header there is a secret."""
_PLACE: Final = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\][\w .@+-]+){2,}[/\\]?")
"""A file or a folder: the value of a variable that names the place of a secret."""

_STRANGE: Final = re.compile(
    r"[^\w \-.,/\\:@~]|:(?!//|[/\\]|\d{1,5}(?!\d)|$)|//[^/]*@|@(?![\w-]+[./])|~(?!/)|\b(?:bearer|basic|token)\s",
    re.IGNORECASE,
)
"""Characters that no plain value has: all but those of words, paths, hosts with ports, mail addresses and packages."""
_GROUPS_OF_FOUR: Final = re.compile(r"[a-z]{4}(?:[ -][a-z]{4}){3,}")
"""Passwords for one application, as mail providers make them."""
_ARN: Final = re.compile(r"arn:aws[a-z-]*(?::[a-z\d-]*){2}:\d{0,12}:")
"""The beginning of the name of a resource at Amazon."""
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
"""Letters that do not stand together in words: in random texts of such length, all but a few in a hundred, some do."""
_ROUGH: Final = 3
"""Least letters for each capital in the middle of a word: `JavaScript`, not `aKdEp`."""


def is_secret(name: str, value: str) -> bool:
    """True if a value under this name is secret, however plain it is. The place of a file is not."""
    if _SECRET_NAME.search(name) is None and (_TELLING_NAME.search(name) is None or _SWITCH.fullmatch(value)):
        return False
    return _PLACE.fullmatch(value) is None or not is_plain(value)


def is_plain(value: str) -> bool:
    """True if a value under a name without a meaning is certainly no secret."""
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
    """True if people write such a word or number."""
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


# -- what is secret of an entry, in the parts in which it may be quoted -----------------------------------------------

_OPTION = re.compile(r"-{0,2}([^\s=:]+)(?:=|:\s*)(.+)", re.DOTALL)
_BASIC_SCHEME = re.compile(r"basic\s+(\S+)\s*", re.IGNORECASE)
_SCHEMES = frozenset(["bearer", "basic", "digest", "token", "apikey", "api-key", "key", "negotiate"])


def secrets_of(transport: object) -> set[str]:
    """The values of a transport that may not be shown: see `secrets_in`. Of the host's variables about the network,
    those in URLs alone."""
    env, headers, url = (getattr(transport, name, None) for name in ("env", "headers", "url"))
    own = cast("Mapping[str, object]", env) if isinstance(env, Mapping) else dict[str, object]()
    every: Mapping[str, object] = getattr(transport, "environment", own)
    network = {name: text for name, text in every.items() if is_about_network(name)}
    words = getattr(transport, "auth", None)
    found = words.secrets if isinstance(words, OAuth) else set[str]()
    found |= {part for text in network.values() for part in _of_addresses(str(text))}
    return found | secrets_in(
        env={name: text for name, text in every.items() if name in own or name not in network},
        headers=cast("Mapping[str, object]", headers) if isinstance(headers, Mapping) else {},
        args=[str(arg) for arg in cast("Iterable[object]", getattr(transport, "args", ()))],
        url=url if isinstance(url, str) else "",
    )


def secrets_in(
    *, env: Mapping[str, object], headers: Mapping[str, object], args: Sequence[str] = (), url: str = ""
) -> set[str]:
    """The secret values of variables and headers, by their names or by their looks; of a URL; and of those arguments
    that follow a secret's name. Each whole and in the parts in which it may be quoted."""
    given = (*env.items(), *headers.items())
    values = {part for name, text in given if isinstance(text, str) for part in secrets_of_value(name, text)}
    return values | set(_of_url(url)) | set(_of_arguments(args))


def secrets_of_value(name: str, text: str) -> set[str]:
    """The secret parts of a value under this name, each as it may be quoted."""
    if is_secret(name, text):
        return {*_parts_of_secret(text), *_of_url(text)}
    return {*_of_url(text), *_of_pairs(text), *_of_json(text), *_unless_plain(text, behind_scheme(text))}


def behind_scheme(text: str) -> str:
    """The text after the scheme of an authorisation, or after any first word, if it is not plain; else empty."""
    first, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    return rest if first.lower() in _SCHEMES or not is_plain(rest) else ""


def is_secret_name(name: str) -> bool:
    """True if a value under this name, in a text or in JSON, is a secret."""
    return _SECRET_NAME.search(name) is not None


def _unless_plain(*values: str) -> Iterator[str]:
    """The values that are not certainly plain."""
    for value in values:
        if not is_plain(value):
            yield from (value, value.strip())


def _parts_of_secret(text: str) -> Iterator[str]:
    """All parts of a secret."""
    yield from (text, text.strip(), behind_scheme(text))
    yield from (pair.partition("=")[2].strip() for pair in text.split(";") if "=" in pair)
    if (basic := _BASIC_SCHEME.fullmatch(text)) is not None:
        yield from _of_user(_decode(basic[1]))
    yield from (each for _, value in _texts_in_json(text) for each in (value, behind_scheme(value)))


def _of_pairs(text: str) -> Iterator[str]:
    """The secrets of `name=value` pairs with `;` between them."""
    for pair in text.split(";"):
        name, _, value = map(str.strip, pair.partition("="))
        if is_secret(name, value):
            yield value
        else:
            yield from _unless_plain(value)


def _of_url(url: str) -> Iterator[str]:
    if "://" not in url:
        return
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    user = parts.netloc.rpartition("@")[0]
    yield from _of_user(user)
    for part in (parts.query, parts.fragment):
        for pair in re.split("[&;]", part):
            name, named, value = pair.partition("=")
            value = value or name
            if (named and is_secret(unquote(name), value)) or not is_plain(unquote_plus(value)):
                yield from (value, unquote(value), unquote_plus(value))


def _of_addresses(text: str) -> Iterator[str]:
    """The secrets of URLs with blanks between them, as proxies and indexes are written: without a scheme, or behind a
    name."""
    for word in text.split():
        yield from _of_url(f"http://{word.partition('://')[2] or word}")


def _of_user(user: str) -> Iterator[str]:
    """The secrets of `user:password`, of a URL or of basic authorisation, which a client makes from it. A user without
    a password is a token."""
    for pair in (user, unquote(user)) if user else ():
        name, _, password = pair.partition(":")
        yield from (password, unquote(password), b64encode(pair.encode(errors="replace")).decode())
        if not (password and is_plain(unquote(name))):
            yield from (name, unquote(name))


def _decode(base64: str) -> str:
    try:
        return b64decode(base64, validate=True).decode()
    except ValueError:
        return ""


def _of_json(text: str) -> Iterator[str]:
    """The secrets in JSON: some servers take their headers so, in a variable."""
    for name, value in _texts_in_json(text):
        if is_secret(name, value):
            yield from (value, behind_scheme(value))
        else:
            yield from _unless_plain(value, behind_scheme(value))


def _texts_in_json(text: str) -> Iterator[tuple[str, str]]:
    """All texts in JSON except names, each with its name."""
    if not text.lstrip().startswith(("{", "[")):
        return
    try:
        found: list[tuple[str, object]] = [("", parse_json(text))]
    except (ValueError, RecursionError):
        return
    while found:
        name, value = found.pop()
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, dict):
            found.extend(cast("dict[str, object]", value).items())
        elif isinstance(value, list):
            found.extend((name, item) for item in cast("list[object]", value))


def _of_arguments(args: Sequence[str]) -> Iterator[str]:
    """The secrets of arguments, not every argument: an error has to name packages and folders."""
    for before, argument in pairwise(("", *args)):
        yield from _of_url(argument)
        if before.startswith("-") and is_secret(before.lstrip("-"), argument):
            yield from _parts_of_secret(argument)
        option = _OPTION.fullmatch(argument)
        if option is not None and is_secret(option[1], option[2]):
            yield from _parts_of_secret(option[2])
