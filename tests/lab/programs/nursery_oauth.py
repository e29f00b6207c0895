"""A server of the SDK on loopback that wants OAuth, and who issues its tokens, in one process.

    python nursery_oauth.py port=8123 transport=http journal=/path platform=key [dpop=yes]

The journal gets a line `what time` for each execution of a tool, each request for a token (`token refresh_token`), each
registration, each page that a person was shown, and each request that was refused. `GET /agree` is what its link does.
`POST /control` with a JSON object: `{"down": seconds}`, for which no token is issued; `{"expire": true}` ends all
access tokens; `{"revoke": true}` all others too; `{"slow": seconds}` for each token; `{"garbage": text}` in its place;
`{"quotes": true}` has every refusal quote what it refuses; `{"forget": true}` forgets all clients; `{"page": status}`
is that of the page for a client that is not known. The key signs assertions for workloads (HS256). `GET /said` lists
all codes, tokens and assertions. With `dpop` all tokens are bound to keys, and `{"nonces": …}` says which nonces proofs
have to have: see proofs.py.
"""

import base64
import secrets
import sys
import time
from urllib.parse import parse_qs

import anyio
import jwt
import uvicorn
from asgi_body import read
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import JWT_BEARER_GRANT_TYPE, OAuthToken
from mcp_types import ToolAnnotations
from proofs import Proofs
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

FLAGS = dict(argument.split("=", 1) for argument in sys.argv[1:])
ORIGIN = f"http://127.0.0.1:{FLAGS['port']}"
PATH = "/sse" if FLAGS.get("transport") == "sse" else "/mcp"
ISSUERS = ("/token", "/.well-known/oauth-authorization-server")
MACHINE = ("machine", "machines-secret")
"""A client that authorises itself."""


def note(what):
    with open(FLAGS["journal"], "a") as journal:
        journal.write(f"{what.replace(' ', '_')} {time.monotonic()}\n")


class Issuer:
    """Issues tokens to whoever has agreed; a refresh token is good for one use."""

    def __init__(self):
        self.clients = {}
        self.codes = {}
        self.access = {}
        self.refresh = {}
        self.asked = {}
        self.until = 0.0
        self.slow = 0.0
        self.garbage = None
        self.quotes = False
        self.page = 400
        self.assertions = set()
        self.said = []
        """All that nobody else may know."""

    async def get_client(self, client_id):
        return self.clients.get(client_id)

    async def register_client(self, client_info):
        note("registration")
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client, params: AuthorizationParams):
        ticket = secrets.token_urlsafe(8)
        self.asked[ticket] = (client, params)
        return f"{ORIGIN}/consent?ticket={ticket}"

    def agree(self, ticket):
        client, params = self.asked.pop(ticket)
        code = f"code-{secrets.token_urlsafe(24)}"
        self.said.append(code)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or ["read"],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client, authorization_code):
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client, authorization_code):
        del self.codes[authorization_code.code]
        return self.issue(client.client_id, authorization_code.scopes)

    async def load_refresh_token(self, client, refresh_token):
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(self, client, refresh_token, scopes):
        if self.refresh.pop(refresh_token.token, None) is None:
            raise TokenError("invalid_grant", "it was used")
        return self.issue(client.client_id, scopes or refresh_token.scopes)

    async def load_access_token(self, token):
        return self.access.get(token)

    async def revoke_token(self, token):
        raise NotImplementedError

    def issue(self, client_id, scopes, *, renewable=True):
        token = OAuthToken(
            access_token=f"access-{secrets.token_urlsafe(24)}",
            refresh_token=f"refresh-{secrets.token_urlsafe(24)}" if renewable else None,
            expires_in=3600,
            scope=" ".join(scopes),
        )
        self.said += [each for each in (token.access_token, token.refresh_token) if each]
        self.access[token.access_token] = AccessToken(token=token.access_token, client_id=client_id, scopes=scopes)
        if renewable:
            self.refresh[token.refresh_token] = RefreshToken(
                token=token.refresh_token, client_id=client_id, scopes=scopes
            )
        return token


issuer = Issuer()
proofs = Proofs(ORIGIN) if FLAGS.get("dpop") else None
settings = AuthSettings(
    issuer_url=ORIGIN,
    resource_server_url=f"{ORIGIN}{PATH}",
    required_scopes=["read"],
    validate_token_resource=False,
    client_registration_options=ClientRegistrationOptions(
        enabled=True, valid_scopes=["read", "admin"], default_scopes=["read"]
    ),
)
server = MCPServer("far", version="1", auth_server_provider=issuer, auth=settings)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look() -> str:
    """Have no effect."""
    note("look")
    return "seen"


@server.tool()
def commit() -> str:
    """Have one."""
    note("commit")
    return "committed"


@server.tool()
async def hang() -> str:
    """Answer never."""
    note("hang")
    await anyio.sleep_forever()
    return ""


@server.tool()
def admin() -> str:
    """For who has the scope."""
    note("admin")
    return "done"


