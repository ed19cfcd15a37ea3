"""Images, audio and files of tools' results on the wire: as each profile takes them, or described."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from media import GIF, MP3, PDF, PNG, WAV, audio, base64_of, blob, image, tool_message
from wire_bodies import (
    ANSWER,
    MODEL,
    OPENING,
    THINK,
    call,
    call_ids,
    refusal,
    up_to_last_message,
    without_markers,
)

from grue.messages import OfferTools, RequireAnswer, UserText
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.chat_wire.profiles import (
    ANTHROPIC,
    DEEPSEEK,
    GENERIC,
    MISTRAL,
    OPENAI,
    OPENAI_CHAT,
    OPENROUTER,
    PROFILES,
    adapt_profile,
)
from grue.protocol.chat_wire.wire_format import Reply

GOLDEN = Path(__file__).with_name("golden_requests")
replace = msgspec.structs.replace
HEARING = replace(OPENROUTER, name="openrouter with audio", audio=True)
EVERY_PROFILE = (
    *(each.profile for each in FORMATS.values()),
    HEARING,
    *(profile for rows in PROFILES.values() for profile in rows),
)
by_name = pytest.mark.parametrize("profile", EVERY_PROFILE, ids=lambda profile: profile.name)
RESULTS = (
    tool_message("a", {"type": "text", "text": "A map:"}, image(PNG), audio(WAV), blob(PDF)),
    tool_message("b", {"type": "text", "text": "no image"}),
    tool_message("c", image(GIF, "image/gif"), audio(MP3)),
)


def a_turn(profile: WireProfile) -> list[bytes]:
    """Return the bodies of a turn: results with images, the same again and an instruction, the repair."""
    conversation = EncodedConversation(profile)
    conversation.ask(OPENING, OfferTools((THINK,)))
    conversation.keep(Reply(content="Hm.", tool_calls=(call("a"), call("b"), call("c"))))
    conversation.ask(RESULTS, OfferTools())
    bodies = [conversation.body(MODEL)]
    conversation.keep(Reply(tool_calls=(call("d"),)))
    conversation.ask((tool_message("d", image(GIF)), UserText("Answer now.")), RequireAnswer(ANSWER))
    bodies.append(conversation.body(MODEL))
    conversation.keep(Reply(content="look!"))
    conversation.ask((UserText("That is no JSON."),), RequireAnswer(ANSWER))
    return [*bodies, conversation.body(MODEL)]


@by_name
def test_every_request_passes_the_strict_rules(profile: WireProfile) -> None:
    assert [refusal(body, profile) for body in a_turn(profile)] == [None] * 3


@by_name
def test_each_request_begins_with_the_bytes_of_the_one_before(profile: WireProfile) -> None:
    for before, after in itertools.pairwise(a_turn(profile)):
        assert without_markers(after).startswith(up_to_last_message(before, profile))


@by_name
def test_a_profile_is_sent_what_it_takes_and_told_of_the_rest(profile: WireProfile) -> None:
    body = a_turn(profile)[0].decode()
    for taken, content in (
        (profile.images, PNG),
        (profile.images, GIF),
        (profile.audio, WAV),
        (profile.audio, MP3),
        (profile.files, PDF),
    ):
        assert body.count(base64_of(content)) == taken
    for taken, noun in ((profile.images, "images"), (profile.audio, "audio"), (profile.files, "files")):
        assert (f"not shown: the model takes no {noun}]" in body) != taken
    calls, answers = call_ids(a_turn(profile)[0], profile)
    assert calls == answers
    assert calls == ["a", "b", "c"] or (profile is MISTRAL and {*map(len, calls)} == {9})


@pytest.mark.parametrize(
    "profile", [GENERIC, HEARING, OPENAI_CHAT, OPENAI, ANTHROPIC, MISTRAL], ids=lambda profile: profile.name
)
def test_golden_requests_with_media(profile: WireProfile) -> None:
    golden = json.loads((GOLDEN / f"{profile.name}_media.json".replace(" ", "_")).read_text())
    assert json.loads(a_turn(profile)[1]) == golden


def test_chat_completions_show_images_behind_all_results_of_the_reply() -> None:
    messages = json.loads(a_turn(GENERIC)[1])["messages"]
    roles = [message["role"] for message in messages]
    assert roles[3:] == ["tool", "tool", "tool", "user", "assistant", "tool", "user", "user"]
    assert "[image/png, 67 bytes: shown in the next message]" in messages[3]["content"]
    assert [part["type"] for part in messages[6]["content"]] == ["text", "image_url"] * 2
    assert messages[6]["content"][2]["text"] == "[Returned by the tool call c:]"


def test_a_word_stands_between_results_and_images_where_the_endpoint_wants_one() -> None:
    roles = [message["role"] for message in json.loads(a_turn(MISTRAL)[1])["messages"]]
    assert roles[3:7] == ["tool", "tool", "tool", "assistant"]
    assert roles[7] == "user"
    assert roles[8:12] == ["assistant", "tool", "assistant", "user"]


def test_another_profile_encodes_the_same_images_anew() -> None:
    conversation = EncodedConversation(OPENAI_CHAT)
    conversation.ask(OPENING, OfferTools((THINK,)))
    conversation.keep(Reply(tool_calls=(call("a"),)))
    conversation.ask((tool_message("a", image()),), OfferTools())
    shown = conversation.body(MODEL)
    conversation.adopt(OPENAI)
    assert b"input_image" in conversation.body(MODEL)
    conversation.adopt(replace(OPENAI_CHAT, images=False))
    assert base64_of(PNG).encode() not in conversation.body(MODEL)
    conversation.adopt(OPENAI_CHAT)
    assert conversation.body(MODEL) == shown


@by_name
def test_dropped_attachments_leave_what_stands_before_them_as_it_was(profile: WireProfile) -> None:
    conversation = EncodedConversation(profile)
    conversation.ask(OPENING, OfferTools((THINK,)))
    assert conversation.drop_attachments() is None
    conversation.keep(Reply(tool_calls=(call("a"),)))
    conversation.ask((tool_message("a", image(PNG)),), OfferTools())
    before = conversation.body(MODEL)
    conversation.keep(Reply(tool_calls=(call("b"),)))
    conversation.ask((tool_message("b", image(GIF)),), OfferTools())
    assert (conversation.drop_attachments() is not None) == profile.images
    after = conversation.body(MODEL)
    assert without_markers(after).startswith(up_to_last_message(before, profile))
    assert base64_of(GIF).encode() not in after
    if profile.images:
        assert b"[image/png, 67 bytes: not shown: the model's endpoint refused it]" not in after
        assert b"[image/gif, 40 bytes: not shown: the model's endpoint refused it]" in after
    assert refusal(after, profile) is None
    assert (conversation.drop_attachments() is not None) == profile.images
    assert conversation.drop_attachments() is None


# --- What refusals teach ---

EVERYTHING = replace(OPENROUTER, audio=True, images=True, files=True)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (404, "No endpoints found that support image input"),
        (400, "Invalid content type. image_url is only supported by certain models."),
        (400, "this model does not support image input (ref: b8bd630e)"),
        (400, "Model does not support images. Please use a model that does."),
        (400, "Image content is not supported for this model"),
        (422, "messages[3]: unknown variant `image_url`, expected `text` at line 1 column 2083"),
        (400, "At most 0 image(s) may be provided in one request."),
        (
            500,
            "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
        ),
        (400, "Invalid value: 'image_url'. Supported values are: 'text'."),
        (400, "The selected model doesn't support image input."),
    ],
)
def test_an_endpoint_without_images_is_believed(status: int, words: str) -> None:
    assert adapt_profile(EVERYTHING, status, words) == replace(EVERYTHING, images=False)
    assert adapt_profile(replace(EVERYTHING, images=False), status, words) is None


@pytest.mark.parametrize(
    "words",
    [
        "messages.2.content.0.image.source.base64: image exceeds 5 MB maximum: 8259148 bytes > 5242880 bytes",
        "At least one of the image dimensions exceed max allowed size: 8000 pixels",
        "Could not process image",
        "The image data you provided does not represent a valid image. Please check your input.",
        "You uploaded an unsupported image. Please make sure your image has one of these formats.",
        "This endpoint does not support image format image/tiff.",
        "At most 1 image(s) may be provided in one request.",
        "The document could not be read.",
        "Rate limit exceeded for images.",
    ],
)
def test_a_refusal_of_one_image_teaches_nothing_of_the_endpoint(words: str) -> None:
    assert adapt_profile(EVERYTHING, 400, words) is None


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("This model does not support audio input", {"audio": False}),
        ("Invalid value: 'input_audio'. Supported values are: 'text'", {"audio": False}),
        ("This model does not support file content types.", {"files": False}),
        ("messages.3.content.0: PDF input is not supported by this model", {"files": False}),
        ("llama-3 is not a multimodal model", {"images": False, "audio": False, "files": False}),
        ("This is a text-only model", {"images": False, "audio": False, "files": False}),
        ("messages[2].content must be a string", {"images": False, "audio": False, "files": False}),
    ],
)
def test_so_is_one_without_audio_files_or_any_of_it(words: str, changes: dict[str, Any]) -> None:
    assert adapt_profile(EVERYTHING, 400, words) == replace(EVERYTHING, **changes)


@pytest.mark.parametrize("status", [401, 402, 403, 408, 413, 429, 502, 503])
def test_other_statuses_teach_nothing_of_media(status: int) -> None:
    assert adapt_profile(EVERYTHING, status, "this model does not support image input") is None


def test_a_text_only_model_is_never_sent_an_image() -> None:
    assert not DEEPSEEK.images
    assert not re.search(rb"image_url|base64", a_turn(DEEPSEEK)[2])
