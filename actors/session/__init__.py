"""MCP on the JSON-RPC endpoint of an actor's connection. The only place that imports `mcp.client`."""
