"""`mcp_config.json`: P5, what other hosts write, and what each mistake says."""

import contextlib
import json
import os
import re
import traceback
from pathlib import Path
from typing import Any

import pytest
from example_counts import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from grue.config.mcp_servers import MCPConfig, MCPServerConfig, edit_servers, to_tool_server
from grue.errors import MCPConfigError
from grue.tool_sessions.server_specs import HttpServer, StdioServer

SEEDS_FILE = """{
  "mcpServers": {
    "thoughtbox": {
      "command": "npx",
      "args": ["-y", "@kastalien-research/thoughtbox"],
      "env": {"DISABLE_THOUGHT_LOGGING": "true"}
    }
  }
}
"""
SERVER = {"command": "run"}

in_tmp_path = settings(
    max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def written(folder: Path, content: object) -> Path:
    path = folder / "mcp_config.json"
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path


def loaded(folder: Path, servers: object, **environ: str) -> MCPConfig:
    return MCPConfig.from_file(written(folder, {"mcpServers": servers}), environ=environ)


def refusal(folder: Path, content: object) -> MCPConfigError:
    with pytest.raises(MCPConfigError) as caught:
        MCPConfig.from_file(written(folder, content))
    assert caught.value.path == str(folder / "mcp_config.json")
    return caught.value


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_the_required_file_gives_its_server(tmp_path: Path) -> None:
    config = MCPConfig.from_file(str(written(tmp_path, SEEDS_FILE)))
    name, server = config.get_server_config()
    assert (name, server.command, server.args) == (
        "thoughtbox",
        "npx",
        ["-y", "@kastalien-research/thoughtbox"],
    )
    assert server.env == {"DISABLE_THOUGHT_LOGGING": "true"}
    assert (config.ignored_servers, config.warnings) == ((), ())


@pytest.mark.parametrize("root", ["mcpServers", "servers", "context_servers"])
def test_the_root_keys_of_other_hosts_and_a_byte_order_mark_are_accepted(tmp_path: Path, root: str) -> None:
    text = "\ufeff" + json.dumps({"inputs": [], "theme": "dark", root: {"one": SERVER}})
    assert MCPConfig.from_file(written(tmp_path, text)).get_server_config()[1].command == "run"


def test_r2_6_the_first_server_is_used_and_the_others_are_named(tmp_path: Path) -> None:
    config = loaded(tmp_path, {"off": {"disabled": True}, "b": SERVER, "a": SERVER, "c": SERVER})
    assert config.get_server_config()[0] == "b"
    assert config.ignored_servers == ("a", "c")


@pytest.mark.parametrize(
    "servers",
    [{}, {"off": SERVER | {"disabled": True}}, {"off": {"enabled": False}}],
)
def test_no_server_to_use_is_a_configuration_error(tmp_path: Path, servers: dict[str, Any]) -> None:
    with pytest.raises(MCPConfigError, match=r"^No MCP servers configured in mcp_config\.json\.") as caught:
        loaded(tmp_path, servers).get_server_config()
    assert isinstance(caught.value, ValueError), "as the required code says"
    assert caught.value.path == str(tmp_path / "mcp_config.json")


def test_the_file_without_servers_is_named_whatever_it_is_called(tmp_path: Path) -> None:
    path = tmp_path / "more" / "tools.json"
    path.parent.mkdir()
    path.write_text('{"mcpServers": {}}')
    with pytest.raises(MCPConfigError, match=r"^No MCP servers configured in tools\.json\.") as caught:
        MCPConfig.from_file(path).get_server_config()
    assert caught.value.path == str(path)


def test_models_made_in_code_work_like_the_required_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MCPConfigError, match=r"^No MCP servers configured in mcp_config\.json\."):
        MCPConfig(mcpServers={}).get_server_config()
    monkeypatch.setenv("GRUE_TEST_WORD", "xyzzy")
    server = MCPServerConfig(command="say", args=["${GRUE_TEST_WORD}"])
    config = MCPConfig(mcpServers={"a": server, "off": MCPServerConfig(command="x", disabled=True)})
    assert list(config.mcpServers) == ["a"]
    assert config.get_server_config()[1].args == ["xyzzy"]
    with pytest.raises(ValidationError):
        MCPServerConfig(args=["a"])


