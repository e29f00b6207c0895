"""A stdio MCP server that says what its script says, word for word, and writes down every line it reads.

Usage: stdio_scripted.py VERSION SCRIPT LOG

SCRIPT is a JSON file: `{"pages": [tools, ...], "calls": {tool: [step, ...]}}`. A page is one answer to `tools/list`;
each but the first is asked for with the cursor of its place in CURSORS. A step is a line to write, in which `$ID` and
`$TOKEN` stand for the call's id and progress token; or `{"await": METHOD}`, which holds the rest back until such a
notification was read, or with METHOD null until an answer of the client's was. A script may also have `"answers":
{method: [step, ...]}`, for requests and notifications of that method, in place of what is answered otherwise.

The tool `mark` is answered once all steps are done, and is written down as `null` when it is: what stands between two
of them in LOG is what the client sent for what was asked in between.
"""

import json
import sys

VERSION, SCRIPT, LOG = sys.argv[1:]
MODERN = VERSION >= "2026"
CURSORS = [None, "", "2", "3"]

FACTS = {"capabilities": {"tools": {"listChanged": True}, "logging": {}}, "instructions": "be kind"}
INFO = {"name": "scripted", "version": "1"}
CACHING = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if MODERN else {}


class Server:
    def __init__(self, script, log):
        self.script, self.log = script, log
        self.held = []
        """The steps not done yet, each with its call."""
        self.marks = []

    def read(self, line):
        message = json.loads(line)
        method, call, params = message.get("method"), message.get("id"), message.get("params", {})
        if params.get("name") == "mark":
            self.marks.append(call)
        else:
            self.note(line)
        if method is None or call is None:
            self.heard(method)
        if method in self.script.get("answers", {}):
            self.held += [(step, message) for step in self.script["answers"][method]]
        elif method is None or call is None:
            pass
        elif method == "tools/call":
            self.held += [(step, message) for step in self.script["calls"].get(params["name"], [])]
        else:
            self.answer(call, method, params)
        self.go_on()

    def heard(self, method):
        if self.held and self.held[0][0] == {"await": method}:
            del self.held[0]

    def go_on(self):
        while self.held and isinstance(self.held[0][0], str):
            step, call = self.held.pop(0)
            token = call.get("params", {}).get("_meta", {}).get("progressToken")
            say(step.replace("$ID", json.dumps(call.get("id"))).replace("$TOKEN", json.dumps(token)))
        while self.marks and not self.held:
            self.note("null\n")
            result = {"content": [], **({"resultType": "complete"} if MODERN else {})}
            say(json.dumps({"jsonrpc": "2.0", "id": self.marks.pop(0), "result": result}))

    def answer(self, call, method, params):
        reply = self.reply(method, params)
        say(json.dumps({"jsonrpc": "2.0", "id": call, **reply}))

    def reply(self, method, params):
        match method:
            case "server/discover" if MODERN:
                meta = {"io.modelcontextprotocol/serverInfo": INFO}
                return {"result": {"supportedVersions": [VERSION], "_meta": meta, **FACTS, **CACHING}}
            case "initialize" if not MODERN:
                return {"result": {"protocolVersion": VERSION, "serverInfo": INFO, **FACTS}}
            case "tools/list":
                pages = self.script["pages"]
                place = CURSORS.index(params.get("cursor"))
                more = {"nextCursor": CURSORS[place + 1]} if place + 1 < len(pages) else {}
                return {"result": {"tools": pages[place], **more, **CACHING}}
            case _:
                return {"error": {"code": -32601, "message": "Method not found"}}

    def note(self, line):
        self.log.write(line)
        self.log.flush()


def say(line):
    sys.stdout.buffer.write(line.encode("utf-8", "surrogateescape") + b"\n")
    sys.stdout.buffer.flush()


def main():
    with open(SCRIPT) as script, open(LOG, "w", encoding="utf-8") as log:
        server = Server(json.load(script), log)
        for line in sys.stdin.buffer:
            server.read(line.decode())


if __name__ == "__main__":
    main()
