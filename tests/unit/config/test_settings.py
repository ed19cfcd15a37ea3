"""`GameConfiguration`: P4, P45, and what a broken file says."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grue.config.settings import AgentSampling, GameConfiguration, RetrySettings
from grue.errors import MCPConfigError
from grue.protocol.turn.prices import Price

MCP_DEFAULTS = {
    "enabled": False,
    "config_file": "mcp_config.json",
    "max_tool_iterations": 20,
    "tool_call_timeout_seconds": 30,
    "server_startup_timeout_seconds": 10,
    "force_tool_support": False,
}
# What the project whose tables these are has in its own file, with much that is none of ours.
EXISTING_FILE = """
[project]
name = "ZorkGPT"
[tool.zorkgpt.llm]
client_base_url = "http://localhost:1234/v1"
agent_model = "deepseek/deepseek-v3.2-exp"
critic_model = "another"
[tool.zorkgpt.retry]
max_retries = 7
initial_delay = 2
retry_on_timeout = true
timeout_seconds = 90.0
circuit_breaker_enabled = true
circuit_breaker_failure_threshold = 10
circuit_breaker_recovery_timeout = 300.0
[tool.zorkgpt.agent_sampling]
temperature = 0.6
top_p = 0.95
top_k = 20
min_p = 0.0
max_tokens = 2000
[tool.zorkgpt.critic_sampling]
temperature = "as you like"
[tool.zorkgpt.mcp]
enabled = true
"""

texts = st.text(st.characters(categories=["L", "N"], include_characters=' /._-"\\'), min_size=1, max_size=20)
positive = st.integers(1, 10_000) | st.floats(min_value=0.001, max_value=1e6)
mcp_tables = st.fixed_dictionaries(
    {},
    optional={
        "enabled": st.booleans(),
        "config_file": texts,
        "max_tool_iterations": st.integers(1, 10_000),
        "tool_call_timeout_seconds": positive,
        "server_startup_timeout_seconds": positive,
        "force_tool_support": st.booleans(),
    },
)


def toml(table: str, values: dict[str, Any]) -> str:
    return "\n".join(
        [f"[{table}]", *(f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in values.items())]
    )


def written(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str) -> MCPConfigError:
    with pytest.raises(MCPConfigError) as caught:
        GameConfiguration.from_toml(written(folder, text))
    assert caught.value.path == str(folder / "pyproject.toml")
    return caught.value


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mcp_tables)
def test_p4_p45_what_the_file_gives_is_loaded_and_what_it_leaves_out_has_its_default(
    tmp_path: Path, table: dict[str, Any]
) -> None:
    config = GameConfiguration.from_toml(written(tmp_path, toml("tool.zorkgpt.mcp", table)))
    for key, expected in (MCP_DEFAULTS | table).items():
        loaded = getattr(config, f"mcp_{key}")
        assert loaded == expected
        assert type(loaded) is type(expected) or key not in table


fractions = st.floats(0, 1)
counts = st.integers(1, 10_000)
other_tables = st.fixed_dictionaries(
    {
        "llm": st.fixed_dictionaries({}, optional={"agent_model": texts.map(str.strip).filter(bool)}),
        "retry": st.fixed_dictionaries(
            {},
            optional={
                "max_retries": st.integers(0, 50),
                "initial_delay": st.floats(0.1, 2),
                "max_delay": st.floats(2, 1000),
                "exponential_base": st.floats(1, 10),
                "jitter_factor": fractions,
                "timeout_seconds": positive,
            },
        ),
        "agent_sampling": st.fixed_dictionaries(
            {},
            optional={
                "temperature": st.floats(0, 2),
                "top_p": st.floats(0.01, 1),
                "top_k": counts,
                "min_p": fractions,
                "max_tokens": counts,
            },
        ),
    }
)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(other_tables)
def test_p4_the_neighbouring_tables_are_loaded_as_the_file_gives_them(
    tmp_path: Path, tables: dict[str, dict[str, Any]]
) -> None:
    text = "\n".join(toml(f"tool.zorkgpt.{name}", table) for name, table in tables.items())
    config, default = GameConfiguration.from_toml(written(tmp_path, text)), GameConfiguration()
    assert config.agent_model == tables["llm"].get("agent_model", default.agent_model)
    assert config.retry == dataclasses.replace(default.retry, **tables["retry"])
    assert config.agent_sampling == dataclasses.replace(default.agent_sampling, **tables["agent_sampling"])


@pytest.mark.parametrize("text", ["", "[project]\nname = 'x'", "[tool.zorkgpt]", "[tool.zorkgpt.mcp]"])
def test_p45_an_empty_file_gives_the_defaults_of_the_constructor(tmp_path: Path, text: str) -> None:
    config = GameConfiguration.from_toml(written(tmp_path, text))
    assert config == GameConfiguration(project_dir=tmp_path)
    assert {key: getattr(config, f"mcp_{key}") for key in MCP_DEFAULTS} == MCP_DEFAULTS
    assert config.client_base_url == "https://openrouter.ai/api/v1"
    assert config.agent_sampling == AgentSampling(None, None, None, None, None)
    assert config.retry == RetrySettings(5, 1.0, 60.0, 2.0, 0.1, 120.0)


def test_an_existing_file_of_the_project_loads_unchanged(tmp_path: Path) -> None:
    config = GameConfiguration.from_toml(str(written(tmp_path, "\ufeff" + EXISTING_FILE)))
    assert config.mcp_enabled
    assert config.client_base_url == "http://localhost:1234/v1"
    assert config.agent_model == "deepseek/deepseek-v3.2-exp"
    assert config.agent_sampling == AgentSampling(0.6, 0.95, 20, 0.0, 2000)
    assert config.retry == RetrySettings(max_retries=7, initial_delay=2, timeout_seconds=90.0)


def test_the_servers_file_is_relative_to_the_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    written(tmp_path / "project", toml("tool.zorkgpt.mcp", {"config_file": "conf/servers.json"}))
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = GameConfiguration.from_toml("../project/pyproject.toml")
    assert config.mcp_config_path.resolve() == tmp_path / "project" / "conf" / "servers.json"
    monkeypatch.chdir(tmp_path)
    assert config.mcp_config_path.resolve() == tmp_path / "project" / "conf" / "servers.json"


def test_it_is_used_like_a_dataclass(tmp_path: Path) -> None:
    config = GameConfiguration(mcp_max_tool_iterations=3, mcp_config_file=tmp_path / "a.json")  # type: ignore[arg-type]
    config.mcp_enabled = True
    config.mcp_tool_call_timeout_seconds = 0.2
    assert (config.mcp_enabled, config.mcp_tool_call_timeout_seconds) == (True, 0.2)
    assert config.mcp_config_path == tmp_path / "a.json"
    assert dataclasses.replace(config, mcp_enabled=False).mcp_max_tool_iterations == 3
    assert GameConfiguration().retry is not GameConfiguration().retry


@pytest.mark.parametrize(
    ("table", "key", "value", "found", "wanted"),
    [
        ("mcp", "max_tool_iterations", "0", "is 0", "greater than or equal to 1"),
        ("mcp", "max_tool_iterations", "true", "is true", "integer"),
        ("mcp", "max_tool_iterations", "2.5", "is 2.5", "integer"),
        ("mcp", "tool_call_timeout_seconds", "-1", "is -1", "greater than 0"),
        ("mcp", "tool_call_timeout_seconds", '"30"', "is the text '30'", "number"),
        ("mcp", "tool_call_timeout_seconds", "inf", "is inf", "finite"),
        ("mcp", "server_startup_timeout_seconds", "0.0", "is 0.0", "greater than 0"),
        ("mcp", "server_startup_timeout_seconds", "false", "is false", "number"),
        ("mcp", "enabled", '"yes"', "is the text 'yes'", "boolean"),
        ("mcp", "enabled", "1", "is 1", "boolean"),
        ("mcp", "config_file", '""', "is the text ''", "at least 1 character"),
        ("mcp", "config_file", "{a = 1}", "is a table", "string"),
        ("mcp", "force_tool_support", "[]", "is a list", "boolean"),
        ("mcp", "force_tool_support", "2026-11-01", "is a date", "boolean"),
        ("llm", "agent_model", "7", "is 7", "string"),
        ("llm", "agent_model", f'["{"x" * 90}"]', "is a list", "string"),
        ("llm", "extra_headers", '"Authorization: Bearer sk-1"', "is a text", "dictionary"),
        ("agent_sampling", "temperature", "-0.1", "is -0.1", "greater than or equal to 0"),
        ("agent_sampling", "top_p", "1.5", "is 1.5", "less than or equal to 1"),
        ("agent_sampling", "max_tokens", "0", "is 0", "greater than or equal to 1"),
        ("retry", "max_retries", "-1", "is -1", "greater than or equal to 0"),
        ("retry", "jitter_factor", f'"{"x" * 90}"', f"is the text '{'x' * 40}...'", "number"),
    ],
)
def test_a_wrong_value_is_told_with_file_table_key_found_and_wanted(
    tmp_path: Path, table: str, key: str, value: str, found: str, wanted: str
) -> None:
    text = str(refusal(tmp_path, f"[tool.zorkgpt.{table}]\n{key} = {value}"))
    start = f"{tmp_path / 'pyproject.toml'}, line 2: [tool.zorkgpt.{table}] {key} {found}; it should "
    assert text.startswith(start)
    assert wanted in text.removeprefix(start)


def test_all_wrong_values_of_a_table_are_told_at_once(tmp_path: Path) -> None:
    text = str(refusal(tmp_path, toml("tool.zorkgpt.mcp", {"enabled": 3, "max_tool_iterations": -4})))
    assert [line.split("] ")[1].split()[0] for line in text.splitlines()] == [
        "enabled",
        "max_tool_iterations",
    ]
    assert [line.partition(": [")[0].rpartition(" ")[2] for line in text.splitlines()] == ["2", "3"]


@pytest.mark.parametrize(
    ("key", "suggested"),
    [("enable", "enabled"), ("max_iterations", "max_tool_iterations"), ("CONFIG_FILE", "config_file")],
)
def test_an_unknown_key_of_the_mcp_table_suggests_the_nearest(
    tmp_path: Path, key: str, suggested: str
) -> None:
    text = str(refusal(tmp_path, f"[tool.zorkgpt.mcp]\n{key} = 'a-secret'"))
    assert f"unknown key {key!r} in [tool.zorkgpt.mcp]. Did you mean {suggested!r}?" in text
    assert all(known in text for known in MCP_DEFAULTS)
    assert "a-secret" not in text


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/v1",
        "openrouter.ai/api/v1",
        "https://:8080",
        "http://h:99999",
        "http://[",
        "http://a b/v1",
        "sk-or-hidden",
    ],
)
def test_a_base_url_that_is_none_is_refused_without_showing_it(tmp_path: Path, url: str) -> None:
    text = str(refusal(tmp_path, toml("tool.zorkgpt.llm", {"client_base_url": url})))
    assert "[tool.zorkgpt.llm] client_base_url should be an http:// or https:// URL with a host." in text
    assert url not in text


@pytest.mark.parametrize(
    "url", ["https://me:hunter2@host/v1", "https://host/v1?key=hunter2", "https://host/#hunter2"]
)
def test_a_base_url_carries_no_credentials_and_no_error_shows_them(url: str) -> None:
    with pytest.raises(MCPConfigError, match="client_base_url should have no credentials") as caught:
        GameConfiguration(client_base_url=url)
    assert "hunter2" not in f"{caught.value}{caught.value.__cause__}"


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("mcp_enabled", "yes"),
        ("mcp_max_tool_iterations", 0),
        ("client_base_url", "nowhere"),
        ("agent_model", ""),
    ],
)
def test_a_wrong_value_is_refused_in_the_constructor_and_on_assignment(attribute: str, value: object) -> None:
    config = GameConfiguration()
    before = getattr(config, attribute)
    with pytest.raises(MCPConfigError, match=f"^{attribute} "):
        GameConfiguration(**{attribute: value})  # type: ignore[arg-type]
    with pytest.raises(MCPConfigError, match=f"^{attribute} "):
        setattr(config, attribute, value)
    assert getattr(config, attribute) == before


@pytest.mark.parametrize("name", ["model", "base_url"])
def test_a_wrong_value_is_refused_when_the_model_is_changed(name: str) -> None:
    with pytest.raises(MCPConfigError) as caught:
        GameConfiguration().ask(**{name: 5})  # type: ignore[arg-type]
    (problem,) = caught.value.problems
    assert problem.text == "is 5; it should be a valid string."


@pytest.mark.parametrize(
    ("name", "said"), [("model", "--model is the text ''"), ("base_url", "--base-url should")]
)
def test_an_empty_option_is_not_the_default(name: str, said: str) -> None:
    with pytest.raises(MCPConfigError, match=f"^{said}"):
        GameConfiguration().ask(**{name: ""})


def test_of_an_endpoint_and_a_model_both_are_changed_or_none() -> None:
    config = GameConfiguration()
    before = config.client_base_url
    with pytest.raises(MCPConfigError):
        config.ask("http://127.0.0.1:1/v1", "")
    assert config.client_base_url == before


def test_a_misspelt_attribute_is_refused() -> None:
    with pytest.raises(MCPConfigError, match=r"^mcp_enable is not a setting"):
        GameConfiguration(mcp_enable=True)  # type: ignore[call-arg]
    with pytest.raises(MCPConfigError, match=r"^mcp_enable is not a setting"):
        GameConfiguration().mcp_enable = True  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "line", "column"), [("a = 1\nb = = 2", 2, 5), ("a = 1\n\n[tool", 3, 6), ("x = '''\nopen", 2, 5)]
)
def test_invalid_toml_is_told_with_line_and_column(tmp_path: Path, text: str, line: int, column: int) -> None:
    error = refusal(tmp_path, text)
    assert (error.line, error.column) == (line, column)
    assert str(error).startswith(f"{tmp_path / 'pyproject.toml'} is not valid TOML: ")


def test_a_wrong_value_inside_a_table_of_the_users_is_named(tmp_path: Path) -> None:
    text = '[tool.grue.llm]\nextra_headers = {X-Team = 7, "" = "a"}'
    assert "extra_headers has 7 under 'X-Team'; it should be" in str(refusal(tmp_path, text))
    assert "extra_headers has the key the text ''; it should have" in str(refusal(tmp_path, text))


@pytest.mark.parametrize("text", ["a = " + "[" * 20_000, "a = " + "9" * 5_000, "a = 2026-02-31"])
def test_toml_beyond_all_limits_is_a_configuration_error(tmp_path: Path, text: str) -> None:
    assert re.search(r"is not (usable|valid) TOML", str(refusal(tmp_path, text)))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("tool = 3", "[tool] is 3"),
        ("[tool]\nzorkgpt = []", "[tool.zorkgpt] is a list"),
        ("[tool.zorkgpt]\nmcp = true", "[tool.zorkgpt.mcp] is true"),
        ("[tool.zorkgpt]\nretry = 'no'", "[tool.zorkgpt.retry] is the text 'no'"),
    ],
)
def test_what_should_be_a_table_is_named(tmp_path: Path, text: str, place: str) -> None:
    assert f"{place}; it should be a table." in str(refusal(tmp_path, text))


def test_a_file_that_cannot_be_read_is_a_clear_error(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.toml"
    with pytest.raises(MCPConfigError, match=f"^Configuration file not found: {re.escape(str(missing))}"):
        GameConfiguration.from_toml(missing)
    with pytest.raises(MCPConfigError, match=r"^Cannot read .*: Is a directory\.$"):
        GameConfiguration.from_toml(tmp_path)
    with pytest.raises(MCPConfigError, match=r"no file can have this name: 'a\\x00b'"):
        GameConfiguration.from_toml("a\0b")


def test_a_file_that_is_not_utf_8_says_where(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_bytes(b"a = 1\nname = '\xff'\n")
    with pytest.raises(MCPConfigError, match="is not UTF-8 text: line 2, column 9") as caught:
        GameConfiguration.from_toml(path)
    assert (caught.value.line, caught.value.column) == (2, 9)


@pytest.mark.slow
def test_only_the_configuration_loads_pydantic() -> None:
    loaded = "import sys, {}; print('pydantic' in sys.modules)"
    for module, expected in (("grue", "False"), ("grue.config.settings", "True")):
        done = subprocess.run(
            [sys.executable, "-c", loaded.format(module)], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected


def test_prices_of_models(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text('[tool.grue.budget.prices]\n"a-*" = {input = 1, output = 5.5, cached = 0}\n')
    prices = GameConfiguration.from_toml(path).budget.prices
    assert prices == {"a-*": Price(input=1, output=5.5, cached=0)}
    for wrong in (
        "{input = 1}",
        "{input = 1, output = -1}",
        "{input = 1, output = inf}",
        "{input = 1, output = 2, out = 3}",
        "3",
    ):
        path.write_text(f"[tool.grue.budget.prices]\na = {wrong}\n")
        with pytest.raises(MCPConfigError, match=r"\[tool\.grue\.budget\] prices"):
            GameConfiguration.from_toml(path)
