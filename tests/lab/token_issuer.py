"""An issuer of access tokens: real keys, and a real server on loopback for its metadata and its public keys."""

import base64
import json
import threading
import time
from collections.abc import Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa


class TokenIssuer:
    """Its server runs for as long as its block lasts."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {
            "rsa": rsa.generate_private_key(65537, 2048),
            "ec": ec.generate_private_key(ec.SECP256R1()),
            "ed": ed25519.Ed25519PrivateKey.generate(),
        }
        self.weak = rsa.generate_private_key(65537, 1024)
        self.fetched: list[str] = []
        """Paths that were asked for."""
        self.down = False
        self.body: bytes | None = None
        """What is said in place of the keys."""
        self.metadata: dict[str, Any] = {}
        """What is said of it otherwise."""
        self.statuses: dict[str, int] = {}
        """What paths are answered with, if not 200; one of 3xx leads to /moved."""
        self.rest = ""
        """What it says of the time until it is asked again."""
        self.answers = threading.Event()
        """Until then it hangs."""
        self.answers.set()

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/tenant"
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def asked_for_keys(self) -> int:
        return self.fetched.count("/keys")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetched.append(self.path)
                issuer.answers.wait()
                body = issuer.said(self.path)
                self.send_response(issuer.statuses.get(self.path, 404 if body is None else 200))
                self.send_header("location", "/moved")
                if issuer.rest:
                    self.send_header("retry-after", issuer.rest)
                self.send_header("content-length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def said(self, path: str) -> bytes | None:
        if self.down:
            return None
        if path == "/tenant/.well-known/openid-configuration":
            said = {"issuer": self.url, "jwks_uri": self.url.replace("/tenant", "/keys")}
            return json.dumps(said | self.metadata).encode()
        if path in ("/keys", "/moved"):
            return self.body or json.dumps({"keys": self.public_keys()}).encode()
        return None

    def public_keys(self) -> list[dict[str, Any]]:
        shared = {"kty": "oct", "kid": "shared", "k": base64.urlsafe_b64encode(b"x" * 32).decode(), "alg": "HS256"}
        return [*(public_key(name, key) for name, key in {**self.keys, "weak": self.weak}.items()), shared]

    def token(
        self,
        audience: object,
        *,
        kid: str = "rsa",
        algorithm: str = "RS256",
        key: Any = None,
        headers: dict[str, Any] | None = None,
        without: Collection[str] = (),
        **claims: Any,
    ) -> str:
        said = {"iss": self.url, "sub": "ann", "aud": audience, "exp": time.time() + 300, "scope": "mcp other"} | claims
        said = {name: value for name, value in said.items() if name not in without}
        headers = {"kid": kid, "typ": "at+jwt"} | (headers or {})
        return jwt.encode(said, key or self.keys[kid], algorithm, headers=headers)


def public_key(name: str, key: Any) -> dict[str, Any]:
    kinds = {rsa.RSAPrivateKey: "RSAAlgorithm", ec.EllipticCurvePrivateKey: "ECAlgorithm"}
    kind = next((made for of, made in kinds.items() if isinstance(key, of)), "OKPAlgorithm")
    jwk: dict[str, Any] = getattr(jwt.algorithms, kind).to_jwk(key.public_key(), as_dict=True)
    return jwk | {"kid": name, "use": "sig"}


def pem_of(key: Any) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))


def part(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()
