"""What the official conformance suite wants of a server, over stdio or HTTP and without the MCP SDK.

    python conformance_server.py handshake|modern [http]

Honest about its era: before 2026-07-28 it asks by requests, and since then by `input_required`. Over HTTP it writes its
port to standard output.
"""

import hashlib
import hmac
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ERA = sys.argv[1] if sys.argv[1:] else "modern"
KEY = b"conformance"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
VERSION = "2025-11-25"
INFO = {"name": "conformance", "version": "1"}
NS = "io.modelcontextprotocol/"
WRITING = threading.Lock()
OUT = threading.local()
STREAMS = []
"""Writes to those who listen, before 2026-07-28 and over HTTP."""
ANSWERS = {}
CAPABILITIES = {}


class Refused(Exception):
    def __init__(self, code, message, data=None):
        self.error = {"code": code, "message": message} | ({} if data is None else {"data": data})
        super().__init__(message)


class Asked(Exception):
    """The answer is a question."""

    def __init__(self, questions, state=None):
        self.result = {"resultType": "input_required", "inputRequests": questions}
        if state is not None:
            self.result["requestState"] = state
        super().__init__()


def write(message):
    getattr(OUT, "write", write_line)({"jsonrpc": "2.0"} | message)


def write_line(message):
    with WRITING:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


class Call:
    """One request under way."""

    def __init__(self, params):
        self.params = params
        self.meta = params.get("_meta") or {}
        self.answers = params.get("inputResponses") or {}
        self.capabilities = (
            CAPABILITIES.get("of", {}) if ERA == "handshake" else self.meta.get(NS + "clientCapabilities")
        )

    def log(self, text):
        if ERA == "handshake" or self.meta.get(NS + "logLevel"):
            write({"method": "notifications/message", "params": {"level": "info", "data": text}})

    def progress(self, done):
        token = self.meta.get("progressToken")
        if token is not None:
            params = {"progressToken": token, "progress": done, "total": 100}
            write({"method": "notifications/progress", "params": params})

    def ask(self, state=None, **questions):
        """Each answer by its key, or an end of this call that asks."""
        for question in questions.values():
            need = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
            if need[question["method"]] not in (self.capabilities or {}):
                wanted = {"requiredCapabilities": {need[question["method"]]: {}}}
                raise Refused(-32021, f"the client has no {need[question['method']]}", wanted)
        if ERA == "handshake":
            waiting = {key: threading.Event() for key in questions}
            for key, question in questions.items():
                ANSWERS[key] = (waiting[key], [])
                write({"id": key} | question)
            said = {}
            for key, event in waiting.items():
                event.wait(60)
                answered = next(iter(ANSWERS.pop(key, (event, []))[1]), {"error": {"code": -32603, "message": "late"}})
                if "error" in answered:
                    raise Refused(**answered["error"])
                said[key] = answered["result"]
            return said
        given = {key: self.answers[key] for key, question in questions.items() if fits(question, self.answers.get(key))}
        if len(given) < len(questions):
            raise Asked(questions, state)
        return given


def fits(question, answer):
    wanted = {"elicitation/create": "action", "sampling/createMessage": "content", "roots/list": "roots"}
    return isinstance(answer, dict) and wanted[question["method"]] in answer


def form(message, required=None, **properties):
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
    }
    params = {"message": message, "requestedSchema": schema} | ({"mode": "form"} if ERA == "handshake" else {})
    return {"method": "elicitation/create", "params": params}


def thought(text, tokens=100):
    message = {"role": "user", "content": {"type": "text", "text": text}}
    return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": tokens}}


ROOTS = {"method": "roots/list", "params": {}}
STRING = {"type": "string"}


def text(said):
    return {"content": [{"type": "text", "text": said}]}


def told(action):
    return f"action={action['action']}, content={json.dumps(action.get('content'))}"


def signed(state):
    return state + "." + hmac.new(KEY, state.encode(), hashlib.sha256).hexdigest()


def check_state(call):
    state = call.params.get("requestState")
    if state is not None and signed(state.rpartition(".")[0]) != state:
        raise Refused(-32602, "the requestState is none of ours")
    return state


