"""Chat completions, into which the other dialects are translated, and this format's own rules."""

from collections.abc import Iterator

from grue.testing.providers.chat_rules import BROKEN, Json, Owed, event_of, first_choice, given, pieces

path = "/chat/completions"

_REASONING = ("reasoning_content", "reasoning", "reasoning_details")


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


def broken_off() -> bytes:
    """Return the event that reports an error in the middle of a stream."""
    broken = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
    error = {"code": 502, "message": BROKEN}
    return event_of({"object": "chat.completion.chunk", "error": error, "choices": [broken]})


def events(completion: Json, request: Json) -> Iterator[bytes]:
    """Yield a chat completion as the events of a stream."""
    message, finish = first_choice(completion)
    head = {"object": "chat.completion.chunk", **given(completion, "id", "created", "model")}

    def chunk(delta: Json, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return event_of({**head, "choices": [choice]})

    # Gateways send comments like this one while they wait for the upstream provider.
    yield b": PROCESSING\n\n"
    yield chunk({"role": "assistant", "content": ""})
    for field, value in message.items():
        if field not in {"role", "tool_calls"} and value:
            for piece in pieces(value) if isinstance(value, str) else [value]:
                yield chunk({field: piece})
    for index, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        begun = {**call, "index": index, "function": {"name": name, "arguments": ""}}
        yield chunk({"tool_calls": [begun]})
        for piece in pieces(arguments) if isinstance(arguments, str) else [arguments]:
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, finish)
    if (request.get("stream_options") or {}).get("include_usage"):
        yield event_of({**head, "choices": [], "usage": completion.get("usage")})
    yield b"data: [DONE]\n\n"
