"""What a log tells of a conversation that goes on at another endpoint."""

from recorded_turns import Tape

from grue.messages import (
    ConversationId,
    CostUncounted,
    SchemaIgnored,
    SettingsLeftOut,
    ThoughtsDropped,
    ToolsUnseen,
)
from grue.tracing.observers.events import EventFeed


def test_thoughts_that_the_model_cannot_read_are_a_warning() -> None:
    tape = Tape()
    tape.say(ThoughtsDropped(conversation=ConversationId("c"), replies=3, wire="messages", model="m"))
    (event,) = EventFeed("e").feed(tape.envelopes[0])
    assert (event.level, event.event_type) == ("warning", "llm_thoughts_dropped")
    assert event.message == "LLM m (messages) is not sent the thoughts of 3 replies: it cannot read them"
    assert event.fields == {"replies": 3, "wire": "messages"}


def test_settings_that_are_not_sent_are_a_warning() -> None:
    tape = Tape()
    tape.say(SettingsLeftOut(request=1, settings=("temperature",), endpoint="anthropic", model="m"))
    (event,) = EventFeed("e").feed(tape.envelopes[0])
    assert (event.level, event.event_type) == ("warning", "llm_settings_left_out")
    assert event.message == "LLM m (anthropic) does not take temperature: not sent"
    assert event.fields == {"settings": ["temperature"]}


def test_a_cost_limit_without_effect_is_a_warning() -> None:
    tape = Tape()
    tape.say(CostUncounted(model="m", endpoint="groq", limit_usd=2.5))
    (event,) = EventFeed("e").feed(tape.envelopes[0])
    assert (event.level, event.event_type) == ("warning", "llm_cost_uncounted")
    assert event.message.startswith("LLM m: the cost limit of 2.5 USD has no effect, because groq does not")
    assert event.fields == {"limit_usd": 2.5}


def test_a_schema_that_was_ignored_is_a_warning() -> None:
    tape = Tape()
    tape.say(SchemaIgnored(request=3, endpoint="generic", model="m"))
    (event,) = EventFeed("e").feed(tape.envelopes[0])
    assert (event.level, event.event_type) == ("warning", "llm_schema_ignored")
    assert event.fields == {"request": 3}


def test_tools_that_the_prompt_seems_not_to_have_are_a_warning() -> None:
    tape = Tape()
    tape.say(ToolsUnseen(request=1, tools=1, prompt_tokens=16, endpoint="generic", model="m"))
    (event,) = EventFeed("e").feed(tape.envelopes[0])
    assert (event.level, event.event_type) == ("warning", "llm_tools_unseen")
    assert "has counted 16 tokens for a prompt with 1 tool and called none" in event.message
    assert event.fields == {"tools": 1, "prompt_tokens": 16, "request": 1}