def test_r2_2_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "mcp_config.json"
    with pytest.raises(MCPConfigError) as caught:
        MCPConfig.from_file(path)
    assert str(caught.value).splitlines() == [
        f"MCP is enabled but config file not found: {path}",
        "Please either:",
        "  1. Create mcp_config.json in project root, or",
        "  2. Set mcp.enabled = false in pyproject.toml",
    ]
    assert isinstance(caught.value.__cause__, FileNotFoundError)


@in_tmp_path
@given(st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(['{"a":1}', "[1,]", "{'a': 1}"]))
def test_p5_what_is_not_json_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    assume(not is_json(text.removeprefix("\ufeff")))
    error = refusal(tmp_path, text)
    assert isinstance(error.__cause__, json.JSONDecodeError)
    assert (error.line, error.column) == (error.__cause__.lineno, error.__cause__.colno)
    assert f"line {error.line}, column {error.column}" in str(error)


@in_tmp_path
@given(st.integers(0, len(SEEDS_FILE.rstrip()) - 1))
def test_p5_a_file_cut_short_anywhere_is_refused(tmp_path: Path, length: int) -> None:
    assert refusal(tmp_path, SEEDS_FILE[:length]).line is not None


@in_tmp_path
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(["mcpServers", "servers", "a", "command", "args", "env", "url", "type"])
                | st.text(),
                x,
            )
        ),
    )
)
def test_p5_any_json_is_a_configuration_or_a_configuration_error(tmp_path: Path, content: Any) -> None:
    for document in (content, {"mcpServers": content}, {"mcpServers": {"a": content}}):
        with contextlib.suppress(MCPConfigError):
            name, server = MCPConfig.from_file(written(tmp_path, document)).get_server_config()
            assert to_tool_server(name, server).name == name


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ('{\n  // note\n  "mcpServers": {}}', "line 2, column 3: .*Comments are not part of JSON"),
        ('{"mcpServers": {} /* note */}', "Comments are not part of JSON"),
        ('{"mcpServers": {"a": {"command": "x",}}}', "superfluous comma"),
        (" \n", "The file is empty"),
        ('{"mcpServers": {}} {}', "Extra data"),
    ],
)
def test_r2_3_invalid_json_says_what_to_change(tmp_path: Path, text: str, advice: str) -> None:
    assert re.search(f"is not valid JSON: .*{advice}", str(refusal(tmp_path, text)))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "the key 'a' occurs twice"),
        ('{"mcpServers": {"a": {"command": "x", "command": "y"}}}', "the key 'command' occurs twice"),
        ('{"mcpServers": {"a": NaN}}', "NaN is not a JSON value"),
        ('{"x": 1e999}', "is not usable JSON: it has a number that is too large"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a": ' + "9" * 5_000 + "}", "is not usable JSON"),
        ("[]", "should contain a JSON object with the key 'mcpServers'"),
        ('{"mcpServers": {}, "servers": {}}', "has 'mcpServers' and 'servers': keep only one"),
        ('{"mcpservers": {}}', "unknown key 'mcpservers'. Did you mean 'mcpServers'?"),
        ('{"mcp_servers": {}}', "unknown key 'mcp_servers'. Did you mean 'mcpServers'?"),
        ('{"mcpServers": []}', "the list of servers should be an object, not a list"),
        ('{"mcpServers": null}', "the list of servers should be an object, not null"),
    ],
)
def test_r2_3_a_document_that_cannot_be_used_says_why(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in str(refusal(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"mcpServers": {\n"a": {"command": "x"},\n"b": {\n"command": 3}}}', 4),
        ('{"servers": {\n"a": {"command": "x"},\n"b": {}}}', 3),
        ('{"servers": {},\n"mcpServers": {}}', 1),
        ('{\n"mcpservers": {}}', 2),
    ],
)
def test_the_line_of_a_fault_is_known(tmp_path: Path, text: str, line: int) -> None:
    assert refusal(tmp_path, text).line == line


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("npx", "should be an object, not a string"),
        ({}, "needs a 'command' (a program to start) or a 'url'"),
        (SERVER | {"url": "http://h"}, "has both a 'command' and a 'url'"),
        ({"command": 3}, "command should be a string, not a number"),
        ({"command": " "}, "has an empty 'command'"),
        ({"url": ""}, "has an empty 'url'"),
        (SERVER | {"args": "hunter2"}, "args should be a list, not a string"),
        (SERVER | {"args": ["a", True]}, "args[1] should be a string, not true or false"),
        (SERVER | {"args": ["a\0b"]}, "args[0] has a character that cannot be passed to a program"),
        (SERVER | {"cwd": "\ud800"}, "cwd has a character that cannot be passed to a program"),
        (SERVER | {"env": {"PORT": 8080}}, "env.PORT should be a string, not a number"),
        (SERVER | {"env": {"A=B": "hunter2"}}, "env.A=B is not a valid name of an environment variable"),
        (SERVER | {"env": {"": "hunter2"}}, "is not a valid name of an environment variable"),
        (SERVER | {"env": ["hunter2"]}, "env should be an object, not a list"),
        (SERVER | {"disabled": "no"}, "disabled should be true or false, not a string"),
        (SERVER | {"type": "pipe"}, "type should be 'stdio', 'http'"),
        (SERVER | {"type": "http"}, "has the type 'http' and a 'command', which is started over stdio"),
        ({"url": "http://h", "transport": "stdio"}, "has the type 'stdio' and a 'url', which is not stdio"),
        (SERVER | {"type": "stdio", "transport": "sse"}, "has a 'type' and a 'transport' that disagree"),
        (SERVER | {"inherit_env": "some"}, "inherit_env should be 'all', 'no_keys', 'safe' or 'none'"),
        (SERVER | {"inheritEnv": "safe"}, "has the unknown key 'inheritEnv'. Did you mean 'inherit_env'?"),
        (SERVER | {"arg": ["hunter2"]}, "has the unknown key 'arg'. Did you mean 'args'?"),
        (SERVER | {"Env": {"K": "hunter2"}}, "has the unknown key 'Env'. Did you mean 'env'?"),
        (SERVER | {"evn": {"K": "hunter2"}}, "has the unknown key 'evn'. Did you mean 'env'?"),
        ({"comand": "hunter2"}, "has the unknown key 'comand'. Did you mean 'command'?"),
        ({"httpUrl": "hunter2"}, "has 'httpUrl' for its 'url'"),
        ({"serverUrl": "hunter2"}, "`grue init --from FILE` copies its servers"),
    ],
)
def test_an_entry_that_cannot_be_used_names_file_server_and_key(
    tmp_path: Path, entry: object, problem: str
) -> None:
    error = refusal(tmp_path, {"mcpServers": {"good": SERVER, "bad": entry}})
    assert str(error).startswith(f"{tmp_path / 'mcp_config.json'}: MCP server 'bad'")
    assert problem in str(error)
    assert "hunter2" not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "is not a usable name"),
        (" a", "is not a usable name"),
        ("a\n", "is not a usable name"),
        ("a\u202eb", "is not a usable name"),
        ("a.b", "has a dot, which separates the server's name from the tool's"),
        ("mcp", "put 'mcp.' before tool names"),
    ],
)
def test_a_server_name_that_tool_names_cannot_carry_is_refused(
    tmp_path: Path, name: str, problem: str
) -> None:
    text = str(refusal(tmp_path, {"mcpServers": {name: SERVER}}))
    assert text == f"{tmp_path / 'mcp_config.json'}: MCP server {name!r} {text.split(repr(name) + ' ')[1]}"
    assert problem in text


