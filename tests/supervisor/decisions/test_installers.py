"""Commands that install what they start are known by their names and words."""

import pytest

from mcp_nursery.supervisor.decisions.installers import installer_of


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("npx -y @modelcontextprotocol/server-everything", "npx"),
        ("/usr/local/bin/uvx mcp-server-time", "uvx"),
        ("bunx x", "bunx"),
        ("bun x y", "bun"),
        ("pnpm dlx x", "pnpm"),
        ("npm exec -y x", "npm"),
        ("uv run --with mcp server.py", "uv"),
        ("uv tool run x", "uv"),
        ("uv --directory /a run x", "uv"),
        ("pipx run x", "pipx"),
        ("docker run -i --rm x", "docker"),
        ("podman --log-level error run x", "podman"),
        ("npm start", None),
        ("bun server.ts", None),
        ("docker exec -i x", None),
        ("docker mcp gateway", None),
        ("python npx", None),
        ("node npx.js", None),
        ("", None),
    ],
)
def test_the_command_that_installs(line, name):
    assert installer_of(line.split()) == name
