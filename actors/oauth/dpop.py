"""Proofs that the sender of a token holds the key that the token is bound to (DPoP, RFC 9449): a stolen token is of no
use. Heavy to import."""

import re
import time
from base64 import urlsafe_b64encode
from hashlib import sha256
from secrets import token_urlsafe
from typing import Final

import httpx2
import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from ..http.address import bare_url
from ..http.client import origin_of

ALGORITHM: Final = "ES256"
"""The algorithm of all proofs, which every implementation of JWT has."""
_NONCE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,1024}")
"""A nonce that makes no header longer than servers read."""
_COORDINATE = 32
"""Bytes of a coordinate of the curve."""


def new_key() -> str:
    """A new private key, as `Tokens` keep it."""
    return f"{ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value:x}"


class Prover:
    """The maker of proofs with one key, which knows the latest nonce of each server."""

    def __init__(self, key: str) -> None:
        self.key: Final = key
        """The private key. Never shown."""
        self._private = ec.derive_private_key(int(key, 16), ec.SECP256R1())
        point = self._private.public_key().public_numbers()
        x, y = (_base64url(number.to_bytes(_COORDINATE, "big")) for number in (point.x, point.y))
        self._header = {"typ": "dpop+jwt", "jwk": {"kty": "EC", "crv": "P-256", "x": x, "y": y}}
        self._nonces: dict[str, str] = {}

    def prove(self, request: httpx2.Request, access: str | None = None) -> None:
        """Put a new proof into a request, as each one needs: with this token, or for one."""
        claims: dict[str, object] = {
            "jti": token_urlsafe(16),
            "htm": request.method,
            "htu": bare_url(request.url),
            "iat": int(time.time()),
        }
        if access is not None:
            claims["ath"] = _base64url(sha256(access.encode()).digest())
        nonce = self._nonces.get(origin_of(request.url))
        if nonce is not None:
            claims["nonce"] = nonce
        request.headers["dpop"] = jwt.encode(claims, self._private, ALGORITHM, headers=self._header)

    def learn(self, response: httpx2.Response) -> bool:
        """Use the nonce in an answer from now on; False if there is none."""
        nonce = response.headers.get("dpop-nonce", "")
        if _NONCE.fullmatch(nonce) is None:
            return False
        self._nonces[origin_of(response.request.url)] = nonce
        return True


def _base64url(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()
