"""A server of FastMCP 4 with the skills of a folder; run by a Python of its own.

python nursery_skills.py FOLDER
"""

import sys
from pathlib import Path

from fastmcp import FastMCP
from fastmcp.server.providers.skills import SkillsDirectoryProvider
from fastmcp.skills.extension import SkillsExtension

server = FastMCP("skills")
provider = SkillsDirectoryProvider(roots=Path(sys.argv[1]), experimental_skills=True, reload=True)
server.add_provider(provider)
server.add_extension(SkillsExtension(providers=[provider]))

if __name__ == "__main__":
    server.run(show_banner=False)
