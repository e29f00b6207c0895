"""FastMCP's proxy over HTTP on a port, in front of a command. Arguments: the port, and the command."""

import sys

from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy

if __name__ == "__main__":
    port, program, *arguments = sys.argv[1:]
    proxy = create_proxy(StdioTransport(program, arguments))
    proxy.run(transport="http", host="127.0.0.1", port=int(port), show_banner=False, log_level="ERROR")
