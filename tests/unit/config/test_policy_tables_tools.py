"""A policy as users write it in a TOML file."""

from pathlib import Path

import pytest

from grue.config.settings import GameConfiguration
from grue.config.wiring import from_configuration, runner_options
from grue.errors import MCPConfigError
from grue.policies import ToolPolicy, ToolRule

WHOLE = """
[tool.zorkgpt.tool_policy]
trusted = ["files"]
parking = true
park_for_s = 3600

[[tool.zorkgpt.tool_policy.rules]]
tools = "files.delete_*"
verdict = "ask"
max_calls = 3
reason = "it deletes"

[[tool.zorkgpt.tool_policy.rules]]
tools = ["web.*", "mail.*"]
read_only = true
parallel = true
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


def test_every_key_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRUE_API_KEY", "a-key-of-no-use")
    path = written(tmp_path, WHOLE)
    policy = ToolPolicy(
        rules=(
            ToolRule(tools=("files.delete_*",), verdict="ask", max_calls=3, reason="it deletes"),
            ToolRule(tools=("web.*", "mail.*"), read_only=True, parallel=True),
        ),
        trusted=("files",),
        parking=True,
        park_for_s=3600,
    )
    assert GameConfiguration.from_toml(path).tool_policy == policy
    assert runner_options(from_configuration(path).config, None)["tool_policy"] == policy


def test_without_the_table_everything_is_allowed(tmp_path: Path) -> None:
    assert GameConfiguration.from_toml(written(tmp_path, "")).tool_policy == ToolPolicy()


@pytest.mark.parametrize(
    ("keys", "line", "fault"),
    [
        (
            'verdict = "perhaps"',
            4,
            "rules, number 2, verdict: Invalid enum value 'perhaps'; it should be 'allow' or",
        ),
        ("parallel = 1", 4, "rules, number 2, parallel: Expected `bool`, got `int`"),
        ('tool = "a.*"', 4, "rules, number 2: unknown key 'tool'. Did you mean 'tools'"),
        ("tools = []", 3, "rule 2: tools should be"),
    ],
)
def test_a_fault_in_a_rule_names_the_file_the_line_and_the_key(
    tmp_path: Path, keys: str, line: int, fault: str
) -> None:
    rule = "[[tool.zorkgpt.tool_policy.rules]]\n"
    path = written(tmp_path, f'{rule}tools = ["a.*"]\n{rule}{keys}\n')
    with pytest.raises(MCPConfigError) as raised:
        GameConfiguration.from_toml(path)
    assert fault in str(raised.value)
    assert f"{path}, line {line}: [tool.zorkgpt.tool_policy]" in str(raised.value)
    assert raised.value.path == str(path)


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ("rule = []", "unknown key 'rule'. Did you mean 'rules'"),
        ("rules = 3", "rules: Expected `array`, got `int`"),
        ("rules = [3]", "rules, number 1: Expected `object`, got `int`"),
        ("park_for_s = -1", "park_for_s should be above 0"),
        ('trusted = "files"', "trusted: Expected `array`, got `str`"),
    ],
)
def test_a_fault_in_the_table_names_the_file_and_the_key(tmp_path: Path, keys: str, fault: str) -> None:
    path = written(tmp_path, f"[tool.zorkgpt.tool_policy]\n{keys}\n")
    with pytest.raises(MCPConfigError) as raised:
        GameConfiguration.from_toml(path)
    assert f"{path}, line 2: [tool.zorkgpt.tool_policy] {fault}" in str(raised.value)


def test_the_attribute_takes_a_policy_only() -> None:
    with pytest.raises(MCPConfigError, match="tool_policy"):
        GameConfiguration(tool_policy=3)  # type: ignore[arg-type]  # what a user may get wrong
