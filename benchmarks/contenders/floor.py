"""The floor: pipes, epoll and orjson. No event loop, no types, no checks, no timeouts."""

import select
import subprocess
from contextlib import suppress
from itertools import count
from typing import Any

import orjson
import worker

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "floor", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
"""What every request of this era carries."""


class Pipes:
    """All servers, and the requests in flight."""

    def __init__(self, commands: dict[str, list[str]]) -> None:
        self._epoll = select.epoll()
        self._process = {name: self._start(command) for name, command in commands.items()}
        self._source = {process.stdout.fileno(): process.stdout for process in self._process.values()}
        self._begun: dict[int, list[bytes]] = {fd: [] for fd in self._source}
        self._ids = count()

    def _start(self, command: list[str]) -> Any:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._epoll.register(process.stdout, select.EPOLLIN)
        return process

    def burst(self, plan: list[worker.Call]) -> list[dict[str, Any]]:
        """All calls at once; one write a server."""
        places: dict[int, int] = {}
        frames: dict[str, list[bytes]] = {}
        for place, (server, tool, arguments) in enumerate(plan):
            request_id = next(self._ids)
            places[request_id] = place
            params = {"name": tool, "arguments": arguments, "_meta": META}
            request = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
            frames.setdefault(server, []).append(orjson.dumps(request))
        for server, lines in frames.items():
            self._process[server].stdin.write(b"\n".join([*lines, b""]))
        return self._replies(places)

    def _replies(self, places: dict[int, int]) -> list[dict[str, Any]]:
        results: list[Any] = [None] * len(places)
        missing = len(places)
        while missing:
            for fd, _ in self._epoll.poll():
                for line in self._read(fd):
                    message = orjson.loads(line)
                    results[places[message["id"]]] = message["result"]
                    missing -= 1
        return results

    def _read(self, fd: int) -> list[bytes]:
        data = self._source[fd].read(1 << 20)
        if not data:
            raise SystemExit("a server is gone")
        first, *lines = data.split(b"\n")
        self._begun[fd].append(first)
        if not lines:
            return []
        whole = b"".join(self._begun[fd])
        self._begun[fd] = [lines.pop()]
        return [whole, *lines]

    def close(self) -> None:
        for process in self._process.values():
            process.stdin.close()
        for process in self._process.values():
            process.wait()


async def main() -> None:
    job = worker.job()
    pipes = Pipes(job.commands)

    async def call(*one: Any) -> Any:
        return pipes.burst([one])[0]

    async def gather() -> list[Any]:
        return pipes.burst(job.plan)

    await worker.serve(job, call, gather, lambda result: result["content"][0]["text"])
    pipes.close()


if __name__ == "__main__":
    with suppress(StopIteration):  # no event loop: nothing in it ever waits
        main().send(None)
