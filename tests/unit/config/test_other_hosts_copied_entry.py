"""A server's entry from another host: what may be secret becomes a variable, and the rest stays as it was."""

from typing import Any

import pytest

from grue.config.other_hosts import copied
from grue.errors import MCPConfigError

KEY = "sk-live-4f3c2b1a9d8e7f6a5b4c"


def entry_of(**entry: Any) -> dict[str, Any]:
    return copied("srv", entry).entry


@pytest.mark.parametrize(
    ("args", "kept"),
    [
        (["-y", "@modelcontextprotocol/server-github@2025.4.8"], None),
        (["run", "mcp-server-sqlite", "--db-path", "/home/me/notes.db"], None),
        (["--port=8080", "--verbose", "."], None),
        (["--token", "short"], ["--token", "${SRV_TOKEN}"]),
        ([f"--api-key={KEY}"], ["--api-key=${SRV_API_KEY}"]),
        (["-e", f"GITHUB_TOKEN={KEY}"], ["-e", "GITHUB_TOKEN=${GITHUB_TOKEN}"]),
        (["-e", "GITHUB_TOKEN"], None),
        (["--header", f"Authorization: Bearer {KEY}"], ["--header", "Authorization: ${SRV_AUTHORIZATION}"]),
        (["postgresql://me:pw@db/notes"], ["${SRV_ARG_1}"]),
        (["https://example.org/mcp?key=abc"], ["${SRV_ARG_1}"]),
        (["https://example.org/mcp"], None),
        ([KEY], ["${SRV_ARG_1}"]),
        (["3f2504e0-4f89-11d3-9a0c-0305e82c3301"], ["${SRV_ARG_1}"]),
        (["--token", "${TOKEN}"], None),
        (["${input:github-token}"], ["${GITHUB_TOKEN}"]),
        (["${workspaceFolder}/data"], None),
        (["--dir=${workspaceFolder}/data"], None),
        (["--header", "Authorization: Bearer ${TOKEN}"], None),
        (["https://${HOST}/mcp?key=${KEY}"], None),
        (["postgresql://me:${PW}@${HOST}/notes"], ["${SRV_ARG_1}"]),
        (["https://example.org/mcp?key=hunter2&user=${USER}"], ["${SRV_ARG_1}"]),
        (["-e", "TOKEN=hunter2${X}"], ["-e", "TOKEN=${TOKEN}"]),
        (["--token", "hunter2${X}"], ["--token", "${SRV_TOKEN}"]),
        (["--api-key=${KEY:-123456}"], ["--api-key=${KEY}"]),
        (
            ["--header", "Authorization: Bearer hunter2-${X}"],
            ["--header", "Authorization: Bearer ${SRV_AUTHORIZATION}"],
        ),
    ],
)
def test_arguments(args: list[str], kept: list[str] | None) -> None:
    assert entry_of(command="npx", args=args)["args"] == (args if kept is None else kept)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("DEBUG", "true", "true"),
        ("DATA", "/var/data/notes", "/var/data/notes"),
        ("PORT", "8080", "8080"),
        ("ACCOUNT", "ada@example.org", "${ACCOUNT}"),
        ("API_KEY", "12345", "${API_KEY}"),
        ("API_KEY", "${env:MY_KEY}", "${MY_KEY}"),
        ("API_KEY", "${MY_KEY:-" + KEY + "}", "${MY_KEY}"),
        ("QUIET", "${QUIET:-true}", "${QUIET:-true}"),
        ("API_KEY", "${MY_KEY:-12345}", "${MY_KEY}"),
        ("MIXED", KEY + "${X}", "${MIXED}"),
        ("PASSWORD", "hunter2${SUFFIX}", "${PASSWORD}"),
        ("DSN", "postgres://me:hunter2@db/${DB}", "${DSN}"),
        ("PASSWORD", "${X:-/hunter2}", "${X}"),
        ("PASSWORD", "${workspaceFolder:-hunter2}", "${WORKSPACEFOLDER}"),
        ("PATH", "/opt/bin:${PATH}", "/opt/bin:${PATH}"),
    ],
)
def test_variables(name: str, value: str, kept: str) -> None:
    assert entry_of(command="x", env={name: value})["env"] == {name: kept}


