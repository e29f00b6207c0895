"""Commands whose output is a value of `env` or of a header."""

import signal
import subprocess

import trio

from mcp_nursery.actors.process.table import ProcessId, signal_group

COMMAND_SECONDS = 10.0
"""How long a command may take."""

OUTPUT_LIMIT = 64 << 10
"""Bytes of a command's output: more is no value that anybody could use."""

_KILL_SLACK = 1.0
"""Seconds that a killed command gets to vanish."""


class CommandFailed(Exception):
    """A command gave no value. Says nothing of what it printed."""


async def output_of(command: str, folder: str) -> str:
    """What a shell command prints, without its last newline. It gets the host's environment and no input.

    Raises:
        CommandFailed: It failed, took more than 10 s, or printed what is no text.
    """
    try:
        process = await trio.lowlevel.open_process(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        problem = f"the command cannot be started: {getattr(error, 'strerror', None) or 'not a command'}"
    else:
        return _value_of(await _read_all(process), process.returncode)
    raise CommandFailed(problem)


async def _read_all(process: trio.Process) -> bytes | None:
    """All that it prints until it exits; None if it is too slow or prints too much: then it is killed, as on cancel."""
    assert process.stdout is not None
    output = bytearray()
    whole = False
    try:
        with trio.move_on_after(COMMAND_SECONDS):
            async for chunk in process.stdout:
                output += chunk
                if len(output) > OUTPUT_LIMIT:
                    return None
            await process.wait()
            whole = True
    finally:
        if not whole:
            signal_group(ProcessId(process.pid, 0), signal.SIGKILL, reaped=process.returncode is not None)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _KILL_SLACK):
                await process.wait()
        await process.stdout.aclose()
    return bytes(output) if whole else None


def _value_of(output: bytes | None, code: int | None) -> str:
    if output is None:
        raise CommandFailed(
            f"the command took more than {COMMAND_SECONDS:g} s, or wrote more than {OUTPUT_LIMIT >> 10} KiB"
        )
    if code:
        raise CommandFailed(f"the command ended with exit code {code}")
    try:
        text = output.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise CommandFailed("the command's output is not text")
    return text.removesuffix("\n").removesuffix("\r")
