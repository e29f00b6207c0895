"""Lanes of the tests: which tests run when, and which tests a lane may skip.

| lane | runs | holds | needs |
|---|---|---|---|
| `readme` | `pytest` | each behaviour at the lowest height that sees it, properties, one process each | `.[test]` |
| `push` | `.ci/run` | all real processes, official conformance, a client library a language, a framework | `.[dev]` |
| `night` | `.ci/nightly` | mutants, attack, chaos, sweeps, fuzz, all hosts and frameworks | `.[dev]`, root |

A test is in one lane. The longest path of `LATER` that leads to the test decides, and `readme` where there is none; a
marker `push` or `night`, or a fixture of `FIXTURES`, moves a test to a later lane. A test that needs
what its lane's environment lacks belongs to a later lane: a file of a later lane is not even imported, so that it may
import what it likes.

Of a test of the lane `push` that is parametrized three times or more, such as by the client, its era and the transport,
this lane has as many cases as are needed for each pair of values to occur; of one that is parametrized twice, as many
as are needed for each value to occur. The others are of the lane `night`.

`pytest` alone runs the lane `readme`. `pytest PATH` runs whatever is at that path. `--lane` says otherwise.
"""

import re
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import pytest

README, PUSH, NIGHT = LANES = ("readme", "push", "night")
ALL = "all"
"""The lane of a run for which somebody named paths: it has what is there, and may skip what it wants."""

ROOT = Path(__file__).parent

