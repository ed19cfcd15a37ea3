"""Rows of parametrized tests that need not all run every time."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def first_of(rows: Iterable[Any], keep: int = 1) -> list[ParameterSet]:
    """Return rows of which `make test` runs the first `keep`. The others are slow: CI runs them."""
    parameters = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [
        pytest.param(*row, marks=() if number < keep else pytest.mark.slow)
        for number, row in enumerate(parameters)
    ]
