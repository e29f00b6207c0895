"""P7: what our path gets and sends is what the SDK's client gets and sends with the same servers, or is in a table.

One list of exchanges (exchanges.py) is run through a supervisor and through `mcp.Client`, against a real process that
says what its script says and writes down every frame it reads. Where the two differ on purpose the exchange says how,
for both: a new version of the SDK that changes its mind is noticed.
"""

import pytest
import trio

from . import both_clients
from .both_clients import written
from .exchanges import ALL, ERAS, HANDSHAKES, MODERN, PROGRESS, STAMPS

each_exchange = pytest.mark.parametrize("exchange", ALL, ids=lambda exchange: exchange.name)


@pytest.fixture(scope="module", params=ERAS)
def recorded(request, tmp_path_factory):
    """The era, and what came of the whole list through our path and through the SDK's."""
    era = request.param
    clients = (both_clients.ours, both_clients.sdks)
    return era, *(trio.run(client, tmp_path_factory.mktemp("run"), era, ALL) for client in clients)


def without_our_words(outcome):
    """The data of an answer that is none is ours alone."""
    return outcome[:3] if outcome[:3] == ["error", -32603, "malformed response"] else outcome


@each_exchange
def test_the_outcome(recorded, exchange):
    """T1, R2, R6: results, errors with code, message and data, and what is refused."""
    era, *both = recorded
    ours, sdks = (recording.seen[exchange.name].outcome for recording in both)
    apart = exchange.apart
    if apart is None or era not in apart.eras:
        assert written(ours) == written(sdks)
    else:
        assert written(without_our_words(ours)) == written(apart.ours)
        assert written(sdks) == written(apart.sdks)


@each_exchange
def test_the_frames(recorded, exchange):
    """Requests, notifications, answers to the server; the era's stamp, progress tokens, trace context."""
    era, *both = recorded
    ours, sdks = (recording.seen[exchange.name].frames for recording in both)
    apart = exchange.frames_apart
    if apart is None or era not in apart.eras:
        assert written(ours) == written(sdks)
    else:
        assert written(told(ours)) == written(apart.ours)
        assert written(told(sdks)) == written(apart.sdks)


def told(frames):
    return [[frame["method"], unstamped(frame.get("params", {}))] for frame in frames]


def unstamped(params):
    meta = {key: value for key, value in params.get("_meta", {}).items() if key not in STAMPS}
    rest = {key: value for key, value in params.items() if key != "_meta"}
    return rest | ({"_meta": meta} if meta else {})


@each_exchange
def test_the_progress(recorded, exchange):
    """R5: the same reports. The SDK gives each a task of its own, and so no order."""
    ours, sdks = (recording.seen[exchange.name].reports for recording in recorded[1:])
    assert sorted(map(written, ours)) == sorted(map(written, sdks))


def test_our_progress_comes_in_order_and_before_the_result(recorded):
    """R5: on a real pipe."""
    ours = recorded[1]
    assert ours.seen["steps"].reports == [[n, 5, f"step {n}"] for n in range(5)]
    assert all(seen.reports_before == len(seen.reports) for seen in ours.seen.values())
    assert {one.name for one in PROGRESS if ours.seen[one.name].reports} == {
        "steps", "fractions", "progress_nonsense", "progress_of_others", "token_as_text"
    }  # fmt: skip


def test_the_greeting(recorded):
    """P7, L16, T1: the probe, the handshake, `initialized`, and every page of the list; an empty cursor is a cursor."""
    era, ours, sdks = recorded
    assert written(ours.greeting) == written(sdks.greeting)
    methods = [frame["method"] for frame in ours.greeting]
    handshake = [] if era == MODERN else ["initialize", "notifications/initialized"]
    assert methods == ["server/discover", *handshake, *["tools/list"] * 3]
    assert [frame.get("params", {}).get("cursor") for frame in ours.greeting[-3:]] == [None, "", "2"]
    assert all((STAMPS[0] in str(frame)) == (era == MODERN) for frame in ours.greeting[1:])


def test_the_facts(recorded):
    """L16: version, server and instructions; tools with an invalid header annotation are dropped."""
    era, ours, sdks = recorded
    assert written(ours.facts) == written(sdks.facts)
    assert ours.facts[0] == era
    assert ("badly_annotated" in ours.facts[3]) == (era in HANDSHAKES)
