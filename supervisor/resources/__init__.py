"""What servers offer besides tools: resources, their templates, prompts, and what comes of them. Pure."""

from .prompt import Prompt
from .resource import Resource, ResourceTemplate
from .results import Completion, PromptResult, ResourceResult

__all__ = ["Completion", "Prompt", "PromptResult", "Resource", "ResourceResult", "ResourceTemplate"]
