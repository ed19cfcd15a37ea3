"""Lines out of chunks: all of them, in order, whatever the chunks are; of one too long its ends."""

import pytest
from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st

from grue.runtime.large_data import ENDS_BYTES, CutLineError, EventBuffer, LineBuffer, LineTooLongError

LINE = st.binary(max_size=50).map(lambda line: line.replace(b"\n", b" "))
LARGE = 2 * ENDS_BYTES


def taken(buffer: LineBuffer) -> list[bytes]:
    lines = []
    while (line := buffer.take()) is not None:
        lines.append(line)
    return lines


def fed(buffer: LineBuffer, text: bytes, step: int) -> list[bytes | CutLineError]:
    """Feed a text in pieces and return its lines, those that were too long as their errors."""
    lines: list[bytes | CutLineError] = []
    for start in range(0, len(text), step):
        buffer.feed(text[start : start + step])
        while True:
            try:
                line = buffer.take()
            except CutLineError as cut:
                lines.append(cut)
                continue
            if line is None:
                break
            lines.append(line)
    return lines


@given(st.lists(LINE), st.integers(1, 40))
def test_lines_come_out_as_they_went_in(lines: list[bytes], step: int) -> None:
    buffer = LineBuffer(10**6, 10**6)
    assert fed(buffer, b"".join(line + b"\n" for line in lines), step) == lines
    assert buffer.rest() is None


@given(st.integers(1, 5 * LARGE), st.integers(1000, 3 * LARGE))
def test_a_message_that_is_too_long_leaves_its_ends_and_the_next_one_whole(size: int, step: int) -> None:
    text = (b"0123456789" * (size // 10 + 1))[:size]
    long, after = fed(LineBuffer(10**6, LARGE), text + b"\nnext\n", step)
    assert after == b"next"
    if isinstance(long, bytes):
        assert long == text
        assert size <= LARGE
    else:
        assert size > LARGE
        assert (long.head, long.tail, long.size) == (text[:ENDS_BYTES], text[-ENDS_BYTES:], size)


def test_what_is_cut_is_not_kept() -> None:
    buffer = LineBuffer(10**9, LARGE)
    for _ in range(100):
        buffer.feed(b"x" * LARGE)
        assert buffer.take() is None
        assert len(buffer._received) <= 2 * LARGE
    with pytest.raises(CutLineError):
        buffer.rest()
    assert buffer.rest() is None


def test_a_line_beyond_the_limit_is_an_error_cut_or_not() -> None:
    buffer = LineBuffer(3 * LARGE, LARGE)
    for _ in range(3):
        buffer.feed(b"x" * LARGE)
        assert buffer.take() is None
    buffer.feed(b"x")
    with pytest.raises(LineTooLongError, match=f"{3 * LARGE} bytes"):
        buffer.take()


def test_what_stands_after_the_last_newline_is_a_line_at_the_end() -> None:
    buffer = LineBuffer(100, 100)
    buffer.feed(b"one\ntwo")
    assert taken(buffer) == [b"one"]
    assert buffer.rest() == b"two"


@each_case("newline", [b"\n", b"\r\n", b"\r"])
@each_case("size", [1, 2, 3, 100])
def test_events_end_with_an_empty_line_wherever_the_chunks_are_cut(newline: bytes, size: int) -> None:
    events = [b"data: 1", b"event: x" + newline + b"data: 2", b"data: 3"]
    text = b"".join(event + 2 * newline for event in events) + b"rest"
    buffer, found = EventBuffer(1000, 1000), []
    for start in range(0, len(text), size):
        buffer.feed(text[start : start + size])
        while (event := buffer.take()) is not None:
            found.append(event)
    # If a chunk ends just before the last line feed, that is left for the next event. An empty line before an
    # event means nothing.
    assert [event.lstrip(b"\n") for event in found] == events
    assert (buffer.rest() or b"").lstrip(b"\n") == b"rest"


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_comments_without_an_empty_line_count_toward_no_event(newline: bytes, size: int) -> None:
    comments = (b": still here" + newline) * 500
    text = comments + b"data: 1" + 2 * newline + comments + 3 * newline + b"data: 2" + 2 * newline + comments
    buffer = EventBuffer(5000, 5000)
    assert [event.lstrip(newline) for event in fed(buffer, text, size)] == [b"data: 1", b"data: 2"]
    assert (buffer.rest() or b"").strip(newline) == b""


def test_a_comment_that_does_not_end_is_too_long() -> None:
    buffer = EventBuffer(1000, 1000)
    buffer.feed(b": first\n:" + b"x" * 1000)
    with pytest.raises(LineTooLongError, match="a line longer than 1000 bytes"):
        buffer.take()
