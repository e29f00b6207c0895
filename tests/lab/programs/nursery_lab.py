"""A stdio MCP server, plain Python and quick to start, that misbehaves as its `key=value` arguments and its tools say.

Arguments:
    journal=FILE    append a line `<what> <monotonic time> <detail>` for every start, signal and side effect
    exit=CODE       note the start and exit
    probe=WAY       what follows on `server/discover`: silent, error, nonsense, exit, exit_late; else method not found
    ignore=LIST     `eof`, `term` or both, with a comma
    greet=CODE      exit once the tools were listed
    mute=yes        never answer anything
    more=NAME       offer another tool, which does nothing
    tells=NAME      say of itself what this variable holds
    port=NUMBER     speak streamable HTTP there, with sessions, instead of standard streams; see `serve`
"""

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time

FLAGS = dict(argument.split("=", 1) for argument in sys.argv[1:])
IGNORED = FLAGS.get("ignore", "").split(",")
RELATIVE = "import os, signal\nos.write(2, b'ready')\nos.close(2)\nwhile True: signal.pause()"

TOOLS = {}
WRITING = threading.Lock()
CANCELLED = []
CANCELS_CHANGED = threading.Condition()
SLEEPERS = {}
TOKENS = {}
ANSWERS = {}
"""Over HTTP: by our own id of a request, where its answer is waited for."""


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def note(what, detail=""):
    if "journal" in FLAGS:
        line = f"{what} {time.monotonic()} {detail}\n"
        fd = os.open(FLAGS["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, line.encode())
        os.close(fd)


def noted(what):
    with open(FLAGS["journal"]) as file:
        return sum(line.startswith(f"{what} ") for line in file)


def send(message):
    if message.get("id") in ANSWERS:
        ANSWERS.pop(message["id"]).put(message)
        return
    data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
    with WRITING:
        write_all(1, data)


def answer(call, text):
    send({"id": call, "result": {"content": [{"type": "text", "text": str(text)}]}})


def refuse(call, code, message):
    send({"id": call, "error": {"code": code, "message": message}})


def for_ever():
    while True:
        signal.pause()


# -- tools: each gets the request's id and its arguments, and returns its answer; None if that comes another way ------


def tool(**hints):
    def register(function):
        TOOLS[function.__name__] = (function, hints)
        return function

    return register


@tool(readOnlyHint=True)
def echo(call, text=""):
    return text


@tool(readOnlyHint=True)
def pid(call):
    return os.getpid()


@tool(readOnlyHint=True)
def environment(call):
    """As the process was given it: Python adds to its own copy."""
    with open("/proc/self/environ", "rb") as file:
        return json.dumps(dict(part.split("=", 1) for part in file.read().decode().split("\0") if part))


@tool()
def sleep(call, seconds, label="", says=""):
    """Answer after some seconds unless it is cancelled; nothing else waits for it. Says a word on stderr first."""
    SLEEPERS[call] = (threading.Event(), label)
    note("sleep", label)

    def wait():
        if not SLEEPERS[call][0].wait(seconds):
            answer(call, label)

    write_all(2, says.encode())
    threading.Thread(target=wait, daemon=True).start()


def report(call, step):
    """A report of progress, for who asked for it."""
    params = {"progressToken": TOKENS[call], "progress": step, "message": f"step {step}"}
    return json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).encode() + b"\n"


@tool(readOnlyHint=True)
def tick(call, steps, every):
    """Report progress so many times, and then answer; nothing else waits for it."""

    def work():
        for step in range(steps):
            time.sleep(every)
            with WRITING:
                write_all(1, report(call, step))
        answer(call, steps)

    threading.Thread(target=work, daemon=True).start()


@tool(readOnlyHint=True)
def burst(call, steps):
    """Write so many reports and the answer at once."""
    result = {"content": [{"type": "text", "text": "done"}]}
    last = json.dumps({"jsonrpc": "2.0", "id": call, "result": result}).encode() + b"\n"
    with WRITING:
        write_all(1, b"".join(report(call, step) for step in range(steps)) + last)


@tool(readOnlyHint=True)
def big(call, size):
    return "x" * size


@tool(readOnlyHint=True)
def sleeping(call, count):
    """Answer at once if so many calls sleep."""
    assert len(SLEEPERS) == count, SLEEPERS
    return count


@tool(readOnlyHint=True)
def cancelled(call, count):
    """Wait until so many calls of `sleep` were cancelled, and answer with their labels."""

    def wait():
        with CANCELS_CHANGED:
            CANCELS_CHANGED.wait_for(lambda: len(CANCELLED) >= count)
        answer(call, " ".join(CANCELLED))

    threading.Thread(target=wait, daemon=True).start()


@tool()
def wake(call):
    """Let all calls of `sleep` be answered now."""
    for sleeper, (stop, label) in SLEEPERS.items():
        if not stop.is_set():
            stop.set()
            answer(sleeper, label)
    return "woken"


@tool()
def spawn(call, place="group"):
    """Start a process that only its group (`group`) or its environment (`session`) tells to be ours.

    One that is to hold (`holder`) has our standard output as well.
    """
    apart = {"start_new_session": True} if place == "session" else {"env": {}}
    stdout = None if place == "holder" else subprocess.DEVNULL
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", RELATIVE],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        **apart,
    )
    assert child.stderr.read() == b"ready"
    return child.pid