@server.custom_route("/consent", ["GET"])
async def consent(request):
    note("consent")
    ticket = request.query_params["ticket"]
    return HTMLResponse(f'<h1>Agree?</h1><a id="agree" href="/agree?ticket={ticket}">Agree</a>')


@server.custom_route("/agree", ["GET"])
async def agree(request):
    return RedirectResponse(issuer.agree(request.query_params["ticket"]), status_code=302)


@server.custom_route("/control", ["POST"])
async def control(request):
    wanted = await request.json()
    issuer.until = time.monotonic() + wanted.get("down", 0)
    issuer.slow = wanted.get("slow", 0)
    issuer.garbage = wanted.get("garbage")
    issuer.quotes = wanted.get("quotes", False)
    issuer.page = wanted.get("page", 400)
    if "nonces" in wanted:
        proofs.rotate(wanted["nonces"])
    if wanted.get("forget"):
        issuer.clients.clear()
    if wanted.get("expire") or wanted.get("revoke"):
        issuer.access.clear()
    if wanted.get("revoke"):
        issuer.refresh.clear()
    return Response(status_code=204)


@server.custom_route("/said", ["GET"])
async def said(request):
    return JSONResponse(issuer.said)


class Gate:
    """Stands before the app: what the SDK's issuer does not know, and faults."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body, receive = await read(receive)
        send = watched(send, scope)
        found = self.prove(scope, body) if proofs is not None else None
        if found is not None:
            note("unproved")
        if proofs is not None and scope["path"] in ISSUERS:
            send = proofs.issuing(send, scope)
        found = found or await self.answer(scope, body)
        await (found or self.app)(scope, receive, send)

    def prove(self, scope, body):
        """What is answered without a proof that is right."""
        if scope["path"] == "/token":
            return proofs.check_token_request(scope, parse_qs(body.decode()))
        return proofs.check_request(scope) if scope["path"] in (PATH, "/messages/") else None

    async def answer(self, scope, body):
        if scope["path"] == "/authorize":
            (client,) = parse_qs(scope["query_string"].decode())["client_id"]
            if client not in issuer.clients:
                note("unknown client")
                return HTMLResponse("<h1>Who is that?</h1>", status_code=issuer.page)
        if scope["path"] == "/token":
            return await token(scope, parse_qs(body.decode()))
        if scope["path"] == PATH and b'"admin"' in body and b"tools/call" in body:
            bearer = header(scope, b"authorization").removeprefix("Bearer ")
            granted = issuer.access.get(bearer)
            if granted is not None and "admin" not in granted.scopes:
                said = f'Bearer error="insufficient_scope", scope="admin", resource_metadata="{ORIGIN}/none"'
                return Response(status_code=403, headers={"www-authenticate": said})
        return None


async def token(scope, form):
    grant = form.get("grant_type", [""])[0]
    note(f"token {grant}")
    if time.monotonic() < issuer.until:
        return JSONResponse({"error": "temporarily_unavailable"}, status_code=503)
    await anyio.sleep(issuer.slow)
    if issuer.quotes:
        secret = form.get("refresh_token", form.get("code", [""]))[0]
        return JSONResponse({"error": secret, "error_description": f"not {secret}"}, status_code=400)
    if issuer.garbage is not None:
        return Response(issuer.garbage, media_type="application/json")
    if grant == JWT_BEARER_GRANT_TYPE:
        return workload(form)
    return machine(scope, form) if grant == "client_credentials" else None


def machine(scope, form):
    if header(scope, b"authorization") != "Basic " + base64.b64encode(":".join(MACHINE).encode()).decode():
        return JSONResponse({"error": "invalid_client"}, status_code=401)
    scopes = form.get("scope", ["read"])[0].split()
    return JSONResponse(issuer.issue(MACHINE[0], scopes, renewable=False).model_dump(exclude_none=True))


def workload(form):
    """A token for an assertion that its platform has signed for this issuer, and that was not used before."""
    try:
        claims = jwt.decode(form["assertion"][0], FLAGS["platform"], algorithms=["HS256"], audience=ORIGIN)
        fresh = claims["jti"] not in issuer.assertions and form["resource"] == [f"{ORIGIN}{PATH}"]
    except jwt.InvalidTokenError:
        fresh = False
    issuer.said.append(form["assertion"][0])
    if not fresh:
        return JSONResponse({"error": "invalid_grant"}, status_code=400)
    issuer.assertions.add(claims["jti"])
    return JSONResponse(issuer.issue(claims["sub"], ["read"]).model_dump(exclude_none=True))


def header(scope, name):
    return dict(scope["headers"]).get(name, b"").decode()


def watched(send, scope):
    async def say(message):
        if message.get("status") == 401:
            note("refused")
            if issuer.quotes:
                bearer = header(scope, b"authorization").encode()
                quoting = b'Bearer error="no %s", scope="%s"' % (bearer, bearer)
                message = {**message, "headers": [(b"www-authenticate", quoting)]}
        await send(message)

    return say


app = server.sse_app() if PATH == "/sse" else server.streamable_http_app()
uvicorn.run(Gate(app), host="127.0.0.1", port=int(FLAGS["port"]), log_level="warning")
