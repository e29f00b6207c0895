"""Run subjects, keep their results in results/, and rewrite from what is there: the tables of results.md, the targets
of README.md, and the plot.

`report.py` alone rewrites; `report.py all` or `report.py calls memory [--rounds N]` measures first.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import plot

HERE = Path(__file__).parent
SUBJECTS = (
    "calls",
    "fan_out",
    "throughput",
    "open_loop",
    "over_http",
    "portal",
    "connecting",
    "large_result",
    "memory",
    "startup",
    "startup_many",
    "flood",
    "gateway",
    "result_pipeline",
    "scale",
)
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
TITLE = re.compile(r"\*\*(.+)\*\*")
TARGET = re.compile(r"Target: (?P<target>.+)\. Here (?P<here>.+?)(: (?P<verdict>hit|\*\*missed by .+\*\*))?\.")


def measure(subject: str, options: Sequence[str]) -> None:
    run = subprocess.run(
        [sys.executable, HERE / f"{subject}.py", "--json", *options], stdout=subprocess.PIPE, check=True
    )
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / f"{subject}.json").write_bytes(run.stdout)


def results() -> dict[str, Any]:
    files = {subject: HERE / "results" / f"{subject}.json" for subject in SUBJECTS}
    return {subject: json.loads(file.read_text()) for subject, file in files.items() if file.exists()}


def section(subject: str, document: dict[str, Any]) -> str:
    return "\n\n".join([f"### `{subject}.py`", f"{document['machine']}.", *document["text"]])


def targets(subject: str, document: dict[str, Any]) -> Iterator[str]:
    """A row for each target, with the title of its table."""
    title = ""
    for line in "\n".join(document["text"]).splitlines():
        if found := TITLE.fullmatch(line):
            title = found[1]
        elif found := TARGET.fullmatch(line):
            yield f"| `{subject}.py` | {title} | {found['target']} | {found['here']} | {found['verdict'] or ''} |"


def put(file: str, text: str) -> None:
    """Put the text between the marks of the file."""
    before, _, rest = (HERE / file).read_text().partition(BEGIN)
    (HERE / file).write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


def rewrite(found: dict[str, Any]) -> None:
    put("results.md", "\n\n".join(section(subject, document) for subject, document in found.items()))
    rows = [row for subject, document in found.items() for row in targets(subject, document)]
    put("README.md", "\n".join(["| command | table | target | here | |", "|---|---|---|---|---|", *rows]))
    if "fan_out" in found:
        (HERE / "fan_out.svg").write_text(plot.fan_out(found["fan_out"]["tables"]))


if __name__ == "__main__":
    given = list(takewhile(lambda word: not word.startswith("-"), sys.argv[1:]))
    for each in SUBJECTS if given == ["all"] else given:
        measure(each, sys.argv[1 + len(given) :])
    rewrite(results())
