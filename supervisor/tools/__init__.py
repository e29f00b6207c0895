"""The tools as a host sees them. Pure: imports neither trio nor mcp."""
