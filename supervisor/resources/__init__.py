"""What servers offer besides tools: resources, their templates and prompts, and their results. Pure."""

from .prompt import Prompt
from .resource import Resource, ResourceTemplate
from .results import Completion, PromptResult, ResourceResult

__all__ = ["Completion", "Prompt", "PromptResult", "Resource", "ResourceResult", "ResourceTemplate"]
