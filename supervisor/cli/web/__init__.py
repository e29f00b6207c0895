"""The page of a host in a browser: `serve --http --ui` and `run --web`."""
