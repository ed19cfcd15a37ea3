"""`[tool.grue.*]`, else `[tool.zorkgpt.*]`: which of the two a setting comes from."""

from pathlib import Path

import pytest

from grue.config.project_tables import PLACES, read_project_tables
from grue.config.settings import GameConfiguration
from grue.errors import MCPConfigError


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pyproject.toml"
    path.write_text(text)
    return path


def test_settings_come_from_tool_grue(tmp_path: Path) -> None:
    text = """
[tool.grue.mcp]
enabled = true
[tool.grue.llm]
agent_model = "m"
[tool.grue.retry]
max_retries = 3
[[tool.grue.tool_policy.rules]]
tools = "a.*"
verdict = "deny"
"""
    config = GameConfiguration.from_toml(written(tmp_path, text))
    assert (config.mcp_enabled, config.agent_model, config.retry.max_retries) == (True, "m", 3)
    assert config.tool_policy.rules[0].verdict == "deny"


def test_a_setting_that_tool_grue_lacks_comes_from_tool_zorkgpt(tmp_path: Path) -> None:
    text = """
[tool.grue.mcp]
enabled = true
[tool.zorkgpt.mcp]
max_tool_iterations = 4
[tool.zorkgpt.llm]
agent_model = "older"
critic_model = "of the larger project"
"""
    config = GameConfiguration.from_toml(written(tmp_path, text))
    assert (config.mcp_enabled, config.mcp_max_tool_iterations, config.agent_model) == (True, 4, "older")


def test_a_setting_in_both_is_an_error_that_names_both_places_with_their_lines(tmp_path: Path) -> None:
    text = """
[tool.grue.mcp]
enabled = true
[tool.grue.retry]
max_retries = 1
[tool.zorkgpt]
mcp = { enabled = true }
[tool.zorkgpt.retry]
max_delay = 2
# The one to keep:
max_retries = 1
"""
    path = written(tmp_path, text)
    with pytest.raises(MCPConfigError) as caught:
        GameConfiguration.from_toml(path)
    assert (caught.value.path, caught.value.line) == (str(path), 3)
    assert str(caught.value).splitlines() == [
        f"{path}, line 3: [tool.grue.mcp] enabled is also set in [tool.zorkgpt.mcp], line 7. "
        "Keep one of the two.",
        f"{path}, line 5: [tool.grue.retry] max_retries is also set in [tool.zorkgpt.retry], line 11. "
        "Keep one of the two.",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[tool.grue.llm]\nagent_modle = 'm'",
            r"toml, line 2: unknown key 'agent_modle' in \[tool.grue.llm\]",
        ),
        ("[tool.grue.retry]\nmax_retry = 1", r"Did you mean 'max_retries'\?"),
        (
            "[tool.grue.mpc]\nenabled = true",
            r"toml, line 1: unknown table \[tool.grue.mpc\]. Did you mean \[tool.grue.mcp\]",
        ),
        ("[tool]\ngrue = 1", r"\[tool.grue\] is"),
        ("[tool.grue.llm]\nagent_model = 1", r"\[tool.grue.llm\] agent_model is"),
        ("[tool.zorkgpt.llm]\nagent_model = 1", r"\[tool.zorkgpt.llm\] agent_model is"),
        ("[tool.grue.retry]\nmax_retries = -1", r"\[tool.grue.retry\] max_retries"),
    ],
)
def test_a_problem_is_named_in_the_table_where_it_is(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(MCPConfigError, match=says):
        GameConfiguration.from_toml(written(tmp_path, text))


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    text = """[tool.grue]
base_url = "http://127.0.0.1:1/v1"
model = "m"
[tool.grue.llm]
agent_modle = "m"
[tool.grue.retry]
max_retries = -1
[tool.grue.mcp]
enabled = "yes"
[tool.grue.context]
window = 3
"""
    path = written(tmp_path, text)
    with pytest.raises(MCPConfigError) as caught:
        GameConfiguration.from_toml(path)
    told = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in told] == [
        f"{path}, line {number}" for number in (2, 3, 5, 7, 9, 11)
    ]
    assert "Write it as client_base_url in [tool.grue.llm]" in told[0]
    assert "Write it as agent_model in [tool.grue.llm]" in told[1]


def test_a_file_without_settings_is_falsy(tmp_path: Path) -> None:
    assert not read_project_tables(written(tmp_path, "[project]\nname = 'x'"))
    assert read_project_tables(written(tmp_path, "[tool.grue.mcp]\nenabled = true"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[tool.grue]\nmodel = "m"', "'model' of its own. Write it as agent_model in [tool.grue.llm]"),
        ("[tool.grue]\ntemperature = 1", "Write it as temperature in [tool.grue.agent_sampling]"),
        ('[tool.grue]\nfoo = "m"', "Settings are in the tables [tool.grue.mcp], [tool.grue.llm]"),
        ('[tool.grue.llm]\nbase_url = "http://x"', "Did you mean 'client_base_url'?"),
        ('[tool.grue.llm]\napi_key = "sk-1"', "set GRUE_API_KEY"),
        ("[tool.grue.llm]\ntemperature = 1", "Write it as temperature in [tool.grue.agent_sampling]"),
        ("[tool.grue.mcp]\nservers = {}", "MCP servers are configured in mcp_config.json"),
        ("[tool.grue.servers]\na = 1", "MCP servers are configured in mcp_config.json"),
        ("[tool.grue.retri]\na = 1", "Did you mean [tool.grue.retry]?"),
        ("[tool.grue.zzz]\na = 1", "unknown table [tool.grue.zzz]. Settings are in the tables [tool.grue."),
    ],
)
def test_a_setting_in_a_place_that_was_guessed_is_told_where_it_belongs(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(MCPConfigError) as refused:
        GameConfiguration.from_toml(written(tmp_path, text))
    assert says in str(refused.value)
    assert "sk-1" not in str(refused.value)


def test_every_place_that_is_named_is_a_setting(tmp_path: Path) -> None:
    for table, key in set(PLACES.values()):
        text = f"[tool.grue.{table}]\n{key} = []"
        try:
            GameConfiguration.from_toml(written(tmp_path, text))
        except MCPConfigError as error:
            assert "unknown" not in str(error)  # noqa: PT017 - some of them take a list, and most do not
