"""Images on their way to an endpoint: refused, learned, sent again as text; what a model list says."""

from typing import Any, get_args

import pytest
from llm_desk import desk, notes, settings_for
from media import GIF, PNG, base64_of, image, tool_message
from msgspec.structs import replace

from grue.actors.llm import LlmEndpoint
from grue.messages import CompletionRetried, OfferTools, ToolMessage
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.protocol.chat_wire.profiles import OPENROUTER
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, error_reply, text_reply
from grue.testing.llm_server import tool_calls_reply as calls
from grue.testing.providers.chat_rules import ProviderRules

pytestmark = pytest.mark.anyio

WIRES: list[WireName] = [wire for wire in get_args(WireName) if "image" in FORMATS[wire].inputs]
REFUSED = "endpoint refused it"
NO_IMAGES = "not shown: the model takes no images"


PROFILES = {wire: replace(FORMATS[wire].profile, names="encoded") for wire in WIRES}


def looks_twice() -> list[LlmReply]:
    return [
        calls(("think__think", {}), ids=["one"]),
        calls(("think__think", {}), ids=["two"]),
        text_reply("look"),
    ]


def images_in(request: LlmRequest) -> list[str]:
    """Return which images are in a request, by their first characters of base64."""
    written = str(request.body)
    return [name for name, content in (("png", PNG), ("gif", GIF)) if base64_of(content) in written]


async def two_images(endpoint: LlmEndpoint, lines: list[bytes] | None = None) -> str | None:
    first: ToolMessage = tool_message("one", image(PNG))
    second: ToolMessage = tool_message("two", image(GIF))
    async with desk(endpoint, lines) as agent:
        await agent.reply()
        await agent.reply((first,), OfferTools())
        return (await agent.reply((second,), OfferTools())).content  # type: ignore[no-any-return]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_model_without_images_is_sent_them_once_and_then_told_of_them(wire: WireName) -> None:
    lines: list[bytes] = []
    with ScriptedLlmServer(looks_twice(), rules=ProviderRules(images=False)) as server:
        endpoint = LlmEndpoint(settings_for(server.base_url, profile=PROFILES[wire]))
        assert await two_images(endpoint, lines) == "look"
        sent = [images_in(request) for request in server.requests]
        refused = [request.refused is not None for request in server.requests if images_in(request)]
    assert sent == [[], ["png"], [], []]
    assert refused == [True]
    assert NO_IMAGES in str(server.requests[-1].body)
    assert not endpoint.profile.images, "the next turn knows it"
    assert [note.delay_s for note in notes(lines, CompletionRetried)] == [0.0]


@pytest.mark.parametrize("wire", WIRES)
async def test_one_image_that_is_refused_does_not_end_the_turn_nor_turn_off_the_others(
    wire: WireName,
) -> None:
    # The first image fits, the second one does not.
    rules = ProviderRules(max_image_base64=100)
    with ScriptedLlmServer(looks_twice(), rules=rules) as server:
        endpoint = LlmEndpoint(settings_for(server.base_url, profile=PROFILES[wire]))
        async with desk(endpoint) as agent:
            await agent.reply()
            await agent.reply((tool_message("one", image(PNG)),), OfferTools())
            large = tool_message("two", image(GIF + bytes(500), "image/gif"))
            assert (await agent.reply((large,), OfferTools())).content == "look"
        answered = [request for request in server.requests if request.refused is None]
        assert len(server.requests) == len(answered) + 1
    assert images_in(answered[-1]) == ["png"]
    assert REFUSED in str(answered[-1].body)
    assert endpoint.profile.images


@pytest.mark.parametrize(("status", "resent"), [(400, True), (413, True), (422, True), (401, False)])
async def test_a_refusal_without_a_word_of_images_is_tried_without_them_once(
    status: int, resent: bool
) -> None:
    def script(request: LlmRequest) -> LlmReply:
        if any(message["role"] == "tool" for message in request.messages):
            return error_reply(status, "invalid message format")
        return calls(("think__think", {}), ids=["one"])

    with ScriptedLlmServer(script) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url, profile=PROFILES[WIRES[0]]))) as agent:
            await agent.reply()
            failed = await agent.failure((tool_message("one", image(PNG)),), OfferTools())
        sent = [images_in(request) for request in server.requests]
    assert failed.failure.status == status
    assert sent == ([[], ["png"], []] if resent else [[], ["png"]])


@pytest.mark.parametrize(
    ("modalities", "takes"),
    [
        (["text"], (False, False, False)),
        (["text", "image"], (True, False, False)),
        (["text", "image", "audio", "file"], (True, True, True)),
        (None, (True, False, True)),
        ("image", (True, False, True)),
    ],
)
async def test_what_an_endpoint_lists_of_a_model_decides(modalities: Any, takes: tuple[bool, ...]) -> None:
    model = {
        "id": "some/model",
        "supported_parameters": ["tools"],
        "architecture": {"input_modalities": modalities},
    }
    with ScriptedLlmServer(looks_twice(), models=[model]) as server:
        endpoint = LlmEndpoint(settings_for(server.base_url, profile=OPENROUTER))
        async with desk(endpoint) as agent:
            await agent.support()
        assert (endpoint.profile.images, endpoint.profile.audio, endpoint.profile.files) == takes
        await two_images(endpoint)
        assert images_in(server.requests[-1]) == (["png", "gif"] if takes[0] else [])
        assert [request.refused for request in server.requests] == [None] * 3
