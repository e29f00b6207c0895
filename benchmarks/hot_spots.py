"""Where a call's time goes: a sampling profile (py-spy) of one contender, by file and by function.

hot_spots.py [calls|fan_out|throughput|in_process|open_loop|gateway] [contender]
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import gateway
import open_loop
from environments import python_of
from harness import CONTENDERS, OURS, Worker, in_process, stdio, wanted

JOBS: dict[str, Any] = {
    "calls": stdio(1, timeout=30),
    "fan_out": stdio(30),
    "throughput": stdio(1, width=128),
    "in_process": in_process(50),
    "open_loop": open_loop.job(),
}
SECONDS = 8


@contextmanager
def at_work(job: str, who: str) -> Iterator[tuple[int, Callable[[], object]]]:
    """The process of a contender that is ready, and what makes it work for a while."""
    if job == "gateway":
        with gateway.gateways(argparse.Namespace(only=[who]), {}) as started:
            one = next(each for each in started if each.name != gateway.DIRECT)
            one.round(50)
            yield one.process.pid, lambda: one.round(50)
        return
    contender = next(each for each in CONTENDERS if wanted(each, argparse.Namespace(only=[who])))
    with closing(Worker(contender, JOBS[job])) as worker:
        worker.hear()
        if job == "open_loop":
            yield worker.process.pid, lambda: worker.ask(f"capacity {open_loop.WIDTH} 2 0")
        else:
            worker.calibrate()
            yield worker.process.pid, worker.round


def profile(pid: int, work: Callable[[], object]) -> list[tuple[list[str], int]]:
    """Stacks, outermost first, and how often each was seen while the work went on."""
    with tempfile.NamedTemporaryFile() as file:
        spy = [str(python_of("py-spy").parent / "py-spy"), "record", "--gil", "--rate", "250", "--format", "raw"]
        recorder = subprocess.Popen(
            [*spy, "--duration", str(SECONDS), "-o", file.name, "--pid", str(pid)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        done = threading.Event()
        threading.Thread(target=lambda: (recorder.wait(), done.set()), daemon=True).start()
        end = time.monotonic() + SECONDS + 5
        while not done.is_set() and time.monotonic() < end:
            work()
        recorder.wait()
        lines = Path(file.name).read_text().splitlines()
    return [(stack.split(";"), int(count)) for stack, _, count in (line.rpartition(" ") for line in lines)]


def place(frame: str) -> str:
    """The function and its file, without the line."""
    name, _, where = frame.rpartition(" (")
    file = where.rpartition(":")[0] or where.rstrip(")")
    for root in ("site-packages/", "/work/main/", "python3.11/"):
        file = file.rpartition(root)[2]
    return f"{file}:{name}"


def top(counter: Counter[str], total: int, count: int) -> str:
    return "\n".join(f"{seen / total:6.1%}  {name}" for name, seen in counter.most_common(count))


def main(job: str, who: str) -> None:
    with at_work(job, who) as (pid, work):
        stacks = profile(pid, work)
    own, cumulative, files = Counter[str](), Counter[str](), Counter[str]()
    for stack, seen in stacks:
        places = [place(frame) for frame in stack]
        own[places[-1]] += seen
        files[places[-1].rpartition(":")[0]] += seen
        for each in set(places):
            cumulative[each] += seen
    total = sum(seen for _, seen in stacks)
    print(f"{who}, {job}: {total} samples")
    tables = (("own time, by file", files, 15), ("own time", own, 25), ("with callees", cumulative, 45))
    for title, counter, count in tables:
        print(f"\n{title}\n{top(counter, total, count)}")


if __name__ == "__main__":
    main(*(sys.argv[1:] + ["calls", OURS][len(sys.argv) - 1 :]))
