"""The words and numbers that are ours before the SDK is loaded are the SDK's."""

from typing import get_args

import mcp.shared.dispatcher
import mcp.shared.inbound
import mcp.shared.jsonrpc_dispatcher
import mcp.shared.subscriptions
import mcp_types
import mcp_types.methods
import mcp_types.version
import pytest
from mcp.shared.exceptions import MCPError

from mcp_nursery.actors import protocol

SOURCES = (mcp_types, mcp_types.version, mcp.shared.inbound, mcp.shared.subscriptions)
OTHERWISE = {
    "ENCODED_HEADER": mcp.shared.inbound.encode_header_value("\u00e9")[:2],
    "X_MCP_HEADER": mcp.shared.inbound.X_MCP_HEADER_KEY.encode(),
    "LEVELS": get_args(mcp_types.LoggingLevel),
    "CLIENT_METHODS": mcp_types.methods.SPEC_CLIENT_METHODS,
    "CLIENT_NOTIFICATIONS": mcp_types.methods.SPEC_CLIENT_NOTIFICATION_METHODS,
}
NAMES = [name for name in vars(protocol) if name.isupper()]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_sdks(name):
    theirs = [getattr(source, name) for source in SOURCES if hasattr(source, name)] + [
        value for known, value in OTHERWISE.items() if known == name
    ]
    assert theirs
    assert all(each == getattr(protocol, name) for each in theirs)


@pytest.mark.parametrize("value", [1, 0, -7, "a", "", "7", True, None, 1.0, [1], {}])
def test_ids_are_told_by_the_sdks_rules(value):
    assert protocol.as_request_id(value) == mcp.shared.dispatcher.as_request_id(value)
    if protocol.as_request_id(value) is not None:
        assert protocol.coerce_request_id(value) == mcp.shared.dispatcher.coerce_request_id(value)


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"_meta": None},
        {"_meta": {}},
        *({"_meta": {"progressToken": each}} for each in (1, "a", True, None, 1.5)),
    ],
)
def test_progress_is_wanted_by_the_sdks_rules(params):
    assert protocol.progress_token_from_params(params) == mcp.shared.jsonrpc_dispatcher.progress_token_from_params(
        params
    )


def test_an_error_says_what_one_of_the_sdk_says():
    ours, theirs = protocol.JsonRpcError(-1, "no", {"a": 1}), MCPError(-1, "no", {"a": 1})
    assert (ours.code, ours.message, ours.data, str(ours)) == (theirs.code, theirs.message, theirs.data, str(theirs))
