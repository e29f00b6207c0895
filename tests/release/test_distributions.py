"""Wheel and sdist: what an index would take, with all that belongs into them."""

import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes

import pytest

from mcp_nursery.actors.version import VERSION

pytestmark = pytest.mark.push


def passes(*command):
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_index_would_take_them(distributions):
    passes("twine", "--no-color", "check", "--strict", distributions.wheel, distributions.sdist)
    passes("check_wheel_contents", distributions.wheel)


def test_they_are_of_this_version_and_commit(distributions):
    assert distributions.wheel.name == f"mcp_nursery-{VERSION}-py3-none-any.whl"
    assert distributions.sdist.name == f"mcp_nursery-{VERSION}.tar.gz"
    with zipfile.ZipFile(distributions.wheel) as wheel:
        assert wheel.read("mcp_nursery/actors/commit.txt").decode().strip() == distributions.commit
    with tarfile.open(distributions.sdist) as sdist:
        recorded = sdist.extractfile(f"mcp_nursery-{VERSION}/actors/commit.txt")
        assert recorded.read().decode().strip() == distributions.commit


def test_the_wheel_has_the_package_and_nothing_else(distributions):
    with zipfile.ZipFile(distributions.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = message_from_bytes(wheel.read(f"mcp_nursery-{VERSION}.dist-info/METADATA"))
    sources = {f"mcp_nursery/{file}" for file in distributions.files if file.startswith(("actors/", "supervisor/"))}
    assert names == sources | {"mcp_nursery/actors/commit.txt"}
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"


def test_a_module_that_is_gone_is_in_no_wheel_of_the_same_folder(distributions, tmp_path):
    """As `pip install .` builds one, in the folder of the sources: what an earlier build has left there is."""
    source = tmp_path / "source"
    with tarfile.open(distributions.sdist) as sdist:
        sdist.extractall(tmp_path, filter="data")
    (tmp_path / f"mcp_nursery-{VERSION}").rename(source)
    left = source / "build" / "lib" / "mcp_nursery" / "actors" / "gone.py"
    left.parent.mkdir(parents=True)
    left.write_text("")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(source)]
    subprocess.run(command, check=True, timeout=120)
    (built,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as wheel, zipfile.ZipFile(distributions.wheel) as other:
        assert sorted(wheel.namelist()) == sorted(other.namelist())
        assert wheel.read("mcp_nursery/actors/commit.txt").decode().strip() == distributions.commit


def test_the_sdist_has_the_whole_tree(distributions):
    """The wheel was made of it: so it can be installed."""
    with tarfile.open(distributions.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert distributions.files - names == set()
    assert "tests/release/test_distributions.py" in names
    assert [name for name in names if "__pycache__" in name or name.endswith(".pyc")] == []
