"""A server with two skills, line by line on standard input and output, in either era.

    python skill_server.py handshake|modern [changes | refuses | FILE]

With `changes`, what is read of a SKILL.md is not what its entry says. With `refuses`, it lists nothing. With a file,
its text is that of the guide.
"""

import json
import sys
from hashlib import sha256
from pathlib import Path

ERA, CHANGES, REFUSES = sys.argv[1], sys.argv[2:] == ["changes"], sys.argv[2:] == ["refuses"]
FILES = {
    "skill://git-workflow/SKILL.md": "---\nname: git-workflow\ndescription: How this team commits\n---\nRead more.\n",
    "skill://git-workflow/references/GUIDE.md": "Commit often.\n",
    "skill://acme/refunds/SKILL.md": "---\nname: refunds\ndescription: Pay back\nlicense: MIT\n---\nBe kind.\n",
    "skill://acme/refunds/examples/email.md": "Dear customer,\n",
}
if sys.argv[2:] and not (CHANGES or REFUSES):
    FILES["skill://git-workflow/references/GUIDE.md"] = Path(sys.argv[2]).read_text()
TOLD = {
    "skill://git-workflow": {"name": "git-workflow", "description": "How this team commits"},
    "skill://acme/refunds": {"name": "refunds", "description": "Pay back", "license": "MIT"},
}
CAPABILITIES = {"resources": {}, "extensions": {"io.modelcontextprotocol/skills": {"directoryRead": True}}}
INFO = {"name": "skills", "version": "1"}
CACHED = {"ttlMs": 60000, "cacheScope": "public", "resultType": "complete"} if ERA == "modern" else {}


def entry(root):
    files = {uri: text.encode() for uri, text in FILES.items() if uri.startswith(f"{root}/")}
    listed = [
        {"uri": uri, "digest": f"sha256:{sha256(raw).hexdigest()}", "size": len(raw)} for uri, raw in files.items()
    ]
    return {"uri": f"{root}/SKILL.md", "frontmatter": TOLD[root], "resources": listed}


def resource(uri):
    root = uri.removesuffix("/SKILL.md")
    told = {"mimeType": "text/markdown", **TOLD.get(root, {"name": uri.rpartition("/")[2]})}
    return {"uri": uri, **{key: told[key] for key in ("name", "description", "mimeType") if key in told}}


def children(folder):
    names = {uri.removeprefix(f"{folder}/").partition("/") for uri in FILES if uri.startswith(f"{folder}/")}
    if not names:
        raise KeyError(folder)
    inner = {f"{folder}/{name}": bool(rest) for name, _, rest in names}
    return [
        {"uri": uri, "name": uri.rpartition("/")[2], "mimeType": "inode/directory"} if is_folder else resource(uri)
        for uri, is_folder in sorted(inner.items())
    ]


def read(uri):
    text = FILES[uri]
    if CHANGES and uri.endswith("SKILL.md"):
        text = text[:-2] + "!\n"
    return {"contents": [{"uri": uri, "mimeType": "text/markdown", "text": text}], **CACHED}


def initialize(params):
    return {"protocolVersion": params["protocolVersion"], "capabilities": CAPABILITIES, "serverInfo": INFO}


def discover(params):
    meta = {"io.modelcontextprotocol/serverInfo": INFO}
    return {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, "_meta": meta, **CACHED}


def skills(params):
    roots, at = list(TOLD), int(params.get("cursor", 0))
    more = {"nextCursor": str(at + 1)} if at + 1 < len(roots) else {}
    return {"skills": [entry(roots[at])], **more, **CACHED}


ANSWERS = {
    **({"initialize": initialize} if ERA == "handshake" else {"server/discover": discover}),
    "ping": lambda params: {},
    "resources/list": lambda params: {"resources": [resource(uri) for uri in FILES], **CACHED},
    "resources/templates/list": lambda params: {"resourceTemplates": [], **CACHED},
    "resources/read": lambda params: read(params["uri"]),
    "skills/list": skills,
    "skills/get": lambda params: {"skill": entry(params["uri"].removesuffix("/SKILL.md")), **CACHED},
    "resources/directory/read": lambda params: {"resources": children(params["uri"]), **CACHED},
}
if REFUSES:
    del ANSWERS["skills/list"]


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    said = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        if message["method"] in ANSWERS:
            said["result"] = ANSWERS[message["method"]](message.get("params", {}))
        else:
            said["error"] = {"code": -32601, "message": "Method not found"}
    except (KeyError, ValueError):
        said["error"] = {"code": -32602, "message": "there is none of that URI"}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
