"""The keyring of the operating system, where there is one, and the extra `keyring` is installed. Everything here waits
for other programs, and is for threads alone."""

from importlib import import_module
from typing import Any, Final

from ..extras import needs_extra

SERVICE: Final = "mcp-nursery"
"""The name of the service that tokens are kept under."""


class KeyringFailed(Exception):
    """A keyring that does not answer, or refuses."""


def _existing() -> Any:
    """The keyring that something was put into.

    Raises:
        KeyringFailed: It is not there.
    """
    try:
        with needs_extra("keyring"):
            import_module("keyring")
    except ModuleNotFoundError as error:
        raise KeyringFailed(f"they are in the keyring: {error}") from None
    found = _usable()
    if found is None:
        raise KeyringFailed("the keyring they are in is not there")
    return found


def _usable() -> Any:
    """The keyring; None if there is none that keeps anything."""
    try:
        import keyring
        from keyring.backends import chainer, fail, null

        found = keyring.get_keyring()
        if isinstance(found, chainer.ChainerBackend):
            return found if found.backends else None
        return None if isinstance(found, fail.Keyring | null.Keyring) else found
    except Exception:  # whatever a backend raises that cannot be loaded
        return None


def put(name: str, secret: str) -> bool:
    """Keep a secret; False if no keyring keeps it."""
    keyring = _usable()
    if keyring is None:
        return False
    try:
        keyring.set_password(SERVICE, name, secret)
    except Exception:  # as many kinds as there are keyrings
        return False
    return True


def get(name: str) -> str | None:
    """The text that was kept; None if there is none.

    Raises:
        KeyringFailed: That cannot be found out.
    """
    keyring = _existing()
    try:
        found: str | None = keyring.get_password(SERVICE, name)
    except Exception as error:
        raise KeyringFailed(f"the keyring does not give them: {type(error).__name__}") from None
    return found


def remove(name: str) -> None:
    """Remove a secret.

    Raises:
        KeyringFailed: It may still be there.
    """
    keyring = _existing()
    try:
        if keyring.get_password(SERVICE, name) is not None:
            keyring.delete_password(SERVICE, name)
    except Exception as error:
        raise KeyringFailed(f"the keyring does not let them go: {type(error).__name__}") from None
