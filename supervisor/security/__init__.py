"""What keeps secrets in and instructions out. Pure: imports neither trio nor mcp."""
