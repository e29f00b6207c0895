"""The parts that an extra installs: where one is missing, one line says which."""

from collections.abc import Generator
from contextlib import contextmanager

from mcp_nursery.actors.errors import ConfigError, one_line


@contextmanager
def needs_extra(extra: str, field: str | None = None) -> Generator[None, None, None]:
    """Name the extra where a module that the block loads is not installed.

    Args:
        extra: Its name, as pip knows it.
        field: The setting that asks for it; None: a program does, in its own code.

    Raises:
        ConfigError: A module is missing, and a setting asks for it.
        ModuleNotFoundError: A module is missing, and a program asks for it.
    """
    try:
        yield
    except ImportError as error:
        fault = f"{error.name} is missing" if error.name else one_line(error)
        problem = f"{fault}: pip install 'mcp-nursery[{extra}]'"
        if field is not None:
            raise ConfigError(problem, field=field) from None
        raise ModuleNotFoundError(problem, name=error.name) from None
