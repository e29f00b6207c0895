"""The parts that an extra installs: if one is missing, a single line names the extra."""

from collections.abc import Generator
from contextlib import contextmanager

from mcp_nursery.actors.errors import ConfigError, one_line


@contextmanager
def needs_extra(extra: str, field: str | None = None) -> Generator[None, None, None]:
    """Name the extra, as pip knows it, in an error if a module that the block loads is not installed. `field` is the
    setting that needs the extra; None if a program's own code does.

    Raises:
        ConfigError: A module is missing, and a setting needs it.
        ModuleNotFoundError: A module is missing, and a program needs it.
    """
    try:
        yield
    except ImportError as error:
        fault = f"{error.name} is missing" if error.name else one_line(error)
        problem = f"{fault}: pip install 'mcp-nursery[{extra}]'"
        if field is not None:
            raise ConfigError(problem, field=field) from None
        raise ModuleNotFoundError(problem, name=error.name) from None
