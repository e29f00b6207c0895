import os
import subprocess
import sys

import pytest

from mcp_nursery.actors.process import inherited_marks
from mcp_nursery.actors.process.inherited_marks import mark, read_tag, tag_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")

STARTS_ONE = "sleep 60 & echo $!; wait"


@pytest.fixture
def parent():
    """A process that has started another, and the other's number."""
    with subprocess.Popen(["/bin/sh", "-c", STARTS_ONE], stdout=subprocess.PIPE, start_new_session=True) as process:
        yield process.pid, int(process.stdout.readline())
        os.killpg(process.pid, 9)


def test_a_tag_is_of_its_marker_alone_and_no_limit_at_all_is_none():
    assert tag_of("a") == tag_of("a") != tag_of("b")
    assert 0 <= tag_of("\ud800") < 2**56
    assert read_tag(os.getpid()) is None


def test_who_was_started_before_the_mark_is_marked_too(parent):
    mark(parent[0], "mine")
    assert [read_tag(pid) for pid in parent] == [tag_of("mine")] * 2


def test_where_the_kernel_tells_no_children_the_process_alone_is_marked(parent, monkeypatch):
    monkeypatch.setattr(inherited_marks, "_children", lambda _: [])
    mark(parent[0], "mine")
    assert [read_tag(pid) for pid in parent] == [tag_of("mine"), None]


def test_a_process_that_is_gone_is_no_error(parent):
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    mark(process.pid, "mine")
    assert read_tag(process.pid) is None
    assert inherited_marks._children(process.pid) == []
