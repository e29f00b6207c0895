"""All tools and routes at one moment. Pure: imports neither trio nor mcp."""