@pytest.mark.parametrize("name", ["sequential-thinking", "My Server", "@scope/name", "mcp-2", "höhle"])
def test_server_names_of_real_files_are_accepted(tmp_path: Path, name: str) -> None:
    assert loaded(tmp_path, {name: SERVER}).get_server_config()[0] == name


def test_keys_of_other_hosts_are_tolerated_and_those_without_effect_are_named(tmp_path: Path) -> None:
    harmless = {"autoApprove": [], "alwaysAllow": ["x"], "type": "stdio", "dev": {}, "enabled": True}
    unused = {"oauth": {}, "startup": "lazy"}
    config = loaded(tmp_path, {"a": SERVER | harmless | unused, "off": {"disabled": True, "oauth": {}}})
    assert config.warnings == tuple(f"MCP server 'a': grue does not use the key {key!r}." for key in unused)
    assert config.get_server_config()[1].command == "run"


def test_the_warning_of_an_unknown_key_names_a_similar_one(tmp_path: Path) -> None:
    config = loaded(tmp_path, {"a": SERVER | {"emv": {"K": "hunter2"}, "color": "red"}})
    assert config.warnings == (
        "MCP server 'a': grue does not use the key 'emv'. Did you mean 'env'?",
        "MCP server 'a': grue does not use the key 'color'.",
    )


