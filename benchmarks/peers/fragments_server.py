"""A hostile WebSocket peer of the standard library only: it answers a call behind a flood of frames that hold nothing.

fragments_server.py: prints its port. The call's argument `attack` says what comes first.
"""

import base64
import hashlib
import json
import socket

FLOODS = {
    "WebSocket fragments of nothing": b"\x01\x00" + b"\x00\x00" * 500_000 + b"\x80\x02{}",
    "WebSocket pings of nothing": b"\x89\x00" * 100_000,
    "WebSocket messages of nothing": b"\x81\x02{}" * 100_000,
    "WebSocket fragments of a byte": b"\x01\x01[" + b"\x00\x01 " * 1_000_000 + b"\x80\x02[]",
}
TOOLS = {"tools": [{"name": "attack", "inputSchema": {"type": "object"}}]}


def upgrade(peer: socket.socket) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        head += peer.recv(4096)
    key = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")).split(b": ")[1]
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    peer.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Protocol: mcp\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )


def exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = peer.recv(size - len(data))
        if not more:
            raise SystemExit
        data += more
    return data


def messages(peer: socket.socket):
    while True:
        first, second = exactly(peer, 2)
        size = second & 127
        if size >= 126:
            size = int.from_bytes(exactly(peer, 2 if size == 126 else 8))
        mask, body = exactly(peer, 4), exactly(peer, size)
        if first & 15 == 8:
            return
        if first & 15 == 1:
            yield json.loads(bytes(byte ^ mask[at % 4] for at, byte in enumerate(body)))


def say(peer: socket.socket, message: dict) -> None:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    peer.sendall(b"\x81" + (bytes([len(body)]) if len(body) < 126 else b"\x7e" + len(body).to_bytes(2)) + body)


def serve(peer: socket.socket) -> None:
    upgrade(peer)
    for message in messages(peer):
        number, method = message.get("id"), message.get("method")
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            info = {"name": "hostile", "version": "1"}
            said = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            say(peer, {"id": number, "result": said})
        elif method == "tools/list":
            say(peer, {"id": number, "result": TOOLS})
        elif method == "tools/call":
            peer.sendall(FLOODS.get(message["params"]["arguments"]["attack"], b""))
            say(peer, {"id": number, "result": {"content": [{"type": "text", "text": "done"}]}})
        elif number is not None and method is not None:
            say(peer, {"id": number, "error": {"code": -32601, "message": "no"}})


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    serve(listener.accept()[0])


if __name__ == "__main__":
    main()
