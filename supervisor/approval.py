"""Whether a model's call may be made: what is asked, the answers, and the rules that go before the question."""

from .tools.approval import Approval, ApprovalRequest, ApprovalRules
from .tools.hints import ToolHints

__all__ = ["Approval", "ApprovalRequest", "ApprovalRules", "ToolHints"]
