"""Run subjects, keep their results in results/, and rewrite the tables and the plot of README.md from what is there.

`report.py` alone rewrites; `report.py all` or `report.py calls memory [--rounds N]` measures first.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
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


def rewrite(found: dict[str, Any]) -> None:
    readme = HERE / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    sections = "\n\n".join(section(subject, document) for subject, document in found.items())
    readme.write_text(f"{before}{BEGIN}\n\n{sections}\n\n{END}{after}")
    if "fan_out" in found:
        (HERE / "fan_out.svg").write_text(plot.fan_out(found["fan_out"]["tables"]))


if __name__ == "__main__":
    given = list(takewhile(lambda word: not word.startswith("-"), sys.argv[1:]))
    for each in SUBJECTS if given == ["all"] else given:
        measure(each, sys.argv[1 + len(given) :])
    rewrite(results())
