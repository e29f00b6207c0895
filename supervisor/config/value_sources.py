"""The sources of values outside of a configuration: commands whose output is a value of `env` or of a header, and files
of variables, with one `NAME=VALUE` a line, in which nothing is expanded. No message shows a value."""

import hashlib
import os
import re
import stat
import subprocess

import trio

from mcp_nursery.actors.process.table import kill_group
from mcp_nursery.actors.records import field, frozen
from mcp_nursery.actors.secrets import names_only
from mcp_nursery.actors.threads import open_process

COMMAND_SECONDS = 10.0
"""Seconds that a command may take."""

OUTPUT_LIMIT = 64 << 10
"""Bytes of a command's output: more than that is no usable value."""


class CommandFailed(Exception):
    """The error of a command that gave no value. Its text shows nothing of what the command printed."""


async def output_of(command: str, folder: str) -> str:
    """The output of a shell command, without its last newline. The command has the host's environment and no input.

    Raises:
        CommandFailed: The command failed, took more than 10 s, or printed something that is not text.
    """
    try:
        process = await open_process(
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
    """The output of a command until it exits. If it is too slow or prints too much, None: then it is killed, as it is
    when this is cancelled."""
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
            await kill_group(process)
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


ENV_FILE_LIMIT = 1 << 20
"""Bytes of a file: a larger one holds no variables."""

_LINE = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*(.*)")
_COMMENT = re.compile(r"(?:^|[ \t]+)#.*")
_QUOTED = re.compile(r"(['\"])(.*)\1[ \t]*(?:#.*)?")


class EnvFileError(Exception):
    """The error of a file that cannot be used. Its text shows no value."""


@frozen
class EnvFile:
    """The content of a file of variables."""

    variables: dict[str, str] = field(repr=names_only)
    digest: str = field(repr=False)
    """SHA-256 of its bytes."""


def read_env_file(path: str) -> EnvFile:
    """The variables of a file. Blocks.

    Empty lines are ignored, and so is a comment, which follows a `#` at the beginning of a line or after a space;
    quotes around a value are not part of it; of two lines with the same name the later one counts.

    Raises:
        EnvFileError: The file is no regular file of at most 1 MiB of UTF-8, or one of its lines is none of the above.
    """
    data = _read(path)
    try:
        return EnvFile(_variables(data.decode("utf-8-sig")), hashlib.sha256(data).hexdigest())
    except UnicodeDecodeError:
        problem = "not UTF-8"
    raise EnvFileError(problem)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", opener=_without_waiting) as stream:
            regular = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
            data = stream.read(ENV_FILE_LIMIT + 1) if regular else b""
        if regular and len(data) <= ENV_FILE_LIMIT:
            return data
        problem = "not a regular file of at most 1 MiB"
    except OSError as error:
        problem = f"cannot be read: {error.strerror or type(error).__name__}"
    except ValueError:
        problem = "not a file name"
    raise EnvFileError(problem)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its other end


def _variables(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        quoted = _QUOTED.fullmatch(match[2]) if match else None
        if match is None or "\0" in stripped or (match[2][:1] in ("'", '"') and quoted is None):
            raise EnvFileError(f"line {number} is not NAME=VALUE")
        found[match[1]] = quoted[2] if quoted else _COMMENT.sub("", match[2])
    return found
