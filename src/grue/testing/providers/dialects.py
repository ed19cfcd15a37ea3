"""The request formats of providers (`Dialect`), and their translation to chat completions and back."""
# Scripts, `ProviderRules` and the offline model work on chat completions only.

import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
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
    """One request format, as functions that translate to and from chat completions."""

    name: DialectName
    path: str  # end of the URL path; `{model}` in it stands for the model's name
    to_chat: Callable[[Json], Json]
    from_chat: Callable[[Json, Json], Json]  # gets a completion and the request
    error: Callable[[int, Json], Json]  # gets a status and OpenAI's error object
    refusals: Callable[[Json, Owed], Iterator[str]]  # gets a request and the earlier reasoning
    owed: Callable[[Json], dict[str, list[Json]]]  # gets a reply; returns its reasoning, as in `Owed`
    events: Callable[[Json, Json], Iterator[bytes]]  # gets a reply and the request
    broken_off: Callable[[], bytes]  # returns an error event for the middle of a stream
    admission: Callable[[Mapping[str, str]], Refusal | None] = lambda _: None  # gets the headers
    stream_path: str = ""  # end of the URL path of requests for a stream; empty: as `path`

    def told(self, path: str) -> Json | None:
        """Return the fields in a request's path, such as `model`; `None`: the path is not of this dialect."""
        for known, fields in ((self.path, {}), (self.stream_path, {"stream": True})):
            pattern = re.escape(known).replace(r"\{model\}", "(?P<model>[^/]+)")
            found = re.search(rf"{pattern}\Z", path.partition("?")[0].rstrip("/"))
            if known and found:
                return fields | {name: unquote(value) for name, value in found.groupdict().items()}
        return None

    def read(self, body: Json, rules: ProviderRules, owed: Owed) -> tuple[Json, Refusal | None]:
        """Return a request as chat completions (`{}` if malformed), and its refusal, or `None`."""
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
        """Translate a completion or an error; return other objects unchanged, and `None` if malformed."""
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


def _itself(body: Json, _request: Json | None = None) -> Json:
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


def _functions_of(module: ModuleType) -> dict[str, Any]:
    return {name: each for name, each in vars(module).items() if name in Dialect.__struct_fields__}


RESPONSES = Dialect(name="responses", path="/responses", **_functions_of(responses_dialect))
MESSAGES = Dialect(name="messages", path="/messages", **_functions_of(messages_dialect))
_ALL = (CHAT, RESPONSES, MESSAGES)


def dialect_of(path: str) -> Dialect | None:
    """Return the format of requests to a path; `None`: no format has this path."""
    return next((each for each in _ALL if each.told(path) is not None), None)
