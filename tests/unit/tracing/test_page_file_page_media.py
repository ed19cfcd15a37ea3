"""Images in a page: taken out of messages, kept once, limited."""

import io
import json

import pytest
from growth import assert_linear
from story_traces import png

from grue.tracing import page_file
from grue.tracing.page_file import REFERENCE, ImageTable


def test_an_image_is_kept_once_wherever_it_stands() -> None:
    table, data = ImageTable(io.BytesIO()), png()
    nested = {"text": json.dumps({"data": data})}
    bodies = [{"data": data, "mime": "image/png"}, {"url": f"data:image/png;base64,{data}"}, nested]
    taken = [json.loads(table.take_out(json.dumps(body).encode())) for body in bodies]
    [(name, mime, kept)] = table
    assert (mime, kept.decode()) == ("image/png", data)
    assert taken[0] == {"data": REFERENCE + name, "mime": "image/png"}
    assert taken[1] == {"url": REFERENCE + name}
    assert json.loads(taken[2]["text"]) == {"data": REFERENCE + name}


@pytest.mark.parametrize(
    "text", ["iVBORw0KGgo and more", "x" + png(), png()[:-1] + "!", '<svg onload="x"/>' * 20, "A" * 500]
)
def test_what_is_no_image_stays(text: str) -> None:
    table = ImageTable(io.BytesIO())
    body = json.dumps({"text": text}).encode()
    assert table.take_out(body) == body
    assert list(table) == []


def test_images_beyond_the_limit_are_left_out_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_file, "MAX_IMAGES_CHARS", len(png(24)) + 10)
    table = ImageTable(io.BytesIO())
    table.take_out(json.dumps([png(24)]).encode())
    [left] = json.loads(table.take_out(json.dumps([png(25)]).encode()))
    assert left.startswith("an image of ")
    assert left.endswith("left out")
    assert len(list(table)) == 1


@pytest.mark.slow
def test_a_long_run_of_backslashes_takes_linear_time() -> None:
    table = ImageTable(io.BytesIO())
    assert_linear(table.take_out, 400_000, lambda size: b'{"x":"' + b"\\" * size + b'"}')
