"""Keys that seal what a gateway gives to clients and wants back unchanged, perhaps at another gateway: ids of sessions
and tasks, and the state of calls that wait for their clients.

    text = base64url(nonce + AES-256-GCM(key, nonce, plain, associated data))

A text that is sealed for one client, path or request does not open for another: these are the associated data. Every
text that does not open costs the same: one that is too long is not read, each key is tried once, and nothing is parsed
before a key has proven its origin.
"""

import os
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from ..extras import needs_extra
from .auth.principal import Principal

LEAST_KEY: Final = 32
"""Bytes that a key has at least."""
MOST_SEALING_KEYS: Final = 8
"""Keys that are tried at most."""
LONGEST_SEALED: Final = 1_024
"""Characters of a sealed text at most: a client sends it with each request, and every proxy passes a header of that
length."""

MAX_AGE: Final = 2_592_000.0
"""Seconds from the beginning of a session during which its id opens: 30 days."""

_NONCE: Final = 12
_PURPOSE: Final = b"mcpn session id"
"""The personalisation of BLAKE2b: a key derived from the same line for another purpose is another key."""


class SessionKeys:
    """The keys that seal ids of sessions and tasks, and the state of calls that wait for their clients: for
    `open_gateway(session_keys=…)`. Gateways with a key in common go on with each other's sessions, and a restarted
    gateway with its own. Needs `cryptography`, of the extra `gateway`.

    Args:
        keys: At least 32 random bytes each, 8 keys at most. The first seals, and all open.
        max_age: Seconds from the beginning of a session during which a gateway that does not know it goes on with it.
            Where the session is open, it goes on in any case.

    Raises:
        ValueError: There is no key, or one that is too short, or there are too many.
        ModuleNotFoundError: The extra is not installed.
    """

    def __init__(self, keys: Sequence[bytes], *, max_age: float = MAX_AGE) -> None:
        self.max_age: Final = max_age
        """Seconds from the beginning of a session during which a gateway that does not know it goes on with it."""
        self.replica: Final[str] = secrets.token_hex(8)
        """The name of this gateway among those that share its keys: a new one at each start."""
        self.replace(keys)

    def replace(self, keys: Sequence[bytes]) -> None:
        """Seal and open with other keys from now on. Sessions that are open go on.

        Raises:
            ValueError: There is no key, or one that is too short, or there are too many.
        """
        with needs_extra("gateway"):
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not 1 <= len(keys) <= MOST_SEALING_KEYS:
            raise ValueError(f"must be 1 to {MOST_SEALING_KEYS} keys, not {len(keys)}")
        if any(len(key) < LEAST_KEY for key in keys):
            raise ValueError(f"a key must have {LEAST_KEY} bytes or more")
        self._first = keys[0]
        digests = (blake2b(key, digest_size=32, person=_PURPOSE) for key in keys)
        self._ciphers = [AESGCM(digest.digest()) for digest in digests]
        self._forged = InvalidTag

    def derive(self, purpose: bytes) -> bytes:
        """A secret of 32 bytes for another purpose, the same at all gateways with the same first key. `purpose`: its
        name, of 16 bytes at most."""
        return blake2b(self._first, digest_size=32, person=purpose).digest()

    def seal(self, plain: bytes, bound: bytes, *, longest: int | None = None) -> str | None:
        """Seal bytes. None if the text would be too long.

        Args:
            plain: The bytes.
            bound: The associated data, without which they do not open.
            longest: Characters of the text at most; None: `LONGEST_SEALED`.
        """
        nonce = os.urandom(_NONCE)
        text = _encode(nonce + self._ciphers[0].encrypt(nonce, plain, bound))
        return text if len(text) <= (longest or LONGEST_SEALED) else None

    def open(self, text: str, bound: bytes, *, longest: int | None = None) -> bytes | None:
        """Open a text. None if no key has sealed it with these associated data.

        Args:
            text: The text as a client sends it, which may be anything.
            bound: The associated data.
            longest: Characters of a text that is read, at most; None: `LONGEST_SEALED`.
        """
        sealed = _decode(text, longest or LONGEST_SEALED)
        if sealed is None:
            return None
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], bound)
            except self._forged:
                continue
        return None


def random_keys() -> SessionKeys:
    """Keys of this process alone."""
    return SessionKeys([os.urandom(LEAST_KEY)])


def bind(purpose: bytes, owner: Principal | None, *more: str | None) -> bytes:
    """The associated data of a text for one client, of the format that is named by its purpose, with the path, the
    request, or the like. A client whose grant has changed counts as another one, as it does for open sessions."""
    who = None if owner is None else (owner.name, owner.key, owner.access.allow)
    return purpose + repr((who, *more)).encode()


def _encode(sealed: bytes) -> str:
    return urlsafe_b64encode(sealed).rstrip(b"=").decode()


def _decode(text: str, longest: int) -> bytes | None:
    """The bytes of a text; None if `_encode` would write them in another way: each value has one text alone."""
    if len(text) > longest or not text.isascii():
        return None
    try:
        sealed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    return sealed if len(sealed) > _NONCE and _encode(sealed) == text else None
