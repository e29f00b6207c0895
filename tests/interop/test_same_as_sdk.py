"""P7: what our path gets and sends is what the SDK's client gets and sends with the same servers, or is in a table.

One list of exchanges (exchanges.py) is run through a supervisor and through `mcp.Client`, against a real process that
says what its script says and writes down every frame it reads. Where the two differ on purpose the exchange says how,
for both: a new version of the SDK that changes its mind is noticed.
"""

from itertools import dropwhile

import pytest
import trio
from attrs import asdict

from ..lab import PROGRAMS
from . import both_clients
from .both_clients import written
from .exchanges import ALL, ENDING, ERAS, HANDSHAKES, LIST_CHANGED, MODERN, OF_THE_SDKS_SERVER, PROGRESS, STAMPS

TAPPED = PROGRAMS / "tapped_server.py"

CLIENTS = (both_clients.ours, both_clients.sdks)

each_exchange = pytest.mark.parametrize("exchange", ALL, ids=lambda exchange: exchange.name)


def recordings(clients, folders, era):
    return era, *(both_clients.record(client, folders.mktemp("run"), era, ALL) for client in clients)


@pytest.fixture(scope="module", params=ERAS)
def recorded(request, tmp_path_factory):
    """The era, and what came of the whole list through our path and through the SDK's."""
    return recordings(CLIENTS, tmp_path_factory, request.param)


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
    apart = next((each for each in exchange.frames_apart if era in each.eras), None)
    if apart is None:
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


def test_the_progress(recorded):
    """R5: the same reports. The SDK gives each a task of its own, and so no order."""
    _, ours, sdks = recorded
    for name, seen in ours.seen.items():
        assert sorted(map(written, seen.reports)) == sorted(map(written, sdks.seen[name].reports)), name


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


def test_a_fan_out_is_no_different(recorded, tmp_path_factory):
    """R2, R5, R6: neither in what comes back nor in what leaves."""
    era, ours, _ = recorded
    _, bulk = recordings([both_clients.ours_in_bulk], tmp_path_factory, era)
    for name, seen in ours.seen.items():
        assert written(asdict(bulk.seen[name])) == written(asdict(seen)), name


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ENDING, ids=lambda exchange: exchange.name)
def test_what_ends_the_sdks_connection_does_not_end_ours(tmp_path, exchange):
    """Q25: one server's odd number, or a caller's odd text, is nobody else's affair; the next call is answered."""
    seen = both_clients.record(both_clients.ours, tmp_path, MODERN, [exchange]).seen[exchange.name]
    assert written(seen.outcome) == written(exchange.apart.ours)
    with pytest.raises(BaseExceptionGroup) as caught:
        both_clients.record(both_clients.sdks, tmp_path, MODERN, [exchange], within=4)  # one of them waits for ever
    assert exchange.apart.sdks in map(type_name, leaves(caught.value))


def type_name(error):
    return type(error).__name__


def leaves(error):
    """The errors in a group, however deep: a call that waited for its answer adds one of its own."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in leaves(part)]


@pytest.mark.parametrize("era", ERAS)
def test_a_change_that_is_told_in_the_middle_of_a_call(tmp_path, era):
    """P2: neither of them lists again there and then."""
    ours, sdks = (
        both_clients.record(client, tmp_path, era, [LIST_CHANGED]).seen[LIST_CHANGED.name] for client in CLIENTS
    )
    assert written([ours.outcome, ours.frames]) == written([sdks.outcome, sdks.frames])
    assert len(ours.frames) == 1


@pytest.mark.slow
def test_with_a_server_of_the_sdk(tmp_path):
    """R5, R6, P7: its own `MCPServer`; all it reads from us, it reads from the SDK's client, and answers alike."""
    runs, heard, lists = [], [], []
    for client in CLIENTS:
        log = tmp_path / client.__name__
        runs.append(trio.run(client, [str(TAPPED), str(log)], OF_THE_SDKS_SERVER))
        heard_of_all = both_clients.frames_in(log)
        lists.append(sum(frame["method"] == "tools/list" for frame in heard_of_all))
        calls = dropwhile(lambda frame: frame["method"] != "tools/call", heard_of_all)
        # Without the greeting, as a slow start is hedged, and our look at the lists once changes are heard.
        frames = both_clients.comparable([frame for frame in calls if not frame["method"].endswith("/list")])
        for frame in frames:
            frame["params"].pop("reason", None)
        heard.append(sorted(map(written, frames)))  # a cancel may come before or after the next call
    (facts, ours), (sdks_facts, sdks) = runs
    assert written(facts) == written(sdks_facts)
    for exchange, one, other in zip(OF_THE_SDKS_SERVER, ours, sdks, strict=True):
        assert written(one.outcome) == written(other.outcome), exchange
        assert sorted(map(written, one.reports)) == sorted(map(written, other.reports))
    assert heard[0] == heard[1]
    assert lists == [2, 1]
    assert [one.outcome[0] for one in ours] == [
        *["result"] * 5, "error", *["result"] * 4, "cancelled", "result", "timeout", "result"
    ]  # fmt: skip
    assert sum("notifications/cancelled" in frame for frame in heard[0]) == 2
