"""The approval of a model's calls: the question, the answers, and the rules that come before the question.

The decision about a call is made in `calls.approvals`; a client of the gateway is asked by
`gateway.upstream.ask_client`."""

from .tools.approval_rules import Agreement, Approval, ApprovalRequest, ApprovalRules
from .tools.hints import ToolHints
from .tools.ui import ToolUI

__all__ = ["Agreement", "Approval", "ApprovalRequest", "ApprovalRules", "ToolHints", "ToolUI"]
