"""Server-sent events: the same ones however the bytes come, and however lines end."""

import pytest
from case_tables import each_case
from chunks import PLACES, cut
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import grue.protocol.chat_wire.server_events as server_events
from grue.protocol.chat_wire.server_events import DamagedStream, EventLines, ServerEvent, intact

LINES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), max_size=8)
EVENTS = st.lists(
    st.builds(
        lambda kind, lines: ServerEvent(kind, "\n".join(lines)),
        LINES,
        st.lists(LINES, min_size=1, max_size=3),
    ),
    max_size=5,
)


def read(*chunks: bytes) -> list[ServerEvent]:
    lines = EventLines()
    return [event for chunk in chunks for event in lines.feed(chunk)] + list(lines.end())


def written(event: ServerEvent, noise: str) -> list[str]:
    data = [f"data: {line}" for line in event.text.split("\n")]
    return [f": {noise}", f"event: {event.kind}", *data, "id: 1", ""]


@settings(max_examples=examples(300))
@given(EVENTS, LINES, st.sampled_from(["\n", "\r\n", "\r"]), st.booleans(), PLACES)
@pytest.mark.slow
def test_any_chunking_of_a_stream_gives_the_same_events(
    events: list[ServerEvent], noise: str, end: str, marked: bool, places: list[int]
) -> None:
    text = "".join(line + end for event in events for line in written(event, noise))
    stream = (b"\xef\xbb\xbf" if marked else b"") + text.encode()
    assert read(*cut(stream, places)) == events


@settings(max_examples=examples(300))
@given(st.lists(st.sampled_from([b"data:", b"event", b"x", b"\r", b"\n", b"\r\n", b" ", b"\xff"])), PLACES)
def test_any_bytes_give_the_same_events_in_any_chunking(pieces: list[bytes], places: list[int]) -> None:
    stream = b"".join(pieces)
    assert read(*cut(stream, places)) == read(stream)


@each_case(
    "stream, events",
    [
        (b"data: a\n\ndata:b\n\n", [("", "a"), ("", "b")]),
        (b"data:  two spaces\n\n", [("", " two spaces")]),
        (b"data: a\ndata\ndata: b\n\n", [("", "a\n\nb")]),
        (b"event: x\n\ndata: a\n\n", [("", "a")]),
        (b": ping\n\n: ping\n\n", []),
        (b"data: a\r\n\r\ndata: b\r\r", [("", "a"), ("", "b")]),
        (b"data: the end is missing", [("", "the end is missing")]),
        (b"data: a\r", [("", "a")]),
        (b'data: a\n\nerror: {"code": 400}\n\n', [("", "a"), ("", '{"code": 400}')]),
        (b"error: no object\n\n", []),
        (b"unknown: x\nretry: 5\ndata: a\n\n", [("", "a")]),
        (b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", [("", "a")]),
        (b'{"a": 1}', []),
        (b"", []),
    ],
)
def test_what_a_stream_says(stream: bytes, events: list[tuple[str, str]]) -> None:
    assert [(event.kind, event.text) for event in read(stream)] == events
    assert read(*(stream[at : at + 1] for at in range(len(stream)))) == read(stream)


def test_an_event_comes_as_soon_as_it_is_complete() -> None:
    lines = EventLines()
    assert list(lines.feed(b"data: a\n")) == []
    assert lines.waiting == 0
    assert list(lines.feed(b"\nda")) == [ServerEvent("", "a")]
    assert list(lines.feed(b"ta: b\n\n")) == [ServerEvent("", "b")]
    assert list(lines.end()) == []


def test_a_line_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_events, "MAX_LINE_BYTES", 100)
    lines = EventLines()
    for _ in range(5):
        assert list(lines.feed(b"data: " + b"x" * 60 + b"\n")) == []
    with pytest.raises(ValueError, match="a line of more than 100 bytes"):
        list(lines.feed(b"x" * 101))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1]}', {"a": [1]}),
        ("[DONE]", {}),
        ("", {}),
        ('{"a": NaN}', {"a": None}),
    ],
)
def test_the_object_of_an_event(text: str, value: object) -> None:
    assert ServerEvent("", text).object == value


@pytest.mark.parametrize("text", ["[1]", "1", '"text"', "null", '{"a"', "{garbage", '{"a": 1}}', "DONE"])
def test_data_that_is_no_object_is_damage(text: str) -> None:
    with pytest.raises(DamagedStream, match="is not"):
        assert ServerEvent("", text).object is None


@pytest.mark.parametrize(
    ("stream", "damage"),
    [
        (b"data: caf\xe9\n\n", "line 1 of the stream is not UTF-8"),
        (b": x\n\x0bdata: a\n\n", "line 2 of the stream has no field of an event"),
        (b"dbta: a\n\n", "line 1 of the stream has no field of an event"),
        (b"data; a\n\n", "line 1 of the stream has no field of an event"),
        (b"data: a\xc3", "line 1 of the stream is not UTF-8"),
        (b'event: a\x1adata: {"a": 1}\n\n', "line 1 of the stream names no event"),
        (b": \xe9t\xe9\n\n", "line 1 of the stream is not UTF-8"),
        (b": ping\n\nid: 1\nretry: 5\nevent: x\ndata:\n\ndata\n\n", ""),
    ],
)
def test_lines_that_no_stream_has_are_remembered(stream: bytes, damage: str) -> None:
    lines = EventLines()
    list(lines.feed(stream))
    list(lines.end())
    assert lines.damage == damage


def test_a_member_with_one_wrong_character_is_damage() -> None:
    names = frozenset({"content", "tool_calls", "role"})
    with pytest.raises(DamagedStream, match="a member 'cpntent' where 'content' should be"):
        intact({"cpntent": "x"}, names)
    for sound in ({"content": ""}, {"annotations": []}, {"contents": 1}, {"id": 1}, {"c" * 500: 1}):
        assert intact(dict(sound), names) == sound
