"""The formats that the scripted endpoint speaks, and their way to chat completions and back.

Scripts, rules and the offline model know chat completions alone: a request in another format is translated
before they see it, a reply after they made it. The translations are made from the providers' documents, and
know nothing of the client's own, so that each keeps the other honest.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from grue.provider_rules import messages_dialect, messages_rules, responses_dialect, responses_rules
from grue.provider_rules.chat_rules import ProviderRules, refusal_of
from grue.provider_rules.chat_shapes import Json, Owed, first_choice, given

DialectName: TypeAlias = Literal["chat", "responses", "messages"]

_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError)
_REASONING = ("reasoning_content", "reasoning", "reasoning_details")


class Refusal(Struct, frozen=True, kw_only=True):
    """Why a request is refused; `status` is for HTTP."""

    status: int = 400
    words: str


class Dialect(Struct, frozen=True, kw_only=True):
    """One format, as data to and from chat completions.

    Attributes:
        path: How the path of its requests ends.
        to_chat: From a request to the same request in chat completions.
        from_chat: From a chat completion and the request to the reply.
        error: From a status and OpenAI's error object to the body of an error.
        refusals: Why a request is refused, beside what all formats refuse; takes what it has to repeat, too.
        owed: The reasoning that a reply wants back.
        admission: Status and words for headers that it refuses; `None`: it takes any.
    """

    name: DialectName
    path: str
    to_chat: Callable[[Json], Json]
    from_chat: Callable[[Json, Json], Json]
    error: Callable[[int, Json], Json]
    refusals: Callable[[Json, Owed], Iterator[str]]
    owed: Callable[[Json], dict[str, list[Json]]]
    admission: Callable[[Mapping[str, str]], tuple[int, str] | None] | None = None

    def read(self, body: Json, rules: ProviderRules, owed: Owed) -> tuple[Json, Refusal | None]:
        """Return a request in terms of chat completions (empty: it cannot be read), and why it is refused.

        Args:
            body: The request.
            rules: For the request in terms of chat completions.
            owed: The reasoning that it has to repeat.
        """
        if self.name == "chat" and not rules.echo_reasoning:
            owed = {}
        try:
            words = next(self.refusals(body, owed), None)
            chat = self.to_chat(body) if words is None else self._as_far_as_readable(body)
        except _MALFORMED as error:
            return {}, Refusal(words=f"Invalid request: a field has the wrong type ({error}).")
        words = words or refusal_of(chat, rules)
        return chat, None if words is None else Refusal(words=words)

    def _as_far_as_readable(self, body: Json) -> Json:
        try:
            return self.to_chat(body)
        except _MALFORMED:
            return {}

    def reply(self, body: bytes, status: int, request: Json) -> Json | None:
        """Return the reply in this format; `None`: it is neither a completion nor an error, or malformed.

        Args:
            body: A chat completion, an error in OpenAI's shape, or anything else.
            status: HTTP status.
            request: As it came.
        """
        try:
            said: Any = json.loads(body)
            if said.get("choices"):
                return self.from_chat(said, request)
            return self.error(status, said["error"]) if isinstance(said.get("error"), dict) else said
        except _MALFORMED:
            return None


def _chat_owed(completion: Json) -> dict[str, list[Json]]:
    message, _ = first_choice(completion)
    reasoning = given(message, *_REASONING)
    return {call.get("id"): [reasoning] for call in message.get("tool_calls") or () if reasoning}


def _chat_refusals(body: Json, owed: Owed) -> Iterator[str]:
    """Yield what a provider says that wants its reasoning back (DeepSeek, OpenRouter)."""
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
)

RESPONSES = Dialect(
    name="responses",
    path="/responses",
    to_chat=responses_dialect.to_chat,
    from_chat=responses_dialect.from_chat,
    error=responses_dialect.error,
    refusals=responses_rules.refusals,
    owed=responses_dialect.owed,
)

MESSAGES = Dialect(
    name="messages",
    path="/messages",
    to_chat=messages_dialect.to_chat,
    from_chat=messages_dialect.from_chat,
    error=messages_dialect.error,
    refusals=messages_rules.refusals,
    owed=messages_dialect.owed,
    admission=messages_rules.admission,
)


def dialect_of(path: str) -> Dialect | None:
    """Return the format of requests to a path, such as `/v1/messages?beta=true`; `None`: there is none."""
    plain = path.partition("?")[0].rstrip("/")
    return next((each for each in (CHAT, RESPONSES, MESSAGES) if plain.endswith(each.path)), None)
