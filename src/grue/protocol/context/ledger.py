"""The ledger of a conversation: the size in tokens of each of its parts, oldest first.

A size is an estimate until the endpoint has counted it: with each reply it reports the tokens of the whole
prompt, and the difference to the sum is spread over the parts that it had not counted before. So the sum is
exact after each reply, and only the newest parts are estimates. `context/fit.py` decides by the ledger what
to clear.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.policies import ContextItem

_PER_MESSAGE = 8
"""Tokens of the frame of one message: its role, its separators, a call's id."""

_PER_IMAGE = 1600
"""Tokens of an image, at most, with the providers that say it."""

_BYTES_PER_TOKEN = {"audio": 500, "file": 40}
"""Rough size of a recording or a document in tokens. Providers do not publish it by bytes."""

_TELLING = 500
"""Fewest tokens from which the estimate learns; a handful of short messages says little about texts."""

_SMALL = 48
"""A result of at most this many tokens is about as long as its stub, so it is never cleared."""

_SLACK = 8
"""Largest factor between a count and an estimate of the same parts. Beyond it the count is of other parts."""

Tools: TypeAlias = Mapping[str, str]
"""The canonical names of tools by the ids of calls."""


class ContextLedger(Struct, frozen=True, kw_only=True):
    """The sizes of a conversation's parts.

    Attributes:
        head: The first entry of the conversation: the system's text and what came with it. Never cleared.
        tools: The definitions of the tools on offer.
        items: The rest, oldest first. Neighbours that cannot be cleared are merged when they have been
            counted.
        current: Where the last reply begins in `items`; it and what follows it are never cleared.
        bytes_per_token: How many bytes of text are taken for a token.
    """

    bytes_per_token: float
    head: ContextItem = ContextItem(tokens=0)
    tools: ContextItem = ContextItem(tokens=0)
    items: tuple[ContextItem, ...] = ()
    current: int = 0

    @property
    def tokens(self) -> int:
        """The size of the whole prompt."""
        return self.head.tokens + self.tools.tokens + sum(item.tokens for item in self.items)

    def estimate(self, size: int) -> int:
        """Return the tokens of a message of `size` bytes."""
        return _PER_MESSAGE + int(size / self.bytes_per_token)

    def offer(self, tools: Iterable[m.ToolDefinition]) -> "ContextLedger":
        """Take the definitions of the tools that are offered from now on."""
        sizes = (
            len(tool.name) + len(tool.description) + len(msgspec.json.encode(tool.input_schema))
            for tool in tools
        )
        return replace(self, tools=ContextItem(tokens=sum(map(self.estimate, sizes))))

    def say(self, new: Iterable[m.ConversationItem], named: Tools) -> "ContextLedger":
        """Add the entries of a request; the first text of all becomes the head."""
        items = tuple(self.item_of(item, named) for item in new)
        if self.head.tokens or not items:
            return replace(self, items=(*self.items, *items))
        return replace(self, head=ContextItem(tokens=sum(item.tokens for item in items)))

    def reply(self, content: str | None, calls: Iterable[m.ToolCall], output_tokens: int) -> "ContextLedger":
        """Add a reply; what came before it may be cleared from now on."""
        item = self.reply_item(content, calls)
        if output_tokens > 0:
            item = replace(item, tokens=output_tokens)
        return replace(self, items=(*self.items, item), current=len(self.items))

    def reply_item(self, content: str | None, calls: Iterable[m.ToolCall]) -> ContextItem:
        """Return the estimated size of a reply."""
        size = len((content or "").encode()) + sum(len(call.name) + len(call.arguments) for call in calls)
        return ContextItem(tokens=self.estimate(size))

    def item_of(self, item: m.ConversationItem, named: Tools) -> ContextItem:
        """Return the estimated size of a part of the conversation."""
        tokens = self.estimate(text_bytes(item)) + sum(map(_attachment_tokens, _attachments(item)))
        match item:
            case m.ToolMessage(call_id=call_id):
                return ContextItem(tokens=tokens, call_id=call_id, tool=named.get(call_id, ""))
            case m.UserText(text=text, stub=stub) if text != stub:
                return ContextItem(tokens=tokens, stub=stub)
            case _:
                return ContextItem(tokens=tokens)

    def counted(self, prompt_tokens: int) -> "ContextLedger":
        """Correct the sizes by the endpoint's count of a prompt that has all parts so far; 0: it has none."""
        if prompt_tokens <= 0:
            return self
        parts = (self.head, self.tools, *self.items)
        known = sum(part.tokens for part in parts if part.counted)
        guessed = sum(part.tokens for part in parts if not part.counted)
        rest = prompt_tokens - known
        if guessed and guessed <= rest * _SLACK and rest <= guessed * _SLACK:
            factor, spread = rest / guessed, False
        else:
            # The sizes that were counted before no longer hold, for example because a rewritten prompt is
            # counted in another way: spread the difference over all parts.
            factor, spread = prompt_tokens / max(1, known + guessed), True
        head, tools, *items = (
            _corrected(part, factor) if spread or not part.counted else part for part in parts
        )
        merged, current = _merged(items, self.current)
        ledger = replace(self, head=head, tools=tools, items=merged, current=current)
        if guessed < _TELLING or spread:
            return ledger
        return replace(ledger, bytes_per_token=_learned(self.bytes_per_token, factor))

    def scaled_to(self, tokens: int) -> "ContextLedger":
        """Correct the sizes because the whole prompt has at least this many tokens."""
        return self if self.tokens >= tokens else self.counted(tokens)


