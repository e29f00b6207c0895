"""What an issuer and a server of DPoP (RFC 9449) do: verify each proof, and bind each token to the key of its proof."""

import json
import secrets
import time
from base64 import urlsafe_b64encode
from hashlib import sha256

import jwt
from starlette.responses import JSONResponse

SKEW = 60
"""Seconds that the clock of a client may be wrong."""


class Unproved(Exception):
    """The error that a request without a right proof gets."""


class Proofs:
    """All that is remembered. `nonces` says which are asked for: none, the latest, any once, or never a right one."""

    def __init__(self, origin):
        self.origin = origin
        self.nonces = "none"
        self.given = set()
        """Nonces that are right."""
        self.seen = set()
        self.keys = {}
        """The thumbprint of the key of each token."""

    def rotate(self, nonces):
        self.nonces, self.given = nonces, {secrets.token_urlsafe(8)}

    def check(self, scope, access=None):
        """The thumbprint of the key that has signed the proof of a request."""
        given = [value.decode() for name, value in scope["headers"] if name == b"dpop"]
        try:
            (proof,) = given
            head = jwt.get_unverified_header(proof)
            key = jwt.PyJWK(head["jwk"]).key
            claims = jwt.decode(proof, key, ["ES256"], {"require": ["jti", "htm", "htu", "iat"]}, leeway=SKEW)
        except (ValueError, KeyError, jwt.InvalidTokenError, jwt.PyJWKError) as error:
            raise Unproved("invalid_dpop_proof") from error
        right = (head["typ"], claims["htm"], claims["htu"]) == (
            "dpop+jwt",
            scope["method"],
            self.origin + scope["path"],
        )
        right = right and head["jwk"].keys() == {"kty", "crv", "x", "y"} and claims["jti"] not in self.seen
        right = right and abs(time.time() - claims["iat"]) <= SKEW
        thumbprint = _digest(json.dumps(head["jwk"], sort_keys=True, separators=(",", ":")))
        if access is not None:
            right = right and claims.get("ath") == _digest(access) and self.keys.get(access) == thumbprint
        self.seen.add(claims["jti"])
        if not right:
            raise Unproved("invalid_dpop_proof")
        self._check_nonce(claims.get("nonce"))
        return thumbprint

    def _check_nonce(self, nonce):
        if self.nonces == "never" or (self.nonces != "none" and nonce not in self.given):
            raise Unproved("use_dpop_nonce")
        if self.nonces == "once":
            self.given.remove(nonce)

    def headers(self):
        if self.nonces == "none":
            return {}
        if self.nonces != "latest":
            self.given.add(nonce := secrets.token_urlsafe(8))
            return {"DPoP-Nonce": nonce}
        return {"DPoP-Nonce": next(iter(self.given))}

    def check_token_request(self, scope, form):
        """The answer to a request for a token that is not proved; else None, and its key is in the scope."""
        try:
            scope["thumbprint"] = self.check(scope)
            refresh = form.get("refresh_token", [None])[0]
            if refresh is not None and self.keys.get(refresh) != scope["thumbprint"]:
                raise Unproved("invalid_grant")
        except Unproved as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return None

    def check_request(self, scope):
        """The answer to a request of which the token is not proved; else None, and the scope has it as it would be
        without DPoP."""
        scheme, _, access = dict(scope["headers"]).get(b"authorization", b"").decode().partition(" ")
        try:
            if scheme not in ("", "DPoP"):
                raise Unproved("invalid_token")
            if access:
                self.check(scope, access)
        except Unproved as error:
            said = {"www-authenticate": f'DPoP error="{error}", algs="ES256"', **self.headers()}
            return JSONResponse({}, status_code=401, headers=said)
        scope["headers"] = [
            (name, b"Bearer " + access.encode() if name == b"authorization" else value)
            for name, value in scope["headers"]
        ]
        return None

    def issuing(self, send, scope):
        """A `send` for what the issuer says: in its metadata that it takes proofs, and of a token that it is bound."""
        begun = None

        async def say(message):
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = message
                return
            said = json.loads(message["body"])
            if "token_endpoint" in said:
                said["dpop_signing_alg_values_supported"] = ["ES256"]
            if "access_token" in said:
                said["token_type"] = "DPoP"
                for name in ("access_token", "refresh_token"):
                    self.keys[said.get(name)] = scope["thumbprint"]
            body = json.dumps(said).encode()
            kept = [(name, value) for name, value in begun["headers"] if name != b"content-length"]
            nonce = [(name.encode(), value.encode()) for name, value in self.headers().items()]
            await send({**begun, "headers": [*kept, *nonce, (b"content-length", str(len(body)).encode())]})
            await send({**message, "body": body})

        return say


def _digest(text):
    return urlsafe_b64encode(sha256(text.encode()).digest()).rstrip(b"=").decode()
