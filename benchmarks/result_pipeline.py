"""(i) What becomes of a result of 1 MB for a model - rendering, scanning, cutting, marking - against parsing it."""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
from harness import Samples, Table, command, ratio_table, verdict
from mcp_types import CallToolResult

from mcp_nursery.actors.pieces import at_once
from mcp_nursery.supervisor.security.injection import scan
from mcp_nursery.supervisor.security.untrusted_marks import MAX_RESULT_CHARS
from mcp_nursery.supervisor.tools.tool_result import tool_result

SIZE = 1 << 20
TARGETS = {"source code": 0.7}
"""The most of the time to parse a frame, where it is not all of it."""
PARSE, PIPELINE, SCAN = "parsing the frame", "from result to text for a model", "of that: scanning"

GERMAN = (
    "Grüße aus Zürich, das Wetter ist schön und die Berge sind nah. Der Dienst wurde gestern geändert: Anfragen von "
    "außen werden nun über eine Warteschlange geführt und der Reihe nach beantwortet. Bei Störungen hilft es, den "
    "Server neu zu starten, die Einstellungen zu prüfen und das Protokoll der letzten Stunde zu lesen. Für größere "
    "Mengen genügt ein zweiter Rechner; die Kosten dafür bleiben überschaubar.\n"
)
PROSE = (
    "“It is the third time this week,” she wrote — and nobody knew why the queue had filled up … The answer "
    "came late, as it does on Mondays, and the report that follows shows what was done about it, step by step.\n"
)


def texts() -> dict[str, str]:
    """A megabyte of each kind of text that tools return."""
    root = Path(__file__).parent.parent
    code = "".join(path.read_text() for path in sorted((root / "supervisor").rglob("*.py")))
    rows = [{"id": n, "name": f"user {n}", "note": "lorem ipsum dolor sit amet"} for n in range(20_000)]
    documents = "".join(path.read_text() for path in sorted(Path(__file__).parent.parent.rglob("*.md")))
    kinds = {
        "source code": code,
        "documentation": documents.encode("ascii", "ignore").decode(),
        "JSON in text": json.dumps(rows),
        "HTML": '<div class="row"><span>user</span><a href="/orders/311">order</a></div>\n',
        "a log": "2026-11-22 10:00:00 INFO [http] GET /users/311 200 12 ms bytes=1024 agent=curl/8\n",
        "a log made to be slow": "2026-11-22 10:00:00 INFO [system] request 311 approved by user in 12 ms\n",
        "English as it is printed": PROSE,
        "German": GERMAN,
        "Chinese": "今天天气很好。我们去公园散步。",
    }
    return {kind: (text * (SIZE // len(text) + 1))[:SIZE] for kind, text in kinds.items()}


def steps(text: str) -> dict[str, Callable[[], Callable[[], object]]]:
    """What is to be timed. Each is made ready first: a text that was scanned once keeps its UTF-8 for the next time."""
    frame = orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": text}]}})

    def parse() -> CallToolResult:
        return CallToolResult.model_validate(orjson.loads(frame)["result"], by_name=False)

    def pipeline() -> Callable[[], object]:
        result = parse()
        steps = tool_result(result, server="lab", tool="read", max_chars=MAX_RESULT_CHARS, duration=0.0, incarnation=1)
        return lambda: at_once(steps).text

    def scanning() -> Callable[[], object]:
        fresh = parse().content[0].text  # type: ignore[union-attr]  # a text block, as above
        return lambda: scan(fresh)

    return {PARSE: lambda: parse, PIPELINE: pipeline, SCAN: scanning}


def take(step: Callable[[], object], samples: Samples) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    samples.wall.append(time.perf_counter() - wall)
    samples.cpu.append(time.process_time() - cpu)


def subject(options: argparse.Namespace) -> Iterator[Table]:
    for kind, text in texts().items():
        todo = steps(text)
        samples = {name: Samples() for name in todo}
        for ready in todo.values():
            take(ready(), Samples())
        for _ in range(options.rounds):
            for name in random.sample(list(todo), len(todo)):
                take(todo[name](), samples[name])
        figures = {name: one.summary() for name, one in samples.items()}
        table = ratio_table(f"One result of 1 MB: {kind}", figures, base=PARSE)
        ratio = figures[PIPELINE]["cpu_p25"] / figures[PARSE]["cpu_p25"]
        table.notes.append(verdict(ratio, TARGETS.get(kind, 1), "CPU p25 against parsing the same frame"))
        yield table


if __name__ == "__main__":
    command(subject, rounds=80)
