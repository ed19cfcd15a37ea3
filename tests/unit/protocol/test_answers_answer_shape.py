"""Whether a reply has the shape of a schema, at a glance."""

from typing import Any

import pytest

from grue.protocol.answers import has_shape

MOVE: Any = {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]}
OPTIONAL: Any = {"type": "object", "properties": {"action": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "content", "fits"),
    [
        (MOVE, '{"action": "look"}', True),
        (MOVE, '```json\n{"action": "look", "why": "x"}\n```', True),
        (MOVE, '{"move": "look"}', False),
        (MOVE, "look", False),
        (MOVE, '["action"]', False),
        (OPTIONAL, '{"action": "look"}', True),
        (OPTIONAL, '{"move": "look"}', False),
        ({"type": "object"}, "{}", True),
        ({"type": "object"}, "look", False),
        ({"type": "object", "properties": 5, "required": "x"}, '{"a": 1}', True),
        ({"type": "array"}, "look", True),
        (MOVE, "x" * 200_000, True),
    ],
)
def test_a_reply_is_judged_by_its_members(schema: Any, content: str, fits: bool) -> None:
    assert has_shape(schema, content) is fits