def sizes_of(entries: Iterable[m.Said | m.AssistantReply], bytes_per_token: float) -> tuple[ContextItem, ...]:
    """Return the sizes of a conversation's history for a turn that continues it (`RunTurn.earlier`)."""
    ledger = ContextLedger(bytes_per_token=bytes_per_token)
    named: dict[str, str] = {}
    sizes: list[ContextItem] = []
    for at, entry in enumerate(entries):
        if isinstance(entry, m.AssistantReply):
            named.update({call.call_id: call.name for call in entry.tool_calls})
            sizes.append(ledger.reply_item(entry.content, entry.tool_calls))
        elif at:
            sizes += [ledger.item_of(item, named) for item in entry.items]
        else:
            sizes.append(ContextItem(tokens=sum(ledger.item_of(item, named).tokens for item in entry.items)))
    return (*sizes[:1], *_merge(sizes[1:]))


def text_bytes(item: m.ConversationItem) -> int:
    """Return the size of an item's text, in bytes of UTF-8."""
    text = item.content if isinstance(item, m.ToolMessage) else item.text
    return len(text.encode())


def _attachments(item: m.ConversationItem) -> tuple[m.Attachment, ...]:
    return item.attachments if isinstance(item, m.ToolMessage | m.UserText) else ()


def _attachment_tokens(attachment: m.Attachment) -> int:
    bytes_per_token = _BYTES_PER_TOKEN.get(attachment.kind)
    return _PER_IMAGE if bytes_per_token is None else attachment.bytes // bytes_per_token


def _learned(bytes_per_token: float, factor: float) -> float:
    """Return the better estimate, where a text had `factor` times as many tokens as expected.

    A text that has more corrects the estimate at once, a text that has fewer by half: an estimate that is too
    low leads to a refused request, one that is too high only clears early.
    """
    wanted = bytes_per_token / factor
    if factor < 1:
        wanted = (bytes_per_token + wanted) / 2
    return min(max(wanted, 0.5), 12.0)


def _corrected(part: ContextItem, factor: float) -> ContextItem:
    return replace(part, tokens=round(part.tokens * factor), counted=True)


def _merged(items: list[ContextItem], current: int) -> tuple[tuple[ContextItem, ...], int]:
    merged = _merge(items[:current])
    return (*merged, *items[current:]), len(merged)


def _merge(items: Iterable[ContextItem]) -> list[ContextItem]:
    """Merge neighbours that stay; the ledger then has about as many items as there are results to clear."""
    merged: list[ContextItem] = []
    for item in items:
        kept = item
        if item.call_id and item.tokens <= _SMALL:
            kept = ContextItem(tokens=item.tokens, counted=item.counted)
        if merged and not merged[-1].clearable and not kept.clearable:
            merged[-1] = replace(merged[-1], tokens=merged[-1].tokens + kept.tokens)
        else:
            merged.append(kept)
    return merged