def test_headers_and_addresses() -> None:
    copy = copied(
        "my-zap", {"serverUrl": "https://z.example/s/YWJjZGVmZ2hpamtsbW5vcDEy/mcp", "headers": {"X-Key": "a"}}
    )
    assert copy.entry == {"url": "${MY_ZAP_URL}", "headers": {"X-Key": "${MY_ZAP_X_KEY}"}}
    assert set(copy.variables) == {"MY_ZAP_URL", "MY_ZAP_X_KEY"}
    for value, kept in (
        ("Bearer ${MY_TOKEN}", "Bearer ${MY_TOKEN}"),
        ("Basic hunter2 ${X}", "Basic ${SRV_AUTHORIZATION}"),
        ("hunter2${X}", "${SRV_AUTHORIZATION}"),
    ):
        mixed = entry_of(url="https://example.org/mcp", headers={"Authorization": value})
        assert mixed["headers"] == {"Authorization": kept}
    plain = {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer abc"}}
    assert entry_of(**plain)["headers"] == {"Authorization": "Bearer ${SRV_AUTHORIZATION}"}


def test_a_variable_needs_a_name_that_begins_with_a_letter() -> None:
    assert copied("7zip", {"command": "x", "args": ["--key", "k"]}).variables == ("MCP_7ZIP_KEY",)


def test_keys_of_other_hosts_are_translated_or_left_out() -> None:
    zed = {"command": {"path": "uvx", "args": ["mcp-server-time"], "env": {"A": "1"}}, "source": "custom"}
    assert entry_of(**zed) == {"command": "uvx", "args": ["mcp-server-time"], "env": {"A": "1"}}
    assert entry_of(command="x", type="local", alwaysAllow=["a"], disabled=True) == {
        "command": "x",
        "disabled": True,
    }


@pytest.mark.parametrize("entry", [{"command": 3}, {"command": "x", "args": "a b"}, {"url": ["x"]}])
def test_a_value_of_another_type_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(MCPConfigError, match="has the wrong type"):
        copied("srv", entry)


@pytest.mark.parametrize("kept_under", ["oauth", "auth"])
def test_a_login_is_copied_without_its_secret(kept_under: str) -> None:
    names = ("clientId", "clientSecret") if kept_under == "oauth" else ("CLIENT_ID", "CLIENT_SECRET")
    theirs = {names[0]: "3f2504e0-4f89-11d3", names[1]: KEY, "scopes": ["a", "b"]}
    copy = copied("srv", {"url": "https://example.com/mcp", kept_under: theirs})
    assert copy.entry["auth"] == {
        "client_id": "3f2504e0-4f89-11d3",
        "client_secret": "${SRV_CLIENT_SECRET}",
        "scope": "a b",
    }
    assert copy.variables == ("SRV_CLIENT_SECRET",)


def test_the_secrets_of_our_own_login_are_not_copied() -> None:
    auth = {"grant": "client_credentials", "client_id": "me", "private_key": KEY, "redirect_port": 1}
    copy = copied("srv", {"url": "https://example.com/mcp", "auth": auth})
    assert copy.entry["auth"] == {**auth, "private_key": "${SRV_PRIVATE_KEY}"}
    assert KEY not in str(copy)


def test_a_login_that_is_not_understood_is_an_error_without_its_value() -> None:
    with pytest.raises(MCPConfigError, match="its 'oauth' should be an object") as caught:
        copied("srv", {"url": "https://example.com/mcp", "oauth": KEY})
    assert KEY not in str(caught.value)


def test_two_secrets_of_one_server_have_two_variables() -> None:
    other = KEY[::-1]
    copy = copied(
        "srv", {"command": "x", "args": ["--key", KEY, "--key", other, f"${{HOME}}/{KEY}", "--key", KEY]}
    )
    keys = "${SRV_KEY}", "${SRV_KEY_2}"
    assert copy.entry["args"] == ["--key", keys[0], "--key", keys[1], "${SRV_VALUE}", "--key", keys[0]]
