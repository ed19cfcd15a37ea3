"""`ContextPolicy`: its ranges, and that it is data."""

import re
from typing import Any

import msgspec
import pytest

from grue import ContextPolicy
from grue.errors import MCPConfigError


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"low_water": 0.9}, "low_water (0.9) must be above 0 and below high_water (0.9)"),
        ({"low_water": 0.0}, "low_water (0) must be above 0"),
        ({"high_water": 1.1}, "high_water (1.1), which must be at most 1"),
        ({"window_tokens": 0}, "window_tokens is 0; it must be a finite number above 0, or None"),
        ({"reply_tokens": -1}, "reply_tokens is -1; it must be a finite number, 0 or more"),
        ({"max_summaries": -1}, "max_summaries is -1; it must be a finite number, 0 or more"),
        ({"bytes_per_token": 0.0}, "bytes_per_token is 0.0; it must be a finite number above 0"),
    ],
)
def test_a_number_out_of_its_range_is_refused_with_the_reason(values: dict[str, Any], said: str) -> None:
    with pytest.raises(MCPConfigError, match=re.escape(said)):
        ContextPolicy(**values)


def test_it_is_plain_data() -> None:
    policy = ContextPolicy(window_tokens=32_000, read_only=("files.*",))
    assert msgspec.json.decode(msgspec.json.encode(policy), type=ContextPolicy) == policy
