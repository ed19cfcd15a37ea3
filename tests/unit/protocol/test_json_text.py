"""What is read of JSON that is not quite JSON."""

import pytest

from grue.protocol import json_text
from grue.protocol.json_text import from_json


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"cost": NaN, "of": {"each": [-Infinity, 1.5]}}', {"cost": None, "of": {"each": [None, 1.5]}}),
        ('{"name": "f", "args": {"at": [NaN]}}', {"name": "f", "args": '{"at": [NaN]}'}),
        (
            '{"name": "f", "args": {"name": "g", "in": {"x": 1e999}}}',
            {"name": "f", "args": '{"name": "g", "in": {"x": Infinity}}'},
        ),
        (
            '{"name": "m", "calls": [{"name": "f", "in": NaN}], "x": [NaN]}',
            {"name": "m", "calls": [{"name": "f", "in": "NaN"}], "x": [None]},
        ),
        (
            '{"name": "f", "args": {"at": 1.5}, "x": "\\ud800"}',
            {"name": "f", "args": {"at": 1.5}, "x": "\ufffd"},
        ),
    ],
)
def test_a_number_that_is_no_json_is_null_but_not_in_what_a_tool_is_called_with(
    text: str, value: object
) -> None:
    assert from_json(text.encode()) == value


def test_arguments_in_arguments_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    look = json_text._arguments
    monkeypatch.setattr(json_text, "_arguments", lambda *given: looks.append(given) or look(*given))
    from_json(b'{"name": "f", "in": ' * 50 + b'"\\ud800"' + b"}" * 50)
    assert len(looks) == 1


def test_plain_values_are_not_searched_for_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[type] = []
    monkeypatch.setattr(json_text, "_fields", lambda kind: looks.append(kind) or ())
    assert not json_text.is_repetitive([{"id": 1, "of": ("x", 1.5, None, True)}, {"id": 2}])
    assert looks == []
