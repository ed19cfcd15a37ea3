"""What a server inherits of the host's environment, and which keys are named."""

import os
import sys
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.errors import MCPConfigError
from grue.protocol.chat_wire.profiles import PROFILES
from grue.runtime.processes.child_process import ServerProcess
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
from grue.testing.leftovers import assert_nothing_left
from grue.tool_sessions.server_specs import OWN_KEYS, StdioServer, inherited, own_keys, visible_keys
from grue.tracing.observers import langfuse
from grue.transports.llm.endpoint import key_names
from grue.transports.mcp.process_wire import ProcessWire

HOST = {
    "PATH": "/usr/bin",
    "HOME": "/home/me",
    "LANG": "C.UTF-8",
    "LC_ALL": "C",
    "TMPDIR": "/tmp",
    "TZ": "UTC",
    "SHELL": "() { :; }; echo a function, and no shell",
    "HTTPS_PROXY": "http://proxy:3128",
    "GITHUB_TOKEN": "the-server-s-own-token",
    "OPENROUTER_API_KEY": "sk-or-0123456789",
    "MY_COPY_OF_IT": "sk-or-0123456789",
    "LANGFUSE_SECRET_KEY": "sk-lf-0123456789",
    "GROQ_API_KEY": "none",
    "MODE": "none",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic abcdef",
}
OURS = {
    "OPENROUTER_API_KEY",
    "MY_COPY_OF_IT",
    "LANGFUSE_SECRET_KEY",
    "GROQ_API_KEY",
    "OTEL_EXPORTER_OTLP_HEADERS",
}
names = st.text(st.characters(codec="ascii", exclude_characters="=\0"), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("all", set(HOST)),
        ("no_keys", set(HOST) - OURS),
        ("safe", {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ"}),
        ("none", set()),
    ],
)
def test_p7_what_is_inherited(how: str, expected: set[str]) -> None:
    found = inherited(HOST, how)  # type: ignore[arg-type]  # one of them
    assert set(found) == expected
    assert found.items() <= HOST.items()


@given(st.dictionaries(names | st.sampled_from(sorted(OWN_KEYS)), st.text(max_size=20)))
@pytest.mark.slow
def test_without_keys_nothing_else_is_lost_and_no_key_is_left(environ: dict[str, str]) -> None:
    found = inherited(environ, "no_keys")
    assert not OWN_KEYS & set(found)
    secrets = {environ[key].strip() for key in OWN_KEYS & set(environ)}
    assert all(
        name in found for name in environ if name not in OWN_KEYS and environ[name].strip() not in secrets
    )


def test_every_key_that_grue_reads_is_one_of_its_own() -> None:
    assert set(langfuse._KEYS) <= OWN_KEYS
    for host in PROFILES:
        assert set(key_names(f"https://{host}/v1")) <= OWN_KEYS


def test_another_part_is_refused() -> None:
    with pytest.raises(MCPConfigError, match="inherit_env is one of all, no_keys, safe, none, not 'some'"):
        StdioServer(name="s", command="x", inherit_env="some").environment()  # type: ignore[arg-type]


def test_keys_are_named_by_their_names_and_by_what_is_a_copy_of_one() -> None:
    environment = {**HOST, "EMPTY_TOKEN": " ", "SSH_AUTH_SOCK": "/run/agent"}
    visible = visible_keys(environment, HOST)
    assert set(visible) == {"GITHUB_TOKEN", *OURS}
    assert list(visible) == sorted(visible)
    assert own_keys(environment, HOST) == OURS
    assert visible_keys({"MINE": HOST["OPENROUTER_API_KEY"]}, HOST) == ("MINE",)


@pytest.mark.parametrize("how", ["all", "no_keys", "safe", "none"])
def test_a_process_gets_just_that_and_its_command_is_found(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789ab")
    monkeypatch.setenv("FROM_OUTSIDE", "out")
    python = Path(sys.executable)
    monkeypatch.setenv("PATH", f"{python.parent}{os.pathsep}{os.environ['PATH']}")
    script = (
        "import os; names = 'OPENAI_API_KEY', 'FROM_OUTSIDE', 'OWN';"
        "print(*(os.environ.get(name, '-') for name in names), flush=True)"
    )
    server = StdioServer(
        name="s",
        command=python.name,
        args=("-c", script),
        env={"OWN": "own"},
        inherit_env=how,  # type: ignore[arg-type]  # one of them
    )

    async def line() -> bytes:
        async with ServerProcess(server, ProcessRegistry()) as process:
            return await process.receive_line()

    expected = {"all": b"sk-0123456789ab out own", "no_keys": b"- out own"}.get(how, b"- - own")
    with assert_nothing_left():
        assert anyio.run(line) == expected


def test_a_key_that_was_not_inherited_is_hidden_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789ab")
    server = StdioServer(name="s", command="x", inherit_env="none", env={"BOX_TOKEN": "a-token-of-its-own"})
    redactor = ProcessWire(server, ProcessRegistry(), ProcessLimits()).redactor
    shown = redactor.text("read sk-0123456789ab and a-token-of-its-own")
    assert shown == "read [redacted:OPENAI_API_KEY] and [redacted:BOX_TOKEN]"
