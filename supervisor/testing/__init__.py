"""For tests of applications that embed mcp-nursery: servers that fail as told, and time that passes at once."""

from .scripted import Life, Refusal, ScriptedServer, ToolFunction
from .virtual import run_virtual

__all__ = ["Life", "Refusal", "ScriptedServer", "ToolFunction", "run_virtual"]
