"""Supervisors for programs without Trio: asyncio, any backend of anyio, plain code and notebooks.

Trio runs in a thread of its own, and the supervisor with it. Each request crosses to that thread by
`TrioToken.run_sync_soon`, runs there in a task of its own, in the context of its caller, and its outcome crosses back
by what the caller's loop has for that (`call_soon_threadsafe`, or an event that a thread waits for). Nobody polls.

anyio's blocking portal does the same and more, for functions of either side. It was measured: a call through it costs
two tasks, a `Future` of `concurrent.futures` and a lock on top (`benchmarks/portal.py`), and it does not wait for what
it has cancelled. So the crossing is one of our own, with two promises. *Each request has one outcome on each side*: who
is cancelled has the request cancelled there, at once, and goes on when it has ended. *Nothing outlives the block*:
leaving it ends every request, every server and the thread, also where the interpreter exits before.
"""

from .supervisors import BlockingSupervisor, ThreadSupervisor, open_supervisor_thread

__all__ = ["BlockingSupervisor", "ThreadSupervisor", "open_supervisor_thread"]
