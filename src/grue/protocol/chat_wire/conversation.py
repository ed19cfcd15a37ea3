"""A conversation with an endpoint: what was said, each message encoded once.

Pure and mutable, as a parser is: messages go in, request bodies come out, replies come back in.

- An assistant's message is encoded when its answers are known, and shows only the calls that were answered:
  no request can carry a call id without an answer, which providers refuse.
- Cache markers go to the first system and user messages that there is room for (`cache_markers`), as these
  are encoded, and never move: moving one would change bytes that the endpoint has cached. A turn has the
  system text, the user's text, and at most two more (forced final, repair), so that each of them is marked.
- The encoded messages are good for one profile. When an endpoint teaches another one, they are encoded anew
  from the messages themselves.
- Images and files that a tool returned stand in its result, or, where a result is text, in a user's message
  behind the results of that reply.
- Where an endpoint cannot be sent the schema of an answer, the model is told of it in words, once.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from grue.messages import (
    AssistantText,
    ConversationItem,
    OfferTools,
    RequireAnswer,
    SystemText,
    ToolDefinition,
    ToolMessage,
    UserText,
)
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.json_text import to_json
from grue.protocol.chat_wire.media import (
    Shown,
    WireItem,
    has_attachments,
    with_shown,
    without_attachments,
)
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.reply import UNREADABLE, Reply, no_completion
from grue.protocol.chat_wire.wire_format import Choice, WireRequest
from grue.protocol.tool_names import WireNames

SCHEMA_IN_WORDS = (
    "Your answer has to be one JSON object and nothing else. It has to match this JSON Schema:\n{schema}"
)

UNDERSTOOD = "Understood."
"""What the assistant is taken to have said of results, where an endpoint wants a word between."""

_Utterance: TypeAlias = tuple[ConversationItem, ...] | Reply


class Conversation:
    """What was said so far, ready to be sent.

    Args:
        profile: What the endpoint takes.
        given_markers: How many cache markers the texts will bring with them (`cache_points`): they go before
            those that are set here.
    """

    def __init__(self, profile: WireProfile, *, given_markers: int = 0) -> None:
        self._given_markers = given_markers
        self._history: list[_Utterance] = []
        self._tools: tuple[ToolDefinition, ...] = ()
        self._unanswered: Reply | None = None
        self._mode: OfferTools | RequireAnswer = RequireAnswer()
        self._schema_told = False
        self.adopt(profile)

    def adopt(self, profile: WireProfile) -> None:
        """Follow `profile` from now on; what was said is encoded anew."""
        self.profile = profile
        self.format = FORMATS[profile.wire]
        self.names = WireNames(profile.name_style)
        self._system: list[bytes] = []
        self._messages: list[bytes] = []
        self._markers = self._passed_on = 0
        self._has_calls = False
        self._after_results = False
        self._encode_tools()
        for said in self._history:
            self._encode(said)
        self._add(self._schema_in_words())

    def ask(self, new: Sequence[ConversationItem], mode: OfferTools | RequireAnswer) -> None:
        """Add what is new, and note what the next request is for.

        Raises:
            ValueError: A tool message answers no call of the last reply.
        """
        self._add_answered(new)
        self._mode = mode
        # An empty instruction says nothing, and some endpoints refuse it.
        said = tuple(item for item in new if not isinstance(item, SystemText) or item.text)
        self._add((*said, *self._schema_in_words()))
        if isinstance(mode, OfferTools) and mode.tools is not None:
            self._tools = mode.tools
            self._encode_tools()

    def body(
        self,
        settings: ModelSettings,
        *,
        choice: Choice | None = None,
        extra: Mapping[str, object] | None = None,
        stream: bool = False,
    ) -> bytes:
        """Return the body of the request that `ask` prepared; any number of times.

        Args:
            settings: The model, and how it samples.
            choice: Which of the tools on offer has to be called; default: the model's choice.
            extra: Further fields, beside those of the settings.
            stream: Ask for events, where the endpoint can send any.
        """
        answering = isinstance(self._mode, RequireAnswer)
        offered = not answering or (self.profile.tools_with_forced and self._has_calls)
        return self.format.body(
            WireRequest(
                settings=settings,
                profile=self.profile,
                system=self._system,
                messages=self._messages,
                tools=self._encoded_tools if offered else b"",
                choice=Choice("none") if answering else choice or Choice(),
                answer=self._mode.answer if isinstance(self._mode, RequireAnswer) else None,
                extra={**settings.extra_body, **(extra or {})},
                stream=stream and self.profile.streams,
            )
        )

    def read(self, body: bytes, *, request: int, used_ids: set[str]) -> Reply | Fault:
        """Read the body of a reply to it, without keeping it."""
        try:
            return self.format.decode(body, self.names, request=request, used_ids=used_ids)
        except UNREADABLE as error:
            return no_completion(f"it cannot be read ({type(error).__name__})")

    def drop_attachments(self) -> bool:
        """Replace the newest attachments that were sent by a line of text, and say whether there were any.

        For a request that was refused. What stands before them was taken once, and stays as it is.
        """
        for at in range(len(self._history) - 1, -1, -1):
            said = self._history[at]
            if not isinstance(said, Reply) and has_attachments(said, self.profile):
                self._history[at] = without_attachments(said)
                self.adopt(self.profile)
                return True
        return False

    def keep(self, reply: Reply) -> None:
        """Remember the reply; it enters the history with the next `ask`."""
        self._unanswered = reply

    def _add_answered(self, new: Sequence[ConversationItem]) -> None:
        answers = {item.call_id for item in new if isinstance(item, ToolMessage)}
        reply, self._unanswered = self._unanswered, None
        calls = reply.tool_calls if reply else ()
        unknown = answers - {call.call_id for call in calls}
        if unknown:
            raise ValueError(f"no call of the last reply has the id {', '.join(sorted(unknown))}")
        if reply:
            answered = tuple(call for call in calls if call.call_id in answers)
            self._add(msgspec.structs.replace(reply, tool_calls=answered))

    def _add(self, said: _Utterance) -> None:
        if said:
            self._history.append(said)
            self._encode(said)

    def _encode(self, said: _Utterance) -> None:
        if isinstance(said, Reply):
            encoded_reply = self.format.encode_reply(said, self.names)
            self._messages += encoded_reply
            self._after_results = self._after_results and not encoded_reply
            self._has_calls = self._has_calls or bool(said.tool_calls)
            return
        items = self._bridged(said if self.format.results_carry_media else with_shown(said, self.profile))
        items, marked = self._marked(items)
        encoded = self.format.encode_items(items, marked, self.profile)
        self._system += encoded.system
        self._messages += encoded.messages

    def _marked(self, items: tuple[WireItem, ...]) -> tuple[tuple[WireItem, ...], Sequence[int]]:
        """Return the items with the markers of their own that there is room for, and which others get one."""
        kept: list[WireItem] = []
        marked: list[int] = []
        for at, item in enumerate(items):
            if isinstance(item, SystemText | UserText):
                if item.cache_points:
                    room = self.profile.given_cache_markers - self._passed_on
                    item = msgspec.structs.replace(item, cache_points=item.cache_points[: max(0, room)])
                    self._passed_on += len(item.cache_points)
                elif self._markers < self.profile.cache_markers - self._given_markers:
                    marked.append(at)
                    self._markers += 1
            kept.append(item)
        return tuple(kept), marked

    def _bridged(self, items: tuple[WireItem, ...]) -> tuple[WireItem, ...]:
        """Return the items, results and what the user says kept apart where the endpoint wants that."""
        bridged: list[WireItem] = []
        for item in items:
            if (
                isinstance(item, UserText | Shown)
                and self._after_results
                and self.profile.assistant_after_results
            ):
                bridged.append(AssistantText(UNDERSTOOD))
            self._after_results = isinstance(item, ToolMessage)
            bridged.append(item)
        return tuple(bridged)

    def _encode_tools(self) -> None:
        self.names.add(tool.name for tool in self._tools)
        self._encoded_tools = self.format.encode_tools(self._tools, self.profile, self.names)

    def _schema_in_words(self) -> tuple[UserText, ...]:
        answer = self._mode.answer if isinstance(self._mode, RequireAnswer) else None
        if answer is None or self._schema_told or self.profile.response_format == "json_schema":
            return ()
        self._schema_told = True
        return (UserText(SCHEMA_IN_WORDS.format(schema=to_json(answer.schema).decode())),)
