"""A conversation with an endpoint, which encodes each message once and builds the request bodies.

- The assistant's message is encoded when the results of its calls are known. It contains only the calls that
  have a result, because providers refuse a call without a result.
- If the profile has cache markers, they are put on the system text and on the newest messages, four at most.
  When an older message loses its marker, its other bytes stay the same: the endpoint's cache still has them.
- If the format allows only text in tool results, attachments are put into a user message after all results.
- If an endpoint refuses or ignores the field for an answer's schema, or the request offers tools, the schema
  is sent as text, with the new messages of the first such request, so that earlier messages do not change.
- A reply's `echo` (data that the provider wants back) is sent only in the reply's format and to its model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.answers import SCHEMA_BESIDE_TOOLS, SCHEMA_IN_WORDS
from grue.protocol.chat_wire import wire_format as w
from grue.protocol.chat_wire.chat_completions import without_signature
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profile import ModelSettings, TextToolCalls, WireProfile, with_inputs
from grue.protocol.chat_wire.written_calls import read_written, split_thoughts
from grue.protocol.context.history import History, Mode
from grue.protocol.json_text import to_json
from grue.protocol.tools.names import Tools, WireNames
from grue.runtime.safe_text import printable, well_formed

MARK = b',"cache_control":' + to_json(w.EPHEMERAL)


class EncodedMessages:
    """The messages of a prompt as JSON. Of grue's own cache markers the newest `room` stay."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.size = 0
        self.parts: list[bytes] = []
        self._marked: list[int] = []

    def add(self, messages: Sequence[bytes], *, marked: bool = False) -> None:
        """Add messages. With `marked`, the last of them that has a cache marker counts in `room`."""
        places = [at for at, message in enumerate(messages, len(self.parts)) if marked and MARK in message]
        self._marked += places[-1:]
        self.parts += messages
        self.size += sum(map(len, messages))
        if len(self._marked) > self.room:
            # Cut the marker out of the encoded bytes. Encoded anew without it, the message could have another
            # form (its `content` a text in place of a list), and the endpoint's cache would not find it.
            oldest = self._marked.pop(0)
            self.parts[oldest] = self.parts[oldest].replace(MARK, b"")


UNDERSTOOD = "Understood."  # said between tool results and a user message, if the endpoint needs a text there
_MOST_MARKERS = 4
_MOST_PER_TOKEN = 8  # one token seldom stands for more bytes of encoded text, whatever the tokenizer
_PIECE = re.compile(r"[^\w\s]?\w+|[^\w\s]+")
"""Tokenizers make at least one token of nearly every match, so the number of matches is a low estimate."""

_TEXT_PIECES, _TOOL_PIECES, _ARGUMENT_PIECES = 3, 5, 3
"""Fewest tokens that a text, a tool and each argument add to their words, in any template."""

_MOST_COUNTED = 100_000  # with more bytes of texts, a token count cannot show if it includes the tools
_TELLING_TOOLS = 200  # with fewer bytes of tools, a token count cannot show whether it includes them
_TELLING_COUNT = 11  # a smaller count shows nothing: `grue.testing` reports 10 tokens for each prompt


class Prompt(NamedTuple):
    """The parts of a request that the model reads, as JSON, in the order in which providers cache them."""

    tools: bytes
    system: bytes
    messages: bytes


def _pieces(text: str) -> int:
    return len(_PIECE.findall(text))


def _least_tokens(tool: m.ToolDefinition) -> int:
    arguments = tool.input_schema.get("properties")
    named = arguments if isinstance(arguments, dict) else {}
    told = (each.get("description") for each in named.values() if isinstance(each, dict))
    texts = (tool.name, tool.description, *named, *(text for text in told if isinstance(text, str)))
    return sum(map(_pieces, texts)) + _TOOL_PIECES + _ARGUMENT_PIECES * len(named)


def _as_before(tool: m.ToolDefinition, before: m.ToolDefinition | None) -> m.ToolDefinition:
    if before is None or before.description != tool.description or before.input_schema != tool.input_schema:
        return tool
    return replace(tool, input_schema=before.input_schema)


