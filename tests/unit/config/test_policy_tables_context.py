"""A context policy as users write it in a TOML file."""

from pathlib import Path

import pytest

from grue.config.settings import GameConfiguration
from grue.config.wiring import from_configuration, runner_options
from grue.errors import MCPConfigError
from grue.policies import ContextPolicy

WHOLE = """
[tool.grue.context]
window_tokens = 32_000
reply_tokens = 4_000
high_water = 0.8
low_water = 0.5
max_summaries = 2
summary_request = "Sum up in {words} words."
read_only = "files.read_*"
bytes_per_token = 4
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


def test_every_key_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRUE_API_KEY", "a-key-of-no-use")
    path = written(tmp_path, WHOLE)
    policy = ContextPolicy(
        window_tokens=32_000,
        reply_tokens=4_000,
        high_water=0.8,
        low_water=0.5,
        max_summaries=2,
        summary_request="Sum up in {words} words.",
        read_only=("files.read_*",),
        bytes_per_token=4.0,
    )
    assert set(policy.__struct_fields__) == {line.partition(" =")[0] for line in WHOLE.split("\n")[2:-1]}
    assert GameConfiguration.from_toml(path).context == policy
    assert runner_options(from_configuration(path).config, None)["context"] == policy


def test_without_the_table_nothing_is_cleared(tmp_path: Path) -> None:
    assert GameConfiguration.from_toml(written(tmp_path, "")).context is None


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ("window = 3", "unknown key 'window'. Did you mean 'window_tokens'?"),
        ("xyz = 3", "unknown key 'xyz'. Known keys: "),
        ('window_tokens = "32k"', "window_tokens: Expected `int | null`, got `str`."),
        ("read_only = [3]", "read_only, number 1: Expected `str`, got `int`."),
        ("low_water = 0.95", "low_water (0.95) must be above 0 and below high_water (0.9)"),
        ("high_water = 0.5", "low_water (0.6) must be above 0 and below high_water (0.5)"),
        ("bytes_per_token = 0", "bytes_per_token is 0.0; it must be a finite number above 0."),
        ("window_tokens = 0", "window_tokens is 0; it must be a finite number above 0, or None."),
        ("max_summaries = -1", "max_summaries is -1; it must be a finite number, 0 or more."),
    ],
)
def test_a_fault_names_the_file_the_line_and_the_key(tmp_path: Path, keys: str, fault: str) -> None:
    path = written(tmp_path, f"[tool.grue.context]\n# {keys}\n{keys}\n")
    with pytest.raises(MCPConfigError) as raised:
        GameConfiguration.from_toml(path)
    assert f"{path}, line 3: [tool.grue.context] {fault}" in str(raised.value)
    assert (raised.value.path, raised.value.line) == (str(path), 3)


def test_a_key_in_both_places_is_an_error(tmp_path: Path) -> None:
    text = "[tool.grue.context]\nlow_water = 0.5\n[tool.zorkgpt.context]\nlow_water = 0.6\n"
    with pytest.raises(
        MCPConfigError, match=r"line 2: \[tool\.grue\.context\] low_water is also set in .*, line 4\."
    ):
        GameConfiguration.from_toml(written(tmp_path, text))


def test_the_attribute_takes_a_policy_only() -> None:
    with pytest.raises(MCPConfigError, match="context"):
        GameConfiguration(context=3)  # type: ignore[arg-type]  # what a user may get wrong
