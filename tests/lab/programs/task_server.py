"""A server that answers calls of its tool with tasks, and keeps them in a file: they outlast it.

Usage: task_server.py FOLDER [silent]

The file `tasks` of the folder has each task: what it has shown, and the answers to its questions. The file `ledger` has
a line for each thing that was done to it: `run`, `answer KEY`, `cancel`. A task shows a next step at each look:
`working`, then the question `a`, then the question `b`, each until it is answered, then its result. A silent server
asks nothing, and works until the file `end` is there.
"""

import json
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])
SILENT = "silent" in sys.argv
TASKS = "io.modelcontextprotocol/tasks"
INVALID_PARAMS, METHOD_NOT_FOUND = -32602, -32601
DISCOVERED = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}, "extensions": {TASKS: {}}},
    "ttlMs": 0,
    "cacheScope": "private",
}
LISTED = {
    "tools": [{"name": "work", "inputSchema": {"type": "object"}}],
    "ttlMs": 0,
    "cacheScope": "private",
}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def read() -> dict:
    try:
        return json.loads((FOLDER / "tasks").read_text())
    except FileNotFoundError:
        return {}


def write(tasks: dict) -> None:
    (FOLDER / "new").write_text(json.dumps(tasks))
    (FOLDER / "new").replace(FOLDER / "tasks")


def note(what: str) -> None:
    with (FOLDER / "ledger").open("a") as ledger:
        ledger.write(what + "\n")


def shown(task: dict) -> dict:
    answers = task["answers"]
    if task["looks"] < 2 or (SILENT and not (FOLDER / "end").exists()):
        return {"status": "working", "statusMessage": "begun"}
    if SILENT:
        return {"status": "completed", "result": {"content": [{"type": "text", "text": "done"}]}}
    for key in ("a", "b"):
        if key not in answers:
            question = {"message": f"{key}?", "requestedSchema": FORM}
            return {
                "status": "input_required",
                "inputRequests": {key: {"method": "elicitation/create", "params": question}},
            }
    text = "".join(answers[key]["content"]["name"] for key in ("a", "b"))
    return {"status": "completed", "result": {"content": [{"type": "text", "text": text}]}}


def of(name: str) -> dict:
    common = {"taskId": name, "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
    return {**common, "ttlMs": None, "pollIntervalMs": 100}


def result(method: str, params: dict) -> dict | None:
    tasks = read()
    if method == "tools/call":
        name = f"task-{len(tasks)}"
        write({**tasks, name: {"looks": 0, "answers": {}}})
        note("run")
        return {**of(name), "resultType": "task", "status": "working"}
    task = tasks.get(params["taskId"])
    if task is None:
        return None
    if method == "tasks/get":
        task["looks"] += 1
        write(tasks)
        return {**of(params["taskId"]), **shown(task)}
    if method == "tasks/update":
        for key, answer in params["inputResponses"].items():
            note(f"answer {key}")
            task["answers"].setdefault(key, answer)
        write(tasks)
    else:
        note("cancel")
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method = message["method"]
    found = {"server/discover": DISCOVERED, "tools/list": LISTED}.get(method)
    error = (METHOD_NOT_FOUND, "no such method")
    if method in ("tools/call", "tasks/get", "tasks/update", "tasks/cancel"):
        found, error = result(method, message["params"]), (INVALID_PARAMS, "no such task")
    answer = {"error": dict(zip(("code", "message"), error, strict=True))}
    if found is not None:
        answer = {"result": {"resultType": "complete", **found}}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
    sys.stdout.flush()
