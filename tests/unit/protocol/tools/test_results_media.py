"""Images, audio and files in results: what is attached for the model, what is described, and why."""

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from media import (
    GIF,
    JPEG,
    MP3,
    PDF,
    PNG,
    SVG,
    WAV,
    WEBP,
    audio,
    base64_of,
    blob,
    image,
    padded,
    tool_message,
)

from grue.messages import Attachment, CallId, JsonObject, RunTurn, ToolCall
from grue.policies import TurnLimits
from grue.protocol.json_text import json_value
from grue.protocol.tools.calls import record
from grue.protocol.tools.results import MAX_ATTACHMENTS, MediaRoom, from_mcp, success, told
from grue.protocol.turn.states import Turn

TEXT: JsonObject = {"type": "text", "text": "A map:"}
NOT_AN_IMAGE = "it is not a PNG, JPEG, GIF or WebP image"


def shown(
    *blocks: JsonObject, room: MediaRoom | None = None, **limits: int
) -> tuple[Any, tuple[Attachment, ...]]:
    room = room or MediaRoom(TurnLimits(**limits))  # type: ignore[arg-type]
    text, attachments, _ = told(from_mcp({"content": [TEXT, *blocks]}), 20_000, room)
    return json.loads(text)["content"][1:], attachments


@pytest.mark.parametrize(
    ("block", "kind", "mime"),
    [
        (image(PNG, "image/png"), "image", "image/png"),
        (image(JPEG, "image/jpeg"), "image", "image/jpeg"),
        (image(GIF, "image/gif"), "image", "image/gif"),
        (image(WEBP, "image/webp"), "image", "image/webp"),
        (audio(WAV, "audio/wav"), "audio", "audio/wav"),
        (audio(MP3, "audio/mp3"), "audio", "audio/mpeg"),
        (blob(PDF), "file", "application/pdf"),
        (blob(PNG, "image/png"), "image", "image/png"),
        (blob(WAV, "audio/wav"), "audio", "audio/wav"),
    ],
)
def test_what_models_take_is_attached_and_described(block: Any, kind: str, mime: str) -> None:
    holder = block.get("resource", block)
    data = holder.get("data") or holder["blob"]
    (described,), (attachment,) = shown(block)
    assert (attachment.kind, attachment.mime, attachment.data) == (kind, mime, data)
    assert attachment.bytes == described["bytes"] == len(base64.b64decode(data))
    assert "omitted" not in described
    assert data not in json.dumps(described)


@pytest.mark.parametrize("declared", ["image/jpeg", "image/jpg", "image/x-icon", "", 7, None])
def test_the_first_bytes_say_what_an_image_is_whatever_its_server_calls_it(declared: Any) -> None:
    _, (attachment,) = shown({"type": "image", "data": base64_of(PNG), "mimeType": declared})
    assert attachment.mime == "image/png"


@pytest.mark.parametrize(
    ("block", "omitted"),
    [
        (image(b"BM" + bytes(50), "image/bmp"), NOT_AN_IMAGE),
        (image(b"", "image/png"), NOT_AN_IMAGE),
        (image(b"\x89PN", "image/png"), NOT_AN_IMAGE),
        (audio(b"OggS" + bytes(20), "audio/ogg"), "it is neither WAV nor MP3"),
        (blob(b"PK\3\4", "application/zip"), "it is not an image, a WAV, an MP3 or a PDF"),
        ({"type": "image", "data": "!!! no base64 !!!", "mimeType": "image/png"}, NOT_AN_IMAGE),
        ({"type": "image", "data": base64_of(PNG)[:60] + "*" * 40}, "its base64 cannot be read"),
        ({"type": "image", "data": base64_of(PNG) + "\N{SNOWMAN}"}, "its base64 cannot be read"),
        ({"type": "image", "data": "=" + base64_of(PNG)}, NOT_AN_IMAGE),
        ({"type": "image", "data": base64_of(GIF)[:8] + "==" + base64_of(GIF)[8:]}, NOT_AN_IMAGE),
        ({"type": "image", "data": base64_of(padded(PNG, 99)) + "A"}, "its base64 cannot be read"),
    ],
)
def test_what_no_model_takes_is_described_with_the_reason(block: Any, omitted: str) -> None:
    (described,), attachments = shown(block)
    assert (described["omitted"], attachments) == (omitted, ())


@pytest.mark.parametrize(
    "written",
    [
        base64_of(PNG)[:50] + " " * 40 + base64_of(PNG)[50:],
        "\n".join([base64_of(PNG)[:40], base64_of(PNG)[40:]]),
        f"data:image/png;base64,{base64_of(PNG)}",
        base64_of(PNG).rstrip("="),
        f" {base64_of(PNG)} ",
    ],
)
def test_base64_in_other_writings_is_sent_as_providers_take_it(written: str) -> None:
    _, (attachment,) = shown({"type": "image", "data": written, "mimeType": "image/png"})
    assert (attachment.data, attachment.bytes) == (base64_of(PNG), len(PNG))


@pytest.mark.parametrize(
    "block",
    [
        image(SVG.encode(), "image/svg+xml"),
        blob(SVG.encode(), "image/svg+xml; charset=utf-8"),
        blob(SVG.encode(), "text/plain"),
    ],
)
def test_text_in_base64_is_read_as_text(block: Any) -> None:
    (described,), attachments = shown(block)
    assert (described["text"], attachments) == (SVG, ())


def test_text_that_is_no_unicode_or_very_large_is_not_read() -> None:
    for content in (b"\xff\xfe", b"<" * (1024 * 1024 + 1)):
        (described,), attachments = shown(blob(content, "text/plain"))
        assert "text" not in described
        assert attachments == ()


