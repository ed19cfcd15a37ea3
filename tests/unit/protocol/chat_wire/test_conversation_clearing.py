"""A conversation that is made shorter, or asked something beside it: what the endpoint is sent then."""

import json
from typing import Any

from grue.messages import (
    CallId,
    Cleared,
    OfferTools,
    RequireAnswer,
    Summarised,
    SystemText,
    ToolCall,
    ToolMessage,
    UserText,
)
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.profile import ModelSettings
from grue.protocol.chat_wire.profiles import GENERIC
from grue.protocol.chat_wire.wire_format import Reply

SETTINGS = ModelSettings(model="m")


def calling(number: int, **fields: Any) -> Reply:
    call = ToolCall(call_id=CallId(f"c{number}"), name="a.look", arguments="{}")
    return Reply(tool_calls=(call,), **fields)


def result(number: int, text: str) -> ToolMessage:
    return ToolMessage(CallId(f"c{number}"), text)


def conversation() -> EncodedConversation:
    """A conversation with one answered call, and a second one that has no answer yet."""
    talk = EncodedConversation(GENERIC)
    talk.ask((SystemText("Play."), UserText("Go.")), OfferTools(()))
    talk.keep(calling(1))
    talk.ask((result(1, "a long result"),), OfferTools())
    talk.keep(calling(2))
    return talk


def sent(talk: EncodedConversation) -> list[Any]:
    messages: list[Any] = json.loads(talk.body(SETTINGS))["messages"]
    return messages


def test_a_cleared_result_is_sent_as_its_stub_and_all_else_as_before() -> None:
    talk = conversation()
    before = sent(talk)
    talk.change(Cleared(results=(result(1, "[gone]"),)))
    talk.ask((result(2, "new"),), OfferTools())
    after = sent(talk)
    assert after[:3] == before[:3]
    assert after[3]["content"] == "[gone]"
    assert [message["role"] for message in after[4:]] == ["assistant", "tool"]


def test_a_summary_is_sent_in_place_of_the_history() -> None:
    talk = conversation()
    talk.change(Summarised((UserText("All is well."),)))
    talk.ask((result(2, "new"),), OfferTools())
    assert [message["role"] for message in sent(talk)] == ["system", "user", "user", "assistant", "tool"]


def test_what_is_asked_beside_the_conversation_leaves_no_trace_in_it() -> None:
    talk = conversation()
    before, entries = sent(talk), list(talk.history.entries)
    other = talk.aside((UserText("Sum up."),), RequireAnswer())
    assert [message["role"] for message in sent(other)] == ["system", "user", "assistant", "tool", "user"]
    assert other.history.unread is None
    other.keep(Reply(content="All is well."))
    assert (sent(talk), talk.history.entries) == (before, entries)
    assert talk.history.unread is not None


def test_the_endpoints_count_tells_how_many_bytes_a_token_has() -> None:
    talk = conversation()
    assert talk.bytes_per_token is None
    talk.ask((result(2, "new"),), OfferTools())
    talk.keep(calling(3, prompt_tokens=talk.size // 4))
    assert talk.bytes_per_token is not None
    assert 3.9 < talk.bytes_per_token < 5
