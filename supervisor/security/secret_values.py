"""What of an entry is secret: what its names say, or its values look like. The program and the place are not. Pure.

Whoever is given something can quote it whole or in part, and as it came or as it was read: a URL's password in percent
or plain, the token behind its scheme, one cookie of many.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import cast
from urllib.parse import unquote, unquote_plus, urlsplit

from mcp_nursery.actors.transports.http.grants import OAuth

from .plain_values import is_plain, tells_secret
from .secret_patterns import SECRET_NAME

_SECRET_NAME = re.compile(SECRET_NAME)
_OPTION = re.compile(r"-{0,2}([^\s=:]+)(?:=|:\s*)(.+)", re.DOTALL)
_BASIC = re.compile(r"basic\s+(\S+)\s*", re.IGNORECASE)
_SCHEMES = frozenset(["bearer", "basic", "digest", "token", "apikey", "api-key", "key", "negotiate"])


def secrets_of(transport: object) -> set[str]:
    """What of a transport may not be shown: see `secrets_in`."""
    env, headers, url = (getattr(transport, name, None) for name in ("env", "headers", "url"))
    env = getattr(transport, "environment", env)
    words = getattr(transport, "auth", None)
    return (words.secrets if isinstance(words, OAuth) else set[str]()) | secrets_in(
        env=cast("Mapping[str, object]", env) if isinstance(env, Mapping) else {},
        headers=cast("Mapping[str, object]", headers) if isinstance(headers, Mapping) else {},
        args=[str(arg) for arg in cast("Iterable[object]", getattr(transport, "args", ()))],
        url=url if isinstance(url, str) else "",
    )


def secrets_in(
    *, env: Mapping[str, object], headers: Mapping[str, object], args: Sequence[str] = (), url: str = ""
) -> set[str]:
    """What is secret of variables and headers, by their names or by what they look like; of a URL; and of those
    arguments that a secret's name goes before. Each whole and in the parts that it may be quoted in."""
    given = (*env.items(), *headers.items())
    values = {part for name, text in given if isinstance(text, str) for part in secrets_of_value(name, text)}
    return values | set(_of_url(url)) | set(_of_arguments(args))


def secrets_of_value(name: str, text: str) -> set[str]:
    """What of a value that goes by this name is secret, in the parts that it may be quoted in."""
    if tells_secret(name, text):
        return {*_whole(text), *_of_url(text)}
    return {*_of_url(text), *_of_pairs(text), *_of_json(text), *_doubtful(text, behind_scheme(text))}


def behind_scheme(text: str) -> str:
    """What follows the scheme of an authorisation, or any first word and is not plain; empty if nothing does."""
    first, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    return rest if first.lower() in _SCHEMES or not is_plain(rest) else ""


def is_secret_name(name: str) -> bool:
    """Whether what goes by this name in a text or in JSON is a secret."""
    return _SECRET_NAME.search(name) is not None


def _doubtful(*values: str) -> Iterator[str]:
    """Those that are not sure to be plain."""
    for value in values:
        if not is_plain(value):
            yield from (value, value.strip())


def _whole(text: str) -> Iterator[str]:
    """All that is in a secret."""
    yield from (text, text.strip(), behind_scheme(text))
    yield from (pair.partition("=")[2].strip() for pair in text.split(";") if "=" in pair)
    if (basic := _BASIC.fullmatch(text)) is not None:
        yield from _of_user(_decoded(basic[1]))
    yield from (each for _, value in _texts_in_json(text) for each in (value, behind_scheme(value)))


def _of_pairs(text: str) -> Iterator[str]:
    """Of `name=value`, several with `;` between."""
    for pair in text.split(";"):
        name, _, value = map(str.strip, pair.partition("="))
        if tells_secret(name, value):
            yield value
        else:
            yield from _doubtful(value)


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
            if (named and tells_secret(unquote(name), value)) or not is_plain(unquote_plus(value)):
                yield from (value, unquote(value), unquote_plus(value))


def _of_user(user: str) -> Iterator[str]:
    """`user:password` of a URL or of basic authorisation, which is what a client makes of the former. A user without a
    password is a token."""
    for pair in (user, unquote(user)) if user else ():
        name, _, password = pair.partition(":")
        yield from (password, unquote(password), b64encode(pair.encode(errors="replace")).decode())
        if not (password and is_plain(unquote(name))):
            yield from (name, unquote(name))


def _decoded(base64: str) -> str:
    try:
        return b64decode(base64, validate=True).decode()
    except ValueError:
        return ""


def _of_json(text: str) -> Iterator[str]:
    """Some servers take their headers as JSON in a variable."""
    for name, value in _texts_in_json(text):
        if tells_secret(name, value):
            yield from (value, behind_scheme(value))
        else:
            yield from _doubtful(value, behind_scheme(value))


def _texts_in_json(text: str) -> Iterator[tuple[str, str]]:
    """All text in it but names, each with the name that it goes by."""
    if not text.lstrip().startswith(("{", "[")):
        return
    try:
        found: list[tuple[str, object]] = [("", json.loads(text))]
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
    """Not every argument: packages and folders are what an error has to name."""
    for before, argument in pairwise(("", *args)):
        yield from _of_url(argument)
        if before.startswith("-") and tells_secret(before.lstrip("-"), argument):
            yield from _whole(argument)
        option = _OPTION.fullmatch(argument)
        if option is not None and tells_secret(option[1], option[2]):
            yield from _whole(option[2])