def test_every_text_of_a_server_is_expanded_when_it_is_taken(tmp_path: Path) -> None:
    entry = {
        "command": "${BIN}/run",
        "args": ["--root=${workspaceFolder}", "${env:WORD}"],
        "env": {"TOKEN": "${TOKEN}", "HOME_DIR": "${userHome}"},
        "cwd": "${SUB:-sub}",
    }
    config = loaded(tmp_path, {"a": entry}, BIN="/opt", WORD="xyzzy", TOKEN="hunter2", HOME="/home/z")
    assert config.mcpServers["a"].env == entry["env"]
    _, server = config.get_server_config()
    assert to_tool_server("a", server) == StdioServer(
        name="a",
        command="/opt/run",
        args=(f"--root={tmp_path}", "xyzzy"),
        env={"TOKEN": "hunter2", "HOME_DIR": "/home/z"},
        cwd=str(tmp_path / "sub"),
    )
    assert "hunter2" not in f"{server!r}{server}"


def test_an_unset_variable_names_itself_the_server_and_the_key(tmp_path: Path) -> None:
    servers = {"good": SERVER, "hub": SERVER | {"env": {"A": "${SET}", "T": "Bearer ${GITHUB_TOKEN}"}}}
    config = loaded(tmp_path, servers, SET="hunter2")
    assert config.get_server_config()[0] == "good", "the variables of an ignored server do not matter"
    with pytest.raises(MCPConfigError) as caught:
        config.server("hub")
    assert str(caught.value).startswith(
        "MCP server 'hub': env.T needs the environment variable GITHUB_TOKEN, which is not set."
    )
    assert caught.value.path == str(tmp_path / "mcp_config.json")
    assert "hunter2" not in str(caught.value)


def test_a_command_that_expands_to_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MCPConfigError, match="MCP server 'a': command is empty after expansion"):
        loaded(tmp_path, {"a": {"command": "${NOTHING:-}"}}).get_server_config()


def test_a_working_directory_is_relative_to_the_file(tmp_path: Path) -> None:
    config = loaded(tmp_path, {"a": SERVER | {"cwd": "sub"}, "b": SERVER | {"cwd": "/abs"}})
    assert (config.server("a").cwd, config.server("b").cwd) == (str(tmp_path / "sub"), "/abs")


def test_a_server_reached_by_url_is_parsed_expanded_and_reached_by_it(tmp_path: Path) -> None:
    entry = {
        "url": "https://${HOST}/mcp",
        "headers": {"Authorization": "Bearer ${KEY}"},
        "type": "streamable-http",
    }
    name, server = loaded(tmp_path, {"far": entry}, HOST="h", KEY="hunter2").get_server_config()
    assert (server.url, server.headers) == ("https://h/mcp", {"Authorization": "Bearer hunter2"})
    far = to_tool_server(name, server)
    assert far == HttpServer(
        name="far", url="https://h/mcp", headers={"Authorization": "Bearer hunter2"}, transport="http"
    )
    assert "hunter2" not in f"{server!r}{far!r}{far}"


@pytest.mark.parametrize("how", ["all", "no_keys", "safe", "none"])
def test_what_a_server_inherits_is_taken_over(tmp_path: Path, how: str) -> None:
    _, config = loaded(tmp_path, {"a": SERVER | {"inherit_env": how}}).get_server_config()
    assert to_tool_server("a", config) == StdioServer(name="a", command="run", inherit_env=how)  # type: ignore[arg-type]  # one of them
    by_url = loaded(tmp_path, {"a": {"url": "http://h", "inherit_env": how}})
    assert by_url.warnings == ("MCP server 'a': 'inherit_env' has no effect on a server with a 'url'.",)


def test_a_minimal_server_converts_with_defaults() -> None:
    assert to_tool_server("a", MCPServerConfig(command="run")) == StdioServer(name="a", command="run")


@pytest.mark.parametrize("mode", [0o664, 0o600])
def test_an_edited_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "mcp_config.json"
    path.write_text("{}")
    path.chmod(mode)
    before = os.umask(0o077)
    try:
        edit_servers(path, lambda servers: servers.update(x={"command": "x"}))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode
    assert json.loads(path.read_text()) == {"mcpServers": {"x": {"command": "x"}}}


def test_a_link_to_itself_is_replaced_by_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mcp_config.json"
    path.symlink_to(path.name)
    edit_servers(path, lambda servers: servers.update(x={"command": "x"}))
    assert json.loads(path.read_text()) == {"mcpServers": {"x": {"command": "x"}}}
