"""The request formats of providers (`Dialect`), and their translation to chat completions and back.

Scripts, `ProviderRules` and the offline model work on chat completions only. To add a format, write its
translations, its stream and its own rules in a module, and add a `Dialect` here.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

from msgspec import Struct

from grue.testing.providers import messages_dialect, responses_dialect
from grue.testing.providers.chat_rules import (
    MALFORMED,
    Json,
    Owed,
    ProviderRules,
    Refusal,
    chat_error,
    chat_events,
    first_choice,
    given,
    refusal_of,
)

DialectName: TypeAlias = Literal["chat", "responses", "messages"]

_REASONING = ("reasoning_content", "reasoning", "reasoning_details")


class Dialect(Struct, frozen=True, kw_only=True):
    """One request format, as functions that translate to and from chat completions.

    Attributes:
        path: The end of its URL path; `{model}` in it stands for the model's name.
        to_chat: Translates a request to chat completions.
        from_chat: Takes a chat completion and the request; returns the completion in this format.
        error: Takes an HTTP status and OpenAI's error object; returns the body of the error in this format.
        refusals: Takes a request, and the reasoning that it must repeat; yields the reasons for which a
            provider would refuse the request.
        owed: Takes a reply; returns its reasoning that later requests must repeat.
        events: Takes a reply and the request; yields the reply as the events of a stream.
        broken_off: Returns the event that reports an error in the middle of a stream.
        admission: Takes the headers; returns a refusal, or `None`. By default all headers are accepted.
        stream_path: The end of the URL path of requests for a stream; empty: `path`.
    """

    name: DialectName
    path: str
    to_chat: Callable[[Json], Json]
    from_chat: Callable[[Json, Json], Json]
    error: Callable[[int, Json], Json]
    refusals: Callable[[Json, Owed], Iterator[str]]
    owed: Callable[[Json], dict[str, list[Json]]]
    events: Callable[[Json, Json], Iterator[bytes]]
    broken_off: Callable[[], bytes]
    admission: Callable[[Mapping[str, str]], Refusal | None] = lambda _: None
    stream_path: str = ""

    def told(self, path: str) -> Json | None:
        """Return the fields in a request's path, such as `model`; `None`: the path is of another dialect."""
        for known, fields in ((self.path, {}), (self.stream_path, {"stream": True})):
            pattern = re.escape(known).replace(r"\{model\}", "(?P<model>[^/]+)")
            found = re.search(rf"{pattern}\Z", path.partition("?")[0].rstrip("/"))
            if known and found:
                return fields | {name: unquote(value) for name, value in found.groupdict().items()}
        return None

    def read(self, body: Json, rules: ProviderRules, owed: Owed) -> tuple[Json, Refusal | None]:
        """Translate a request to chat completions, and check it.

        `rules` are applied to the translated request. `owed` is the reasoning that the request must repeat;
        in the chat format it counts only with `rules.echo_reasoning`. Return the translated request, empty if
        `body` is malformed; and the request's refusal, or `None`.
        """
        if self.name == "chat" and not rules.echo_reasoning:
            owed = {}
        words: str | None = None
        try:
            words = next(self.refusals(body, owed), None)
            chat = self.to_chat(body)
        except MALFORMED as error:
            return {}, Refusal(words=words or f"Invalid request: a field has the wrong type ({error}).")
        words = words or refusal_of(chat, rules)
        return chat, None if words is None else Refusal(words=words)

    def reply(self, body: bytes, status: int, request: Json) -> Json | None:
        """Translate a completion or an error to this format; return any other JSON object as it is.

        `None`: the body is not a JSON object, or is a malformed completion.
        """
        try:
            said: Any = json.loads(body)
            if said.get("choices"):
                return self.from_chat(said, request)
            return self.error(status, said["error"]) if isinstance(said.get("error"), dict) else said
        except MALFORMED:
            return None


def _chat_owed(completion: Json) -> dict[str, list[Json]]:
    message, _ = first_choice(completion)
    reasoning = given(message, *_REASONING)
    return {call.get("id"): [reasoning] for call in message.get("tool_calls") or () if reasoning}


def _chat_refusals(body: Json, owed: Owed) -> Iterator[str]:
    # An assistant message with tool calls repeats an earlier reply. DeepSeek and OpenRouter refuse such a
    # message without that reply's reasoning.
    for message in body["messages"] if owed else ():
        wanted: Json = {}
        for call in message.get("tool_calls") or ():
            for reasoning in owed.get(call.get("id"), ()):
                wanted |= reasoning
        if changed := [field for field, value in wanted.items() if message.get(field) != value]:
            yield f"The `{changed[0]}` in the thinking mode must be passed back to the API."


def _itself(body: Json, request: Json | None = None) -> Json:
    del request
    return body


CHAT = Dialect(
    name="chat",
    path="/chat/completions",
    to_chat=_itself,
    from_chat=_itself,
    error=responses_dialect.error,
    refusals=_chat_refusals,
    owed=_chat_owed,
    events=chat_events,
    broken_off=chat_error,
)

RESPONSES = Dialect(
    name="responses",
    path="/responses",
    to_chat=responses_dialect.to_chat,
    from_chat=responses_dialect.from_chat,
    error=responses_dialect.error,
    refusals=responses_dialect.refusals,
    owed=responses_dialect.owed,
    events=responses_dialect.events,
    broken_off=responses_dialect.broken_off,
)

MESSAGES = Dialect(
    name="messages",
    path="/messages",
    to_chat=messages_dialect.to_chat,
    from_chat=messages_dialect.from_chat,
    error=messages_dialect.error,
    refusals=messages_dialect.refusals,
    owed=messages_dialect.owed,
    events=messages_dialect.events,
    broken_off=messages_dialect.broken_off,
    admission=messages_dialect.admission,
)


_ALL = (CHAT, RESPONSES, MESSAGES)


def dialect_of(path: str) -> Dialect | None:
    """Return the format of requests to a path; `None`: no format has this path."""
    return next((each for each in _ALL if each.told(path) is not None), None)
