"""What scripted servers can do for tests of applications, beyond what the library's own tests use all the time."""

from typing import Any

import pytest

from mcp_nursery.supervisor import ServerSpec, open_supervisor
from mcp_nursery.supervisor.testing import Life, ScriptedServer, report_progress


async def paint(arguments: dict[str, Any]) -> object:
    for step in range(3):
        await report_progress(step, 3, f"step {step}")
    await report_progress(9)
    return "done"


@pytest.mark.parametrize("modern", [True, False])
async def test_a_tool_reports_progress(autojump_clock: Any, modern: bool) -> None:
    """In order, before the result, and to nobody who did not ask."""
    server = ScriptedServer(Life(modern=modern), tools={"paint": paint})
    seen: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with open_supervisor([ServerSpec("lab", server.transport)]) as supervisor:
        assert (await supervisor.call_tool("mcp_lab_paint")).full_text == "done"
        assert (await supervisor.call_tool("mcp_lab_paint", on_progress=note)).full_text == "done"
    assert seen == [(0, 3, "step 0"), (1, 3, "step 1"), (2, 3, "step 2"), (9, None, None)]


async def test_progress_of_nothing() -> None:
    with pytest.raises(LookupError):
        await report_progress(1)
