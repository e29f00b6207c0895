"""Installs all that the tests here need, some at a time: `python -m tests.interop`. A test waits for what it needs."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ..conformance.suite import suite
from .cases import CASES
from .hosts import HOSTS
from .installing import CannotInstall, npm_modules, npm_package, python_with
from .slow_starters import SLOW_STARTERS
from .test_apps_in_a_browser import BUNDLER, SDK
from .test_client_libraries import IN_PYTHON, IN_TYPESCRIPT
from .test_fastmcp_tasks import TASKS
from .test_gateway_clients import FASTMCP, FIRST_LINE, INSPECTOR
from .test_remote import PROXY

AT_ONCE = 2


def all_installs() -> Iterator[Callable[[], object]]:
    """What installs each of them, those that take longest first."""
    yield from (host.command for host in HOSTS)
    for requirement in (*filter(None, IN_PYTHON.values()), FASTMCP, FIRST_LINE, PROXY, TASKS):
        yield partial(python_with, requirement)
    yield from (partial(npm_modules, requirement) for requirement in (*IN_TYPESCRIPT.values(), SDK, BUNDLER))
    yield from (partial(each.command, Path()) for each in (*CASES.values(), *SLOW_STARTERS))
    yield partial(npm_package, INSPECTOR, least_node=22)
    yield suite


def install(one: Callable[[], object]) -> str | None:
    """Install one of them; why that cannot be, if it cannot."""
    try:
        one()
    except (CannotInstall, OSError) as problem:
        return str(problem)
    return None


def main() -> None:
    """Install all; ends with 1 if one cannot be."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        problems = list(filter(None, pool.map(install, all_installs())))
    print(*problems, sep="\n", end="")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
