"""R2, R8, SDK-NOTES 3-5: what each failure over HTTP means. One row a case."""

import pytest

from mcp_nursery.actors.http.failures import Evidence, Failure, Fault, Phase, Reason, classify, loss_of
from mcp_nursery.actors.outcomes import Loss

OPENING, CALL, STREAM = Phase.OPENING, Phase.CALL, Phase.STREAM

GONE = Failure(Reason.RETRIABLE, ends=True, again=True)
EXPIRED = Failure(Reason.SESSION_EXPIRED, ends=True, again=True)
NEEDS_AUTH = Failure(Reason.NEEDS_AUTH, ends=True)
DROPPED = Failure(Reason.UNKNOWN_OUTCOME, again=True)
TIMED_OUT = Failure(Reason.UNKNOWN_OUTCOME)
ANSWERED = Failure(Reason.ANSWERED)
LATER = Failure(Reason.RETRIABLE)
POSTPONED = Failure(Reason.RETRIABLE, ends=True)
NEVER = Failure(Reason.NOT_WORTH_RETRYING)
NEVER_AT_ONCE = Failure(Reason.NOT_WORTH_RETRYING, ends=True)


def seen(told="…", **facts):
    return Evidence(told, **facts)


@pytest.mark.parametrize(
    ("phase", "evidence", "failure"),
    [
        # Nothing was sent: the server is not there.
        (OPENING, seen(fault=Fault.UNREACHED), GONE),
        (CALL, seen(fault=Fault.UNREACHED), GONE),
        (STREAM, seen(fault=Fault.UNREACHED), GONE),
        (OPENING, seen(fault=Fault.UNTRUSTED), NEVER_AT_ONCE),
        (OPENING, seen(fault=Fault.UNUSABLE), NEVER_AT_ONCE),
        (CALL, seen(fault=Fault.UNTRUSTED), GONE),
        (CALL, seen(fault=Fault.UNUSABLE), GONE),
        # One exchange failed on the way.
        (OPENING, seen(fault=Fault.BROKEN), LATER),
        (OPENING, seen(fault=Fault.MUTE), LATER),
        (CALL, seen(fault=Fault.BROKEN), DROPPED),
        (CALL, seen(fault=Fault.MUTE), TIMED_OUT),
        (CALL, seen("Connection closed", code=-32000), DROPPED),
        (CALL, seen("SSE stream ended without a response", code=-32000), DROPPED),
        (CALL, seen("not today", code=-32000), ANSWERED),
        (CALL, seen("connection closed, says the tool", code=-32603), ANSWERED),
        # Statuses.
        (OPENING, seen(status=401), NEEDS_AUTH),
        (CALL, seen(status=401), NEEDS_AUTH),
        (CALL, seen(status=401, in_session=True), NEEDS_AUTH),
        (OPENING, seen(status=403), NEVER),
        (CALL, seen(status=403), ANSWERED),
        (OPENING, seen(status=307), NEVER),
        (CALL, seen(status=307), TIMED_OUT),
        (CALL, seen(status=307, moved=True), DROPPED),
        (CALL, seen(status=302), TIMED_OUT),
        (OPENING, seen(status=200), NEVER),
        (OPENING, seen(status=400), NEVER),
        (OPENING, seen(status=400, code=-32600), LATER),
        (OPENING, seen(status=404), LATER),
        (OPENING, seen(status=429), POSTPONED),
        (OPENING, seen(status=429, code=-32603), POSTPONED),
        (OPENING, seen(status=503, retry_in=60), POSTPONED),
        (OPENING, seen(status=403, retry_in=60), POSTPONED),
        (OPENING, seen(status=500), LATER),
        (OPENING, seen(code=-32603), LATER),
        (CALL, seen(status=429), ANSWERED),
        (CALL, seen(status=500), ANSWERED),
        (CALL, seen(status=502), DROPPED),
        (CALL, seen(status=503, code=-32603), DROPPED),
        (CALL, seen(status=504), TIMED_OUT),
        (CALL, seen(fault=Fault.OVERSIZED), ANSWERED),
        (OPENING, seen(fault=Fault.OVERSIZED), LATER),
        (CALL, seen(code=-32602), ANSWERED),
        # Sessions.
        (CALL, seen(status=404), ANSWERED),
        (CALL, seen(status=404, in_session=True), EXPIRED),
        (OPENING, seen(status=404, in_session=True), EXPIRED),
        (CALL, seen(status=404, code=-32601, in_session=True), EXPIRED),
        (CALL, seen("Session not found", code=-32001, in_session=True), EXPIRED),
        (CALL, seen("Session not found", code=-32001), ANSWERED),
        (CALL, seen("no valid session id", status=400, code=-32600, in_session=True), EXPIRED),
        (CALL, seen("Bad Request: No valid session ID provided", status=400, code=-32000, in_session=True), EXPIRED),
        (CALL, seen("Bad Request: No valid session ID provided", status=400, code=-32000), ANSWERED),
        (CALL, seen("no session today", code=-32000, in_session=True), ANSWERED),
        (CALL, seen("request timed out", code=-32001, in_session=True), ANSWERED),
        (CALL, seen("the session", code=-32602, in_session=True), ANSWERED),
        (CALL, seen("the session", status=500, code=-32001, in_session=True), ANSWERED),
        (CALL, seen("the session", status=400, in_session=True), ANSWERED),
    ],
)
def test_what_it_means(phase, evidence, failure):
    assert classify(phase, evidence) == failure


@pytest.mark.parametrize("fact", [{"fault": Fault.ENDED}, {"fault": Fault.BROKEN}, {"status": 404}, {"status": 401}])
def test_servers_need_not_offer_a_stream(fact):
    """L6: some say so with odd statuses."""
    assert classify(STREAM, seen(**fact)) == ANSWERED


def test_the_loss_says_what_follows():
    """L12."""
    assert loss_of(GONE, seen("told")) == loss_of(EXPIRED, seen("told")) == Loss("told")
    assert loss_of(NEEDS_AUTH, seen("told")) == Loss("told", needs_auth=True)
    assert loss_of(NEVER, seen("told")) == Loss("told", unusable=True)
    assert loss_of(POSTPONED, seen(retry_in=60), "told") == Loss("told", retry_in=60)
