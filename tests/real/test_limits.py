"""The memory of a server is that of its processes: when it is too much the server is renewed, and not at once again."""

import shlex
import sys

from mcp_nursery.supervisor import ServerSpec, StdioTransport, open_supervisor
from mcp_nursery.supervisor.spec import Limits

from ..lab import PROGRAMS
from ..lab.processes import eventually, status_of

SERVER = [sys.executable, "-I", "-S", str(PROGRAMS / "both_eras.py"), "modern", "journal"]
GROWN = "import time; memory = bytearray(b'x') * (96 << 20); open('grown', 'a').close(); time.sleep(600)"
"""A descendant with memory of its own, in a session of its own."""


async def test_a_server_whose_descendant_takes_too_much_memory_is_renewed(tmp_path, mock_clock, caplog):
    program, grows, grown = tmp_path / "server", tmp_path / "grows", tmp_path / "grown"
    program.write_text(
        f"""#!/bin/sh
cd {shlex.quote(str(tmp_path))}
if [ -e grows ]; then setsid {shlex.join([sys.executable, "-I", "-S", "-c", GROWN])} & fi
exec {shlex.join(SERVER)}
"""
    )
    program.chmod(0o755)
    grows.touch()
    mock_clock.rate = 1
    spec = ServerSpec("lab", StdioTransport(str(program)), limits=Limits(memory=64 << 20), connect_timeout=0)
    async with open_supervisor([spec]) as supervisor:

        async def connected(incarnation: int) -> None:
            await eventually(lambda: status_of(supervisor, "lab").incarnation == incarnation, within=300)
            await supervisor.wait_connected("lab")
            mock_clock.jump(60)

        await eventually(grown.exists, within=300)
        await connected(1)
        await eventually(lambda: status_of(supervisor, "lab").incarnation == 2, within=300)
        grown.unlink()
        await eventually(grown.exists, within=300)
        await connected(2)
        await eventually(lambda: status_of(supervisor, "lab").over_limit is not None, within=300)
        said = status_of(supervisor, "lab").over_limit
        assert "more than 64 MiB (limits.memory); " in said
        assert said.endswith("; it was renewed less than 600 s ago, and is not yet renewed again")
        assert f"lab: {said}" in caplog.messages
        assert (await supervisor.call_tool("mcp_lab_echo", {"text": "there"})).incarnation == 2
        grows.unlink()
        mock_clock.jump(600)
        await connected(3)
        assert supervisor.statistics().by_server["lab"].restarts == 0
