"""A conversation with an endpoint: what was said, each message encoded once.

Pure and mutable, as a parser is: messages go in, request bodies come out, replies come back in.

- An assistant's message is encoded when its answers are known, and shows only the calls that were answered:
  no request can carry a call id without an answer, which providers refuse.
- Cache markers go to the first system and user messages that there is room for (`cache_markers`), as these
  are encoded, and never move: moving one would change bytes that the endpoint has cached. A turn has the
  system text, the user's text, and at most two more (forced final, repair), so that each of them is marked.
- The encoded messages are good for one profile. When an endpoint teaches another one, they are encoded anew
  from the messages themselves.
"""

from collections.abc import Sequence

import msgspec

from grue.messages import (
    ConversationItem,
    OfferTools,
    RequireAnswer,
    SystemText,
    ToolDefinition,
    ToolMessage,
    UserText,
)
from grue.protocol.chat_wire import chat_completions as wire
from grue.protocol.chat_wire.chat_completions import Reply
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.tool_names import WireNames


class Conversation:
    """What was said so far, ready to be sent.

    Args:
        profile: What the endpoint takes.
    """

    def __init__(self, profile: WireProfile) -> None:
        self._history: list[ConversationItem | Reply] = []
        self._tools: tuple[ToolDefinition, ...] = ()
        self._unanswered: Reply | None = None
        self._mode: OfferTools | RequireAnswer = RequireAnswer()
        self.adopt(profile)

    def adopt(self, profile: WireProfile) -> None:
        """Follow `profile` from now on; what was said is encoded anew."""
        self.profile = profile
        self.names = WireNames(profile.name_style)
        self._encoded: list[bytes] = []
        self._markers = 0
        self._has_calls = False
        self._encode_tools()
        for said in self._history:
            self._encode(said)

    def ask(self, new: Sequence[ConversationItem], mode: OfferTools | RequireAnswer) -> None:
        """Add what is new, and note what the next request is for.

        Raises:
            ValueError: A tool message answers no call of the last reply.
        """
        self._add_answered(new)
        for item in new:
            # An empty instruction says nothing, and some endpoints refuse it.
            if item != SystemText(""):
                self._add(item)
        self._mode = mode
        if isinstance(mode, OfferTools) and mode.tools is not None:
            self._tools = mode.tools
            self._encode_tools()

    def body(self, settings: ModelSettings) -> bytes:
        """Return the body of the request that `ask` prepared; any number of times."""
        if isinstance(self._mode, OfferTools):
            tail = wire.offer_tail(self._encoded_tools)
        else:
            tools = self._encoded_tools if self.profile.tools_with_forced and self._has_calls else b""
            tail = wire.answer_tail(self._mode.answer, self.profile, tools)
        return wire.join_request(wire.encode_head(settings, self.profile), self._encoded, tail)

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

    def _add(self, said: ConversationItem | Reply) -> None:
        self._history.append(said)
        self._encode(said)

    def _encode(self, said: ConversationItem | Reply) -> None:
        if isinstance(said, Reply):
            encoded = wire.encode_assistant(said, self.names)
            self._has_calls = self._has_calls or bool(said.tool_calls)
            if encoded is not None:
                self._encoded.append(encoded)
            return
        marked = isinstance(said, SystemText | UserText) and self._markers < self.profile.cache_markers
        self._markers += marked
        self._encoded.append(wire.encode_item(said, marked=marked))

    def _encode_tools(self) -> None:
        self.names.add(tool.name for tool in self._tools)
        self._encoded_tools = wire.encode_tools(self._tools, self.profile, self.names)
