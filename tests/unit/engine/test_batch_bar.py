"""The bar of `Runner.map` in a notebook: plain text in one line, without a package that draws widgets."""

import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from grue.engine.batch import with_bar
from grue.engine.turn import BatchItem
from grue.errors import MCPError

ZMQInteractiveShell = type("ZMQInteractiveShell", (), {})


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = ZMQInteractiveShell
    monkeypatch.setitem(sys.modules, "IPython", ipython)


def items(count: int) -> Iterator[BatchItem[int]]:
    for index in range(count):
        yield BatchItem(index=index, outcome=index, error=MCPError("no") if index == 1 else None)


def test_a_notebook_has_a_bar_and_no_warning(notebook: None, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [item.index for item in with_bar(items(4), range(4))] == [0, 1, 2, 3]
    assert caught == []
    shown = capsys.readouterr().err
    assert shown.split("\r")[-1] == f"{'█' * 40} 4/4 turns, 1 failed\n"
    assert "\x1b" not in shown


def test_without_standard_error_no_bar_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a daemon, `sys.stderr` is `None`."""
    monkeypatch.setattr("sys.stderr", None)
    assert [item.index for item in with_bar(items(2), range(2))] == [0, 1]


def test_a_batch_of_unknown_length_is_counted(notebook: None, capsys: pytest.CaptureFixture[str]) -> None:
    list(with_bar(items(3), iter(())))
    assert capsys.readouterr().err.split("\r")[-1] == "3 turns, 1 failed\n"


def test_a_batch_that_is_left_leaves_a_whole_line_and_closes_its_items(
    notebook: None, capsys: pytest.CaptureFixture[str]
) -> None:
    given = items(5)
    bar: Any = with_bar(given, range(5))
    next(bar)
    bar.close()
    assert capsys.readouterr().err.endswith("1/5 turns\n")
    assert next(given, None) is None
