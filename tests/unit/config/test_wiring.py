"""What a configuration becomes for a runner."""

import os
from pathlib import Path
from typing import Any

import pytest

from grue import LlmSettings, Runner, TurnRequest
from grue.cli.project import declines_mcp, known_servers
from grue.config.settings import BudgetSettings, GameConfiguration
from grue.config.wiring import from_configuration, llm_settings, model_for, read_servers, turn_limits
from grue.errors import BudgetSpent, MCPConfigError
from grue.hosts.agent_loop import AgentLoop
from grue.policies import Budget, TurnLimits
from grue.protocol.chat_wire.profiles import supports_tool_calling
from grue.testing.offline import Reply, offline_endpoint, reply_in_chat


def test_r13_the_limits_of_the_configuration_are_those_of_the_turns() -> None:
    config = GameConfiguration(
        mcp_max_tool_iterations=7,
        mcp_tool_call_timeout_seconds=1.5,
        mcp_server_startup_timeout_seconds=2.5,
        budget=BudgetSettings(turn_requests=3, turn_tokens=400, turn_cost_usd=0.5),
    )
    assert turn_limits(config, 60.0) == TurnLimits(
        max_tool_iterations=7,
        tool_call_timeout_s=1.5,
        server_startup_timeout_s=2.5,
        turn_timeout_s=60.0,
        budget=Budget(requests=3, tokens=400, cost_usd=0.5),
    )


def test_r13_without_a_configuration_turns_have_the_defaults_of_the_requirements() -> None:
    limits = turn_limits(GameConfiguration())
    assert (limits.max_tool_iterations, limits.tool_call_timeout_s) == (20, 30)
    assert limits.startup_timeout_s("any") == 10
    assert limits.turn_timeout_s == TurnLimits().turn_timeout_s == 1800
    bare = TurnLimits()
    assert (bare.max_tool_iterations, bare.tool_call_timeout_s, bare.startup_timeout_s("any")) == (20, 30, 10)


def test_r13_5_without_a_configuration_no_model_is_forced_to_take_tools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRUE_API_KEY", "a-key-of-no-use")
    assert not GameConfiguration().mcp_force_tool_support
    assert not llm_settings(GameConfiguration()).force_tool_support
    assert not LlmSettings(base_url="http://127.0.0.1:9/v1", model="m").force_tool_support
    assert not supports_tool_calling("deepseek-r1", GameConfiguration())


@pytest.mark.parametrize("forced", [True, False])
def test_r12_4_forced_tool_support_reaches_the_model_of_a_runner(
    forced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRUE_API_KEY", "a-key-of-no-use")
    assert llm_settings(GameConfiguration(mcp_force_tool_support=forced)).force_tool_support is forced
    toml = tmp_path / "pyproject.toml"
    toml.write_text(f"[tool.zorkgpt.mcp]\nforce_tool_support = {str(forced).lower()}\n")
    assert from_configuration(toml).llm.force_tool_support is forced


def test_a_runner_of_a_file_takes_another_model_and_needs_nothing_of_the_configured_one(
    tmp_path: Path,
) -> None:
    file = tmp_path / "pyproject.toml"
    text = '[tool.grue.llm]\nagent_model = "m"\nextra_headers = { X-Key = "${GRUE_NO_SUCH_VARIABLE}" }\n'
    file.write_text(f"{text}[tool.grue.budget]\nepisode_requests = 1\n")
    (tmp_path / "mcp_config.json").write_text('{"mcpServers": {"todo": {"command": "python"}}}')
    with pytest.raises(MCPConfigError, match="GRUE_NO_SUCH_VARIABLE"):
        Runner.from_toml(file)
    with Runner.from_toml(file, llm=offline_endpoint(lambda _: Reply("hello"))) as runner:
        assert runner.servers == ("todo",)
        outcome = runner.run_turn(TurnRequest("hi", tools=False))
        assert outcome.response == "hello"
        with pytest.raises(BudgetSpent):
            runner.run_turn("hi")
    with AgentLoop.from_toml(file, llm=offline_endpoint(reply_in_chat)) as loop:
        assert loop.runner.servers == ("mcp.todo",)


@pytest.mark.parametrize("root", ["grue", "zorkgpt"])
@pytest.mark.parametrize(
    ("written", "there", "used"),
    [("", True, True), ("", False, False), ("enabled = false", True, False), ("enabled = true", True, True)],
)
def test_a_runner_and_the_commands_use_the_same_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str, written: str, there: bool, used: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.{root}.llm]\nagent_model = "m"\n[tool.{root}.mcp]\n{written}\n'
    )
    if there:
        (tmp_path / "mcp_config.json").write_text('{"mcpServers": {"todo": {"command": "python"}}}')
    with Runner.from_toml() as runner:
        assert runner.servers == (("todo",) if used else ())
    known = known_servers(GameConfiguration.of_project(), None)
    assert ("todo" in known.servers) is used


@pytest.mark.parametrize("name", ["mcp_config.json", "pyproject.toml"])
@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (os.mkfifo, "it is a pipe, not a regular file"),
        (os.mkdir, "Is a directory"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    ],
)
def test_what_is_no_file_in_place_of_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, name: str, fault: str
) -> None:
    """To read a pipe would be to wait for its other end."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path / name)
    with pytest.raises(MCPConfigError, match=f"Cannot read '.*{name}': {fault}"):
        known_servers(GameConfiguration.of_project(), None)
    if name == "pyproject.toml":
        with pytest.raises(MCPConfigError, match=f"Cannot read '{name}': {fault}"):
            declines_mcp()
        with pytest.raises(MCPConfigError, match=f"Cannot read '{name}': {fault}"):
            Runner.from_toml()


@pytest.mark.parametrize("is_link", [True, False])
def test_a_pipe_without_a_name_is_read(monkeypatch: pytest.MonkeyPatch, is_link: bool) -> None:
    if not is_link:  # as on macOS
        monkeypatch.setattr(os.path, "realpath", os.fspath)
    read, write = os.pipe()
    os.write(write, b'{"mcpServers": {"todo": {"command": "python"}}}')
    os.close(write)
    assert list(read_servers(f"/dev/fd/{read}")) == ["todo"]
    os.close(read)


@pytest.mark.parametrize(
    ("name", "fault"), [("\\u0000", "no file can have this name"), ("x" * 300, "File name too long")]
)
def test_a_name_that_no_file_can_have_of_the_file_of_servers_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fault: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(f'[tool.grue.mcp]\nconfig_file = "{name}"\n')
    with pytest.raises(MCPConfigError, match=fault):
        known_servers(GameConfiguration.of_project(), None)


def test_a_broken_link_or_a_folder_in_place_of_the_file_of_servers_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mcp_config.json"
    path.symlink_to("gone.json")
    with pytest.raises(MCPConfigError, match=r"is a link to a file that does not exist: gone\.json"):
        known_servers(GameConfiguration.of_project(), None)
    path.unlink()
    path.mkdir()
    with pytest.raises(MCPConfigError, match="Is a directory"):
        known_servers(GameConfiguration.of_project(), None)


def test_another_model_in_place_of_the_projects_has_none_of_its_fallback_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[[tool.grue.llm.then]]\nagent_model = "b"\n')
    found = model_for(None, {}, "m", "http://127.0.0.1:9/v1")
    assert (found.model, found.base_url, found.then) == ("m", "http://127.0.0.1:9/v1", ())
    with pytest.raises(MCPConfigError, match="--base-url should be"):
        model_for(None, {}, "m", "nonsense")
