"""What a log tells of a conversation that goes on at another endpoint."""

from recorded_turns import Tape

from grue.messages import ConversationId, ThoughtsDropped
from grue.observers.events import EventFeed


def test_thoughts_that_the_model_cannot_read_are_a_warning() -> None:
    tape = Tape()
    tape.say(ThoughtsDropped(conversation=ConversationId("c"), replies=3, wire="messages", model="m"))
    (event,) = EventFeed("e").feed(tape.envelopes[0])
    assert (event.level, event.event_type) == ("warning", "llm_thoughts_dropped")
    assert event.message == "LLM m is not sent the thoughts of 3 replies: it cannot read them"
    assert event.fields == {"replies": 3, "wire": "messages"}
