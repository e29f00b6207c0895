"""A mutant: one line of the code replaced by another, and the tests that must fail then."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import frozen

REPOSITORY = Path(__file__).parents[2]


@frozen
class Mutant:
    """One line that is replaced."""

    file: str
    """Its path in the repository."""
    line: str
    """The line as it stands there, once, without its indentation."""
    other: str
    """The line that replaces it."""
    tests: tuple[str, ...]
    """The tests nearest to it, as arguments of pytest."""
    equivalent: str = ""
    """Why no test can tell them apart; empty: one has to."""

    def __str__(self) -> str:
        return f"{self.file}: {self.line} -> {self.other}"

    def applied_to(self, text: str) -> str:
        """The text of the file with the other line.

        Raises:
            ValueError: The line does not stand there exactly once.
        """
        lines = text.splitlines(keepends=True)
        places = [place for place, line in enumerate(lines) if line.strip() == self.line]
        if len(places) != 1:
            raise ValueError(f"{self.file}: stands there {len(places)} times: {self.line}")
        lines[places[0]] = lines[places[0]].replace(self.line, self.other)
        return "".join(lines)


Lines = Mapping[str, str | tuple[str, str]]
"""The other line for each line; with the reason why no test can notice it, if none can."""


def mutants_of(file: str, tests: str, lines: Lines) -> Iterator[Mutant]:
    """The mutants of one file. `tests`: paths in the folder of the tests, separated by white space."""
    paths = tuple(f"tests/{path}" for path in tests.split())
    for line, other in lines.items():
        replacement, reason = other if isinstance(other, tuple) else (other, "")
        yield Mutant(file, line, replacement, paths, reason)
