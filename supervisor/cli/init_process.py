"""The init process of a container: process 1 adopts processes that have lost their parent, and has to reap them.

A server may start processes that outlive it. Without an init they would become children of the gateway, which waits for
its own children alone: each would stay a zombie. So process 1 only reaps processes and passes signals on, and the
command runs in its child. Process 1 ends with the exit code of that child, and the kernel ends the rest.
"""

import os
import signal
import sys
from typing import Final

_FAULTS: Final = frozenset(
    [signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS]
)
"""The signals of this process's own faults."""


def run_in_child() -> None:
    """Return in a child of this process, which is process 1. Process 1 exits here, with the exit code of the child."""
    signals = signal.valid_signals() - _FAULTS
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # no signal is lost, and none ends process 1
    child = os.fork()
    if child:
        sys.exit(_reap_until_end_of(child, signals))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reap_until_end_of(child: int, signals: "set[signal.Signals]") -> int:
    """Reap every process that ends and pass signals on, until the child has ended. Returns its exit code."""
    while True:
        number = signal.sigwait(signals)
        if number != signal.SIGCHLD:
            os.kill(child, number)
            continue
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
                return code if code >= 0 else 128 - code
