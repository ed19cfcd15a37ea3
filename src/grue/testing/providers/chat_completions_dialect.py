"""Chat completions, into which the other dialects are translated, and this format's own rules."""

from collections.abc import Iterator

from grue.testing.providers.chat_rules import Json, Owed, chat_error, chat_events, first_choice, given
from grue.testing.providers.responses_dialect import error

__all__ = ["broken_off", "error", "events", "from_chat", "owed", "path", "refusals", "to_chat"]

path = "/chat/completions"

_REASONING = ("reasoning_content", "reasoning", "reasoning_details")

events, broken_off = chat_events, chat_error


def to_chat(body: Json) -> Json:
    """Return the request itself."""
    return body


def from_chat(completion: Json, request: Json) -> Json:
    """Return the completion itself."""
    del request
    return completion


def owed(completion: Json) -> dict[str, list[Json]]:
    """Return a reply's reasoning by the id of each of its calls."""
    message, _ = first_choice(completion)
    reasoning = given(message, *_REASONING)
    return {call.get("id"): [reasoning] for call in message.get("tool_calls") or () if reasoning}


def refusals(body: Json, owed: Owed) -> Iterator[str]:
    """Yield reasons to refuse a request."""
    # An assistant message with tool calls repeats an earlier reply. DeepSeek and OpenRouter refuse such a
    # message without that reply's reasoning.
    for message in body["messages"] if owed else ():
        wanted: Json = {}
        for call in message.get("tool_calls") or ():
            for reasoning in owed.get(call.get("id"), ()):
                wanted |= reasoning
        if changed := [field for field, value in wanted.items() if message.get(field) != value]:
            yield f"The `{changed[0]}` in the thinking mode must be passed back to the API."
