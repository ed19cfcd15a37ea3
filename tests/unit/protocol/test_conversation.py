"""A conversation with an endpoint: what each request says, for each profile."""

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.messages import (
    AnswerSchema,
    CallId,
    ConversationItem,
    OfferTools,
    RequireAnswer,
    ServerName,
    SystemText,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserText,
)
from grue.protocol.chat_wire.chat_completions import Reply
from grue.protocol.chat_wire.conversation import Conversation
from grue.protocol.chat_wire.profile import GENERIC, OPENAI, OPENROUTER, ModelSettings, WireProfile
from grue.testing.llm_rules import ProviderRules, refusal_of

GOLDEN = Path(__file__).with_name("golden_requests")
MODEL = ModelSettings(model="some/model", temperature=0.5, top_k=40, max_tokens=300)
THINK = ToolDefinition(
    server=ServerName("think"),
    tool="think",
    description="Think step by step.",
    input_schema={"type": "object", "properties": {"thought": {"type": "string"}}},
)
ANSWER = AnswerSchema(
    "AgentResponse",
    {
        "type": "object",
        "properties": {"action": {"type": "string"}, "new_objective": {"type": "string"}},
        "required": ["action"],
    },
)
OPENING: tuple[ConversationItem, ...] = (SystemText("You play Zork."), UserText("West of House."))
FORCED = UserText("Please provide your final action now without calling any more tools.")


def call(call_id: str, name: str = "think.think", arguments: str = "{}") -> ToolCall:
    return ToolCall(call_id=CallId(call_id), name=name, arguments=arguments)


def a_turn(profile: WireProfile) -> list[bytes]:
    """Return the bodies of a turn: a loop request, one with two results, the forced final, the repair."""
    conversation = Conversation(profile)
    bodies = []
    conversation.ask(OPENING, OfferTools((THINK,)))
    bodies.append(conversation.body(MODEL))
    conversation.keep(Reply(content="Hm.", tool_calls=(call("a"), call("b", "think.no such", "{"))))
    results = (ToolMessage(CallId("a"), '{"content":"ok"}'), ToolMessage(CallId("b"), ""))
    conversation.ask(results, OfferTools())
    bodies.append(conversation.body(MODEL))
    conversation.keep(Reply())
    conversation.ask((FORCED,), RequireAnswer(ANSWER))
    bodies.append(conversation.body(MODEL))
    conversation.keep(Reply(content="look!"))
    conversation.ask((UserText("That is no JSON."),), RequireAnswer(ANSWER))
    bodies.append(conversation.body(MODEL))
    return bodies


@pytest.mark.parametrize("profile", [GENERIC, OPENROUTER, OPENAI], ids=lambda profile: profile.name)
@pytest.mark.parametrize(("request_name", "number"), [("tools", 0), ("final", 3)])
def test_p14_p15_p38_golden_requests(profile: WireProfile, request_name: str, number: int) -> None:
    golden = json.loads((GOLDEN / f"{profile.name}_{request_name}.json").read_text())
    assert json.loads(a_turn(profile)[number]) == golden


@pytest.mark.parametrize(
    ("profile", "rules"),
    [
        (GENERIC, ProviderRules(cache_markers=0)),
        (OPENROUTER, ProviderRules(strict_names=True)),
        (OPENAI, ProviderRules(strict_names=True, cache_markers=0)),
        (
            msgspec.structs.replace(GENERIC, tools_with_forced=True),
            ProviderRules(tools_with_history=True, cache_markers=0),
        ),
    ],
    ids=["generic", "openrouter", "openai", "tools with forced"],
)
def test_every_request_of_a_turn_passes_the_strict_rules(profile: WireProfile, rules: ProviderRules) -> None:
    assert [refusal_of(json.loads(body), rules) for body in a_turn(profile)] == [None] * 4


@pytest.mark.parametrize("profile", [GENERIC, OPENROUTER, OPENAI], ids=lambda profile: profile.name)
def test_each_request_begins_with_the_bytes_of_the_one_before(profile: WireProfile) -> None:
    bodies = a_turn(profile)
    for before, after in itertools.pairwise(bodies):
        messages, _, _ = before.rpartition(
            b'],"' + (b"tools" if b'"tools"' in before else b"response_format")
        )
        assert len(messages) > 100
        assert after.startswith(messages)


def test_p15_markers_go_to_system_and_user_texts_and_never_move() -> None:
    conversation = Conversation(OPENROUTER)
    conversation.ask(OPENING, OfferTools((THINK,)))
    for number in range(6):
        conversation.keep(Reply(content="and?"))
        conversation.ask((UserText(f"more {number}"),), OfferTools())
    messages = json.loads(conversation.body(MODEL))["messages"]
    marked = [index for index, message in enumerate(messages) if isinstance(message["content"], list)]
    assert marked == [0, 1, 3, 5]


def test_p14_no_request_offers_tools_and_asks_for_a_format() -> None:
    for body in a_turn(OPENROUTER):
        assert ("tools" in json.loads(body)) != ("response_format" in json.loads(body))


