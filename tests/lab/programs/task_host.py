"""A host that submits a task, answers its questions, and kills itself at a point of the task's life.

Usage: task_host.py STATE FOLDER POINT

At the point `asked` it waits for ever instead, and prints the result that another host learns. The file `asked` of the
folder has a line for each question that somebody was asked, and `answered` for each answer.
"""

import os
import signal
import sys
from pathlib import Path

import trio
from mcp_types import ElicitResult

from mcp_nursery.supervisor import ServerSpec, StdioTransport, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.calls.kept_tasks import KeptTasks
from mcp_nursery.supervisor.storage.task_rows import TaskRows

SERVER = Path(__file__).with_name("task_server.py")
STATE, FOLDER, POINT = sys.argv[1:]


def reached(point: str) -> None:
    if point == POINT:
        os.kill(os.getpid(), signal.SIGKILL)


def before(name: str, point) -> None:
    """Reach a point before a method of the rows; `point`: names what the method does with a record."""
    method = getattr(TaskRows, name)

    def wrapped(self, record, owner):
        reached(f"before {point(record)}")
        return method(self, record, owner)

    setattr(TaskRows, name, wrapped)


def written(record) -> str:
    if record.info.finished is not None:
        return "the result is stored"
    return f"the answer {max(record.answers)} is stored" if record.answers else "a status is seen"


def note(what: str, line: str) -> None:
    with (Path(FOLDER) / what).open("a") as file:
        file.write(line + "\n")


async def elicit(message):
    question = message.params.message[0]
    note("asked", question)
    if POINT == "asked":
        print(question, flush=True)  # noqa: T201
        await trio.sleep_forever()
    reached(f"while {question} is asked")
    note("answered", question)
    return ElicitResult(action="accept", content={"name": question})


async def main() -> None:
    before("add", lambda _: "the task is stored")
    before("write", written)
    show = KeptTasks._show

    def shown(self, kept, record):
        point = "the task is stored" if kept.record is None else written(record)
        show(self, kept, record)
        reached(f"after {point}")

    KeptTasks._show = shown
    spec = ServerSpec("lab", StdioTransport(sys.executable, ["-I", "-S", str(SERVER), FOLDER]))
    async with open_supervisor([spec], state=STATE, callbacks=Callbacks(elicit=elicit)) as supervisor:
        if POINT == "asked":
            task = await supervisor.submit("work", server="lab")
            print((await task.result()).full_text, flush=True)  # noqa: T201
        elif POINT.startswith("when"):
            task = await supervisor.submit("work", server="lab")
            reached("when there is a handle")
            await task.result()
            reached("when there is a result")
        else:
            async with supervisor.start_task("work", server="lab") as task:
                await task.result()


trio.run(main)
