"""The keys of a server's entry: time limits, tools, files of variables, headers; a file from other hosts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from grue.config.mcp_servers import MCPConfig, to_tool_server
from grue.errors import MCPConfigError
from grue.tool_sessions.oauth_settings import OAuth
from grue.tool_sessions.server_specs import HttpServer, McpServer, ServerOptions, StdioServer

SERVER = {"command": "run"}


def loaded(folder: Path, entry: object, **environ: str) -> MCPConfig:
    path = folder / "mcp_config.json"
    path.write_text(json.dumps({"mcpServers": {"a": entry}}))
    return MCPConfig.from_file(path, environ=environ)


def server_of(folder: Path, entry: object, **environ: str) -> McpServer:
    return to_tool_server("a", loaded(folder, entry, **environ).server("a"))


def refusal(folder: Path, entry: object, **environ: str) -> str:
    with pytest.raises(MCPConfigError) as caught:
        server_of(folder, entry, **environ)
    return str(caught.value)


def test_a_file_from_other_hosts_documentation_works_as_it_is(tmp_path: Path) -> None:
    source = Path(__file__).parent / "other_hosts" / "mcp_config.json"
    path = Path(shutil.copy(source, tmp_path))
    (tmp_path / ".env").write_text("DB_KEY=hunter2\n")
    environ = {"GITHUB_TOKEN": "hunter2hunter2", "HOME": "/home/z", "DATA_DIR": ""}
    config = MCPConfig.from_file(path, environ=environ)
    servers = [to_tool_server(name, config.server(name)) for name in config.mcpServers]
    assert servers == [
        StdioServer(
            name="filesystem",
            command="npx",
            args=("-y", "@modelcontextprotocol/server-filesystem", f"{tmp_path}/docs", "/tmp"),
            env={"LOG_LEVEL": "warn"},
        ),
        HttpServer(
            name="github",
            url="https://api.githubcopilot.com/mcp/",
            headers={"Authorization": "Bearer hunter2hunter2"},
            transport="http",
            options=ServerOptions(call_timeout_s=60),
        ),
        HttpServer(name="events", url="http://localhost:8931/sse", transport="sse", auth=OAuth()),
        StdioServer(
            name="database",
            command="uvx",
            args=("mcp-server-sqlite", "--db-path", "/home/z/notes.db"),
            env={"DB_KEY": "hunter2"},
            cwd=str(tmp_path / "server"),
            options=ServerOptions(
                call_timeout_s=90, include=("read_*", "list_tables"), exclude=("read_secret",)
            ),
        ),
    ]
    assert config.warnings == (
        "MCP server 'github': timeout 60000 is taken as milliseconds;"
        ' to make the unit explicit, write "timeout_seconds": 60.',
    )


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ({}, ServerOptions()),
        ({"timeout": 5}, ServerOptions(call_timeout_s=5)),
        ({"timeout": 999.5}, ServerOptions(call_timeout_s=999.5)),
        ({"timeout": 1000}, ServerOptions(call_timeout_s=1)),
        ({"timeout_seconds": 1800}, ServerOptions(call_timeout_s=1800)),
        ({"startup_timeout_seconds": 2.5}, ServerOptions(startup_timeout_s=2.5)),
        ({"exit_grace_seconds": 20}, ServerOptions(exit_grace_s=20)),
        ({"tools": {"include": []}}, ServerOptions(include=())),
        ({"tools": {"exclude": ["x"]}}, ServerOptions(exclude=("x",))),
        ({"tools": ["*"]}, ServerOptions(include=("*",))),
    ],
)
def test_limits_and_tools_reach_the_server(
    tmp_path: Path, keys: dict[str, Any], options: ServerOptions
) -> None:
    assert server_of(tmp_path, SERVER | keys).options == options
    assert server_of(tmp_path, {"url": "http://h/mcp"} | keys).options == options


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"timeout": "60"}, "timeout should be a number, not a string"),
        ({"timeout": True}, "timeout should be a number, not true or false"),
        ({"timeout": 0}, "timeout should be a number of seconds above zero"),
        ({"timeout_seconds": -1}, "timeout_seconds should be a number of seconds above zero"),
        ({"timeout": 1, "timeout_seconds": 1}, "has both a 'timeout' and a 'timeout_seconds': keep only one"),
        ({"start": "later"}, "start should be 'before', 'beside_if_locked', 'beside' or 'when_called'"),
        ({"start": "after_turn"}, 'write Runner(start="after_turn")'),
        ({"startup_timeout": 3}, "unknown key 'startup_timeout'. Did you mean 'startup_timeout_seconds'?"),
        ({"timeoutSeconds": 3}, "unknown key 'timeoutSeconds'. Did you mean 'timeout_seconds'?"),
        ({"tools": {"inlcude": []}}, "tools has the unknown key 'inlcude'. Did you mean 'include'?"),
        ({"tools": {"xyz": []}}, "tools has the unknown key 'xyz'. Known keys: include, exclude."),
        ({"tools": "x"}, "tools should be an object, not a string"),
        ({"tools": {"include": "x"}}, "tools.include should be a list, not a string"),
        ({"tools": ["x", 3]}, "tools.include[1] should be a string, not a number"),
        ({"envfile": ".env"}, "unknown key 'envfile'. Did you mean 'envFile'?"),
        ({"envFile": 3}, "envFile should be a string, not a number"),
    ],
)
def test_a_key_that_cannot_be_used_is_named_with_file_and_server(
    tmp_path: Path, keys: dict[str, Any], problem: str
) -> None:
    text = refusal(tmp_path, SERVER | keys)
    assert text.startswith(f"{tmp_path / 'mcp_config.json'}: MCP server 'a'")
    assert problem in text


def test_an_env_file_is_found_beside_the_configuration_and_env_counts_over_it(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "dev.env").write_text("A=file\nB=file\n")
    entry = SERVER | {"envFile": "${STAGE:-dev}.env", "env": {"B": "entry"}}
    path = tmp_path / "conf" / "mcp_config.json"
    path.write_text(json.dumps({"mcpServers": {"a": entry}}))
    config = MCPConfig.from_file(path, environ={})
    server = to_tool_server("a", config.server("a"))
    assert isinstance(server, StdioServer)
    assert server.env == {"A": "file", "B": "entry"}


def test_an_env_file_that_is_missing_names_the_server_and_the_file(tmp_path: Path) -> None:
    text = refusal(tmp_path, SERVER | {"envFile": "no.env"})
    assert text.startswith(f"MCP server 'a': envFile not found: {tmp_path / 'no.env'}\n")


def test_keys_without_effect_on_a_kind_of_server_are_named(tmp_path: Path) -> None:
    by_url = loaded(tmp_path, {"url": "http://h", "args": ["x"], "envFile": ".env"})
    assert by_url.warnings == (
        "MCP server 'a': 'args' has no effect on a server with a 'url'.",
        "MCP server 'a': 'envFile' has no effect on a server with a 'url'.",
    )
    started = loaded(tmp_path, SERVER | {"headers": {"A": "b"}})
    assert started.warnings == ("MCP server 'a': 'headers' has no effect on a server with a 'command'.",)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"url": "h/mcp"}, "its URL should begin with http:// or https://"),
        ({"url": "http://"}, "its URL names no host"),
        ({"url": "http://h:port/"}, "its URL cannot be read"),
        ({"url": "http://exam\u2026com/"}, "its URL has a character in its host that no host has"),
        ({"url": "http://h/a b"}, "its URL has a space or a control character in it"),
        ({"url": "http://h", "headers": {"X Y": "hunter2"}}, "'X Y' cannot be the name of a header"),
        (
            {"url": "http://h", "headers": {"X": "${KEY}"}},
            "the header 'X' has a character that cannot be sent",
        ),
        (
            {"url": "http://h", "headers": {"X": "hunter2\u00e9"}},
            "the header 'X' has a character that cannot be sent",
        ),
    ],
)
def test_an_address_or_header_that_cannot_be_used_is_named(
    tmp_path: Path, entry: dict[str, Any], problem: str
) -> None:
    text = refusal(tmp_path, entry, KEY="hunter2\n")
    assert text.startswith("MCP server 'a': ")
    assert problem in text
    assert "hunter2" not in text


URL = {"url": "https://tickets.example.com/mcp"}


@pytest.mark.parametrize(
    ("written", "auth"),
    [
        ({"oauth": {}}, OAuth()),
        ({"oauth": {"clientId": "me", "callbackPort": 8123}}, OAuth(client_id="me", redirect_port=8123)),
        (
            {
                "oauth": {
                    "enabled": True,
                    "clientId": "me",
                    "clientSecret": "${S}",
                    "scopes": ["a", "b"],
                    "redirectUri": "http://localhost:7777/oauth/callback",
                }
            },
            OAuth(client_id="me", client_secret="hunter2", scope="a b", redirect_port=7777),
        ),
        ({"oauth": {"client_id": "me", "scope": "a"}}, OAuth(client_id="me", scope="a")),
        ({"oauth": {"enabled": False, "clientId": "me"}}, None),
        ({"oauth": False}, None),
        (
            {"auth": {"CLIENT_ID": "me", "CLIENT_SECRET": "${S}", "scopes": ["a"]}},
            OAuth(client_id="me", client_secret="hunter2", scope="a"),
        ),
    ],
)
def test_the_login_of_other_hosts_files_is_used(tmp_path: Path, written: Any, auth: OAuth | None) -> None:
    server = server_of(tmp_path, {**URL, **written}, S="hunter2")
    assert isinstance(server, HttpServer)
    assert server.auth == auth


def test_what_of_a_login_has_no_effect_is_named_and_what_is_wrong_is_refused(tmp_path: Path) -> None:
    oauth = {"clientId": "me", "tokenUrl": "https://evil.example/token"}
    assert loaded(tmp_path, {**URL, "oauth": oauth}).warnings == (
        "MCP server 'a': grue does not use the key 'oauth.tokenUrl'.",
    )
    assert "has an 'oauth' that has a 'clientId' of the wrong type" in refusal(
        tmp_path, {**URL, "oauth": {"clientId": 1}}
    )
    assert "should be an object, or true or false" in refusal(tmp_path, {**URL, "oauth": "x"})
    assert "has an 'auth' and an 'oauth'" in refusal(tmp_path, {**URL, "oauth": {}, "auth": False})
