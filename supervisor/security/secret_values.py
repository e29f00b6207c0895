"""What of an entry is secret: all that it was given but the names, the program and the place. Pure.

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

from .secret_patterns import SECRET_NAME

_SECRET_NAME = re.compile(SECRET_NAME)
_OPTION = re.compile(r"-{0,2}([^\s=:]+)(?:=|:\s*)(.+)", re.DOTALL)
_BASIC = re.compile(r"basic\s+(\S+)\s*", re.IGNORECASE)


def secrets_of(transport: object) -> set[str]:
    """The values of a transport that may not be shown: see `secrets_in`."""
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
    """The values of `env` and of headers, user, password, query and fragment of the URL, and those arguments that a
    secret's name goes before; each whole and in the parts that it may be quoted in."""
    given = (*env.values(), *headers.values())
    values = {part for text in given if isinstance(text, str) for part in _parts(text)}
    return values | set(_of_url(url)) | set(_of_arguments(args))


def is_secret_name(name: str) -> bool:
    """Whether what goes by this name is a secret."""
    return _SECRET_NAME.search(name) is not None


def _parts(text: str) -> Iterator[str]:
    yield from (text, text.strip(), text.partition(" ")[2].strip())
    yield from _of_url(text)
    yield from (pair.partition("=")[2].strip() for pair in text.split(";") if "=" in pair)
    if (basic := _BASIC.fullmatch(text)) is not None:
        yield from _of_user(_decoded(basic[1]))
    if text.lstrip().startswith(("{", "[")):
        yield from _of_json(text)


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
            value = pair.partition("=")[2] or pair
            yield from (value, unquote(value), unquote_plus(value))


def _of_user(user: str) -> Iterator[str]:
    """`user:password` of a URL or of basic authorisation, which is what a client makes of the former."""
    for pair in (user, unquote(user)) if user else ():
        name, _, password = pair.partition(":")
        yield from (name, password, unquote(name), unquote(password), b64encode(pair.encode(errors="replace")).decode())


def _decoded(base64: str) -> str:
    try:
        return b64decode(base64, validate=True).decode()
    except ValueError:
        return ""


def _of_json(text: str) -> Iterator[str]:
    """All text in it but names: some servers take their headers as JSON in a variable."""
    try:
        found: list[object] = [json.loads(text)]
    except (ValueError, RecursionError):
        return
    while found:
        value = found.pop()
        if isinstance(value, str):
            yield from (value, value.partition(" ")[2].strip())
        elif isinstance(value, dict):
            found.extend(cast("dict[str, object]", value).values())
        elif isinstance(value, list):
            found.extend(cast("list[object]", value))


def _of_arguments(args: Sequence[str]) -> Iterator[str]:
    """Not every argument: packages and folders are what an error has to name."""
    for before, argument in pairwise(("", *args)):
        yield from _of_url(argument)
        if before.startswith("-") and is_secret_name(before.lstrip("-")):
            yield from _parts(argument)
        option = _OPTION.fullmatch(argument)
        if option is not None and is_secret_name(option[1]):
            yield from _parts(option[2])
