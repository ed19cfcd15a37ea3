"""Where other hosts keep their MCP servers, and how their files are read."""

import json
import time
from pathlib import Path

import pytest

from grue.config.other_hosts import find_hosts, read_host
from grue.errors import MCPConfigError

SERVER = {"command": "npx", "args": ["-y", "some-server"]}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path / "home"


def test_hosts_are_found_where_they_keep_their_files(home: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    plain = json.dumps({"mcpServers": {"one": SERVER}})
    write(home / ".config/Claude/claude_desktop_config.json", plain)
    write(home / ".cursor/mcp.json", plain)
    write(home / ".gemini/settings.json", json.dumps({"theme": "dark"}))
    write(home / ".codeium/windsurf/mcp_config.json", "{")
    write(home / ".codex/config.toml", '[mcp_servers.two]\ncommand = "uvx"\nargs = ["a"]\n')
    write(project / ".vscode/mcp.json", json.dumps({"servers": {"three": SERVER}, "inputs": []}))
    found = find_hosts(home, project)
    assert [(each.host, [*each.servers]) for each in found] == [
        ("VS Code, this project", ["three"]),
        ("Claude Desktop", ["one"]),
        ("Cursor", ["one"]),
        ("Codex", ["two"]),
    ]


def test_a_mac_keeps_them_elsewhere(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    path = home / "Library/Application Support/Claude/claude_desktop_config.json"
    write(path, json.dumps({"mcpServers": {"one": SERVER}}))
    assert [each.path for each in find_hosts(home, tmp_path)] == [path]


def test_a_file_that_cannot_be_looked_at_hides_no_other(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ("too-long" * 40)))
    path = write(home / ".cursor/mcp.json", json.dumps({"mcpServers": {"one": SERVER}}))
    assert [each.path for each in find_hosts(home, tmp_path)] == [path]


def test_comments_and_trailing_commas_are_read_and_strings_are_left_alone(tmp_path: Path) -> None:
    text = """{ // the editor's
      /* servers, */ "context_servers": {"a": {"command": "x", "args": ["http://h/,]", "/* b */",], }, },
    }"""
    found = read_host(write(tmp_path / "settings.json", text))
    assert found.servers["a"].entry == {"command": "x", "args": ["http://h/,]", "/* b */"]}


@pytest.mark.parametrize("repeated", ['"\\', "/* ", '"\\\n'])
def test_a_string_or_a_comment_without_an_end_is_read_in_linear_time(tmp_path: Path, repeated: str) -> None:
    path = write(tmp_path / "mcp.json", '{"x":' + repeated * 100_000)
    begun = time.process_time()
    with pytest.raises(MCPConfigError, match="neither valid JSON nor TOML"):
        read_host(path)
    assert time.process_time() - begun < 5


def test_a_server_that_grue_cannot_use_is_named_with_the_reason(tmp_path: Path) -> None:
    servers = {"good": SERVER, "dotted.name": SERVER, "both": {**SERVER, "url": "http://h"}, "odd": 3}
    found = read_host(write(tmp_path / "mcp.json", json.dumps({"mcp": {"servers": servers}})))
    assert [*found.servers] == ["good", "dotted-name"]
    assert found.unusable.keys() == {"both", "odd"}
    assert "keep only one" in found.unusable["both"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "neither valid JSON nor TOML"),
        ("[" * 100_000, "neither valid"),
        ('{"a": 1}', "configures no MCP servers"),
        ('{"projects": ["a"], "mcp": "x"}', "configures no MCP servers"),
        ("[1]", "configures no MCP servers"),
    ],
)
def test_a_file_without_servers_is_refused_and_not_quoted(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(MCPConfigError, match=problem) as refused:
        read_host(write(tmp_path / "mcp.json", text))
    assert "[[" not in str(refused.value)
    with pytest.raises(MCPConfigError, match=r"Cannot read .*absent"):
        read_host(tmp_path / "absent.json")


def test_the_servers_of_all_projects_and_of_this_one_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own, others = {"command": "mine"}, {"command": "others"}
    here, there = {"mcpServers": {"one": own}}, {"mcpServers": {"three": others}}
    file = {
        "mcpServers": {"one": others, "two": others},
        "projects": {str(tmp_path): here, "/elsewhere": there},
    }
    found = read_host(write(tmp_path / ".claude.json", json.dumps(file))).servers
    assert {name: each.entry["command"] for name, each in found.items()} == {"one": "mine", "two": "others"}


def test_no_variable_replaces_two_secrets(home: Path, tmp_path: Path) -> None:
    first, second = ({"command": "x", "env": {"API_KEY": f"sk-{each}"}} for each in ("first", "second"))
    write(home / ".cursor/mcp.json", json.dumps({"mcpServers": {"a": first, "b": second, "c": first}}))
    write(
        home / ".lmstudio/mcp.json", json.dumps({"mcpServers": {"d": second, "e": {"command": "${API_KEY}"}}})
    )
    found = [copy for host in find_hosts(home, tmp_path) for copy in host.servers.values()]
    assert {each.name: each.variables for each in found} == {
        "a": ("API_KEY",),
        "b": ("API_KEY_2",),
        "c": ("API_KEY",),
        "d": ("API_KEY_2",),
        "e": ("API_KEY_3",),
    }


def test_two_names_that_become_one_are_told(tmp_path: Path) -> None:
    servers = {"a.b": SERVER, "a-b": {"command": "other"}}
    found = read_host(write(tmp_path / "mcp.json", json.dumps({"mcpServers": servers})))
    assert found.servers["a-b"].entry == SERVER
    assert found.unusable == {"a-b": "the name a-b is taken."}
