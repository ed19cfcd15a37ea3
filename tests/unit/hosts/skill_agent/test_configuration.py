"""`agent.yaml`: S's example, every setting, and errors that name line and key."""

import json
import re
from pathlib import Path
from typing import Any

import boxes
import pytest
from skill_runs import act, call, finish, run

from grue import LlmSettings, ShellTool, StdioServer, ToolPolicy, ToolRule
from grue.errors import MCPConfigError
from grue.hosts.skill_agent import AgentConfig, RunLimits, load_config

DOCUMENT = """\
mcp:
  enabled: true
  tool_call_timeout_seconds: 60
  servers:
    filesystem:
      command: "npx"
      args: ["-y", "@modelcontextprotocol/server-filesystem", "/home/user/projects"]
      timeout_seconds: 15
    github:
      command: "uvx"
      args: ["mcp-server-github"]
      env:
        GITHUB_TOKEN: "${GITHUB_TOKEN}"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "agent.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_servers_of_the_document_are_read_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_token")
    config = load_config(write(tmp_path, DOCUMENT))
    assert list(config.servers) == ["filesystem", "github"]
    files, github = config.servers.values()
    assert isinstance(files, StdioServer)
    assert isinstance(github, StdioServer)
    assert files.options.startup_timeout_s == 15, "it is the limit for connecting"
    assert files.options.call_timeout_s is None
    assert config.tool_call_timeout_s == 60
    assert github.env == {"GITHUB_TOKEN": "ghp_token"}


def test_every_setting_has_a_key(tmp_path: Path) -> None:
    config = load_config(
        write(
            tmp_path,
            """\
model: {name: m, base_url: "http://127.0.0.1:1/v1", temperature: 0.5, wire_format: messages}
mcp: {on_connect_failure: skip, reconnect: true}
limits: {max_turns: 3, max_steps: 4, time_limit_seconds: 5, cost_usd: 0.5, result_chars: 300}
on_step_failure: retry
retries: 2
policy:
  trusted: [files]
  rules: [{tools: agent.write_file, verdict: ask}]
