"""How an actor talks MCP on the JSON-RPC endpoint of its connection. The only place that imports `mcp.client`."""
