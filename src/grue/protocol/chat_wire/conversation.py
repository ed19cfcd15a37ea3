"""A conversation with an endpoint, which encodes each message once and builds the request bodies.

Come here to change the order or the presence of messages in a request. How one message is written is up to
the wire formats. A `Conversation` has state but does no I/O: add messages with `ask`, send what `body`
returns, and give replies to `read` and `keep`.

- The assistant's message is encoded when the results of its calls are known. It contains only the calls that
  have a result, because providers refuse a call id without one.
- Cache markers are put on the first system and user messages, as many as `cache_markers` allows. A marker
  never moves, because that would change bytes that the endpoint has cached. A turn has the system text, the
  user's text and at most two more user texts (forced final answer, repair), so each of them gets a marker.
- The encoded messages are valid for one profile. When the profile changes, all messages are encoded again.
- Images and files from a tool are put into its result. If the format allows only text there, they are put
  into a user message after the results of that reply.
- If an endpoint does not accept the schema of an answer, the schema is sent once as text.
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
"""Sent as the assistant's text between tool results and a user message, if the endpoint requires one."""

_Utterance: TypeAlias = tuple[ConversationItem, ...] | Reply


class Conversation:
    """The messages of a conversation so far, encoded for one endpoint.

    Args:
        profile: What the endpoint accepts.
        given_markers: How many cache markers the texts will bring with them (`cache_points`). They take
            precedence over the markers that are set here.
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
        """Use `profile` from now on, and encode all messages again."""
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
        """Add new items, and set whether the next request offers tools or asks for the answer.

        Raises:
            ValueError: A tool message does not belong to a call of the last reply.
        """
        self._add_answered(new)
        self._mode = mode
        # Some endpoints refuse an empty system text.
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
        """Return the body of the request that `ask` prepared; may be called again, for a retry.

        Args:
            settings: The model and its sampling.
            choice: Which of the offered tools has to be called; default: the model decides.
            extra: Further fields, in addition to those of the settings.
            stream: Whether to request a stream of events, if the endpoint supports it.
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
        """Read the body of the reply, without adding it to the conversation."""
        try:
            return self.format.decode(body, self.names, request=request, used_ids=used_ids)
        except UNREADABLE as error:
            return no_completion(f"it cannot be read ({type(error).__name__})")

    @property
    def has_attachments(self) -> bool:
        """Whether any message has images or files that the profile allows to be sent."""
        return self._newest_attachments() is not None

    def drop_attachments(self) -> bool:
        """Replace the newest attachments by a line of text, and return whether there were any.

        Call this after the endpoint refused a request. Older attachments stay, because the endpoint accepted
        them before.
        """
        at = self._newest_attachments()
        if at is None:
            return False
        said = self._history[at]
        self._history[at] = said if isinstance(said, Reply) else without_attachments(said)
        self.adopt(self.profile)
        return True

    def _newest_attachments(self) -> int | None:
        for at in range(len(self._history) - 1, -1, -1):
            said = self._history[at]
            if not isinstance(said, Reply) and has_attachments(said, self.profile):
                return at
        return None

    def keep(self, reply: Reply) -> None:
        """Keep the reply; the next `ask` adds it to the history, with the results of its calls."""
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
        """Return the items with as many of their own markers as allowed, and the positions to mark."""
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
        """Insert an assistant's text between tool results and user messages, if the endpoint requires it."""
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
