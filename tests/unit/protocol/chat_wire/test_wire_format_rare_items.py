"""What requests rarely hold: results in a user message, blank pieces of text, JSON that is refused."""

import pytest
from media import PNG, image, tool_message

from grue.messages import CachePoint, UserText
from grue.protocol.chat_wire.anthropic_messages import _blocks
from grue.protocol.chat_wire.profiles import profile_for
from grue.protocol.chat_wire.responses import _input
from grue.protocol.chat_wire.wire_format import Shown, marked_pieces
from grue.protocol.json_text import MAX_CHARS, strict_value
from grue.protocol.tools.names import read_arguments

RESULT = tool_message("a", image(PNG, "image/png"))
EPHEMERAL = {"type": "ephemeral"}


def test_results_that_a_user_message_shows_are_labelled_images_in_messages() -> None:
    profile = profile_for("https://api.anthropic.com/v1", "claude", None)
    blocks = _blocks(Shown((RESULT,)), False, profile)
    assert [block["type"] for block in blocks] == ["text", "image"]


def test_and_in_responses() -> None:
    profile = profile_for("https://api.openai.com/v1", "gpt-5", None)
    message = _input(Shown((RESULT,)), profile)
    assert message["role"] == "user"
    assert [part["type"] for part in message["content"]] == ["input_text", "input_image"]  # type: ignore[attr-defined]


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
