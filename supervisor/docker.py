"""What the docker client is told to do. Pure."""

import re
from collections.abc import Iterable, Sequence

_VARIABLE = re.compile(r"\$\{[^}]*\}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


def problem_with_image(image: str) -> str | None:
    """What is wrong with an image's name, in words that do not show it; None if nothing is."""
    if not image.strip():
        return "must not be empty"
    if _VARIABLE.search(image) or _IMAGE.fullmatch(image):
        return None  # not known before it is expanded, or fine
    return "the name of an image wanted: letters, digits and . _ / : @ -, the first a letter or digit"


def run_arguments(image: str, args: Sequence[str], env: Iterable[str]) -> list[str]:
    """The arguments of a docker client that runs the image with `args`, in the foreground, removed at its end.

    Of the variables in `env` only the names are among them: the client takes each value from its own environment, and
    no process list shows it.
    """
    # An init in front of the server: as the first process of a container it would not be ended by SIGTERM. The dashes:
    # whatever the image is called, it is no option that mounts a folder.
    return ["run", "-i", "--rm", "--init", *(f"--env={name}" for name in env), "--", image, *args]
