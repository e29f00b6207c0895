"""Any number of small MCP servers in one process, over HTTP (`/n`) and WebSocket (the same, upgraded).

Prints its port, and ends with its stdin. Argument: how many tools each has.
"""

import asyncio
import base64
import hashlib
import json
import sys
from typing import Any

TOOLS = [
    {"name": f"echo_{n}", "description": "Say it again.", "inputSchema": {"type": "object"}}
    for n in range(int(sys.argv[1]))
]
CACHING = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
META = {"io.modelcontextprotocol/serverInfo": {"name": "crowd", "version": "1"}}
RESULTS: dict[str, dict[str, Any]] = {
    "tools/list": {"tools": TOOLS, **CACHING},
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "_meta": META, **CACHING},
    "tools/call": {"resultType": "complete", "content": [{"type": "text", "text": "here"}]},
}


def reply(body: bytes) -> bytes:
    """Empty for a notification."""
    message = json.loads(body)
    if "id" not in message:
        return b""
    result = RESULTS.get(message["method"])
    outcome = {"result": result} if result else {"error": {"code": -32601, "message": "Method not found"}}
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}).encode()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            pairs = (line.split(":", 1) for line in head[1:] if line)
            headers = {name.strip().lower(): value.strip() for name, value in pairs}
            if "sec-websocket-key" in headers:
                await talk(reader, writer, headers)
                return
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            answer = reply(body) if head[0].startswith("POST") else b""
            status = "200 OK" if answer else "202 Accepted" if body else "405 Method Not Allowed"
            kind = "content-type: application/json\r\n" if answer else ""
            writer.write(f"HTTP/1.1 {status}\r\n{kind}content-length: {len(answer)}\r\n\r\n".encode() + answer)
            await writer.drain()
    except (EOFError, OSError):
        pass
    finally:
        writer.close()


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: dict[str, str]) -> None:
    """Whole text messages, as our client sends them."""
    key = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    protocol = f"sec-websocket-protocol: {kind}\r\n" if (kind := headers.get("sec-websocket-protocol")) else ""
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        + f"{protocol}sec-websocket-accept: {accept}\r\n\r\n".encode()
    )
    while True:
        first, size = await reader.readexactly(2)
        size &= 127
        if size > 125:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8))
        mask = await reader.readexactly(4)
        data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(await reader.readexactly(size)))
        if first & 15 == 8:
            writer.write(b"\x88\x02\x03\xe8")
            return
        if first & 15 == 9:
            frame(writer, 0x8A, data)
        elif answer := reply(data):
            frame(writer, 0x81, answer)


def frame(writer: asyncio.StreamWriter, first: int, data: bytes) -> None:
    if len(data) < 126:
        size = bytes([len(data)])
    else:
        size = b"\x7e" + len(data).to_bytes(2) if len(data) < 1 << 16 else b"\x7f" + len(data).to_bytes(8)
    writer.write(bytes([first]) + size + data)


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=4096, limit=1 << 22)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
