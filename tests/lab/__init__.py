"""The laboratory: what tests of several files share. A test says what is tested; what it is tested with is here.

In memory, under virtual time:

| module | what it gives |
|---|---|
| `specs` | specs of scripted servers for a supervisor, where they stand, tools of one line |
| `asking` | servers that ask in the middle of a call, and a user who answers |
| `callers` | a server that counts what it executes, and what a call came to |
| `fan_outs` | calls of many tools at once, and the times of their results |
| `gateway_clients` | clients of a gateway over messages, and servers that ask through it |
| `web_clients` | clients of the gateway's ASGI application |
| `actors` | one actor of a server with what it reported, without a supervisor |
| `sessions` | one session or connection in front of a server that answers by method |
| `wire_peer` | the other end of a wire: frames taken and sent one by one |
| `sdk_bridge` | a wire with a server of the MCP SDK on its far side |
| `talker` | the same for what reads and writes bytes |
| `tool_requests` | the request of a call, as the router gets it |
| `world` | generated worlds of servers, callers and commands, with a trace of all that happened |
| `hostile`, `hostile_plans`, `hostile_words` | servers that say anything, the worst of it, and the words for it |

Real processes and sockets on this machine:

| module | what it gives |
|---|---|
| `programs/` | servers, hosts and clients that tests start as processes: see the head of each |
| `processes` | specs of the lab server, its journal, the process tree of a server |
| `remote` | servers over HTTP and SSE that are killed, started again and told to misbehave |
| `websockets` | the same behind a WebSocket, and a proxy that is cut |
| `rigs` | one server of each transport, broken and mended by the same words |
| `proxies` | proxies over HTTP and SOCKS5, through which a server on loopback is far away |
| `http_peer`, `websocket_peer` | servers on loopback whose every answer is written by the test |
| `scripted_http` | a server over HTTP that follows a script, word for word |
| `hostile_http` | a server that sends raw bodies |
| `oauth_server`, `hostile_issuer`, `token_issuer` | who issues tokens: honest, hostile, and for clients of a gateway |
| `gateways` | gateways as processes or in this loop, and clients of the SDK before them |
| `raw_clients` | clients of a gateway that write and read raw JSON-RPC |
| `command_line` | the command as a process, and a terminal |

Time, order and cost:

| module | what it gives |
|---|---|
| `timely` | promised upper bounds by the wall clock |
| `scheduler` | interference at an exact step of Trio's scheduler |
| `linear` | work that grows as its text does |
| `recording` | what OpenTelemetry was told |
"""

from pathlib import Path
from typing import Final

PROGRAMS: Final = Path(__file__).parent / "programs"
"""The folder of the programs that tests start as processes."""
