"""What is kept of what a server says of itself."""

from mcp_types import Implementation

from mcp_nursery.actors.messages import Era, Handshake
from mcp_nursery.supervisor.status import discreet


def test_what_holds_no_secret_is_kept_as_it_is():
    """L16: once, and not in a copy for each server."""
    info = Implementation(name="lab", version="1", title="The lab")
    shown = discreet(Handshake(Era.MODERN, "2026-07-28", info, None, "be brief"), str)
    assert shown.server_info is info
    assert shown.instructions == "be brief"


def test_secrets_are_taken_out_of_every_text():
    """L16, L17: wherever the server has put them."""
    told = {"name": "lab", "version": "hunter2", "icons": [{"src": "https://x/?key=hunter2"}]}
    handshake = Handshake(Era.MODERN, "2026-07-28", Implementation.model_validate(told), None, "say hunter2")
    shown = discreet(handshake, lambda text: text.replace("hunter2", "…"))
    assert "hunter2" not in repr(shown)
    assert (shown.server_info.version, shown.instructions) == ("…", "say …")
    assert shown.server_info.icons[0].src == "https://x/?key=…"
