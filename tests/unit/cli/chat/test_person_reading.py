"""Lines from a pipe, and from a terminal without editing."""

import io

import pytest

from grue.cli.chat import person
from grue.cli.chat.person import LineReader
from grue.errors import MCPConfigError


def reader(text: bytes, *, asks: bool = False) -> LineReader:
    return LineReader(io.BytesIO(text), asks=asks)


def test_each_line_is_an_input_and_a_backslash_joins_two() -> None:
    lines = reader(b"one\r\ntwo \\\nthree\n\nlast\\")
    assert [lines.read() for _ in range(5)] == ["one", "two \nthree", "", "last", None]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert reader(b"a\xff\n").read() == "a\N{REPLACEMENT CHARACTER}"


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(person, "MAX_LINE", 2**20)
    assert len(reader(b"x" * 2**20).read() or "") == 2**20
    with pytest.raises(MCPConfigError, match="longer than 1 MiB: shorten it"):
        reader(b"x" * (2**20 + 1)).read()


def test_the_rest_of_a_line_that_is_too_long_is_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(person, "MAX_LINE", 4)
    lines = reader(b"0123456789\n01\n")
    with pytest.raises(MCPConfigError, match="shorten it"):
        lines.read()
    assert lines.read() == "01"


def test_a_plain_terminal_is_asked_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = reader(b"hello\n y \n\n", asks=True)
    assert lines.read() == "hello"
    assert [lines.answer("Really?", "no") for _ in range(3)] == ["y", "no", None]
    out, err = capsys.readouterr()
    assert (out, err) == ("> ", "Really?\n" * 3)