def simple(call):
    return text("This is a simple text response for testing.")


def image(call):
    return {"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}]}


def audio(call):
    return {"content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]}


def embedded(call):
    resource = {"uri": "test://embedded-resource", "mimeType": "text/plain"}
    resource["text"] = "This is an embedded resource content."
    return {"content": [{"type": "resource", "resource": resource}]}


def mixed(call):
    resource = {"uri": "test://mixed-content-resource", "mimeType": "application/json"}
    resource["text"] = '{"test":"data","value":123}'
    parts = text("Multiple content types test:")["content"] + image(call)["content"]
    return {"content": [*parts, {"type": "resource", "resource": resource}]}


def logging(call):
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        call.log(line)
        time.sleep(0.05)
    return text("logged")


def failing(call):
    return text("This tool intentionally returns an error for testing") | {"isError": True}


def progress(call):
    for done in (0, 50, 100):
        call.progress(done)
        time.sleep(0.05)
    return text("done")


def sampling(call):
    said = call.ask(sample=thought(call.params["arguments"]["prompt"]))["sample"]
    return text(f"LLM response: {said['content']['text']}")


def elicitation(call):
    user = {"type": "string", "description": "User's response"}
    mail = {"type": "string", "description": "User's email address"}
    said = call.ask(form=form(call.params["arguments"]["message"], username=user, email=mail))["form"]
    return text(f"User response: {told(said)}")


def defaults(call):
    fields = {
        "name": STRING | {"default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": STRING | {"enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return text(f"Elicitation completed: {told(call.ask(form=form('Defaults', [], **fields))['form'])}")


def enums(call):
    words = list(enumerate(("First", "Second", "Third"), 1))
    titled = [{"const": f"value{n}", "title": f"{word} Option"} for n, word in words]
    choices = [{"const": f"value{n}", "title": f"{word} Choice"} for n, word in words]
    plain, names = ["option1", "option2", "option3"], ["Option One", "Option Two", "Option Three"]
    fields = {
        "untitledSingle": STRING | {"enum": plain},
        "titledSingle": STRING | {"oneOf": titled},
        "legacyEnum": STRING | {"enum": ["opt1", "opt2", "opt3"], "enumNames": names},
        "untitledMulti": {"type": "array", "items": STRING | {"enum": plain}},
        "titledMulti": {"type": "array", "items": {"anyOf": choices}},
    }
    return text(f"Elicitation completed: {told(call.ask(form=form('Enums', [], **fields))['form'])}")


def greet(call):
    said = call.ask(user_name=form("What is your name?", name=STRING))["user_name"]
    return text(f"Hello, {(said.get('content') or {}).get('name')}!")


def capital(call):
    said = call.ask(capital_question=thought("What is the capital of France?"))["capital_question"]
    return text(said["content"]["text"])


def roots(call):
    return text(", ".join(root["uri"] for root in call.ask(client_roots=ROOTS)["client_roots"]["roots"]))


def state(call):
    check_state(call)
    call.ask(signed("round-1"), confirm=form("Please confirm", ok={"type": "boolean"}))
    return text("state-ok")


def several(call):
    check_state(call)
    questions = {
        "user_name": form("What is your name?", name=STRING),
        "greeting": thought("Generate a greeting", 50),
        "client_roots": ROOTS,
    }
    call.ask(signed("several"), **questions)
    return text("all of it")


def rounds(call):
    first = form("Step 1: What is your name?", name=STRING)
    second = form("Step 2: What is your favorite color?", color=STRING)
    if ERA == "handshake":
        call.ask(step1=first)
    elif check_state(call) is None or not (call.params["requestState"].startswith("two") or "step1" in call.answers):
        raise Asked({"step1": first}, signed("one"))
    call.ask(signed("two"), step2=second)
    return text("three rounds")


def tampered(call):
    if check_state(call) is None:
        raise Asked({"confirm": form("Please confirm", ok={"type": "boolean"})}, signed("untouched"))
    return text("fine")


def more(kind, listed, made):
    def change(call):
        listed[f"test_more_{len(listed)}"] = made
        changed = {"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed"}
        if ERA == "handshake":
            for tell in STREAMS or [write]:
                tell(changed)
        for request_id, (wanted, tell) in list(LISTENING.items()):
            if wanted.get(f"{kind}ListChanged"):
                tell(changed | {"params": {"_meta": {NS + "subscriptionId": request_id}}})
        return text("changed")

    return change


TOOLS = {
    "test_simple_text": simple,
    "test_image_content": image,
    "test_audio_content": audio,
    "test_embedded_resource": embedded,
    "test_multiple_content_types": mixed,
    "test_tool_with_logging": logging,
    "test_error_handling": failing,
    "test_tool_with_progress": progress,
    "test_sampling": sampling,
    "test_elicitation": elicitation,
    "test_elicitation_sep1034_defaults": defaults,
    "test_elicitation_sep1330_enums": enums,
    "test_input_required_result_elicitation": greet,
    "test_input_required_result_sampling": capital,
    "test_input_required_result_list_roots": roots,
    "test_input_required_result_request_state": state,
    "test_input_required_result_multiple_inputs": several,
    "test_input_required_result_multi_round": rounds,
    "test_input_required_result_tampered_state": tampered,
    "test_input_required_result_capabilities": capital,
    "test_missing_capability": capital,
    "test_logging_tool": logging,
    "test_streaming_elicitation": greet,
}
LISTENING = {}
ARGUMENTS = {"test_sampling": ["prompt"], "test_elicitation": ["message"]}


def tool(name):
    wanted = ARGUMENTS.get(name, [])
    schema = {"type": "object", "properties": dict.fromkeys(wanted, STRING), "required": wanted}
    return {"name": name, "description": f"Tool {name}.", "inputSchema": schema}


def call_tool(call):
    if call.params["name"] not in TOOLS:
        raise Refused(-32602, f"Unknown tool: {call.params['name']}")
    return TOOLS[call.params["name"]](call)


# -- tasks, since 2026-07-28 ------------------------------------------------------------------------------------------

TASKS = NS + "tasks"
RUNNING = {}


class Task:
    """A call that goes on after its answer: for some seconds once all its questions are answered."""

    def __init__(self, seconds, end, **questions):
        self.name, self.seconds, self.end, self.questions = os.urandom(16).hex(), seconds, end, questions
        self.answers, self.cancelled, self.answered_at = {}, False, time.time()
        RUNNING[self.name] = self

    def status(self):
        open_questions = {key: one for key, one in self.questions.items() if key not in self.answers}
        if self.cancelled:
            return {"status": "cancelled"}
        if open_questions:
            return {"status": "input_required", "inputRequests": open_questions}
        return self.end if time.time() >= self.answered_at + self.seconds else {"status": "working"}

    def facts(self):
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return {"taskId": self.name, "createdAt": now, "lastUpdatedAt": now, "ttlMs": 600_000, "pollIntervalMs": 100}

    def made(self):
        return {"resultType": "task", "status": "working"} | self.facts()

    def update(self, answers):
        self.answers |= {key: answer for key, answer in answers.items() if key in self.questions}
        self.answered_at = time.time()

    def cancel(self):
        self.cancelled = self.status()["status"] in ("working", "input_required")


def follows(call):
    return TASKS in ((call.capabilities or {}).get("extensions") or {})


def need_tasks(call):
    if not follows(call):
        data = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise Refused(-32021, "Missing required client capability", data)


def completed(said, **more):
    return {"status": "completed", "result": text(said) | more}


def about_task(do):
    def method(call):
        need_tasks(call)
        if call.params["taskId"] not in RUNNING:
            raise Refused(-32602, "Failed to retrieve task: Task not found")
        return do(RUNNING[call.params["taskId"]], call) or {}

    return method


def slow_compute(call):
    seconds = call.params["arguments"]["seconds"]
    if follows(call):
        return Task(seconds, completed("computed")).made()
    time.sleep(seconds)
    return text("computed")


def failing_job(call):
    need_tasks(call)
    return Task(1, completed("failed", isError=True)).made()


def protocol_error_job(call):
    need_tasks(call)
    return Task(0, {"status": "failed", "error": {"code": -32603, "message": "crashed"}}).made()


def confirm_delete(call):
    need_tasks(call)
    return Task(0, completed("deleted"), confirm=form("Delete?", confirm={"type": "boolean"})).made()


def multi_input(call):
    need_tasks(call)
    return Task(0, completed("both"), first=form("First?", name=STRING), second=form("Second?", name=STRING)).made()


def with_task(call):
    need_tasks(call)
    said = call.ask(user_name=form("What is your name?", name=STRING))["user_name"]
    return Task(0, completed(f"Hello, {said['content']['name']}!")).made()


if ERA == "modern":
    TOOLS |= {
        "greet": lambda call: text(f"Hello, {call.params['arguments']['name']}!"),
        "slow_compute": slow_compute,
        "failing_job": failing_job,
        "protocol_error_job": protocol_error_job,
        "confirm_delete": confirm_delete,
        "multi_input": multi_input,
        "test_tool_with_task": with_task,
    }

RESOURCES = {
    "test://static-text": {"mimeType": "text/plain", "text": "This is the content of the static text resource."},
    "test://static-binary": {"mimeType": "image/png", "blob": PNG},
    "test://watched-resource": {"mimeType": "text/plain", "text": "watched"},
}
PROMPTS = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
    "test_input_required_result_prompt": [],
}


TOOLS["test_trigger_tool_change"] = more("tools", TOOLS, simple)
TOOLS["test_trigger_prompt_change"] = more("prompts", PROMPTS, [])


def read(call):
    uri = call.params["uri"]
    if uri in RESOURCES:
        return {"contents": [{"uri": uri} | RESOURCES[uri]]}
    head, _, rest = uri.partition("test://template/")
    if not head and rest.endswith("/data"):
        name = rest.removesuffix("/data")
        body = json.dumps({"id": name, "templateTest": True, "data": f"Data for ID: {name}"})
        return {"contents": [{"uri": uri, "mimeType": "application/json", "text": body}]}
    raise Refused(-32602, "Resource not found", {"uri": uri})


def prompt(call):
    name, given = call.params["name"], call.params.get("arguments") or {}
    said = []
    if name == "test_simple_prompt":
        said = [{"type": "text", "text": "This is a simple prompt for testing."}]
    elif name == "test_prompt_with_arguments":
        words = f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'"
        said = [{"type": "text", "text": words}]
    elif name == "test_prompt_with_embedded_resource":
        resource = {"uri": given.get("resourceUri"), "mimeType": "text/plain"}
        resource["text"] = "Embedded resource content for testing."
        said = [{"type": "resource", "resource": resource}]
        said.append({"type": "text", "text": "Please process the embedded resource above."})
    elif name == "test_prompt_with_image":
        said = [{"type": "image", "data": PNG, "mimeType": "image/png"}]
        said.append({"type": "text", "text": "Please analyze the image above."})
    elif name == "test_input_required_result_prompt":
        context = call.ask(user_context=form("What context should the prompt use?", context=STRING))["user_context"]
        said = [{"type": "text", "text": json.dumps(context.get("content"))}]
    else:
        raise Refused(-32602, f"Unknown prompt: {name}")
    return {"messages": [{"role": "user", "content": content} for content in said]}


def resources():
    return [
        {"uri": uri, "name": uri, "description": uri, "mimeType": each["mimeType"]} for uri, each in RESOURCES.items()
    ]


CAPABLE = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
}
TEMPLATE = {"uriTemplate": "test://template/{id}/data", "name": "template", "mimeType": "application/json"}
METHODS = {
    "ping": lambda call: {},
    "tools/list": lambda call: {"tools": [tool(name) for name in sorted(TOOLS)]},
    "tools/call": call_tool,
    "resources/list": lambda call: {"resources": resources()},
    "resources/templates/list": lambda call: {"resourceTemplates": [TEMPLATE]},
    "resources/read": read,
    "prompts/list": lambda call: {
        "prompts": [
            {"name": name, "description": name, "arguments": [{"name": each, "required": True} for each in arguments]}
            for name, arguments in PROMPTS.items()
        ]
    },
    "prompts/get": prompt,
    "completion/complete": lambda call: {"completion": {"values": ["paris", "park"], "total": 2, "hasMore": False}},
}
OLD = {
    "initialize": lambda call: {"protocolVersion": VERSION, "capabilities": CAPABLE, "serverInfo": INFO},
    "logging/setLevel": lambda call: {},
    "resources/subscribe": lambda call: {},
    "resources/unsubscribe": lambda call: {},
}
EXTENDED = {"capabilities": CAPABLE | {"extensions": {TASKS: {}}}}
NEW = {
    "server/discover": lambda call: {"supportedVersions": ["2026-07-28"]} | EXTENDED,
    "tasks/get": about_task(lambda task, call: task.facts() | task.status()),
    "tasks/update": about_task(lambda task, call: task.update(call.params["inputResponses"])),
    "tasks/cancel": about_task(lambda task, call: task.cancel()),
}
CACHEABLE = {
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "prompts/list",
    "resources/read",
    "server/discover",
}


def answer(message):
    method, params = message["method"], message.get("params") or {}
    known = METHODS | (OLD if ERA == "handshake" else NEW)
    try:
        if method not in known:
            raise Refused(-32601, "Method not found", method)
        if method == "initialize":
            CAPABILITIES["of"] = params.get("capabilities") or {}
        result = known[method](Call(params))
        if ERA == "modern":
            hints = {"ttlMs": 60_000, "cacheScope": "private"} if method in CACHEABLE else {}
            result = {"resultType": "complete"} | hints | result
    except Asked as asked:
        result = asked.result
    except Refused as refusal:
        write({"id": message["id"], "error": refusal.error})
        return
    if ERA == "modern":
        result = result | {"_meta": {NS + "serverInfo": INFO}}
    write({"id": message["id"], "result": result})


def listen(message):
    wanted = {key: value for key, value in message["params"]["notifications"].items() if value}
    tagged = {"_meta": {NS + "subscriptionId": message["id"]}, "notifications": wanted}
    LISTENING[message["id"]] = wanted, getattr(OUT, "write", write_line)
    write({"method": "notifications/subscriptions/acknowledged", "params": tagged})


def take(message):
    """An answer, perhaps."""
    if "method" not in message and message["id"] in ANSWERS:
        event, said = ANSWERS[message["id"]]
        said.append(message)
        event.set()


def serve(message):
    (listen if message["method"] == "subscriptions/listen" and ERA == "modern" else answer)(message)


class Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def event(self, message):
        try:
            self.wfile.write(b"event: message\r\ndata: " + json.dumps(message).encode() + b"\r\n\r\n")
            self.wfile.flush()
        except OSError:
            pass  # it has gone

    def begin(self, status, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def stream(self, **headers):
        self.close_connection = True
        self.begin(200, content_type="text/event-stream", connection="close", **headers)

    def until_gone(self):
        self.connection.recv(1)

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in message or "method" not in message:
            take(message)
            self.begin(202, content_length="0")
            return
        self.stream(**({"mcp_session_id": "one"} if message["method"] == "initialize" else {}))
        OUT.write = self.event
        serve(message)
        if LISTENING.get(message["id"], (None, None))[1] == self.event:
            self.until_gone()
            del LISTENING[message["id"]]

    def do_GET(self):
        if ERA == "modern":
            self.begin(405, content_length="0")
            return
        self.stream()
        STREAMS.append(self.event)
        self.until_gone()
        STREAMS.remove(self.event)

    def do_DELETE(self):
        self.begin(200, content_length="0")


if "http" in sys.argv[2:]:
    front = ThreadingHTTPServer(("127.0.0.1", 0), Front)
    front.daemon_threads = True
    write_line(front.server_address[1])
    front.serve_forever()
for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message:
        take(message)
    elif message["method"] == "subscriptions/listen" and ERA == "modern":
        listen(message)
    elif "id" in message:
        threading.Thread(target=answer, args=(message,), daemon=True).start()