LATER = {
    "actors/jsonrpc/test_collections.py": PUSH,
    "actors/jsonrpc/test_endpoint_incoming.py::test_a_peer_that_does_not_read_is_heard_nevertheless": PUSH,
    "actors/jsonrpc/test_fairness.py::test_many_messages_in_one_frame_cost_what_as_many_frames_cost": PUSH,
    "actors/process/test_tree.py::test_a_host_that_is_stopped_in_one_step_takes_the_others_all_the_same": PUSH,
    "actors/process/test_tree.py::test_a_host_that_stands_still_after_the_kill_reaches_those_outside_the_group": PUSH,
    "actors/process/test_tree.py::test_a_look_that_hangs_saves_nobody": PUSH,
    "actors/process/test_tree.py::test_fifty_cycles_leave_neither_files_nor_zombies": PUSH,
    "actors/process/test_tree.py::test_many_stubborn_children_are_told_and_struck_out_though_looks_are_late": PUSH,
    "actors/process/test_tree.py::test_twenty_stubborn_children_close_in_one_grace_period": PUSH,
    "actors/process/test_tree.py::test_who_is_gone_is_not_said_to_outlive_because_a_look_is_late": PUSH,
    "actors/test_mailbox.py::test_nobody_writes_the_fields_of_a_slot_but_its_methods": PUSH,
    "actors/transports/test_http_connections.py": PUSH,
    "actors/transports/test_http_exchanges.py::test_a_late_answer_to_initialize_opens_no_session": PUSH,
    "actors/transports/test_http_unasked.py::test_a_server_that_asks_without_end_gets_so_many_answers_at_once": PUSH,
    "actors/transports/websocket/test_connector.py::test_a_status_is_told_however_its_body_ends": PUSH,
    "attack": NIGHT,
    "chaos": NIGHT,
    "conformance": PUSH,
    "fuzz": NIGHT,
    "interop": NIGHT,
    "interop/frameworks/test_langchain.py": PUSH,
    "interop/test_client_libraries.py": PUSH,
    "mutants": NIGHT,
    "property/test_injection.py::test_it_takes_time_linear_in_the_text": PUSH,
    "real": PUSH,
    "real/test_image.py": NIGHT,
    "real/test_install.py::test_whoever_is_killed_has_one_of_both_and_can_undo_it": NIGHT,
    "release": NIGHT,
    "supervisor/calls/test_task_news.py::test_answers_of_many_leave_room_for_calls": PUSH,
    "supervisor/calls/test_task_news.py::test_many_tasks_cost_less_than_a_request_a_second": PUSH,
    "supervisor/calls/test_task_news.py::test_many_tasks_leave_room_for_calls": PUSH,
    "supervisor/calls/test_task_news.py::test_results_of_many_tasks_of_2025_leave_room_for_calls": PUSH,
    "supervisor/cli/test_app.py::test_a_closed_stdout_is_no_traceback": PUSH,
    "supervisor/cli/test_app.py::test_one_command_loads_no_client_of_the_sdk": PUSH,
    "supervisor/cli/test_app.py::test_the_types_of_a_result_are_loaded_before_its_time_begins": PUSH,
    "supervisor/cli/test_attached.py": PUSH,
    "supervisor/cli/test_attached_serve.py": PUSH,
    "supervisor/cli/test_call.py::test_a_signal_ends_the_call_and_its_server": PUSH,
    "supervisor/cli/test_demo.py::test_a_process_left_behind": PUSH,
    "supervisor/cli/test_demo.py::test_as_json": PUSH,
    "supervisor/cli/test_demo.py::test_in_words": PUSH,
    "supervisor/cli/test_fan_out.py": PUSH,
    "supervisor/cli/test_full_screen.py": PUSH,
    "supervisor/cli/test_hostile.py::test_calling_it": PUSH,
    "supervisor/cli/test_logs.py::test_a_timeout_quotes_what_was_said_meanwhile": PUSH,
    "supervisor/cli/test_resources.py": PUSH,
    "supervisor/cli/test_run.py": PUSH,
    "supervisor/cli/test_session_keys.py::test_processes_that_make_a_key_at_once_have_the_same": PUSH,
    "supervisor/cli/test_status.py::test_a_host_that_is_starting_is_waited_for": PUSH,
    "supervisor/cli/test_status.py::test_fifty_servers_of_which_three_hang": PUSH,
    "supervisor/cli/test_status.py::test_the_host_that_supervises_them_is_asked": PUSH,
    "supervisor/cli/test_status.py::test_who_does_not_come_is_still_connecting": PUSH,
    "supervisor/cli/test_trust.py::test_none_leaves_while_servers_are_kept_running_either": PUSH,
    "supervisor/cli/test_trust.py::test_run_runs_nothing_either": PUSH,
    "supervisor/cli/web/test_serving.py": PUSH,
    "supervisor/login/test_token_files.py::test_what_another_host_writes_is_noticed": PUSH,
    "supervisor/portal/test_blocking_supervisor.py::test_servers_are_killed_hang_and_talk_nonsense": PUSH,
    "supervisor/portal/test_exits.py": PUSH,
    "supervisor/security/test_redaction.py::test_it_takes_time_linear_in_the_text": PUSH,
    "supervisor/servers/test_many_servers.py": PUSH,
    "supervisor/servers/test_publication.py::test_what_happens_meanwhile_leaves_a_right_catalogue": PUSH,
    "supervisor/servers/test_reconnecting_calls.py::test_the_ladder_is_the_same_and_only_earlier": PUSH,
    "supervisor/storage/test_postgres_failures.py": PUSH,
    "supervisor/storage/test_store.py::test_several_processes_at_once": PUSH,
    "supervisor/telemetry/test_servers.py::test_a_change_costs_the_same_however_many_servers_there_are": PUSH,
    "supervisor/test_preload.py": PUSH,
    "supervisor/test_pytest_plugin.py": PUSH,
    "supervisor/test_words_of_faults.py::test_a_proxy_that_answers_nonsense": PUSH,
    "sweeps": NIGHT,
    "test_behaviours.py": PUSH,
    "test_comparison.py": PUSH,
    "test_dependencies.py": PUSH,
    "test_docs.py": PUSH,
    "test_house.py": PUSH,
    "test_kubernetes.py": PUSH,
    "test_lanes.py": NIGHT,
    "test_patterns.py": PUSH,
    "test_readme.py::test_asyncio_learns_that_the_trio_side_has_failed": PUSH,
    "test_readme.py::test_the_examples_of_a_page_run": PUSH,
    "test_readme.py::test_the_mounted_gateway_serves_and_ends": PUSH,
    "test_readme.py::test_the_web_service_serves_and_ends": PUSH,
    "test_releases.py": PUSH,
    "test_threads.py": PUSH,
    "test_timely.py": PUSH,
    "test_words.py": PUSH,
}
"""The lane of a folder, a file or a test function, by its path below `tests/`. What stands here in spite of its room
reads the sources, starts processes by the dozen, waits in real time, or measures how a cost grows: see the timings."""

FIXTURES = {"as_root": PUSH, "database": PUSH, "database_server": PUSH}
"""The lane of tests that use a fixture, by its name."""

_LINUX = (".* is Linux's", "only Linux has .*", "there is no /proc", ".* on Linux alone", "elsewhere a pipe .*")
SKIPS = {
    README: ("root writes everywhere", *_LINUX, "tasks begin in the next turn"),
    PUSH: ("only root can do it", *_LINUX, "there is no docker client", "kubectl is not installed"),
    NIGHT: ("kubectl is not installed", "namespaces need .*", "unshare.*"),
}
"""Reasons for which tests of a lane may be skipped, as patterns of the whole reason."""


