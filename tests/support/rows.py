"""Parameters of tests of which only some run by default."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def first_of(rows: Iterable[Any], keep: int = 1) -> list[ParameterSet]:
    """Return rows as parameters. `make test` runs the first `keep`; the others are slow and run in CI."""
    parameters = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [
        pytest.param(*row, marks=() if number < keep else pytest.mark.slow)
        for number, row in enumerate(parameters)
    ]