@tool()
def crash(call, code=9, says=""):
    write_all(2, says.encode())
    os._exit(code)


@tool()
def complain(call, size, code=None):
    """Flood stderr, and then exit or answer."""
    write_all(2, b"noise\n" * (size // 6) + b"".join(b"last %d\n" % n for n in range(5)))
    if code is not None:
        os._exit(code)
    return size


@tool()
def flood(call):
    """Write for ever, and never a newline."""
    block = b"x" * (1 << 20)
    while True:
        write_all(1, block)


@tool()
def garbage(call, lines):
    with WRITING:
        write_all(1, b"".join(b"INFO line %d that is no JSON\n" % n for n in range(lines)))
    return lines


@tool()
def bad_notification(call):
    """Send a log message with a byte that is not UTF-8 inside a string, and then answer."""
    line = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"caf\xe9"}}\n'
    with WRITING:
        write_all(1, line.encode("latin-1"))
    return "answered"


@tool()
def raw_answer(call, result):
    """Answer with exactly this text as the result, in Latin-1."""
    with WRITING:
        write_all(1, f'{{"jsonrpc":"2.0","id":{json.dumps(call)},"result":{result}}}\n'.encode("latin-1"))


@tool()
def error(call, code, message):
    note("error")
    refuse(call, code, message)


@tool()
def failure(call, text):
    note("failure")
    send({"id": call, "result": {"content": [{"type": "text", "text": text}], "isError": True}})


@tool()
def commit(call, code=None, token="", takes=0):
    """A side effect, and then an answer, so many seconds later, or a death."""
    note("commit", token)
    time.sleep(takes)
    if code is not None:
        os._exit(code)
    return "committed"


@tool(readOnlyHint=True)
def fetch(call, deaths=1):
    """Die the first times ever, answer from then on."""
    note("fetch")
    if noted("fetch") <= deaths:
        os._exit(7)
    return "fetched"


@tool(readOnlyHint=True)
def look(call, token, takes):
    """What may happen twice, and is written down all the same."""
    note("look", token)
    time.sleep(takes)
    return token


@tool()
def grow(call, names):
    """Offer more tools, and say so once for each."""
    for name in names:
        TOOLS[name] = (echo, {})
        send({"method": "notifications/tools/list_changed"})
    return "grown"


@tool()
def deaf(call):
    """Answer, and never read again."""
    answer(call, "deaf")
    for_ever()


# -- the protocol -----------------------------------------------------------------------------------------------------


def probed(call):
    note("discover")
    match FLAGS.get("probe"):
        case "silent":
            return
        case "error":
            refuse(call, -32000, "Received request before initialization was complete")
        case "nonsense":
            send({"id": call, "result": {"hello": "world"}})
        case "exit":
            os._exit(1)
        case "exit_late":
            time.sleep(1.3)
            os._exit(1)
        case _:
            refuse(call, -32601, "Method not found")


