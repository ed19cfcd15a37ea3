"""Patterns that are compiled with their first use."""

import re

import pytest

from grue.late_patterns import late


def test_it_matches_as_a_compiled_pattern_does() -> None:
    pattern = late(r"(\w+)=(\d+)", re.IGNORECASE)
    assert [found[1] for found in pattern.finditer("a=1 B=22")] == ["a", "B"]
    assert pattern.fullmatch("a=1 ") is None
    assert pattern.pattern == r"(\w+)=(\d+)"
    assert late(rb"\d").sub(b"x", b"1a2") == b"xax"


def test_it_is_compiled_once_and_not_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_it = re.compile

    def counted(source: str, flags: int = 0) -> re.Pattern[str]:
        compiled.append(source)
        return compile_it(source, flags)

    monkeypatch.setattr(re, "compile", counted)
    pattern = late("a+")
    assert compiled == []
    assert pattern.search("baa")
    assert pattern.search("a")
    assert compiled == ["a+"]


def test_what_a_pattern_does_not_have_it_does_not_have() -> None:
    assert not hasattr(late("a"), "locate")
