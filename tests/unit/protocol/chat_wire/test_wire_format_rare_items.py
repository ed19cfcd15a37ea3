"""What requests rarely hold: blank pieces of text, JSON that is refused."""

import pytest

from grue.messages import CachePoint, UserText
from grue.protocol.chat_wire.wire_format import marked_pieces
from grue.protocol.json_text import MAX_CHARS, strict_value
from grue.protocol.tools.names import read_arguments

EPHEMERAL = {"type": "ephemeral"}


def test_a_blank_piece_between_two_markers_goes_with_the_next_one() -> None:
    text = UserText("  hi", cache_points=(CachePoint(2, EPHEMERAL), CachePoint(4, EPHEMERAL)))
    assert marked_pieces(text, False) == [("  hi", EPHEMERAL)]


@pytest.mark.parametrize("text", ['"' + "a" * MAX_CHARS + '"', "[" * 150 + "]" * 150, "{", "NaN"])
def test_what_is_too_large_too_deep_or_no_json_is_no_value(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        strict_value(text)


def test_constants_that_are_no_json_are_no_arguments() -> None:
    assert isinstance(read_arguments('{"f": 1.5, "a": NaN}'), str)
    assert isinstance(read_arguments('{"a": 1} {"a": NaN}'), str)


def test_a_list_that_only_a_lenient_reader_reads_is_no_arguments() -> None:
    assert not isinstance(read_arguments('["\\ud800"]'), dict)
