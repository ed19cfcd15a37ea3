"""Whether a model may be offered tools: forced, then its endpoint's list, then its name (R12)."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from llm_desk import KEY, desk, settings_for
from msgspec.structs import replace

import grue.transports.llm.endpoint as llm_endpoint
from grue.actors.llm import LlmEndpoint
from grue.messages import CheckToolSupport, ToolSupportChecked
from grue.protocol.chat_wire.profiles import GENERIC
from grue.testing.llm_replies import LlmReply
from grue.testing.llm_server import ScriptedLlmServer, error_reply, json_reply, silence, text_reply

pytestmark = pytest.mark.anyio

LISTING = replace(GENERIC, lists_parameters=True)
Models = Sequence[Mapping[str, object]] | LlmReply


def listed(*parameters: str, name: str = "some/model") -> list[dict[str, object]]:
    return [{"id": "other"}, {"id": name, "supported_parameters": list(parameters)}]


async def verdict(
    models: Models, *, profile: Any = LISTING, **changes: Any
) -> tuple[ToolSupportChecked, ScriptedLlmServer]:
    with ScriptedLlmServer([], models=models) as server:
        endpoint = LlmEndpoint(settings_for(server.base_url, profile=profile, **changes))
        # A turn, and the next one.
        for _ in range(2):
            async with desk(endpoint) as agent:
                checked = await agent.support()
                assert await agent.support() == checked
    assert checked.endpoint == server.base_url
    return checked, server


@pytest.mark.parametrize(("parameters", "supported"), [(("tools", "top_k"), True), (("top_k",), False)])
async def test_the_endpoints_list_outranks_the_name_and_is_read_once(
    parameters: tuple[str, ...], supported: bool
) -> None:
    for model in ("some/model", "openai/gpt-4o", "deepseek/deepseek-r1"):
        checked, server = await verdict(listed(*parameters, name=model), model=model)
        assert (checked.model, checked.supported, checked.by) == (model, supported, "endpoint")
        assert bool(checked.reason) is not supported
        (listing,) = server.listings
        assert listing.path == "/v1/models"
        assert listing.headers["authorization"] == f"Bearer {KEY}"
        assert "content-type" not in listing.headers


@pytest.mark.parametrize("variant", ["some/model:free", "some/model:nitro"])
async def test_a_variant_is_as_good_as_what_it_varies(variant: str) -> None:
    checked, _ = await verdict(listed("top_k"), model=variant)
    assert (checked.supported, checked.by) == (False, "endpoint")


@pytest.mark.parametrize(
    "models",
    [
        [{"id": "some-other/model", "supported_parameters": []}],
        [{"id": "deepseek/deepseek-r1"}],
        error_reply(500, "out of order"),
        json_reply({"models": []}),
        LlmReply(body=b"<html>"),
        silence(),
    ],
    ids=["not listed", "no parameters", "error", "another shape", "a web page", "silence"],
)
async def test_where_the_list_says_nothing_the_name_decides(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm_endpoint, "_LIST_TIMEOUT_S", 0.5)
    checked, server = await verdict(models, model="deepseek/deepseek-r1")
    assert (checked.supported, checked.by) == (False, "name")
    assert len(server.listings) == 1


async def test_an_endpoint_that_cannot_be_reached_is_asked_once() -> None:
    with ScriptedLlmServer([]) as server:
        closed = server.base_url
    endpoint = LlmEndpoint(settings_for(closed, profile=LISTING))
    async with desk(endpoint) as agent:
        assert (await agent.support()).by == "name"
    assert endpoint.support_check() == "skip"


async def test_forced_never_asks() -> None:
    checked, server = await verdict(listed("top_k"), model="deepseek-r1", force_tool_support=True)
    assert (checked.supported, checked.by) == (True, "forced")
    assert server.listings == []


async def test_a_list_that_does_not_speak_of_parameters_is_not_read() -> None:
    checked, server = await verdict(listed("top_k"), profile=GENERIC)
    assert (checked.supported, checked.by) == (True, "name")
    assert server.listings == []


@pytest.mark.parametrize(
    ("model", "changes", "before", "after"),
    [
        ("gpt-4o", {"profile": LISTING}, "beside", "skip"),
        ("deepseek-r1", {"profile": LISTING}, "before", "before"),
        ("gpt-4o", {"profile": GENERIC}, "skip", "skip"),
        ("deepseek-r1", {"profile": GENERIC}, "before", "before"),
        ("deepseek-r1", {"profile": LISTING, "force_tool_support": True}, "skip", "skip"),
        ("gpt-4o", {"profile": LISTING, "force_tool_support": True}, "skip", "skip"),
    ],
)
async def test_when_a_turn_has_to_ask(model: str, changes: dict[str, Any], before: str, after: str) -> None:
    with ScriptedLlmServer([], models=[]) as server:
        endpoint = LlmEndpoint(settings_for(server.base_url, model=model, **changes))
        assert endpoint.support_check() == before
        async with endpoint:
            await endpoint.tool_support()
        assert endpoint.support_check() == after


async def test_the_answer_goes_to_the_agent_where_it_is_no_ask() -> None:
    with ScriptedLlmServer([text_reply("hi")]) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url))) as agent:
            sent = await agent.llm.send(CheckToolSupport(), sender="agent")
            answer = await agent.agent.receive()
    assert isinstance(answer.body, ToolSupportChecked)
    assert answer.cause == sent.seq
