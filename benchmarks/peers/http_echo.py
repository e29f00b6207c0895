"""The echo server over streamable HTTP, in plain Python: one JSON document an answer. Prints its port.

Arguments: the port; any free one by default.
"""

import asyncio
import sys

from echo_server import answer


class Connection(asyncio.Protocol):
    """Reads requests one after another, and keeps the connection."""

    def connection_made(self, transport):
        self.transport = transport
        self.received = b""

    def data_received(self, data):
        self.received += data
        while (gap := self.received.find(b"\r\n\r\n")) >= 0:
            head = self.received[:gap]
            sizes = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            end = gap + 4 + sum(sizes)
            if len(self.received) < end:
                return
            body, self.received = self.received[gap + 4 : end], self.received[end:]
            self.transport.write(response(head, body))


def response(head, body):
    if not head.startswith(b"POST"):
        return b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n"
    said = answer(body)
    if not said:
        return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(said), said)


async def main(port):
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until who started it has gone


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 0))
