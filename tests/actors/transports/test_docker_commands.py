"""Which command lines run a container that ends with its server."""

import pytest

from mcp_nursery.actors.transports.docker import runs_container


@pytest.mark.parametrize(
    ("line", "runs"),
    [
        ("docker run -i --rm image", True),
        ("/usr/bin/podman run -i image serve", True),
        ("nerdctl run --interactive --cidfile /tmp/id image", True),
        ("docker run -i -e NAME=x --rm image --verbose", True),
        ("docker run", True),
        ("docker run -i --name mine image", False),
        ("docker run -i --name=mine image", False),
        ("docker run -d image", False),
        ("docker run -itd image", False),
        ("docker run --detach image", False),
        ("docker exec -i mine server", False),
        ("docker compose run server", False),
        ("docker", False),
        ("uv run server", False),
        ("npx run", False),
    ],
)
def test_a_command_line(line, runs):
    """K2: a name of its own, or a container that goes on, is its user's matter."""
    assert runs_container(line.split()) is runs
