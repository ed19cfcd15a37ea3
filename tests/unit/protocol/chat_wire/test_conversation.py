"""A conversation with an endpoint: what each request says, for each profile."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_bodies import (
    ANSWER,
    MODEL,
    OPENING,
    REPLIES,
    THINK,
    call,
    list_of,
    markers,
    refusal,
    unread_thoughts,
    up_to_last_message,
    without_markers,
)

from grue.messages import (
    AnswerSchema,
    AssistantReply,
    Attachment,
    CachePoint,
    CallId,
    ConversationItem,
    Echo,
    JsonObject,
    OfferTools,
    RequireAnswer,
    Rewritten,
    Said,
    ServerName,
    SystemText,
    ToolDefinition,
    ToolMessage,
    TurnCompleted,
    UserText,
)
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.profiles import (
    ANTHROPIC,
    GENERIC,
    GENERIC_MESSAGES,
    MISTRAL,
    OPENAI,
    OPENAI_CHAT,
    OPENROUTER,
    PROFILES,
)
from grue.protocol.chat_wire.wire_format import NAMELESS, Choice, Reply
from grue.protocol.context.history import History, Ledger, history_of
from grue.protocol.tools.names import WireNames

GOLDEN = Path(__file__).with_name("golden_requests")
FORCED = UserText("Please provide your final action now without calling any more tools.")


EVERY_PROFILE = (
    *(each.profile for each in FORMATS.values()),
    msgspec.structs.replace(GENERIC, name="plainest", tools_with_forced=True, response_format="none"),
    *(profile for rows in PROFILES.values() for profile in rows),
)
by_name = pytest.mark.parametrize("profile", EVERY_PROFILE, ids=lambda profile: profile.name)


def a_turn(profile: WireProfile) -> list[bytes]:
    """Return the bodies of a turn: a loop request, one with two results, the forced final, the repair."""
    conversation = EncodedConversation(profile)
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


@pytest.mark.parametrize(
    "profile", [GENERIC, OPENROUTER, OPENAI_CHAT, OPENAI, ANTHROPIC], ids=lambda profile: profile.name
)
@pytest.mark.parametrize(("request_name", "number"), [("tools", 0), ("final", 3)])
def test_p14_p15_p38_golden_requests(profile: WireProfile, request_name: str, number: int) -> None:
    golden = json.loads((GOLDEN / f"{profile.name}_{request_name}.json".replace(" ", "_")).read_text())
    assert json.loads(a_turn(profile)[number]) == golden


@by_name
def test_every_request_of_a_turn_passes_the_strict_rules(profile: WireProfile) -> None:
    assert [refusal(body, profile) for body in a_turn(profile)] == [None] * 4


@by_name
def test_each_request_begins_with_the_bytes_of_the_one_before(profile: WireProfile) -> None:
    for before, after in itertools.pairwise(a_turn(profile)):
        said = up_to_last_message(before, profile)
        assert len(said) > 100
        assert without_markers(after).startswith(said)


@by_name
def test_no_request_has_more_cache_markers_than_the_profile_allows(profile: WireProfile) -> None:
    counts = [markers(json.loads(body)) for body in a_turn(profile)]
    on_results = int(profile.wire == "messages")
    assert counts == ([2, 2 + on_results, 3 + on_results, 4] if profile.cache_markers else [0] * 4)


@by_name
def test_markers_of_a_texts_own_are_sent_up_to_the_endpoints_limit(profile: WireProfile) -> None:
    points = tuple(CachePoint(end, {"type": "ephemeral", "ttl": "1h"}) for end in (1, 2, 3, 4, 5))
    conversation = EncodedConversation(profile)
    said = (UserText("abcdef", cache_points=points), SystemText("rules", cache_points=points[:1]))
    conversation.ask(said, OfferTools((THINK,)))
    sent = 0 if profile.wire == "responses" else profile.given_cache_markers
    assert conversation.body(MODEL).count(b'"1h"') == sent


def test_a_system_text_behind_another_text_ends_a_cached_part() -> None:
    conversation = EncodedConversation(ANTHROPIC)
    conversation.ask((UserText("hello"), SystemText("rules")), OfferTools((THINK,)))
    (system,) = json.loads(conversation.body(MODEL))["system"]
    assert system == {"type": "text", "text": "rules", "cache_control": {"type": "ephemeral"}}


def test_a_system_text_with_a_marker_of_its_own_gets_no_other() -> None:
    own = {"type": "ephemeral", "ttl": "1h"}
    conversation = EncodedConversation(ANTHROPIC)
    conversation.ask((SystemText("rules", cache_points=(CachePoint(5, own),)),), OfferTools((THINK,)))
    (system,) = json.loads(conversation.body(MODEL))["system"]
    assert system == {"type": "text", "text": "rules", "cache_control": own}


@by_name
def test_a_schema_that_cannot_be_sent_is_told_in_words_once(profile: WireProfile) -> None:
    before, after, forced, repair = (body.count(b"JSON Schema") for body in a_turn(profile))
    assert (before, after) == (0, 0)
    told = int(profile.response_format != "json_schema")
    assert (forced, repair) == (told, told)


@by_name
def test_p14_beside_tools_the_answers_schema_is_told_in_words_from_the_first_request_on(
    profile: WireProfile,
) -> None:
    conversation = EncodedConversation(profile)
    conversation.ask(OPENING, OfferTools((THINK,), ANSWER))
    first = json.loads(without_markers(conversation.body(MODEL)))
    assert not {"response_format", "text", "output_config"} & first.keys()
    said = first[list_of(profile)]
    assert json.dumps(first).count("It has to match this JSON Schema") == 1
    assert "It has to match this JSON Schema" in json.dumps(said[-1]), "in the user's own message"
    one = call("c1", "think.think")
    conversation.keep(Reply(content="Hm.", tool_calls=(one,)))
    conversation.ask((ToolMessage(one.call_id, "{}"),), OfferTools(answer=ANSWER))
    second = json.loads(without_markers(conversation.body(MODEL)))
    assert second[list_of(profile)][: len(said)] == said
    assert json.dumps(second).count("It has to match this JSON Schema") == 1


def test_p15_markers_go_to_the_system_text_and_the_newest_messages() -> None:
    conversation = EncodedConversation(OPENROUTER)
    conversation.ask(OPENING, OfferTools((THINK,)))
    for number in range(6):
        conversation.keep(Reply(content="and?"))
        conversation.ask((UserText(f"more {number}"),), OfferTools())
    messages = json.loads(conversation.body(MODEL))["messages"]
    marked = [index for index, message in enumerate(messages) if markers(message)]
    assert marked == [0, 9, 11, 13]


def test_a_marker_moves_onto_tool_results_where_the_format_takes_it_there() -> None:
    conversation = EncodedConversation(ANTHROPIC)
    conversation.ask(OPENING, OfferTools((THINK,)))
    for number in range(5):
        conversation.keep(Reply(tool_calls=(call(f"c{number}"),)))
        conversation.ask((ToolMessage(CallId(f"c{number}"), "{}"),), OfferTools())
    body = json.loads(conversation.body(MODEL))
    assert markers(body["system"]) == 1
    assert [index for index, message in enumerate(body["messages"]) if markers(message)] == [6, 8, 10]


def test_p14_no_request_offers_tools_and_asks_for_a_format() -> None:
    for profile, field in ((OPENROUTER, "response_format"), (OPENAI, "text")):
        for body in map(json.loads, a_turn(profile)):
            assert ("tools" in body) != (field in body)


def test_r5_8_exception_an_endpoint_that_wants_tools_with_history_gets_them_uncallable() -> None:
    profile = msgspec.structs.replace(GENERIC, tools_with_forced=True)
    *_, forced, repair = (json.loads(body) for body in a_turn(profile))
    for body in (forced, repair):
        assert body["tool_choice"] == "none"
        assert [tool["function"]["name"] for tool in body["tools"]] == ["think.think"]
        assert body["response_format"]["json_schema"]["name"] == "AgentResponse"
    conversation = EncodedConversation(profile)
    conversation.ask(OPENING, OfferTools((THINK,)))
    conversation.keep(Reply(content="no calls so far"))
    conversation.ask((FORCED,), RequireAnswer())
    assert "tools" not in json.loads(conversation.body(MODEL))


def test_p48_without_tools_nothing_is_said_of_them() -> None:
    conversation = EncodedConversation(GENERIC)
    conversation.ask(OPENING, RequireAnswer(ANSWER))
    assert json.loads(conversation.body(MODEL)).keys() == {
        "model", "temperature", "top_k", "max_tokens", "messages", "response_format",
    }  # fmt: skip
    conversation.ask((), OfferTools(()))
    assert "tools" not in json.loads(conversation.body(MODEL))


@pytest.mark.parametrize("error", [RecursionError, OverflowError, MemoryError, UnicodeError, ValueError])
def test_whatever_a_reader_trips_over_is_a_fault(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*_: object, **__: object) -> Reply:
        raise error("too much")

    conversation = EncodedConversation(GENERIC)
    monkeypatch.setattr(conversation.format, "decode", decode)
    fault = conversation.read(b"{}", request=1, used_ids=set())
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.message) == (
        "invalid_reply",
        f"not a completion: it cannot be read ({error.__name__})",
    )


def test_an_empty_instruction_is_left_out() -> None:
    conversation = EncodedConversation(GENERIC)
    conversation.ask((SystemText(""), UserText("hi")), RequireAnswer())
    assert json.loads(conversation.body(MODEL))["messages"] == [{"role": "user", "content": "hi"}]


def test_a_new_listing_replaces_the_old_one() -> None:
    conversation = EncodedConversation(OPENAI_CHAT)
    conversation.ask(OPENING, OfferTools((THINK,)))
    other = msgspec.structs.replace(THINK, tool="rest")
    conversation.ask((), OfferTools((other,)))
    (tool,) = json.loads(conversation.body(MODEL))["tools"]
    assert tool["function"]["name"] == "think__rest"


def test_calls_without_an_answer_are_left_out_of_the_history() -> None:
    conversation = EncodedConversation(GENERIC)
    conversation.ask(OPENING, OfferTools((THINK,)))
    conversation.keep(Reply(tool_calls=(call("a"), call("b"), call("c"))))
    conversation.ask((ToolMessage(CallId("b"), "1"), FORCED), RequireAnswer())
    messages = json.loads(conversation.body(MODEL))["messages"]
    assert [item["id"] for item in messages[2]["tool_calls"]] == ["b"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "user"]


def test_an_answer_to_no_call_is_a_mistake_of_the_caller() -> None:
    conversation = EncodedConversation(GENERIC)
    with pytest.raises(ValueError, match="no call of the last reply has the id x"):
        conversation.ask((ToolMessage(CallId("x"), "1"),), RequireAnswer())


def test_a_learned_profile_encodes_the_history_anew() -> None:
    def talk(conversation: EncodedConversation) -> Any:
        conversation.keep(Reply(tool_calls=(call("a"), call("b", "made.up"))))
        conversation.ask((ToolMessage(CallId("a"), "1"), ToolMessage(CallId("b"), "2")), OfferTools())
        return json.loads(conversation.body(MODEL))

    learned = EncodedConversation(GENERIC)
    learned.ask(OPENING, OfferTools((THINK,)))
    plain = talk(learned)
    encoded = msgspec.structs.replace(GENERIC, names="encoded")
    learned.adopt(encoded)
    known = EncodedConversation(encoded)
    known.ask(OPENING, OfferTools((THINK,)))
    assert json.loads(learned.body(MODEL)) == talk(known)
    assert plain["tools"][0]["function"]["name"] == "think.think"
    assert learned.names.to_canonical("think__think") == "think.think"


def test_a_schema_is_told_in_words_where_a_refusal_teaches_that_it_has_to_be() -> None:
    conversation = EncodedConversation(GENERIC)
    conversation.ask(OPENING, RequireAnswer(ANSWER))
    assert b"JSON Schema" not in conversation.body(MODEL)
    for shape in ("json_object", "none"):
        conversation.adopt(msgspec.structs.replace(GENERIC, response_format=shape))
        body = json.loads(conversation.body(MODEL))
        assert [message["role"] for message in body["messages"]] == ["system", "user", "user"]
        assert "new_objective" in body["messages"][-1]["content"]


def test_a_conversation_can_move_to_another_format_in_its_middle() -> None:
    conversation = EncodedConversation(OPENROUTER)
    conversation.ask(OPENING, OfferTools((THINK,)))
    conversation.keep(Reply(content="Hm.", tool_calls=(call("a"),), echo={"reasoning_content": "deep"}))
    conversation.ask((ToolMessage(CallId("a"), "1"), UserText("Well?")), OfferTools())
    for profile in (OPENAI, ANTHROPIC):
        conversation.adopt(profile)
        known = EncodedConversation(profile)
        known.ask(OPENING, OfferTools((THINK,)))
        known.keep(Reply(content="Hm.", tool_calls=(call("a"),)))
        known.ask((ToolMessage(CallId("a"), "1"), UserText("Well?")), OfferTools())
        assert conversation.body(MODEL) == known.body(MODEL)
        assert refusal(conversation.body(MODEL), profile) is None


def test_fields_of_extra_body_outrank_those_of_the_settings() -> None:
    conversation = EncodedConversation(GENERIC)
    conversation.ask(OPENING, OfferTools((THINK,)))
    settings = ModelSettings(model="m", top_k=1, extra_body={"top_k": 2, "seed": 1})
    body = json.loads(conversation.body(settings, choice=Choice("required")))
    assert (body["top_k"], body["seed"], body["tool_choice"]) == (2, 1, "required")


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("profile", "extra", "kept"),
    [
        (OPENAI, {"text": {"verbosity": "low"}}, {"text": {"format", "verbosity"}}),
        (OPENAI, {"reasoning": {"summary": "auto"}}, {"reasoning": {"effort", "summary"}}),
        (ANTHROPIC, {"output_config": {"effort": "max"}}, {"output_config": {"format", "effort"}}),
        (OPENROUTER, {"reasoning": {"exclude": True}}, {"reasoning": {"effort", "exclude"}}),
        (GENERIC, {"stream_options": {"x": 1}}, {"stream_options": {"include_usage", "x"}}),
        (GENERIC, {"response_format": {"type": "text"}}, {"response_format": {"type"}}),
    ],
)
def test_members_of_extra_body_join_those_of_the_turn_unless_they_name_a_type(
    profile: WireProfile, extra: dict[str, Any], kept: dict[str, set[str]]
) -> None:
    conversation = EncodedConversation(profile)
    conversation.ask(OPENING, RequireAnswer(AnswerSchema("answer", SCHEMA)))
    asked = ModelSettings(model="m", reasoning_effort="low", extra_body=extra)
    body = json.loads(conversation.body(asked, stream=True))
    for name, members in kept.items():
        assert body[name].keys() == members
        assert extra[name].items() <= body[name].items(), "what the user sets is sent unchanged"


def test_a_stream_is_asked_for_only_where_there_is_one() -> None:
    for streams in (True, False):
        conversation = EncodedConversation(msgspec.structs.replace(GENERIC, streams=streams))
        conversation.ask(OPENING, RequireAnswer())
        assert ("stream" in json.loads(conversation.body(MODEL, stream=True))) is streams
        assert "stream" not in json.loads(conversation.body(MODEL))


def two_turns(profile: WireProfile, model: str = "m") -> EncodedConversation:
    conversation = EncodedConversation(profile, model=model, history=History(Ledger()))
    conversation.ask(OPENING, OfferTools((THINK,)))
    conversation.keep(Reply(content="Hm.", tool_calls=(call("a"),), echo=ECHOES[profile.wire]))
    conversation.ask((ToolMessage(CallId("a"), "1"),), OfferTools())
    conversation.keep(Reply(content="Done."))
    conversation.close(TurnCompleted(turn=1, kind="answered"))
    conversation.ask((UserText("And?"),), OfferTools((THINK,)))
    return conversation


ECHOES: dict[str, Any] = {
    "chat_completions": {"reasoning_details": [{"type": "reasoning.text", "text": "deep"}]},
    "responses": {
        "output": [
            {"type": "reasoning", "encrypted_content": "deep"},
            {"type": "function_call", "call_id": "a"},
        ]
    },
    "messages": {
        "content": [
            {"type": "thinking", "thinking": "deep", "signature": "s"},
            {"type": "tool_use", "id": "a"},
        ]
    },
}


@by_name
def test_a_conversation_is_encoded_to_the_same_bytes_from_its_history_alone(profile: WireProfile) -> None:
    live = two_turns(profile)
    names = WireNames.restored(live.names.style, live.names.known)
    loaded = EncodedConversation(profile, model="m", history=live.history.branch(), names=names)
    loaded.offer(live.tools)
    branch = live.branch()
    for other in (loaded, branch):
        other.ask((), OfferTools())
        assert other.body(MODEL) == live.body(MODEL)
    branch.ask((UserText("Elsewhere."),), OfferTools())
    assert branch.body(MODEL) != live.body(MODEL)
    assert loaded.body(MODEL) == live.body(MODEL)


@by_name
def test_thoughts_go_back_to_the_format_and_model_that_they_came_from_only(profile: WireProfile) -> None:
    conversation = two_turns(profile)
    assert b"deep" in conversation.body(MODEL)
    assert conversation.unread_thoughts == 0
    conversation.adopt(profile, "another model")
    assert b"deep" not in conversation.body(MODEL)
    assert refusal(conversation.body(MODEL), profile) is None
    assert conversation.unread_thoughts == 1
    conversation.adopt(profile, "m")
    assert b"deep" in conversation.body(MODEL)
    conversation.adopt(ANTHROPIC if profile.wire == "responses" else OPENAI)
    assert b"deep" not in conversation.body(MODEL)


@pytest.mark.parametrize(
    ("profile", "body", "replies"),
    [
        (GENERIC_MESSAGES, {"content": [{"type": "text", "text": "Yes."}]}, 0),
        (GENERIC_MESSAGES, {"content": [{"type": "thinking", "thinking": "Hm."}]}, 1),
        (OPENAI, {"output": [{"type": "message", "content": [{"type": "output_text", "text": "Yes."}]}]}, 0),
        (OPENAI, {"output": [{"type": "reasoning", "encrypted_content": "gAAAA"}]}, 1),
        (GENERIC, {"choices": [{"message": {"content": "Yes.", "reasoning_content": "Hm."}}]}, 1),
    ],
)
def test_only_replies_with_thoughts_count_as_replies_whose_thoughts_are_left_out(
    profile: WireProfile, body: JsonObject, replies: int
) -> None:
    conversation = EncodedConversation(profile, model="m")
    conversation.ask(OPENING, RequireAnswer())
    reply = conversation.read(json.dumps(body).encode(), request=1, used_ids=())
    assert isinstance(reply, Reply)
    assert conversation.keep(reply).echo is not None
    conversation.ask((UserText("And?"),), RequireAnswer())
    conversation.adopt(profile, "another model")
    assert conversation.unread_thoughts == replies


@pytest.mark.parametrize("wire", list(FORMATS))
@pytest.mark.parametrize(("message", "replies"), REPLIES)
def test_a_reply_of_texts_and_calls_has_no_thoughts_in_any_format(
    wire: str, message: dict[str, Any], replies: int
) -> None:
    assert unread_thoughts(wire, **message) == replies


def test_an_echo_of_an_unknown_format_counts_as_thoughts() -> None:
    history = History(Ledger())
    history.say((UserText("And?"),))
    history.keep(AssistantReply(content="Yes.", echo=Echo(wire="a later one", model="m", data={"a": 1})))
    history.say((UserText("And?"),))
    assert EncodedConversation(GENERIC, model="m", history=history).unread_thoughts == 1


@pytest.mark.parametrize("profile", [GENERIC_MESSAGES, MISTRAL, OPENAI_CHAT], ids=lambda each: each.name)
def test_an_id_that_the_endpoint_refuses_is_replaced_in_the_call_and_in_its_result(
    profile: WireProfile,
) -> None:
    ids = ["functions.look:0", "t" * 41, "t" * 9]
    conversation = EncodedConversation(profile, model="m")
    conversation.ask(OPENING, OfferTools((THINK,)))
    conversation.keep(Reply(tool_calls=tuple(map(call, ids))))
    conversation.ask(tuple(ToolMessage(CallId(each), "ok") for each in ids), OfferTools())
    said = conversation.body(MODEL).decode()
    assert refusal(said.encode(), profile) is None
    sent = re.findall(r'"(?:tool_call_id|tool_use_id)":"([^"]+)"', said)
    assert [said.count(f'"{each}"') for each in sent] == [2, 2, 2]
    assert all(re.fullmatch(profile.call_ids, each) for each in sent)
    kept = [each for each in ids if re.fullmatch(profile.call_ids, each)]
    assert [each for each in sent if each in ids] == kept != []


@by_name
def test_calls_of_tools_that_were_never_offered_are_accepted_in_a_request_without_tools(
    profile: WireProfile,
) -> None:
    conversation = EncodedConversation(profile)
    conversation.ask(OPENING, RequireAnswer())
    conversation.keep(Reply(tool_calls=(call("a"), call("b", "s.look"), call("c"))))
    conversation.ask(
        (*(ToolMessage(CallId(each), "ok") for each in "abc"), UserText("And?")), RequireAnswer()
    )
    body = json.loads(conversation.body(MODEL))
    assert refusal(json.dumps(body).encode(), profile) is None
    assert len(body.get("tools", ())) == (2 if profile.tools_with_forced else 0)


@by_name
def test_a_history_that_begins_with_a_greeting_is_accepted(profile: WireProfile) -> None:
    greeting = AssistantReply(content="Hello! What shall we do?")
    history = history_of("You play Zork.", [greeting, UserText("Nothing.")], Ledger())
    conversation = EncodedConversation(profile, history=history)
    conversation.ask((UserText("And now?"),), RequireAnswer())
    assert refusal(conversation.body(MODEL), profile) is None


def test_the_first_call_of_another_model_is_marked_for_an_endpoint_that_checks_signatures() -> None:
    profile = msgspec.structs.replace(GENERIC, signs_calls=True)
    conversation = EncodedConversation(profile, model="m")
    conversation.ask(OPENING, OfferTools((THINK,)))
    signed = {"tool_calls": {"b": {"extra_content": {"google": {"thought_signature": "its own"}}}}}
    for reply in (
        Reply(content="Hm.", tool_calls=(call("a"), call("x"))),
        Reply(tool_calls=(call("b"),), echo=signed),
    ):
        conversation.keep(reply)
        conversation.ask([ToolMessage(each.call_id, "ok") for each in reply.tool_calls], OfferTools())
    said = json.loads(conversation.body(MODEL))["messages"]
    calls = [each.get("extra_content") for message in said for each in message.get("tool_calls", ())]
    skipped, own = (
        {"google": {"thought_signature": each}} for each in ("skip_thought_signature_validator", "its own")
    )
    assert calls == [skipped, None, own]


def test_the_ids_of_an_endpoint_go_back_to_it_as_they_are() -> None:
    conversation = EncodedConversation(GENERIC_MESSAGES, model="m")
    conversation.ask(OPENING, OfferTools((THINK,)))
    own = {"content": [{"type": "tool_use", "id": "functions.look:0"}]}
    conversation.keep(Reply(tool_calls=(call("functions.look:0"),), echo=own))
    conversation.ask((ToolMessage(CallId("functions.look:0"), "ok"),), OfferTools())
    assert conversation.body(MODEL).count(b'"functions.look:0"') == 2


def test_a_rewrite_changes_what_is_sent() -> None:
    conversation = two_turns(GENERIC)
    conversation.rewrite(
        Rewritten(
            0,
            4,
            (
                Said(
                    (SystemText("You play Zork."), UserText("In short: a hall.")),
                ),
            ),
        )
    )
    messages = json.loads(conversation.body(MODEL))["messages"]
    assert [message["content"] for message in messages] == ["You play Zork.", "In short: a hall.", "And?"]


@by_name
def test_images_of_the_user_are_sent_or_described(profile: WireProfile) -> None:
    image = Attachment(kind="image", mime="image/png", data="iVBORw0KGgo=", bytes=8)
    conversation = EncodedConversation(profile)
    conversation.ask((SystemText("s"), UserText("Look.", attachments=(image,))), OfferTools((THINK,)))
    body = conversation.body(MODEL)
    assert refusal(body, profile) is None
    assert (b"iVBORw0KGgo=" in body) == profile.images
    assert (b"not shown: the model takes no images" in body) != profile.images
    dropped = conversation.drop_attachments()
    assert (dropped is not None) == profile.images
    assert b"iVBORw0KGgo=" not in conversation.body(MODEL)
    assert b"Look." in conversation.body(MODEL)


TEXTS = st.text(max_size=5)
REPLIES = st.builds(
    lambda content, calls: Reply(content=content, tool_calls=tuple(calls)),
    st.none() | st.text(max_size=5),
    st.lists(st.builds(lambda name, arguments: call("", name or NAMELESS, arguments), TEXTS, TEXTS)),
)


STEPS = st.lists(st.tuples(REPLIES, st.sets(st.integers(0, 3)), st.booleans()), max_size=6)


@settings(max_examples=examples(200))
@given(steps=STEPS, profile=st.sampled_from(EVERY_PROFILE), answering=st.booleans())
def test_p3_no_history_is_refused_whichever_calls_were_answered(
    steps: list[tuple[Reply, set[int], bool]], profile: WireProfile, answering: bool
) -> None:
    conversation = EncodedConversation(profile)
    conversation.ask(OPENING, OfferTools((THINK,)))
    before = conversation.body(MODEL)
    for number, (reply, answered, speak) in enumerate(steps):
        calls = tuple(
            msgspec.structs.replace(item, call_id=CallId(f"{number}-{index}"))
            for index, item in enumerate(reply.tool_calls)
        )
        conversation.keep(msgspec.structs.replace(reply, tool_calls=calls))
        new: list[ConversationItem] = [
            ToolMessage(item.call_id, "1") for index, item in enumerate(calls) if index in answered
        ]
        # Somebody speaks last: the endpoint is never asked to go on from its own words.
        speak = speak or not new
        last = answering and number == len(steps) - 1
        mode = RequireAnswer(ANSWER) if last else OfferTools()
        conversation.ask((*new, UserText("go on")) if speak else new, mode)
        body = conversation.body(MODEL)
        assert refusal(body, profile) is None
        assert without_markers(body).startswith(up_to_last_message(before, profile))
        assert markers(json.loads(body)) <= profile.cache_markers
        before = body


@pytest.mark.parametrize("given", range(7))
def test_a_request_never_has_more_markers_than_an_endpoint_takes(given: int) -> None:
    """The host's come first; grue sets its own only where there is room for them."""
    own: JsonObject = {"type": "ephemeral", "ttl": "1h"}
    profile = msgspec.structs.replace(GENERIC_MESSAGES, cache_markers=4, given_cache_markers=4)
    conversation = EncodedConversation(profile, given_markers=given)
    texts = [UserText(f"{n}" * 5, cache_points=(CachePoint(5, own),)) for n in range(given)]
    conversation.ask((SystemText("rules"),), RequireAnswer())
    for text in (*texts, *map(UserText, "abcdef")):
        conversation.ask((text,), RequireAnswer())
        conversation.keep(Reply(content="ok"))
    branch = conversation.branch()
    branch.ask((), RequireAnswer())
    aside = conversation.aside((UserText("Sum up."),), RequireAnswer())
    for each in (conversation, branch, aside):
        body = each.body(ModelSettings(model="m", max_tokens=10)).decode()
        assert body.count('"cache_control"') <= 4
        assert body.count('"ttl"') == min(given, 4)


