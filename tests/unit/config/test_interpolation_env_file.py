"""The dotenv format: what is read, and where a mistake is."""

import traceback
from pathlib import Path

import pytest
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grue.config.interpolation import read_env_file
from grue.errors import MCPConfigError

in_tmp_path = settings(
    max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read(folder: Path, text: str) -> dict[str, str]:
    path = folder / ".env"
    path.write_bytes(text.encode())
    return read_env_file(path, wanted_by="MCP server 'a'")


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("", {}),
        ("\n  \n# note\n   # note", {}),
        ("A=1\nB=two words \n", {"A": "1", "B": "two words"}),
        ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("export A=1\n  export\tB = 2", {"A": "1", "B": "2"}),
        ("A=", {"A": ""}),
        ("A= # note\nB=#note", {"A": "", "B": ""}),
        ("A=x # note\nB=x#y", {"A": "x", "B": "x#y"}),
        ("A=1\nA=2", {"A": "2"}),
        ("A='x # y' # note", {"A": "x # y"}),
        ("A='$B ${C} \\n'", {"A": "$B ${C} \\n"}),
        ('A="x\\ny \\"z\\" \\\\ \\q"', {"A": 'x\ny "z" \\ \\q'}),
        ('A="one\ntwo"\nB=1', {"A": "one\ntwo", "B": "1"}),
        ("A=it's\nB=x=y", {"A": "it's", "B": "x=y"}),
        ("\ufeffa.b-c=é", {"a.b-c": "é"}),
    ],
)
def test_the_format(tmp_path: Path, text: str, variables: dict[str, str]) -> None:
    assert read(tmp_path, text) == variables


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("A=1\nhunter2", 2, "should be NAME=value"),
        ("1A=hunter2", 1, "should be NAME=value"),
        ("=hunter2", 1, "should be NAME=value"),
        ("A: hunter2", 1, "should be NAME=value"),
        ('\n\nA="hunter2\nB=1', 3, 'has an opening " without a closing one'),
        ("A='hunter2", 1, "has an opening ' without a closing one"),
        ('A="x\ny"\nB="1" hunter2', 3, 'has text after the closing "'),
        ("A=hunter2\0", 1, "has a NUL character"),
    ],
)
def test_a_mistake_has_its_line_and_not_its_text(tmp_path: Path, text: str, line: int, problem: str) -> None:
    with pytest.raises(MCPConfigError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / '.env'}: line {line} {problem}")
    assert caught.value.line == line
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@in_tmp_path
@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r")),
    )
)
@pytest.mark.slow
def test_what_is_written_in_double_quotes_is_read_back(tmp_path: Path, variables: dict[str, str]) -> None:
    def quoted(value: str) -> str:
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
        return f'"{escaped}"'

    text = "".join(f"{name}={quoted(value)}\n" for name, value in variables.items())
    assert read(tmp_path, text) == variables


@in_tmp_path
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_variables_or_a_mistake_with_a_line(tmp_path: Path, text: str) -> None:
    mistakes: list[MCPConfigError] = []
    try:
        read(tmp_path, text)
    except MCPConfigError as error:
        mistakes.append(error)
    assert all(mistake.line is not None for mistake in mistakes)
