"""Skills of a server built with FastMCP 4, as the library sees them."""

import pytest
import trio

from mcp_nursery.supervisor import ServerSpec, StdioTransport, open_supervisor
from mcp_nursery.supervisor.errors import SkillMismatch

from ..lab import PROGRAMS
from . import installing
from .test_python_servers import FASTMCP

pytestmark = pytest.mark.interop

MAIN = """---
name: git-workflow
description: "How this team commits: often"
license: MIT
metadata:
  since: "2026-01-31"
  version: '1.10'
---

Read references/GUIDE.md.
"""


async def test_skills(tmp_path):
    folder = tmp_path / "git-workflow"
    (folder / "references").mkdir(parents=True)
    (folder / "SKILL.md").write_text(MAIN)
    (folder / "references" / "GUIDE.md").write_text("Commit often.\n")
    (folder / "logo.png").write_bytes(b"\x89PNG\xff")
    with installing.needed_by_test(FASTMCP):
        python = str(installing.python_with(FASTMCP))
    spec = ServerSpec("team", StdioTransport(python, ["-I", str(PROGRAMS / "nursery_skills.py"), str(tmp_path)]))
    with trio.fail_after(120):
        async with open_supervisor([spec]) as supervisor:
            (skill,) = await supervisor.list_skills()
            assert (skill.name, skill.description) == ("git-workflow", "How this team commits: often")
            assert skill.frontmatter["metadata"] == {"since": "2026-01-31", "version": "1.10"}
            for file in skill.files:
                await supervisor.read_skill_file(file.uri)
            guide = f"{skill.root}/references/GUIDE.md"
            (folder / "references" / "GUIDE.md").write_text("Commit never.\n")
            with pytest.raises(SkillMismatch):
                await supervisor.read_skill_file(guide)
            await supervisor.get_skill(skill.uri)
            assert (await supervisor.read_skill_file(guide)).full_text == "Commit never.\n"
