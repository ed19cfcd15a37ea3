"""Compressed bodies: undone in small steps, whatever the chunks, and never beyond the limit of any stage."""

import collections
import tracemalloc
import zlib

import pytest
from chunks import PLACES, cut
from hypothesis import given
from hypothesis import strategies as st

from grue.transports.llm.exchange import (
    STEP_BYTES,
    BodyTooLongError,
    ContentDecoder,
    EncodingError,
)

WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15, "Deflate": -15}
"""How each coding is made; `deflate` comes with a header or without."""


def packed(body: bytes, *codings: str) -> bytes:
    for coding in codings:
        packer = zlib.compressobj(9, zlib.DEFLATED, WINDOWS[coding])
        body = packer.compress(body) + packer.flush()
    return body


def unpacked(body: bytes, codings: str, limit: int = 1 << 30, *places: int) -> bytes:
    decoder = ContentDecoder(codings, limit)
    pieces = [piece for chunk in cut(body, list(places)) for piece in decoder.feed(chunk)]
    assert all(len(piece) <= STEP_BYTES for piece in pieces)
    return b"".join(pieces)


@given(st.binary(max_size=300), st.lists(st.sampled_from(sorted(WINDOWS)), min_size=1, max_size=2), PLACES)
def test_what_was_packed_comes_out_however_it_is_cut(
    body: bytes, codings: list[str], places: list[int]
) -> None:
    assert unpacked(packed(body, *codings), ", ".join(codings), 1_000, *places) == body


def test_a_body_that_comes_byte_by_byte() -> None:
    body = packed(b"look around" * 99, "Deflate")
    assert unpacked(body, "deflate", 1 << 30, *range(len(body))) == b"look around" * 99


@pytest.mark.parametrize("size", [STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1, 5 * STEP_BYTES, 1_000_003])
def test_nothing_is_left_inside(size: int) -> None:
    assert unpacked(packed(b"\0" * size, "gzip", "gzip"), "gzip, gzip", size) == b"\0" * size


@pytest.mark.parametrize("codings", ["gzip", "deflate", "gzip, gzip", "deflate, x-gzip"])
@pytest.mark.slow
def test_no_stage_gives_more_than_the_limit(codings: str) -> None:
    body = packed(b"\0" * 30_000_000, *codings.split(", "))
    pieces = ContentDecoder(codings, 1_000_000).feed(body)
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLongError, match="longer than 1000000 bytes"):
            collections.deque(pieces, maxlen=0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_a_stage_in_between_has_the_limit_too() -> None:
    # What comes out is short: the limit strikes what is taken apart on the way.
    inner = packed(b"short", "gzip") + b"\0" * 5_000_000
    with pytest.raises(BodyTooLongError):
        unpacked(packed(inner, "gzip"), "gzip, gzip", 1_000_000)


def test_more_than_two_stages_are_refused_before_anything_is_read() -> None:
    with pytest.raises(EncodingError, match="compressed 3 times; at most 2 are undone"):
        ContentDecoder("gzip, gzip,gzip", 1 << 30)


@pytest.mark.parametrize("codings", ["", "identity", "utf-8, identity", "br", " , ,"])
def test_what_is_not_known_is_passed_over(codings: str) -> None:
    assert unpacked(b"as it is", codings) == b"as it is"


@pytest.mark.parametrize("places", [[], [1], [3, 4]])
def test_a_body_in_a_coding_that_was_not_asked_for_passes_only_as_text(places: list[int]) -> None:
    text = '{"content": "h\u00e9"}'.encode()
    assert unpacked(text, "zstd", 1 << 30, *range(len(text))) == text
    assert unpacked(packed(text, "gzip"), "br, gzip") == text
    with pytest.raises(EncodingError, match="its Content-Encoding is zstd; asked for: gzip, deflate"):
        unpacked(b"\x28\xb5\x2f\xfd\x04\x00", "zstd", 1 << 30, *places)


@pytest.mark.parametrize(("body", "codings"), [(b"x", "gzip"), (b"x", "gzip, gzip")])
def test_what_is_not_compressed_cannot_be_undone(body: bytes, codings: str) -> None:
    with pytest.raises(EncodingError):
        unpacked(body + b"garbage", codings)


@pytest.mark.parametrize("text", [b'{"choices": []}', b"[]", b"<html>"])
@pytest.mark.parametrize("places", [[], [1], [1, 2]])
def test_a_text_whose_header_says_gzip_is_passed_on_as_it_is(text: bytes, places: list[int]) -> None:
    assert unpacked(text, "gzip", 1 << 30, *places) == text


def test_a_body_that_breaks_in_the_middle_is_an_error() -> None:
    body = bytearray(packed(bytes(range(256)) * 4000, "gzip"))
    body[len(body) // 2] ^= 0xFF
    with pytest.raises(EncodingError):
        unpacked(bytes(body), "gzip")


def test_what_follows_the_end_is_passed_over() -> None:
    assert unpacked(packed(b"look", "gzip") + b"padding", "gzip") == b"look"


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=4), PLACES)
def test_all_members_of_a_gzip_body_are_read(parts: list[bytes], places: list[int]) -> None:
    whole = b"".join(packed(part, "gzip") for part in parts)
    assert unpacked(whole + b"\0\0", "gzip", 1_000, *places) == b"".join(parts)
    assert unpacked(packed(whole, "gzip"), "gzip, gzip", 1_000, *places) == b"".join(parts)


def test_the_members_of_a_gzip_body_share_its_limit() -> None:
    with pytest.raises(BodyTooLongError):
        unpacked(packed(b"\0" * 600, "gzip") * 2, "gzip", 1_000)
