"""YAML with lines, and what is refused."""

import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from rows import first_of

from grue.config.documents import MAX_YAML_CHARS, parse_yaml, read_yaml
from grue.errors import MCPConfigError, MissingDependencyError

PATH = Path("agent.yaml")


def test_values_have_lines() -> None:
    document = parse_yaml("a:\n  b: 1\n  c:\n    - x\n    - {d: true}\n", PATH)
    assert document.value == {"a": {"b": 1, "c": ["x", {"d": True}]}}
    assert document.line(("a", "b")) == 2
    assert document.line(("a", "c", 1, "d")) == 5
    assert document.line(("a", "b", "unknown")) == 2
    assert document.place(("a", "c")) == "agent.yaml, line 3: "
    assert document.error(("a",), "it is bad.").line == 1


def test_lines_count_from_the_first_line_of_the_document() -> None:
    assert parse_yaml("a: 1", PATH, first_line=5).line(("a",)) == 5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("12:30", "12:30"),
        ("2026-11-22", "2026-11-22"),
        ("0x1f", "0x1f"),
        ("1_000", 1000),
        ("1.5", 1.5),
        ("1e400", "1e400"),
        (".inf", ".inf"),
        ("True", True),
        ("~", None),
        ("", None),
        ("'3'", "3"),
        ("1" * 400, "1" * 400),
        ("1" * 5000, "1" * 5000),
    ],
)
def test_scalars_are_those_of_json(text: str, value: object) -> None:
    assert parse_yaml(f"a: {text}", PATH).value == {"a": value}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: 2\na: 3", 3, "the key 'a' is there twice, first in line 1"),
        ("a: &x 1\nb: *x", 2, "an alias"),
        ("a:\n  <<: {b: 1}", 2, "a key should be a text"),
        ("a: 1\n? [x]\n: 1", 2, "a key should be a text"),
        ("a: !!python/object:os.system x", 1, "the tag"),
        ("!foo {a: 1}", 1, "the tag '!foo'"),
        ("a:\n  b: !foo [1]", 2, "the tag '!foo'"),
        ("a: !!set {b}", 1, "the tag"),
        ("a: [1,\nb: 2", 2, "not valid YAML"),
        ("a: 1\n---\nb: 1", 2, "not valid YAML"),
        ("a: " + "[" * 150 + "]" * 150, 1, "nested too deeply"),
    ],
)
def test_what_is_refused_is_named_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(MCPConfigError, match=rf"^agent\.yaml, line {line}: ") as caught:
        parse_yaml(text, PATH)
    assert said in str(caught.value)
    assert caught.value.line == line


@pytest.mark.parametrize("text", first_of(["a: \x00", "a" * (MAX_YAML_CHARS + 1), "[" * 5_000], keep=2))
def test_what_cannot_be_parsed_is_refused(text: str) -> None:
    with pytest.raises(MCPConfigError, match=r"^agent\.yaml"):
        parse_yaml(text, PATH)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MCPConfigError, match="not found"):
        read_yaml(str(tmp_path / "agent.yaml"))


def test_without_pyyaml_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'pyyaml>=6'"):
        parse_yaml("a: 1", PATH)


@given(st.text(max_size=60))
def test_any_text_is_a_document_or_a_configuration_error(text: str) -> None:
    with suppress(MCPConfigError):
        parse_yaml(text, PATH)


class Item(Struct, forbid_unknown_fields=True):
    size: int = 0


class Shelf(Struct, forbid_unknown_fields=True):
    items: list[Item] = []
    boxes: dict[str, list[Item]] | None = None


@pytest.mark.parametrize(
    ("text", "line"),
    # msgspec does not say under which name of a mapping a key stands, so that line is the mapping's.
    [("items:\n- size: 1\n- sise: 2", 3), ("boxes:\n  a:\n  - sise: 2", 1)],
)
def test_an_unknown_key_in_a_list_of_tables_is_named_with_its_line(text: str, line: int) -> None:
    problem = rf"line {line}: unknown key '.*sise'. Did you mean 'size'\?"
    with pytest.raises(MCPConfigError, match=problem) as refused:
        parse_yaml(text, Path("shelf.yaml")).convert(Shelf)
    assert "Known keys: size." in str(refused.value)


@pytest.mark.parametrize("text", ['size: 1\n"\\ud800": 1', 'size: 1\nname: "\\ud83d"'])
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    with pytest.raises(MCPConfigError, match="line 2: half of a surrogate pair is no character"):
        parse_yaml(text, Path("shelf.yaml"))
