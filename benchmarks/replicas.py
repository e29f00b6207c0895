"""What a hop costs: the same echo server behind one gateway, asked directly, through HAProxy, and through a second
gateway.

    python benchmarks/replicas.py [--rounds N]

One run, all ways up all the time, a round of calls on each in random order: 20 calls one after the other, then one of
each of 100 clients at once. HAProxy runs with `deploy/haproxy.cfg`; where it is not installed it is left out. All hops
are on one machine: a network between them adds its own time, and two machines have more cores than this one.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gateway import CLIENTS, Session, _beside_python, _session_when_up, at_once, free_port, serving
from harness import ECHO, machine, p25

EXAMPLE = Path(__file__).parents[1] / "deploy" / "haproxy.cfg"
LIMITS = [f"--limit={name}=1000" for name in ("sessions-of-client", "connections", "connections-of-address")]


@dataclass
class Way:
    """One way to the server."""

    name: str
    one: Session
    many: list[Session]
    alone: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)

    def round(self, calls: int = 20) -> None:
        for session in (self.one, *self.many):
            session.refresh()
        for _ in range(calls):
            began = time.perf_counter()
            self.one.call()
            self.one.answer()
            self.alone.append(time.perf_counter() - began)
        self.together.append(at_once(self.many) / len(self.many))


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def serve(port: int, *words: str) -> list[str]:
    return serving(_beside_python("mcp-nursery"), port, *LIMITS, *words)


def balanced(folder: Path, port: int, behind: int) -> list[str]:
    """HAProxy with the example, in front of one gateway."""
    text = (
        EXAMPLE.read_text()
        .replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        .replace("10.0.0.11:8000", f"127.0.0.1:{behind}")
    )
    written = folder / f"haproxy{port}.cfg"
    written.write_text("".join(line for line in text.splitlines(keepends=True) if "10.0.0.12" not in line))
    return ["haproxy", "-db", "-f", str(written)]


@contextmanager
def ways() -> Iterator[list[Way]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        back, front = free_port(), free_port()
        ports = {"one gateway": back, "two gateways": front}
        commands = {"one gateway": serve(back, "--", *ECHO)}
        entries = folder / "front.json"
        entries.write_text(json.dumps({"mcpServers": {"far": {"url": f"http://127.0.0.1:{back}/mcp"}}}))
        commands["two gateways"] = serve(front, "--config", str(entries), "--no-project", "--template", "{tool}")
        if shutil.which("haproxy") is None:
            print("left out: haproxy is not installed", file=sys.stderr)
        else:
            for name, behind in (("HAProxy, one gateway", back), ("HAProxy, two gateways", front)):
                ports[name] = free_port()
                commands[name] = balanced(folder, ports[name], behind)
        found = []
        for name, command in commands.items():
            process = stack.enter_context(running(command))
            one = when_it_answers(ports[name], process)
            found.append(Way(name, one, [Session(ports[name]) for _ in range(CLIENTS)]))
            for each in found[-1].many:
                each.check()
        yield found


def when_it_answers(port: int, process: subprocess.Popen[bytes]) -> Session:
    """A session there, once a call of it is answered: a balancer answers before what is behind it does."""
    for _ in range(100):
        try:
            session = _session_when_up(port, process)
            session.check()
        except (AssertionError, OSError):
            time.sleep(0.1)
        else:
            return session
    sys.exit("replicas.py: no call is answered")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    print(machine())
    with ways() as found:
        for _ in range(rounds):
            for way in random.sample(found, len(found)):
                way.round()
    base = found[0]
    print("\n| way | one call (us) | ratio | of 100 at once (us each) | ratio |\n| --- | ---: | ---: | ---: | ---: |")
    for way in found:
        alone, together = p25(way.alone), p25(way.together)
        print(
            f"| {way.name} | {alone * 1e6:.0f} | {alone / p25(base.alone):.2f} | {together * 1e6:.0f} "
            f"| {together / p25(base.together):.2f} |"
        )


if __name__ == "__main__":
    main()
