"""What the tests of storage write down: tools before and after a change, and a request for trust."""

from mcp_nursery.supervisor.config import TrustRequest
from mcp_nursery.supervisor.events import DefinitionChange

DECLARED = {"add": '{"description":"Adds."}', "odd \ud800": "{}"}
CHANGED = {**DECLARED, "add": '{"description":"Adds, and more."}'}
CHANGE = DefinitionChange("s", "add", DECLARED["add"], CHANGED["add"])
REQUEST = TrustRequest("s", "/p/.mcp.json", ("starts a process",), {"command": "hunter2"}, "digest")