skills: {folder: skills, restrict_tools: true}
workspace: work
instructions: Be brief.
""",
        )
    )
    assert (config.llm.model, config.llm.temperature, config.llm.wire) == ("m", 0.5, "messages")
    assert (config.on_connect_failure, config.reconnect) == ("skip", True)
    assert (config.limits.max_turns, config.limits.max_steps, config.limits.cost_usd) == (3, 4, 0.5)
    assert (config.on_step_failure, config.retries) == ("retry", 2)
    asked = ToolRule(tools=("agent.write_file",), verdict="ask")
    assert config.policy == ToolPolicy(trusted=("files",), rules=(asked,))
    assert (config.skills, config.restrict_tools) == (tmp_path / "skills", True)
    assert (config.workspace, config.instructions) == (tmp_path / "work", "Be brief.")


def test_the_file_that_other_hosts_write_can_be_named_instead(tmp_path: Path) -> None:
    other = {"other": {"command": "other", "required": False}}
    servers = {"mcpServers": {"think": {"command": "think", "timeout_seconds": 7}, **other}}
    (tmp_path / "mcp_config.json").write_text(json.dumps(servers))
    config = load_config(write(tmp_path, "mcp: {config_file: mcp_config.json}"))
    server, _ = config.servers.values()
    assert isinstance(server, StdioServer)
    assert server.options.call_timeout_s == 7, "in that file it is the limit of a call"
    assert config.optional_servers == {"other"}


def test_a_server_may_be_absent(tmp_path: Path) -> None:
    text = "mcp:\n  servers:\n    a: {command: a, required: false}\n    b: {command: b, required: true}"
    config = load_config(write(tmp_path, text))
    assert list(config.servers) == ["a", "b"]
    assert config.optional_servers == {"a"}


def test_with_mcp_off_the_variables_of_servers_need_not_be_set(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, DOCUMENT.replace("enabled: true", "enabled: false"))).servers == {}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("\nlimts: 3", 2, "unknown key 'limts'. Did you mean 'limits'?"),
        ("\nxyz: 3", 2, "unknown key 'xyz'. Known keys: "),
        ("mcp:\n  servrs: {}", 2, "unknown key 'mcp.servrs'. Did you mean 'servers'?"),
        ("limits:\n  max_turns: many", 2, "limits.max_turns: Expected `int`, got `str`"),
        ("limits:\n  max_turns: 0", 2, "limits.max_turns: Expected `int` >= 1"),
        ("mcp:\n  servers:\n    g:\n      command: x\n      comand: y", 3, "unknown key 'comand'"),
        ("mcp:\n  servers:\n    g:\n      command: x\n      args: [1]", 5, "args[0] should be a string"),
        ("mcp:\n  servers:\n    g: {command: x, env: {T: '${GRUE_NOT_SET}'}}", 3, "GRUE_NOT_SET"),
        ("mcp:\n  servers:\n    a: {command: x, required: 1}", 3, "a.required: it should be true or false"),
        ("mcp:\n  servers:\n    agent: {command: x}", 3, "the name is taken"),
        ("mcp:\n  config_file: x\n  servers: {a: {command: b}}", 2, "keep this or mcp.servers"),
        (
            "mcp:\n  servers:\n    a: {command: b, timeout_seconds: 1, startup_timeout_seconds: 2}",
            3,
            "mean the same",
        ),
        ("policy:\n  rules:\n    - tools: a\n    - verdit: ask", 4, "unknown key 'verdit'"),
        ("model:\n  temperature: -1", 2, "model.temperature is -1"),
        ("model:\n  base_url: ftp://x", 2, "model.base_url should be an http:// or https:// URL"),
        ("on_step_failure: give_up", 1, "'give_up'; it should be 'continue' or 'stop' or 'retry'."),
        (
            "shell:\n  commands: ls",
            2,
            "shell.commands: Invalid enum value 'ls'; it should be 'any' or a list.",
        ),
        ("model:\n  api_key: sk-1", 2, "'model.api_key'. Keys are not written into files: set GRUE_API_KEY"),
        ("[1]", 1, "Expected `object`, got `array`"),
    ],
)
def test_an_error_names_the_line_and_the_key(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(MCPConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert said in str(caught.value)


def test_a_shell_is_a_server_whose_tool_runs_commands_in_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").touch()
    text = "model: {name: m}\nworkspace: work\nshell: {commands: [ls], timeout_seconds: 5}\n"
    config = load_config(write(tmp_path, text))
    assert isinstance(config.servers["shell"], ShellTool)
    replies = [act(call("shell.run", argv=["ls"]), call("run", argv=["rm", "a.txt"])), act(finish())]
    ran = run(replies, config={"servers": config.servers, "workspace": config.workspace})
    assert "a.txt" in ran.results()[0]["output"]
    assert ran.statuses == ["completed", "failed", "completed"]


@boxes.needs_boxes
def test_commands_of_the_agent_and_what_they_start_stay_in_their_box(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "secret").write_text("STOLEN")
    text = "model: {name: m}\nworkspace: work\nshell: {commands: [sh], sandbox: files}\n"
    config = load_config(write(tmp_path, text))
    steal = f"echo mine > kept; cat kept; sh -c 'cat {tmp_path}/secret'"
    replies = [act(call("shell.run", argv=["sh", "-c", steal])), act(finish())]
    ran = run(replies, config={"servers": config.servers, "workspace": config.workspace})
    said = str(ran.results()[0])
    assert "mine" in said
    assert "STOLEN" not in said
    assert "Permission denied" in said


@pytest.mark.parametrize(
    ("shell", "said"),
    [
        ("shell: {commands: any, sandbox: {reads: [x]}}", "has the unknown key 'reads'"),
        ("shell: {}", "commands"),
        ("shell: {commands: [no-such-program-anywhere]}", "shell: "),
        ("shell: {commands: any}\nmcp: {servers: {shell: {command: ls}}}", "the name is taken"),
    ],
)
def test_a_shell_that_cannot_be_used_is_an_error_with_its_key(tmp_path: Path, shell: str, said: str) -> None:
    with pytest.raises(MCPConfigError, match=said):
        load_config(write(tmp_path, f"model: {{name: m}}\n{shell}\n"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"limits": {"max_turns": 3}}, "limits= wants RunLimits(...), not dict"),
        ({"policy": None}, "policy= wants ToolPolicy(...)"),
        ({"on_step_failure": "abort"}, "on_step_failure is one of continue, stop, retry, not 'abort'"),
        ({"retries": "2"}, "retries: Expected `int`, got `str`"),
        ({"tool_call_timeout_s": 0}, "tool_call_timeout_s is 0; it must be a finite number above 0"),
        ({"workspace": None}, "workspace= wants a path, not None"),
        ({"skills": 5}, "skills= wants a path, not 5"),
        ({"servers": None}, "servers= wants the servers by name, not None"),
        ({"optional_servers": "files"}, "optional_servers= wants a list or a tuple, not str"),
        ({"skill_servers": "files"}, "skill_servers= wants a list or a tuple, not str"),
        ({"skill_servers": ("files",)}, "skill_servers: there is no MCP server 'files'. Known: none."),
    ],
)
def test_a_setting_made_in_python_is_checked_too(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(MCPConfigError, match=re.escape(f"AgentConfig: {said}")):
        AgentConfig(llm=LlmSettings(model="m"), **settings)
    with pytest.raises(MCPConfigError, match="RunLimits: max_turns: Expected `int` >= 1"):
        RunLimits(max_turns=0)


def test_the_model_is_one_and_the_others_stand_in_its_settings() -> None:
    with pytest.raises(MCPConfigError, match=r"llm= wants the settings of one model; LlmSettings\.then"):
        AgentConfig(llm=[LlmSettings(model="m")])  # type: ignore[arg-type]


def test_folders_may_be_texts(tmp_path: Path) -> None:
    config = AgentConfig(llm=LlmSettings(model="m"), workspace=str(tmp_path), skills="skills")  # type: ignore[arg-type]
    assert (config.workspace, config.skills) == (tmp_path, Path("skills"))
