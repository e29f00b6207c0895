"""Not a client at all: orjson on the bytes that the peer would have sent."""

import json
from contextlib import suppress
from typing import Any

import orjson
import worker


async def main() -> None:
    from echo_server import answer

    job = worker.job()
    ((_, tool, arguments),) = job.plan
    request = {"id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    line = answer(json.dumps(request))

    async def call(*_: Any) -> Any:
        return orjson.loads(line)["result"]

    async def gather() -> list[Any]:
        return [await call()]

    await worker.serve(job, call, gather, lambda result: result["content"][0]["text"])


if __name__ == "__main__":
    with suppress(StopIteration):  # no event loop: nothing in it ever waits
        main().send(None)