def test_r5_8_exception_an_endpoint_that_wants_tools_with_history_gets_them_uncallable() -> None:
    profile = msgspec.structs.replace(GENERIC, tools_with_forced=True)
    *_, forced, repair = (json.loads(body) for body in a_turn(profile))
    for body in (forced, repair):
        assert body["tool_choice"] == "none"
        assert [tool["function"]["name"] for tool in body["tools"]] == ["think.think"]
        assert body["response_format"]["json_schema"]["name"] == "AgentResponse"
    conversation = Conversation(profile)
    conversation.ask(OPENING, OfferTools((THINK,)))
    conversation.keep(Reply(content="no calls so far"))
    conversation.ask((FORCED,), RequireAnswer())
    assert "tools" not in json.loads(conversation.body(MODEL))


def test_p48_without_tools_nothing_is_said_of_them() -> None:
    conversation = Conversation(GENERIC)
    conversation.ask(OPENING, RequireAnswer(ANSWER))
    assert json.loads(conversation.body(MODEL)).keys() == {
        "model", "temperature", "top_k", "max_tokens", "messages", "response_format",
    }  # fmt: skip
    conversation.ask((), OfferTools(()))
    assert "tools" not in json.loads(conversation.body(MODEL))


def test_an_empty_instruction_is_left_out() -> None:
    conversation = Conversation(GENERIC)
    conversation.ask((SystemText(""), UserText("hi")), RequireAnswer())
    assert json.loads(conversation.body(MODEL))["messages"] == [{"role": "user", "content": "hi"}]


def test_a_new_listing_replaces_the_old_one() -> None:
    conversation = Conversation(OPENAI)
    conversation.ask(OPENING, OfferTools((THINK,)))
    other = msgspec.structs.replace(THINK, tool="rest")
    conversation.ask((), OfferTools((other,)))
    (tool,) = json.loads(conversation.body(MODEL))["tools"]
    assert tool["function"]["name"] == "think__rest"


def test_calls_without_an_answer_are_left_out_of_the_history() -> None:
    conversation = Conversation(GENERIC)
    conversation.ask(OPENING, OfferTools((THINK,)))
    conversation.keep(Reply(tool_calls=(call("a"), call("b"), call("c"))))
    conversation.ask((ToolMessage(CallId("b"), "1"), FORCED), RequireAnswer())
    messages = json.loads(conversation.body(MODEL))["messages"]
    assert [item["id"] for item in messages[2]["tool_calls"]] == ["b"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "user"]


def test_an_answer_to_no_call_is_a_mistake_of_the_caller() -> None:
    conversation = Conversation(GENERIC)
    with pytest.raises(ValueError, match="no call of the last reply has the id x"):
        conversation.ask((ToolMessage(CallId("x"), "1"),), RequireAnswer())


def test_a_learned_profile_encodes_the_history_anew() -> None:
    def talk(conversation: Conversation) -> Any:
        conversation.keep(Reply(tool_calls=(call("a"), call("b", "made.up"))))
        conversation.ask((ToolMessage(CallId("a"), "1"), ToolMessage(CallId("b"), "2")), OfferTools())
        return json.loads(conversation.body(MODEL))

    learned = Conversation(GENERIC)
    learned.ask(OPENING, OfferTools((THINK,)))
    plain = talk(learned)
    encoded = msgspec.structs.replace(GENERIC, names="encoded")
    learned.adopt(encoded)
    known = Conversation(encoded)
    known.ask(OPENING, OfferTools((THINK,)))
    assert json.loads(learned.body(MODEL)) == talk(known)
    assert plain["tools"][0]["function"]["name"] == "think.think"
    assert learned.names.to_canonical("think__think") == "think.think"


REPLIES = st.builds(
    lambda content, calls: Reply(content=content, tool_calls=tuple(calls)),
    st.none() | st.text(max_size=5),
    st.lists(
        st.builds(lambda name, arguments: call("", name, arguments), st.text(max_size=5), st.text(max_size=5))
    ),
)


@settings(max_examples=200)
@given(
    replies=st.lists(st.tuples(REPLIES, st.sets(st.integers(0, 3)), st.booleans()), max_size=6),
    profile=st.sampled_from([OPENROUTER, OPENAI]),
)
def test_p3_no_history_is_refused_whichever_calls_were_answered(
    replies: list[tuple[Reply, set[int], bool]], profile: WireProfile
) -> None:
    conversation = Conversation(profile)
    conversation.ask(OPENING, OfferTools((THINK,)))
    for number, (reply, answered, speak) in enumerate(replies):
        calls = tuple(
            msgspec.structs.replace(item, call_id=CallId(f"{number}-{index}"))
            for index, item in enumerate(reply.tool_calls)
        )
        conversation.keep(msgspec.structs.replace(reply, tool_calls=calls))
        new: list[ConversationItem] = [
            ToolMessage(item.call_id, "1") for index, item in enumerate(calls) if index in answered
        ]
        conversation.ask((*new, UserText("go on")) if speak else new, OfferTools())
        body = json.loads(conversation.body(MODEL))
        rules = ProviderRules(strict_names=True, cache_markers=profile.cache_markers)
        assert refusal_of(body, rules) is None
