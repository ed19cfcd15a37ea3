"""How many examples Hypothesis tries: few with the profile `quick`, but enough in tests of requirements."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import settings

_FULL = LEAST = 100
_TABLE = Path(__file__).resolve().parents[2] / "docs" / "requirements.md"


def examples(full: int) -> int:
    """Return the number of examples to try: `full`, or a tenth of it with the profile `quick`."""
    return max(1, full * settings.default.max_examples // _FULL)


@cache
def named_tests() -> frozenset[str]:
    """Return the tests that docs/requirements.md names, as `tests/unit/test_x.py::test_y`."""
    return frozenset(re.findall(r"`(tests/[^`]+::\w+)`", _TABLE.read_text(encoding="utf-8")))


def count(test: Any) -> int:
    """Return how many examples a Hypothesis test tries."""
    return int(test._hypothesis_internal_use_settings.max_examples)


def try_enough(test: Any) -> None:
    """Let a Hypothesis test try at least `LEAST` examples."""
    if count(test) < LEAST:
        chosen = settings(test._hypothesis_internal_use_settings, max_examples=LEAST)
        test._hypothesis_internal_use_settings = chosen
