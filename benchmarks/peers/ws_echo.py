"""The echo server over WebSocket, in plain Python: one message a frame. Prints its port."""

import asyncio
import base64
import hashlib
import sys

from echo_server import answer

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10


class Connection(asyncio.Protocol):
    """Answers the opening handshake, then each message. No client here sends a message in several frames."""

    def connection_made(self, transport):
        self.transport = transport
        self.received = b""
        self.is_open = False

    def data_received(self, data):
        self.received += data
        if not self.is_open:
            head, gap, self.received = self.received.partition(b"\r\n\r\n")
            if not gap:
                self.received = head
                return
            self.transport.write(accepted(head))
            self.is_open = True
        replies = []
        while (frame := self.frame()) is not None:
            kind, payload = frame
            if kind == TEXT and (said := answer(payload)):
                replies.append(framed(TEXT, said))
            elif kind == PING:
                replies.append(framed(PONG, payload))
            elif kind == CLOSE:
                replies.append(framed(CLOSE, payload))
        self.transport.write(b"".join(replies))

    def frame(self):
        """The next frame of a client, which is masked."""
        data = self.received
        if len(data) < 2:
            return None
        size, at = data[1] & 127, 2
        if size > 125:
            width = 2 if size == 126 else 8
            size, at = int.from_bytes(data[2 : 2 + width], "big"), 2 + width
        end = at + 4 + size
        if len(data) < end:
            return None
        key, payload = data[at : at + 4], data[at + 4 : end]
        self.received = data[end:]
        mask = (key * (size // 4 + 1))[:size]
        return data[0] & 15, (int.from_bytes(payload, "big") ^ int.from_bytes(mask, "big")).to_bytes(size, "big")


def accepted(head):
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    (key,) = (value for name, value in fields.items() if name.lower() == b"sec-websocket-key")
    digest = base64.b64encode(hashlib.sha1(key.strip() + MAGIC).digest())
    lines = [b"HTTP/1.1 101 Switching Protocols", b"upgrade: websocket", b"connection: upgrade"]
    lines += [b"sec-websocket-protocol: mcp", b"sec-websocket-accept: " + digest]
    return b"\r\n".join([*lines, b"", b""])


def framed(kind, payload):
    size = len(payload)
    if size < 126:
        head = bytes([128 | kind, size])
    elif size < 1 << 16:
        head = bytes([128 | kind, 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([128 | kind, 127]) + size.to_bytes(8, "big")
    return head + payload


async def main():
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until who started it has gone


if __name__ == "__main__":
    asyncio.run(main())
