"""Tokens in the system's keyring: what is kept, and one sentence for each way in which a keyring fails."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("keyring", reason="the keyring needs its extra: pip install 'grue[keyring]'")

import keyring
import keyring.backend
import keyring.backends.fail
import keyring.backends.null
import keyring.errors

from grue.tool_sessions.oauth_settings import OAuth
from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp.http_faults import AuthorizationRefused
from grue.transports.mcp.token_store import KeyringStore, TokenRecord, TokenStore, token_store

URL = "https://h/mcp"
SECRET = "access-0123456789abcdef"


class Memory(keyring.backend.KeyringBackend):
    """A keyring in memory; `fault` is raised at each access."""

    priority = 0.1

    def __init__(self, fault: Exception | None = None) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}
        self.fault = fault

    def get_password(self, service: str, username: str) -> str | None:
        if self.fault:
            raise self.fault
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.kept[service, username]


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GRUE_TOKENS", str(tmp_path))
    before = keyring.get_keyring()
    yield
    keyring.set_keyring(before)


def store(**auth: str) -> TokenStore:
    return token_store(HttpServer(name="far", url=URL, auth=OAuth(keep_tokens_in="keyring", **auth)))


def fault_with(backend: keyring.backend.KeyringBackend) -> str:
    keyring.set_keyring(backend)
    with pytest.raises(AuthorizationRefused) as refused:
        store().load()
    return f"{refused.value.fault.cause}. {refused.value.fault.remedy}"


@pytest.mark.slow
def test_what_is_stored_is_in_the_keyring_and_in_no_file(tmp_path: Path) -> None:
    ring = Memory()
    keyring.set_keyring(ring)
    TokenStore(HttpServer(name="far", url=URL, auth=OAuth())).save(TokenRecord(url=URL, access_token="older"))
    assert store().load() is None
    store().save(TokenRecord(url=URL, access_token=SECRET))
    assert [key[0] for key in ring.kept] == ["grue"]
    assert not any(path.is_file() for path in tmp_path.iterdir()), "tokens of an earlier setting are removed"
    loaded = store().load()
    assert loaded is not None
    assert loaded.access_token == SECRET
    assert store(client_id="other").load() is None
    assert store().place == "the system's keyring (test token store keyring Memory)"
    assert (store().remove(), store().remove()) == (True, False)
    assert ring.kept == {}


@pytest.mark.slow
def test_an_entry_that_is_not_ours_is_no_login() -> None:
    ring = Memory()
    keyring.set_keyring(ring)
    store().save(TokenRecord(url=URL))
    ring.kept = dict.fromkeys(ring.kept, "something else")
    assert store().load() is None


def test_tokens_are_kept_in_a_file_by_default() -> None:
    plain = token_store(HttpServer(name="far", url=URL, auth=OAuth()))
    assert not isinstance(plain, KeyringStore)
    assert plain.place == str(plain.file)


def test_without_a_keyring_the_file_is_named() -> None:
    assert fault_with(keyring.backends.fail.Keyring()) == (
        "the system's keyring is missing: no backend of the package keyring works here. To keep the tokens "
        'in a file instead, set "keep_tokens_in": "file" under `auth` of \'far\', and log in again.'
    )


def test_a_locked_keyring_says_so() -> None:
    told = fault_with(Memory(keyring.errors.KeyringLocked(f"locked {SECRET}")))
    assert told.startswith("the system's keyring is locked. To keep the tokens in a file instead")
    assert SECRET not in told


class DBusError(Exception):
    """As libraries for D-Bus raise it, which `keyring` passes on."""


@pytest.mark.parametrize("kind", [keyring.errors.InitError, DBusError])
def test_a_keyring_that_fails_is_named_by_its_error_without_the_text(kind: type[Exception]) -> None:
    told = fault_with(Memory(kind(f"bus {SECRET}")))
    assert told.startswith(f"the system's keyring cannot be used ({kind.__name__}).")
    assert SECRET not in told


def test_a_keyring_that_forgets_is_noticed_when_it_is_written() -> None:
    keyring.set_keyring(keyring.backends.null.Keyring())
    with pytest.raises(AuthorizationRefused, match="does not keep what is stored in it"):
        store().save(TokenRecord(url=URL, access_token=SECRET))


def test_a_keyring_that_waits_for_a_person_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grue.transports.mcp.token_store._WAIT_S", 0.05)
    unlocked = threading.Event()

    class Waiting(Memory):
        def get_password(self, service: str, username: str) -> str | None:
            unlocked.wait()
            return None

    try:
        assert "did not answer within 0.05 s; perhaps it waits to be unlocked" in fault_with(Waiting())
    finally:
        unlocked.set()


def test_without_the_package_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(AuthorizationRefused) as refused:
        store().load()
    fault = refused.value.fault
    assert (
        fault.cause == "the tokens of 'far' are kept in the system's keyring, which needs the package keyring"
    )
    assert fault.remedy == "Install it: pip install 'keyring>=25.5,<26'"


def test_another_bug_of_a_backend_is_not_hidden() -> None:
    keyring.set_keyring(Memory(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        store().load()
