"""What a host sees of a tool. Pure: imports neither trio nor mcp."""