def test_limits_hold_to_the_byte_and_their_reason_names_them() -> None:
    exact, larger = image(padded(PNG, 1000)), image(padded(PNG, 1001))
    described, attachments = shown(exact, larger, max_image_bytes=1000)
    assert [item.bytes for item in attachments] == [1000]
    assert described[1]["omitted"] == "it is larger than max_image_bytes, 1,000"
    described, attachments = shown(exact, larger, exact, max_media_bytes=2000)
    assert [item.bytes for item in attachments] == [1000, 1000]
    assert described[1]["omitted"] == "with it the turn would show more than max_media_bytes, 2,000"
    for limits in ({"max_image_bytes": 0}, {"max_media_bytes": 0}):
        assert shown(exact, **limits)[1] == ()


def test_the_limit_for_images_is_not_one_for_files() -> None:
    assert len(shown(blob(padded(PDF, 5000)), max_image_bytes=100)[1]) == 1


def test_a_reply_shows_only_so_many() -> None:
    room = MediaRoom(TurnLimits())
    for _ in range(3):
        described, _ = shown(*[image()] * 10, room=room)
    assert len(room.attachments) == MAX_ATTACHMENTS
    assert described[-1]["omitted"] == f"a reply shows no more than {MAX_ATTACHMENTS}"


@pytest.mark.parametrize("size", [40, 5 * 1024 * 1024, 60_000_000])
@pytest.mark.slow
def test_large_images_are_attached_whole_or_not_at_all(size: int) -> None:
    block = image(padded(GIF, size), "image/gif")
    (described,), attachments = shown(block)
    assert described["bytes"] == size
    assert [item.bytes for item in attachments] == ([size] if size <= 5 * 1024 * 1024 else [])
    for item in attachments:
        assert item.data is block["data"], "megabytes are not copied"


def test_blocks_beside_structured_content_are_kept_and_shown() -> None:
    answer: Any = {"content": [TEXT, image()], "structuredContent": {"n": 1}}
    result = from_mcp(answer)
    assert result.to_dict() == {"content": {"n": 1}}
    assert result.blocks == (image(),)
    text, attachments, _ = told(result, 20_000, MediaRoom(TurnLimits()))
    assert json.loads(text)["content"] == {"n": 1}
    assert json.loads(text)["blocks"] == [{"type": "image", "mimeType": "image/png", "bytes": len(PNG)}]
    assert [item.mime for item in attachments] == ["image/png"]


def test_an_image_in_an_error_is_attached_too() -> None:
    result = from_mcp({"content": [TEXT, image()], "isError": True})
    assert len(told(result, 20_000, MediaRoom(TurnLimits()))[1]) == 1


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("file:///a/map.pdf", "map.pdf"),
        ("file:///a/the%20cellar", "the cellar.pdf"),
        ("file:///a/..", "file.pdf"),
        ("x://[", "file.pdf"),
        ('file:///a/"; rm\x1b[2J', "__ rm_u001b_2J.pdf"),
    ],
)
def test_a_file_has_a_name_that_a_request_can_carry(uri: str, name: str) -> None:
    _, (attachment,) = shown(blob(uri=uri))
    assert attachment.name == name


BASE64ISH = st.text("AB+/=-_ \n*é", max_size=30)
DATA = st.one_of(
    st.sampled_from([base64_of(content) for content in (PNG, GIF, WAV, PDF, b"")]), BASE64ISH, st.text()
)
BLOCKS = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["image", "audio"]), "data": st.builds(str.__add__, DATA, BASE64ISH)},
            optional={"mimeType": st.sampled_from(["image/png", "text/plain", "image/svg+xml", "", None, 1])},
        ),
        st.fixed_dictionaries(
            {
                "type": st.just("resource"),
                "resource": st.fixed_dictionaries(
                    {"blob": DATA}, optional={"uri": st.text() | st.none(), "mimeType": st.text()}
                ),
            }
        ),
    ),
    max_size=4,
)


@given(BLOCKS)
def test_no_result_breaks_this_and_what_is_attached_is_what_providers_take(blocks: Any) -> None:
    text, attachments, _ = told(success(json_value(blocks)), 20_000, MediaRoom(TurnLimits()))
    assert json.loads(text)
    for item in attachments:
        assert len(base64.b64decode(item.data, validate=True)) == item.bytes > 0


def test_a_tool_message_without_attachments_reads_as_it_always_did() -> None:
    assert msgspec.json.encode(tool_message("c", TEXT)) == (
        b'{"type":"tool","call_id":"c","content":"{\\"content\\":\\"A map:\\"}"}'
    )


def test_without_room_a_block_is_described_as_in_traces_from_before_attachments() -> None:
    text, attachments, _ = told(
        from_mcp({"content": [TEXT, image(PNG, "image/png"), image(SVG, "image/svg+xml")]}), 20_000
    )
    assert attachments == ()
    assert [sorted(block) for block in json.loads(text)["content"][1:]] == [["bytes", "mimeType", "type"]] * 2


@pytest.mark.parametrize("attach", [True, False])
def test_only_a_turn_that_attaches_media_puts_them_before_the_model(attach: bool) -> None:
    result = from_mcp({"content": [image(PNG, "image/png")]})
    call = ToolCall(call_id=CallId("1"), name="a.draw", arguments="{}")
    answered = record(call, 1, "returned", result)
    turn = Turn(run=RunTurn(turn=1, system="s", user="u", attach_media=attach))
    _, (message,) = turn.tell((answered,))
    assert bool(message.attachments) is attach
