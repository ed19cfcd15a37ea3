"""Tokens in a keyring: logins, what the commands say of it, and one refresh for two processes."""

import concurrent.futures
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import DEADLINE_S, environment, forked

from grue.engine.outside_turns.tool_client import ToolClient
from grue.messages import ServerFailure

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
pytest.importorskip("keyring", reason="the keyring needs its extra: pip install 'grue[keyring]'")

import file_keyring
import keyring
import keyring.backends.fail
from auth_server import Guarded, guarded_server, press_yes
from file_keyring import FileKeyring

from grue.transports.mcp.login import LoginRefused, log_in, log_out
from grue.transports.mcp.token_store import token_store

BACKEND = "file_keyring.FileKeyring"


@pytest.fixture(scope="module")
def running() -> Iterator[Guarded]:
    with guarded_server() as server:
        yield server


@pytest.fixture
def guarded(running: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    monkeypatch.setenv("GRUE_TOKENS", str(tmp_path / "tokens"))
    monkeypatch.setenv("KEYRING_FILE", str(tmp_path / "keyring.json"))
    before = keyring.get_keyring()
    keyring.set_keyring(FileKeyring())
    issuer = running.issuer
    issuer.refreshed = 0
    issuer.access.clear()
    issuer.refresh.clear()
    yield running
    keyring.set_keyring(before)


@pytest.mark.slow
def test_a_login_is_kept_in_the_keyring_refreshed_and_forgotten(guarded: Guarded, tmp_path: Path) -> None:
    server = guarded.spec(keep_tokens_in="keyring")
    log_in(server, press_yes)
    with ToolClient({"far": server}) as client:
        assert client.call("far.echo", {"text": "hi"}).content == "hi"
        guarded.issuer.end_access()
        assert client.call("far.echo", {"text": "hi"}).content == "hi"
    assert guarded.issuer.refreshed == 1
    entries = json.loads((tmp_path / "keyring.json").read_text())
    assert len(entries) == 1
    assert [path.read_bytes() for path in (tmp_path / "tokens").iterdir()] == [b""], "the lock alone"
    assert log_out(server) == (True, True)
    assert json.loads((tmp_path / "keyring.json").read_text()) == {}


@pytest.mark.slow
def test_without_a_keyring_a_session_and_a_login_name_the_file(guarded: Guarded) -> None:
    keyring.set_keyring(keyring.backends.fail.Keyring())
    server = guarded.spec(keep_tokens_in="keyring")
    with ToolClient({"far": server}) as client:
        outcome = client.connect()["far"]
    assert isinstance(outcome, ServerFailure)
    assert "the system's keyring is missing" in outcome.cause
    assert '"keep_tokens_in": "file"' in str(outcome.remedy)
    asked: list[str] = []
    with pytest.raises(LoginRefused, match="Cannot log in to 'far': the system's keyring is missing"):
        log_in(server, asked.append)
    assert asked == [], "nobody logs in where the tokens cannot be kept"
    with pytest.raises(LoginRefused, match="Cannot log out of 'far': the system's keyring is missing"):
        log_out(server)


def run(*command: str, cwd: Path, backend: str = BACKEND) -> "subprocess.CompletedProcess[str]":
    """Run a command of grue, or a program, in a process that has this keyring."""
    folder = str(Path(file_keyring.__file__).parent)
    return subprocess.run(
        forked(*command, before=f"import sys; sys.path.append({folder!r})"),
        cwd=cwd,
        env=environment(PYTHON_KEYRING_BACKEND=backend),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


_CALL = """
import sys
from grue import HttpServer
from grue import OAuth
from grue.engine.outside_turns.tool_client import ToolClient
server = HttpServer(name="far", url=sys.argv[1], auth=OAuth(keep_tokens_in="keyring"))
with ToolClient({"far": server}) as client:
    print(client.call("far.echo", {"text": "hi"}).content)
"""


@pytest.mark.slow
def test_two_processes_refresh_a_token_of_the_keyring_once(guarded: Guarded, tmp_path: Path) -> None:
    server = guarded.spec(keep_tokens_in="keyring")
    log_in(server, press_yes)
    store = token_store(server)
    record = store.load()
    assert record is not None
    record.expires_at = time.time() - 1
    store.save(record)
    program = tmp_path / "call.py"
    program.write_text(_CALL)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        both = [pool.submit(run, str(program), guarded.url, cwd=tmp_path) for _ in "ab"]
        assert [each.result().stdout for each in both] == ["hi\n", "hi\n"]
    assert guarded.issuer.refreshed == 1


@pytest.mark.slow
def test_the_commands_say_where_the_tokens_are_and_until_when(guarded: Guarded, tmp_path: Path) -> None:
    server = guarded.spec(keep_tokens_in="keyring")
    log_in(server, press_yes)
    record = token_store(server).load()
    assert record is not None
    config = tmp_path / "mcp.json"
    entry = {"url": guarded.url, "auth": {"keep_tokens_in": "keyring"}}
    config.write_text(json.dumps({"mcpServers": {"far": entry}}))
    here = ("--mcp-config", str(config))
    told = run("grue", "doctor", "--no-network", *here, cwd=tmp_path)
    assert f"far ({config.name}), login: a token until 20" in told.stdout, told.stdout
    assert "in the system's keyring (file keyring FileKeyring)" in " ".join(told.stdout.split())
    gone = run("grue", "logout", "far", *here, cwd=tmp_path)
    assert gone.stdout == "Logged out of far. Its tokens are revoked.\n", gone.stderr
    none = "keyring.backends.fail.Keyring"
    missing = run("grue", "doctor", "--no-network", *here, cwd=tmp_path, backend=none)
    assert "the system's keyring is missing" in missing.stdout, missing.stdout
    for secret in record.secrets().values():
        assert secret not in told.stdout + told.stderr + gone.stdout + gone.stderr
