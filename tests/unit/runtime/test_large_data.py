"""Large data is worked on in steps, with the same result as in one."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from grue.runtime import large_data
from grue.runtime.large_data import begin_encoding, buffer_of, count_of, decode, encode, find_in, joined

ENCODER = msgspec.json.Encoder()


class Told(Struct, frozen=True, tag=True):
    text: str
    rest: Any = None


class Renamed(Struct, frozen=True, tag="told", omit_defaults=True, rename={"text": "words"}):
    text: str
    again: tuple[Told, ...] = ()
    number: float | None = None


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_data, "STEP", 7)
    monkeypatch.setattr(large_data, "VERY_LONG", 10)
    monkeypatch.setattr(large_data, "sleep", lambda _: None)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
VALUES = st.recursive(
    TEXTS | st.integers(-1000, 1000) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
BODIES = st.builds(Told, TEXTS, VALUES) | st.builds(
    Renamed, TEXTS, st.lists(st.builds(Told, TEXTS), max_size=2).map(tuple), st.floats(-1e9, 1e9) | st.none()
)


@given(BODIES)
def test_a_message_encoded_in_steps_is_the_same(body: Any) -> None:
    assert encode(ENCODER, body) == ENCODER.encode(body)


@given(BODIES)
def test_a_message_decoded_in_steps_is_the_same(body: Any) -> None:
    written = ENCODER.encode(body)
    assert decode(msgspec.json.Decoder(Told | Renamed), written) == body
    assert decode(msgspec.json.Decoder(), written) == msgspec.json.decode(written)


@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n'), min_size=20))
def test_a_long_text_can_be_decoded_wherever_its_steps_end(text: str) -> None:
    for written in (ENCODER.encode([text]), json.dumps([text]).encode()):
        assert decode(msgspec.json.Decoder(list[str]), written) == [text]


@pytest.mark.parametrize("words", ["words ", "words\n"])
def test_only_very_long_texts_are_decoded_in_steps(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setattr(large_data, "STEP", 1000)
    sizes: list[int] = []

    class InSteps:
        type, strict = Told, True

        def decode(self, data: bytes) -> Told:
            raise AssertionError("the whole message is decoded in one call")

    def noted(data: bytes, **options: Any) -> Any:
        sizes.append(len(data))
        return msgspec.json.decode(data, **options)

    monkeypatch.setattr(large_data, "_decode_json", noted)
    body = Told(words * 100_000)
    assert decode(InSteps(), ENCODER.encode(body)) == body  # type: ignore[arg-type]  # it decodes as one does
    assert max(sizes) < 300_000


@pytest.mark.parametrize(
    "damaged", [b'{"text": "' + b"x" * 50, b'["' + b"\xff" * 50 + b'"]', b'["\\q' + b"x" * 50 + b'"]']
)
def test_damaged_json_with_a_long_text_is_the_same_error(damaged: bytes) -> None:
    decoder = msgspec.json.Decoder()
    kinds = (msgspec.DecodeError, UnicodeDecodeError)
    with pytest.raises(kinds) as whole:
        decoder.decode(damaged)
    with pytest.raises(kinds) as in_steps:
        decode(decoder, damaged)
    assert str(in_steps.value) == str(whole.value)


def test_only_very_long_texts_are_encoded_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Noted:
        def encode(self, body: Any) -> bytes:
            sizes.append(len(ENCODER.encode(body)))
            return ENCODER.encode(body)

    whole = encode(Noted(), Told("é\n" * 500))  # type: ignore[arg-type]  # it encodes as one does
    assert whole == ENCODER.encode(Told("é\n" * 500))
    assert max(sizes) < 100
    sizes.clear()
    encode(Noted(), Told("short"))  # type: ignore[arg-type]  # likewise
    assert len(sizes) == 1


def test_a_lone_surrogate_is_refused_in_steps_too() -> None:
    with pytest.raises(UnicodeEncodeError):
        encode(ENCODER, Told("x" * 20 + "\ud800"))


@given(st.text('[{,"xé'), st.sampled_from(["[{,", '"', ""]))
def test_counting_is_the_same(text: str, marks: str) -> None:
    expected = sum(text.count(mark) for mark in marks)
    assert count_of(text, marks) == count_of(text.encode(), marks) == expected


@given(st.binary(max_size=40), st.binary(min_size=1, max_size=9), st.integers(0, 40))
def test_finding_is_the_same(data: bytes, wanted: bytes, start: int) -> None:
    for each in (data, data + wanted + data):
        assert find_in(each, wanted, start) == each.find(wanted, start)


@given(st.lists(st.binary(max_size=20)))
def test_joining_is_the_same(parts: list[bytes]) -> None:
    assert joined(*parts) == b"".join(parts)
    assert joined(*map(memoryview, parts)) == b"".join(parts)


def test_a_body_is_finished_later_as_it_was_at_the_beginning() -> None:
    body = {"text": "x" * 20, "list": [1]}
    rest = begin_encoding(ENCODER, body)
    body["list"].append(2)  # type: ignore[attr-defined]  # it is the list
    assert rest is not None
    assert rest.finish() == ENCODER.encode({"text": "x" * 20, "list": [1]})


@pytest.mark.parametrize("written", [0, 10, 1000, 1500])
def test_a_buffer_holds_what_was_written_whatever_room_it_had(written: int) -> None:
    out = buffer_of(1000)
    out.write(b"x" * written)
    out.truncate()
    assert out.getvalue() == b"x" * written
