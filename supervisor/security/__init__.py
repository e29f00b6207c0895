"""The protection of secrets from getting out and of instructions from getting in. Pure: imports neither trio nor
mcp."""