def _in_valid_text(reply: w.Reply, wire: w.WireFormat) -> w.Reply:
    """Return the reply without lone surrogates, and with thoughts in its text moved to its `reasoning`."""
    content, refusal, reasoning = (
        text if text is None else well_formed(text)
        for text in (reply.content, reply.refusal, reply.reasoning)
    )
    echo = reply.echo
    if content is not None:
        thoughts, rest = split_thoughts(content)
        if rest != content:
            echo = {} if wire.echoes_text else echo
            content, reasoning = rest, "\n".join(filter(None, (reasoning, thoughts))) or None
    return replace(reply, content=content or None, refusal=refusal, reasoning=reasoning, echo=echo)


def _has_thoughts(echo: m.Echo) -> bool:
    wire = FORMATS.get(echo.wire)  # `None`: a later version of grue has written the conversation's file
    return wire is None or wire.has_thoughts(echo.data)


class EncodedConversation:
    """The messages of a conversation so far, encoded for one endpoint.

    Args:
        model: The model, as the settings name it. Thoughts of another model are not sent to it.
        names: The wire names that requests in an earlier part of the conversation have used for tools.
        given_markers: How many cache markers the host will set in its texts; they take precedence.
    """

    def __init__(
        self,
        profile: WireProfile,
        *,
        model: str = "",
        history: History | None = None,
        names: WireNames | None = None,
        given_markers: int = 0,
    ) -> None:
        self.history = History() if history is None else history
        self.tools: Tools = ()  # those that were offered last
        self.model = model
        self._given_markers = given_markers
        self._mode: Mode = m.RequireAnswer()
        self.names = WireNames("canonical") if names is None else names
        self.bytes_per_token: float | None = None  # from the endpoint's last token count, if any
        self.adopt(profile)

    def adopt(self, profile: WireProfile, model: str | None = None) -> None:
        """Use `profile`, and `model` if it is given, from now on, and encode all messages again."""
        self.profile = profile
        self.model = self.model if model is None else model
        self.format = FORMATS[profile.wire]
        self._accepted = with_inputs(profile, profile.inputs & self.format.inputs)
        if self.names.style != profile.name_style:
            self.names = WireNames(profile.name_style)
        self._encode_tools()
        self._encode_all()

    def rewrite(self, rewritten: m.Rewritten) -> None:
        """Replace entries of the history (`History.rewrite`), and encode all messages again."""
        self.history.rewrite(rewritten)
        self._encode_all()

    def change(self, change: m.Cleared | m.Shortened | m.Summarised) -> None:
        """Change the history (`History.change`), and encode all messages again."""
        self.history.change(change)
        self._encode_all()

    def aside(self, new: Sequence[m.ConversationItem], mode: Mode) -> EncodedConversation:
        """Return a copy with `new` added, and without a last reply that no request has followed."""
        other = self.branch()
        other.history.unread = None
        other.ask(new, mode)
        return other

    def ask(self, new: Sequence[m.ConversationItem], mode: Mode) -> None:
        """Add new items (`History.say`), and set whether the next request offers tools or wants an answer."""
        self._encode(self.history.say(new, mode.answer, beside_tools=isinstance(mode, m.OfferTools)))
        self._mode = mode
        if isinstance(mode, m.OfferTools) and mode.tools is not None:
            self.offer(mode.tools)

    def offer(self, tools: Tools) -> None:
        """Offer tools from now on. A tool keeps its bytes if only the order of its schema's keys is new."""
        before = {tool.name: tool for tool in self.tools}
        self.tools = tuple(_as_before(tool, before.get(tool.name)) for tool in tools)
        self._encode_tools()

    @property
    def prompt(self) -> Prompt:
        """The tools, the instructions and the messages of the request that `ask` has prepared."""
        return Prompt(self._sent_tools, b",".join(self._system), b",".join(self._messages.parts))

    @property
    def _sent_tools(self) -> bytes:
        must_list = self.profile.tools_with_forced and self._has_calls
        if isinstance(self._mode, m.RequireAnswer) and not must_list:
            return b""
        if self._encoded_tools or not must_list:
            return self._encoded_tools
        # No tools are offered now, but the history has tool calls, so the endpoint demands a list of tools:
        # list the called tools by their names alone.
        replies = (entry for entry in self.history.entries if isinstance(entry, m.AssistantReply))
        called = dict.fromkeys(call.name for reply in replies for call in reply.tool_calls)
        tools = (
            m.ToolDefinition(server=m.ServerName(""), tool=name, full_name=name, input_schema={})
            for name in called
        )
        return self.format.encode_tools(tools, self.profile, self.names)

    def close(self, end: m.TurnEnd | None) -> None:
        """End the turn in the history (`History.close`), and encode the entries that this adds."""
        self._encode(self.history.close(end))

    def branch(self) -> EncodedConversation:
        """Return an independent copy, in which `bytes_per_token` is not known yet."""
        other = EncodedConversation(
            self.profile,
            model=self.model,
            history=self.history.branch(),
            names=WireNames.restored(self.names.style, self.names.known),
            given_markers=self._given_markers,
        )
        other.offer(self.tools)
        return other

    def body(self, settings: ModelSettings, *, choice: w.Choice | None = None, stream: bool = False) -> bytes:
        """Return the body of the request that `ask` prepared."""
        answering = isinstance(self._mode, m.RequireAnswer)
        return self.format.body(
            w.WireRequest(
                settings=settings,
                profile=self.profile,
                system=self._system,
                messages=self._messages.parts,
                tools=self._sent_tools,
                choice=w.Choice("none") if answering else choice or w.Choice(),
                answer=self._mode.answer if isinstance(self._mode, m.RequireAnswer) else None,
                extra=settings.extra_body,
                stream=stream and self.profile.streams,
            )
        )

    def read(
        self, body: bytes, *, request: int, used_ids: Collection[str], text_tool_calls: TextToolCalls = "keep"
    ) -> w.Reply | Fault:
        """Read a reply's body, and the thoughts and tool calls in its text. The history stays the same."""
        try:
            reply = self.format.decode(body, self.names, request=request, used_ids=used_ids)
            reply = w.as_it_ended(reply) if isinstance(reply, w.Reply) else reply
            if isinstance(reply, Fault):
                return reply
            reply = _in_valid_text(reply, self.format)
            return self._with_written_calls(reply, text_tool_calls, request, used_ids)
        except w.UNREADABLE as error:
            return w.no_completion(f"it cannot be read ({type(error).__name__})")

    def _with_written_calls(
        self, reply: w.Reply, wanted: TextToolCalls, request: int, used_ids: Collection[str]
    ) -> w.Reply:
        text = reply.content
        if text is None or not self.tools or wanted == "keep" or reply.tool_calls or reply.refusal:
            return reply
        answering = isinstance(self._mode, m.RequireAnswer)
        wire_names = () if answering else map(self.names.to_wire, [tool.name for tool in self.tools])
        # If the request offers no tools, JSON without marks such as `<tool_call>` may be the answer.
        found = read_written(text, self.tools, wire_names, bare=not answering)
        if found is None:
            return reply
        made = wanted == "run" and found.sure and not (answering or reply.cut or reply.stopped)
        written = m.WrittenCalls(
            form=found.form, names=tuple(printable(call.name, 200) for call in found.calls), made=made
        )
        if not made:
            return replace(reply, written=written)
        ids = w.CallIds(request, used_ids)
        calls = tuple(w.read_call(None, call.name, call.arguments, ids, self.names) for call in found.calls)
        return replace(
            reply,
            content=found.before or None,
            tool_calls=calls,
            echo={} if self.format.echoes_text else reply.echo,
            written=written,
        )

    @property
    def has_attachments(self) -> bool:
        """`True` if any message has attachments that the profile and the wire format allow to be sent."""
        return self._newest_attachments() is not None

    def drop_attachments(self) -> m.Rewritten | None:
        """Replace the newest attachments, which were refused, by text. Return the change, if any."""
        at = self._newest_attachments()
        if at is None:
            return None
        entry = self.history.entries[at]
        assert isinstance(entry, m.Said), "replies have no attachments"
        plain = replace(entry, items=w.without_attachments(entry.items))
        rewritten = m.Rewritten(at, at + 1, (plain,))
        self.rewrite(rewritten)
        return rewritten

    def _newest_attachments(self) -> int | None:
        # Each reply without a token count asks this, so do not look at all entries for nothing.
        entries = self.history.entries if self.history.attached else []
        for at in range(len(entries) - 1, -1, -1):
            entry = entries[at]
            if isinstance(entry, m.Said) and any(w.sent(each, self._accepted) for each in entry.items):
                return at
        return None

    @property
    def size(self) -> int:
        """Bytes of the encoded messages."""
        return self._messages.size

    def leaves_tools_out(self, reply: w.Reply) -> bool:
        """Return whether the endpoint's token count shows that the prompt did not contain the tools."""
        tools = len(self._encoded_tools) if isinstance(self._mode, m.OfferTools) else 0
        if tools < _TELLING_TOOLS or self._has_calls or reply.tool_calls or reply.written:
            return False
        size, count = self._prompt_size - tools, reply.prompt_tokens
        if size > min(count * _MOST_PER_TOKEN, _MOST_COUNTED):
            return False
        said = [item for entry in self.history.entries if isinstance(entry, m.Said) for item in entry.items]
        texts = [item.text for item in said if isinstance(item, m.SystemText | m.UserText)]
        pieces = sum(map(_pieces, texts))
        # A count too small for the texts alone shows nothing: some endpoints always report one number.
        least = max(_TELLING_COUNT, pieces + _TEXT_PIECES * len(texts))
        return least <= count < pieces + sum(map(_least_tokens, self.tools))

    @property
    def _prompt_size(self) -> int:
        return self._messages.size + sum(map(len, self._system)) + len(self._encoded_tools)

    def keep(self, reply: w.Reply) -> m.AssistantReply:
        """Hold a reply for the history (`History.keep`), and return it as an entry."""
        echo = m.Echo(wire=self.profile.wire, model=self.model, data=reply.echo) if reply.echo else None
        if reply.prompt_tokens > 0:
            self.bytes_per_token = self._prompt_size / reply.prompt_tokens
        kept = m.AssistantReply(content=reply.content, tool_calls=reply.tool_calls, echo=echo)
        self.history.keep(kept)
        return kept

    def _encode_all(self) -> None:
        self._system: list[bytes] = []
        self._passed_on = 0
        self._system_seen = False
        most = min(self.profile.cache_markers, _MOST_MARKERS)
        self._messages = EncodedMessages(max(0, most - self._given_markers))
        self.unread_thoughts = 0  # replies with thoughts of another format or model, which are not sent
        self._has_calls = False
        self._called: dict[m.CallId, tuple[m.CallId, str]] = {}
        self._after_results = False
        self._encode(self.history.entries)

    def _encode(self, entries: Iterable[m.Said | m.AssistantReply]) -> None:
        for entry in entries:
            if isinstance(entry, m.AssistantReply):
                self._encode_reply(entry)
            else:
                self._encode_said(self._with_schema(entry))

    def _encode_reply(self, kept: m.AssistantReply) -> None:
        reply = w.Reply(content=kept.content, tool_calls=kept.tool_calls)
        if kept.echo is not None and (kept.echo.wire, kept.echo.model) == (self.profile.wire, self.model):
            reply = replace(reply, echo=kept.echo.data)
        else:
            self.unread_thoughts += kept.echo is not None and _has_thoughts(kept.echo)
            calls = (replace(call, call_id=self._sent_id(call)) for call in kept.tool_calls)
            reply = replace(reply, tool_calls=tuple(calls))
            reply = without_signature(reply) if self.profile.signs_calls else reply
        encoded = self.format.encode_reply(reply, self.names)
        self._messages.add(encoded)
        self._after_results = self._after_results and not encoded
        self._has_calls = self._has_calls or bool(kept.tool_calls)
        self._called = {
            call.call_id: (sent.call_id, self.names.to_wire(call.name))
            for call, sent in zip(kept.tool_calls, reply.tool_calls, strict=True)
        }

    def _sent_id(self, call: m.ToolCall) -> m.CallId:
        wanted = self.profile.call_ids
        if not wanted or re.fullmatch(wanted, call.call_id, re.DOTALL):
            return call.call_id
        return m.CallId(hashlib.sha256(call.call_id.encode("utf-8", "replace")).hexdigest()[:9])

    def _encode_said(self, said: tuple[m.ConversationItem, ...]) -> None:
        items = tuple(map(self._named, said))
        if not self.format.results_carry_media:
            items = w.with_shown(items, self._accepted)
        items = tuple(self._with_given_markers(self._bridged(items)))
        system = self._system_to_mark(items)
        newest = self._place_to_mark(items)
        encoded = self.format.encode_items(items, (*system, *newest), self._accepted)
        self._system += encoded.system
        self._messages.add(encoded.messages, marked=bool(newest))

    def _named(self, item: m.ConversationItem) -> w.WireItem:
        if not isinstance(item, m.ToolMessage):
            return item
        call_id, name = self._called.get(item.call_id, (item.call_id, w.NAMELESS))
        return w.NamedResult(**{**msgspec.structs.asdict(item), "call_id": call_id}, name=name)

    def _system_to_mark(self, items: tuple[w.WireItem, ...]) -> tuple[int, ...]:
        """Return the position of the first system text if it gets a marker of grue's own, else `()`."""
        if self._system_seen or not self._messages.room:
            return ()
        for at, item in enumerate(items):
            if isinstance(item, m.SystemText):
                self._system_seen = True
                if not item.cache_points:
                    self._messages.room -= 1
                    return (at,)
        return ()

    def _place_to_mark(self, items: tuple[w.WireItem, ...]) -> tuple[int, ...]:
        """Return the position of the item that gets a cache marker of grue's own; `()`: no item gets one."""
        if not self._messages.room or any(
            isinstance(item, m.UserText) and item.cache_points for item in items
        ):
            return ()
        kinds = (m.UserText, m.ToolMessage) if self.format.marks_results else (m.UserText,)
        return tuple(at for at, item in enumerate(items) if isinstance(item, kinds))[-1:]

    def _with_given_markers(self, items: Iterable[w.WireItem]) -> Iterator[w.WireItem]:
        """Remove the host's `cache_points` beyond the number that the endpoint accepts."""
        for item in items:
            if isinstance(item, m.SystemText | m.UserText) and item.cache_points:
                room = self.profile.given_cache_markers - self._passed_on
                item = replace(item, cache_points=item.cache_points[: max(0, room)])
                self._passed_on += len(item.cache_points)
            yield item

    def _bridged(self, items: Iterable[w.WireItem]) -> Iterator[w.WireItem]:
        for item in items:
            by_user = isinstance(item, m.UserText | w.Shown)
            if by_user and self._after_results and self.profile.assistant_after_results:
                yield m.AssistantText(UNDERSTOOD)
            self._after_results = isinstance(item, m.ToolMessage)
            yield item

    def _encode_tools(self) -> None:
        self.names.add([tool.name for tool in self.tools])
        self._encoded_tools = self.format.encode_tools(self.tools, self.profile, self.names)

    def _with_schema(self, said: m.Said) -> tuple[m.ConversationItem, ...]:
        """Return the items of `said`, with the answer's schema as text unless a request field is enough."""
        if said.answer is None:
            return said.items
        schema = to_json(said.answer.schema).decode()
        if not said.beside_tools:
            words = m.UserText(SCHEMA_IN_WORDS.format(schema=schema))
            return (*said.items, words) if self.profile.states_schema else said.items
        words = m.UserText(SCHEMA_BESIDE_TOOLS.format(schema=schema))
        last = said.items[-1] if said.items else None
        if not isinstance(last, m.UserText):
            return (*said.items, words)
        # Add the schema to the last user text: templates of some models refuse two user messages in a row.
        return (*said.items[:-1], replace(last, text=f"{last.text}\n\n{words.text}"))
