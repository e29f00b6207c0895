"""Support for tests of applications that embed mcp-nursery: servers that fail on demand, and time that passes at
once."""

from .life import Ask, Life, Refusal, ToolFunction, report_progress
from .scripted import ScriptedServer
from .virtual import run_virtual

__all__ = ["Ask", "Life", "Refusal", "ScriptedServer", "ToolFunction", "report_progress", "run_virtual"]