def test_the_schema_beside_tools_follows_what_is_no_text_of_the_user() -> None:
    conversation = EncodedConversation(OPENROUTER)
    conversation.ask(OPENING, OfferTools((THINK,)))
    conversation.keep(Reply(tool_calls=(call("c1", "think.think"),)))
    assert not conversation.has_attachments
    conversation.ask((ToolMessage(CallId("c1"), "{}"),), OfferTools((THINK,), ANSWER))
    last = json.loads(without_markers(conversation.body(MODEL)))["messages"][-1]
    assert last["role"] == "user"
    assert "It has to match this JSON Schema" in json.dumps(last)


WORDY = ToolDefinition(
    server=ServerName("files"),
    tool="read",
    description="Read a file of the workspace, whole or in part. " * 20,
    input_schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
"""About 1,100 bytes."""

TASK = "Add the entries 'buy milk' and 'call Anna' to the to-do list. Then say how many entries there are."


@pytest.mark.parametrize("profile", [each.profile for each in FORMATS.values()])
@pytest.mark.parametrize(
    ("tools", "tokens", "called", "out"),
    [
        ((WORDY,), 30, False, True),
        ((WORDY,), 300, False, False),  # the texts and the tools
        ((WORDY,), 0, False, False),  # not counted
        ((WORDY,), 3, False, False),  # too few for the texts alone: not a count of this prompt
        ((WORDY,), 30, True, False),
        ((THINK,), 30, False, False),  # too small a tool to tell
        ((), 30, False, False),
    ],
)
def test_a_count_shows_that_the_prompt_had_no_tools(
    profile: WireProfile, tools: tuple[ToolDefinition, ...], tokens: int, called: bool, out: bool
) -> None:
    conversation = EncodedConversation(profile)
    conversation.ask(
        [SystemText("You help."), UserText("What does notes.txt say about it?")], OfferTools(tools)
    )
    calls = (call("c1"),) if called else ()
    reply = Reply(content="It says hello.", tool_calls=calls, prompt_tokens=tokens)
    assert conversation.leaves_tools_out(reply) is out


@pytest.mark.parametrize(
    ("system", "user", "tokens", "out"),
    [
        # As llama.cpp counts them for SmolLM2, whose template has no place for tools.
        ("You keep a to-do list. Use the tools.", "Hi.", 32, True),
        ("You keep a to-do list. Use the tools.", TASK, 53, True),
        ("You keep a to-do list. Use the tools.", TASK, 61, True),
        ("You keep a to-do list. Use the tools.", TASK, 254, False),  # with a template that has a place
        (
            "You keep a to-do list. Use the tools.",
            TASK,
            86,
            False,
        ),  # one line a tool, as the tersest write it
        ("", "- " * 60 + "=" * 400, 150, False),  # marks that a tokenizer joins
        ("", TASK * 1_500, 30_000, False),  # too long a text to tell
        ("", "Are there enough eggs for a cake?", 10, False),  # of the scripted endpoint, for every prompt
        ("", "Hi.", 10, False),  # the same, with a text for which it is enough
        ("", "Hi.", 11, True),
    ],
)
def test_the_counts_of_ordinary_questions_with_two_small_tools(
    system: str, user: str, tokens: int, out: bool
) -> None:
    text: JsonObject = {"properties": {"text": {"title": "Text", "type": "string"}}, "required": ["text"]}
    tools = [
        ("add", "Add an entry to the to-do list.", text | {"type": "object", "title": "addArguments"}),
        ("list", "Return all entries of the to-do list.", {"type": "object", "properties": {}}),
    ]
    offered = [
        ToolDefinition(server=ServerName("todo"), tool=name, description=told, input_schema=schema)
        for name, told, schema in tools
    ]
    conversation = EncodedConversation(GENERIC)
    conversation.ask([SystemText(system), UserText(user)], OfferTools(tuple(offered)))
    assert conversation.leaves_tools_out(Reply(content="There are 2.", prompt_tokens=tokens)) is out


def test_what_is_said_of_an_argument_counts_as_words_of_its_tool() -> None:
    at: JsonObject = {"type": "string", "description": "The place to look at. " * 20}
    schema: JsonObject = {"type": "object", "properties": {"at": at}}
    tool = ToolDefinition(server=ServerName("a"), tool="look", description="Look.", input_schema=schema)
    conversation = EncodedConversation(GENERIC)
    conversation.ask([UserText("Hi.")], OfferTools((tool,)))
    assert conversation.leaves_tools_out(Reply(content="Hello.", prompt_tokens=60))
    assert not conversation.leaves_tools_out(Reply(content="Hello.", prompt_tokens=160))


def test_a_count_shows_nothing_of_tools_once_one_was_called_or_an_answer_is_required() -> None:
    conversation = EncodedConversation(GENERIC)
    conversation.ask([UserText("What does notes.txt say about it?")], OfferTools((WORDY,)))
    conversation.keep(Reply(tool_calls=(call("c1"),), prompt_tokens=30))
    conversation.ask([ToolMessage(CallId("c1"), "hello")], OfferTools())
    assert not conversation.leaves_tools_out(Reply(content="hello", prompt_tokens=40))
    other = EncodedConversation(GENERIC)
    other.offer((WORDY,))
    other.ask([UserText("What does notes.txt say about it?")], RequireAnswer())
    assert not other.leaves_tools_out(Reply(content="hello", prompt_tokens=30))


def test_an_equal_definition_is_sent_in_the_bytes_of_before_whatever_the_order_of_its_keys() -> None:
    at, far = {"type": "string"}, {"type": "boolean"}
    schemas: list[JsonObject] = [
        {"type": "object", "properties": {"at": at, "far": far}},
        {"properties": {"far": far, "at": at}, "type": "object"},
        {"properties": {"far": far, "at": far}, "type": "object"},
    ]
    conversation, sent = EncodedConversation(GENERIC), []
    for schema in schemas:
        tool = ToolDefinition(server=ServerName("a"), tool="x", description="X.", input_schema=schema)
        conversation.ask((UserText("?"),), OfferTools((tool,)))
        sent.append(conversation.prompt.tools)
    assert sent[0] == sent[1] != sent[2]
    assert sent[2].index(b'"far"') < sent[2].index(b'"at"'), "a changed one is sent as it is listed"