def lane_of_file(path):
    """The lane of a file's tests that have no marker, by its path."""
    try:
        parts = path.relative_to(ROOT).parts
    except ValueError:
        return README  # a test of the tests, in a folder of its own
    candidates = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((LATER[each] for each in candidates if each in LATER), README)


_WORDS = re.compile(rf"\b(?:{'|'.join([*LANES[1:], *FIXTURES])})\b")


def names_a_later_lane(path):
    """Whether a file of the lane `readme` may have tests of a later lane, by its text and its folders' fixtures."""
    if not path.is_relative_to(ROOT):
        return True
    name = f"{path.relative_to(ROOT)}::"
    folders = [folder for folder in path.parents if folder.is_relative_to(ROOT)]
    texts = [path, *(folder / "conftest.py" for folder in folders[:-1])]
    named = any(each.startswith(name) for each in LATER)
    return named or any(_WORDS.search(each.read_text("utf-8")) for each in texts if each.exists())


def beyond_pairs(items):
    """The cases of tests of the lane `push` that this lane does not need: what they have is in another."""
    cases = defaultdict(dict)
    for item in sorted(items, key=lambda item: item.nodeid):  # the same cases in each run
        if hasattr(item, "callspec"):
            cases[item.path, item.originalname][item] = axes_of(item)
    beyond = set()
    for each in cases.values():
        count = len(next(iter(each.values())))
        if count > 1:
            beyond |= each.keys() - _covering({item: set(combinations(axes, count - 1)) for item, axes in each.items()})
    return beyond


def _covering(left):
    """A few of these items, which have all that any of them has."""
    missing, chosen = set().union(*left.values()), set()
    while missing:
        best = max(left.keys() - chosen, key=lambda item: (len(left[item] & missing), item.nodeid))
        missing -= left[best]
        chosen.add(best)
    return chosen


def axes_of(item):
    """The values of a case, by the parametrizations that they come from."""
    names = [mark.args[0] for mark in item.iter_markers("parametrize")]
    names = [each.replace(" ", "").split(",") if isinstance(each, str) else each for each in names]
    named = {name for axis in names for name in axis}
    names += [[name] for name in item.callspec.params if name not in named]  # of a fixture
    return [(*axis, *(id(item.callspec.params[name]) for name in axis)) for axis in names]


def lane_of(item):
    """The lane of a test: the latest of its file, its name, its markers and its fixtures."""
    file = lane_of_file(item.path)
    named = LATER.get(f"{item.path.relative_to(ROOT)}::{item.originalname}") if item.path.is_relative_to(ROOT) else None
    marked = [lane for lane in LANES if item.get_closest_marker(lane)]
    needed = [lane for fixture, lane in FIXTURES.items() if fixture in item.fixturenames]
    return max([file, named or file, *marked, *needed], key=LANES.index)


def lanes_of_run(config):
    """The lanes that this run has: all, unless it is said otherwise."""
    said = config.getoption("--lane")
    return LANES if said in (None, ALL) else tuple(said.split(","))


def name_of_run(config):
    """The name under which a run leaves its timings."""
    lanes = lanes_of_run(config)
    return ALL if lanes == LANES else "-".join(lanes)


class Lanes:
    """The plugin of pytest that runs the tests of some lanes, and fails a run that skips what it may not skip."""

    def __init__(self, config):
        self._lanes = lanes_of_run(config)
        is_named = config.getoption("--lane") is not None
        self._allowed = [re.compile(each) for lane in self._lanes for each in SKIPS[lane]] if is_named else None
        self._refused = {}

    def pytest_ignore_collect(self, collection_path):
        """A file that has no test of these lanes is not imported."""
        if collection_path.is_dir():
            return None
        first = LANES.index(lane_of_file(collection_path))
        may_have = LANES[first:] if first or names_a_later_lane(collection_path) else (README,)
        return True if not set(may_have) & set(self._lanes) else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config, items):
        lanes = {item: lane_of(item) for item in items}
        lanes |= dict.fromkeys(beyond_pairs([item for item in items if lanes[item] == PUSH]), NIGHT)
        others = [item for item in items if lanes[item] not in self._lanes]
        if others:
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if lanes[item] in self._lanes]

    def pytest_runtest_logreport(self, report):
        self._look_at(report)

    def pytest_collectreport(self, report):
        self._look_at(report)

    def _look_at(self, report):
        if self._allowed is None or not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not any(each.fullmatch(reason) for each in self._allowed):
            self._refused[report.nodeid] = reason

    def pytest_sessionfinish(self, session):
        if self._refused:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if self._refused:
            terminalreporter.section(f"skipped, which {' and '.join(self._lanes)} may not: tests/lanes.py")
            for name, reason in sorted(self._refused.items()):
                terminalreporter.line(f"FAILED {name} - skipped: {reason}")