def initialize(call, params):
    facts = {"capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "lab", "version": "1"}}
    if "tells" in FLAGS:
        told = os.environ[FLAGS["tells"]]
        facts["serverInfo"] |= {"title": f"lab of {told}", "icons": [{"src": f"https://x/{told}", "sizes": ["any"]}]}
        facts["instructions"] = f"Use {told} for everything."
    send({"id": call, "result": {"protocolVersion": params["protocolVersion"], **facts}})


def list_tools(call, params):
    note("list", params.get("_meta", {}).get("traceparent", ""))
    schema = {"type": "object"}
    tools = [{"name": name, "inputSchema": schema, "annotations": hints} for name, (_, hints) in TOOLS.items()]
    send({"id": call, "result": {"tools": tools}})
    if "greet" in FLAGS:
        os._exit(int(FLAGS["greet"]))


def call_tool(call, params):
    function, _ = TOOLS[params["name"]]
    TOKENS[call] = params.get("_meta", {}).get("progressToken")
    said = function(call, **params.get("arguments", {}))
    if said is not None:
        answer(call, said)


def cancel(params):
    stop, label = SLEEPERS.get(params["requestId"], (threading.Event(), "unknown"))
    stop.set()
    note("cancelled", label)
    with CANCELS_CHANGED:
        CANCELLED.append(label)
        CANCELS_CHANGED.notify_all()


def handle(message):
    call, params = message.get("id"), message.get("params", {})
    match message.get("method"):
        case "server/discover":
            probed(call)
        case "initialize":
            note("initialize")
            initialize(call, params)
        case "tools/list":
            list_tools(call, params)
        case "tools/call":
            call_tool(call, params)
        case "notifications/cancelled":
            cancel(params)
        case "ping":
            send({"id": call, "result": {}})
        case _ if call is not None:
            refuse(call, -32601, "Method not found")


def on_term(*_):
    note("term")
    if "term" not in IGNORED:
        os._exit(143)


NUMBERS = itertools.count(1)
NUMBERED = {}
"""By their id of a request over HTTP, ours."""


def ask(message):
    """The answer to a request that came over HTTP."""
    theirs, ours, waiting = message["id"], next(NUMBERS), queue.SimpleQueue()
    NUMBERED[theirs], ANSWERS[ours] = ours, waiting
    handle({**message, "id": ours})
    return {"jsonrpc": "2.0", **waiting.get(), "id": theirs}


def tell(message):
    """Heed a notification that came over HTTP; of a cancel, only of what we know."""
    request = message.get("params", {}).get("requestId")
    if request in NUMBERED:
        message["params"]["requestId"] = NUMBERED[request]
        handle(message)


def serve(port):
    """Streamable HTTP of the handshake's era. An unknown session is a 404; a GET holds its stream open for ever."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    session = f"{os.getpid()}-{time.monotonic_ns()}"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def reply(self, status, body=b"", kind="application/json"):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Mcp-Session-Id", session)
            if kind == "application/json":
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            opens = message.get("method") in ("server/discover", "initialize")
            if not opens and self.headers["Mcp-Session-Id"] != session:
                self.reply(404)
                return
            if "id" not in message:
                tell(message)
                self.reply(202)
                return
            self.reply(200, json.dumps(ask(message)).encode())

        def do_GET(self):
            self.reply(200, kind="text/event-stream")
            self.wfile.flush()
            for_ever()

        def do_DELETE(self):
            self.reply(200)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_):
            """Whoever has gone away needs no answer."""

    Server(("127.0.0.1", port), Handler).serve_forever()


def main():
    note("start", str(os.getpid()))
    if "more" in FLAGS:
        TOOLS[FLAGS["more"]] = (echo, {})
    if "exit" in FLAGS:
        os._exit(int(FLAGS["exit"]))
    signal.signal(signal.SIGTERM, on_term)
    if "port" in FLAGS:
        serve(int(FLAGS["port"]))
    for line in sys.stdin.buffer:
        if "mute" not in FLAGS:
            handle(json.loads(line))
    note("eof")
    if "eof" in IGNORED:
        for_ever()


if __name__ == "__main__":
    main()
    os._exit(0)  # whatever its threads still sleep for
