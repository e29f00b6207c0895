"""Where a part is not installed, one line says which extra installs it. `tests/release` has environments without."""

import sys
from importlib import import_module

import pytest

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.oauth.tokens import TokenKey, Tokens, TokensUnreadable
from mcp_nursery.supervisor.extras import needs_extra
from mcp_nursery.supervisor.gateway import OAuthResource, SessionKeys
from mcp_nursery.supervisor.login.token_files import TokenFolder

ADVICE = "pip install 'mcp-nursery[some]'"


def test_a_program_learns_the_module_and_the_extra():
    with pytest.raises(ModuleNotFoundError) as caught, needs_extra("some"):
        import_module("nothing.of_that_name")
    assert str(caught.value) == f"nothing is missing: {ADVICE}"
    assert caught.value.name == "nothing"
    assert caught.value.__suppress_context__


def test_a_setting_is_refused():
    with pytest.raises(ConfigError) as caught, needs_extra("some", "colour"):
        import_module("nothing")
    assert str(caught.value) == f"field 'colour': nothing is missing: {ADVICE}"
    assert caught.value.__suppress_context__


def test_one_that_cannot_be_loaded_says_why():
    with pytest.raises(ConfigError, match="no pq wrapper available: pip install"), needs_extra("some", "state"):
        raise ImportError("no pq wrapper available")


def test_other_errors_are_their_own():
    with pytest.raises(ValueError, match="else"), needs_extra("some"):
        raise ValueError("else")


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("cryptography.exceptions", lambda: SessionKeys([bytes(32)])),
        ("jwt", lambda: OAuthResource("https://issuer.example", "https://here.example")),
    ],
)
def test_a_gateway_with_keys_or_tokens(monkeypatch, module, make):
    monkeypatch.delitem(sys.modules, "mcp_nursery.supervisor.gateway.auth.issuer", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{module} is missing: pip install 'mcp-nursery\[gateway\]'"):
        make()


async def test_tokens_in_a_keyring_that_is_not_installed(tmp_path, monkeypatch):
    """What was put there cannot be read; what is new goes to a file."""
    tmp_path.chmod(0o700)
    monkeypatch.setitem(sys.modules, "keyring", None)
    store = TokenFolder(tmp_path / "tokens").store(TokenKey("https://far.example/mcp"))
    await store.write(Tokens("access", None, login="1"))
    (file,) = (tmp_path / "tokens").glob("*.json")
    assert (await store.kept()).where == "file"
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text(file.read_text().replace('"where": "file"', '"where": "keyring"'))
    with pytest.raises(TokensUnreadable) as caught:
        await store.read()
    assert str(caught.value) == "they are in the keyring: keyring is missing: pip install 'mcp-nursery[keyring]'"
