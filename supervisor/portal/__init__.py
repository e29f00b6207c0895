"""Supervisors for programs without Trio: asyncio, any backend of anyio, plain code and notebooks.

Trio runs in a thread of its own, and the supervisor with it. Each request crosses to that thread by Trio's token
(`trio.lowlevel.TrioToken.run_sync_soon`), runs there in a task and a cancel scope of its own, in the context of its
caller, and its outcome crosses back by `call_soon_threadsafe`, by the token of the caller's loop, or by a lock that a
thread waits for. Nothing is polled.

Two promises. *Each request has one outcome on each side*: a caller that is cancelled has the request cancelled there,
at once, and goes on when it has ended. *Nothing outlives the block*: leaving it ends every request, every server and
the thread, even if the interpreter exits first.

The blocking portal of anyio crosses in the same way, and gives futures of `concurrent.futures`. A caller that is
cancelled goes on before its call has ended there, streams need a generator task for each, and callbacks do not come
back to the loop of the caller: these are what this package adds.
"""

from .async_supervisor import ThreadSupervisor
from .blocking_supervisor import BlockingSupervisor
from .opening import open_supervisor_thread

__all__ = ["BlockingSupervisor", "ThreadSupervisor", "open_supervisor_thread"]
