"""Decide what to clear so that the next request fits into the model's context window.

1.  Nothing is cleared until a request would fill more than `high_water` of the window. In all these rules the
    tokens that are reserved for the reply do not count as a part of the window.
2.  Then the oldest parts are replaced by stubs until the request fills at most `low_water`, so that several
    requests pass before the next clearing, with a valid prompt cache. A stub is a line such as "[Cleared to
    save room ...]" for a tool result, and for a user text the host's shorter text (`UserText.stub`), if any.
3.  The turn's user text, its last reply, the results of that reply and the new items never become stubs.
4.  If that is not enough, the model is asked for a summary: at most `max_summaries` times in a turn, and only
    if the budget allows it and the summary can free enough. The summary replaces the history, except its
    first entry, the turn's user text and the turn's last reply. A turn that was resumed and repeats a request
    gets a summary only after the reply, because the history includes what the model has not read.
5.  If the request still fills more than `high_water`, its results are cut in the middle, the largest first.
6.  If the endpoint still refuses the request as too long, it is shortened and sent again, once in a turn: the
    oldest parts are cleared until it fills at most `low_water`. If that is not enough, the newest results are
    cut. If a resumed turn repeats the request, it has no texts to cut, and clears these results. The window
    is taken to be the smaller of the size in the refusal and the size known before; if there is neither, the
    request's size.
7.  If the request then still fills more than `high_water`, the oldest exchanges are left out.

A `ContextLedger` holds the size of each part of the conversation, oldest first: an estimate, until the
endpoint reports the tokens of a whole prompt. Then the sizes are corrected so that they add up to these
tokens, usually only the sizes of parts that were not counted before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.policies import ContextItem, ContextPolicy
from grue.protocol.context.history import Items
from grue.protocol.tools.policy import hints_of, matches_any
from grue.protocol.tools.results import READ_ON, cut_middle, success, told

ToolNames: TypeAlias = Mapping[str, str]  # the canonical names of tools by the ids of calls
TEXT_BYTES_PER_TOKEN = ContextPolicy().bytes_per_token  # where no policy sets a number
_PER_MESSAGE = 8  # tokens of the frame of one message: its role, its separators, a call's id
_PER_IMAGE = 1600  # the most tokens that an image takes, at the providers that document it
_BYTES_PER_TOKEN = {"audio": 500, "file": 40}  # guesses: providers publish no such number
_TELLING = 500  # fewer uncounted tokens do not correct `bytes_per_token`: a few short texts mislead
_SMALL = 48  # a result of at most so many tokens is about as long as its stub: clearing frees too little
_SLACK = 8
"""The endpoint's count, minus the sizes counted earlier, is compared with the estimate of the uncounted
parts. If the two differ by more than this factor, the sizes counted earlier are taken to be wrong too."""


class ContextLedger(Struct, frozen=True, kw_only=True):
    """The sizes of a conversation's parts: its first request (`head`), the tools, and the other `items`."""

    bytes_per_token: float = TEXT_BYTES_PER_TOKEN
    head: ContextItem = ContextItem(tokens=0)
    tools: ContextItem = ContextItem(tokens=0)
    items: tuple[ContextItem, ...] = ()
    current: int = 0  # only the items before this one can be cleared: usually those before the last reply

    @property
    def tokens(self) -> int:
        """The estimated tokens of the whole prompt."""
        return self.head.tokens + self.tools.tokens + sum(item.tokens for item in self.items)

    def estimate(self, size: int) -> int:
        """Estimate how many tokens a message of `size` bytes has."""
        return _PER_MESSAGE + int(size / self.bytes_per_token)

    def offer(self, tools: Iterable[m.ToolDefinition]) -> ContextLedger:
        """Return the ledger with the size of the tools that are offered from now on."""
        sizes = (
            len(tool.name) + len(tool.description) + len(msgspec.json.encode(tool.input_schema))
            for tool in tools
        )
        return replace(self, tools=ContextItem(tokens=sum(map(self.estimate, sizes))))

    def say(self, new: Iterable[m.ConversationItem], named: ToolNames) -> ContextLedger:
        """Add the items of a request. The items of the conversation's first request become `head`."""
        items = tuple(self.item_of(item, named) for item in new)
        if self.head.tokens or not items:
            return replace(self, items=(*self.items, *items))
        return replace(self, head=ContextItem(tokens=sum(item.tokens for item in items)))

    def reply(self, content: str | None, calls: Iterable[m.ToolCall], output_tokens: int) -> ContextLedger:
        """Add a reply of `output_tokens` (0: estimate). The items before it may be cleared from now on."""
        item = self.reply_item(content, calls)
        if output_tokens > 0:
            item = replace(item, tokens=output_tokens)
        return replace(self, items=(*self.items, item), current=len(self.items))

    def reply_item(self, content: str | None, calls: Iterable[m.ToolCall]) -> ContextItem:
        """Return a reply as a `ContextItem`, with its estimated size."""
        size = len((content or "").encode()) + sum(len(call.name) + len(call.arguments) for call in calls)
        return ContextItem(tokens=self.estimate(size))

    def item_of(self, item: m.ConversationItem, named: ToolNames) -> ContextItem:
        """Return a part of the conversation as a `ContextItem`, with its estimated size."""
        attached = item.attachments if isinstance(item, m.ToolMessage | m.UserText) else ()
        tokens = self.estimate(text_bytes(item)) + sum(map(_attachment_tokens, attached))
        match item:
            case m.ToolMessage(call_id=call_id):
                return ContextItem(tokens=tokens, call_id=call_id, tool=named.get(call_id, ""))
            case m.UserText(text=text, stub=stub) if text != stub:
                return ContextItem(tokens=tokens, stub=stub)
            case _:
                return ContextItem(tokens=tokens)

    def counted(self, prompt_tokens: int) -> ContextLedger:
        """Correct the sizes and `bytes_per_token` by the endpoint's count of this prompt; 0: not counted."""
        if prompt_tokens <= 0:
            return self
        parts = (self.head, self.tools, *self.items)
        known = sum(part.tokens for part in parts if part.counted)
        guessed = sum(part.tokens for part in parts if not part.counted)
        rest = prompt_tokens - known
        if guessed and guessed <= rest * _SLACK and rest <= guessed * _SLACK:
            factor, spread = rest / guessed, False
        else:
            # No part is uncounted, or the counts contradict this one (perhaps after a rewrite): correct all.
            factor, spread = prompt_tokens / max(1, known + guessed), True
        head, tools, *items = (
            replace(part, tokens=round(part.tokens * factor), counted=True)
            if spread or not part.counted
            else part
            for part in parts
        )
        older = _merge(items[: self.current])
        merged = (*older, *items[self.current :])
        ledger = replace(self, head=head, tools=tools, items=merged, current=len(older))
        if guessed < _TELLING or spread:
            return ledger
        return replace(ledger, bytes_per_token=_learned(self.bytes_per_token, factor))

    def scaled_to(self, tokens: int) -> ContextLedger:
        """Return the ledger; if its sizes add up to less than `tokens`, as if `tokens` had been counted."""
        return self if self.tokens >= tokens else self.counted(tokens)


def sizes_of(entries: Iterable[m.Said | m.AssistantReply], bytes_per_token: float) -> tuple[ContextItem, ...]:
    """Return the estimated sizes of a history's entries, as `RunTurn.earlier` has them."""
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


def _attachment_tokens(attachment: m.Attachment) -> int:
    per_token = _BYTES_PER_TOKEN.get(attachment.kind)
    return _PER_IMAGE if per_token is None else attachment.bytes // per_token


def _learned(bytes_per_token: float, factor: float) -> float:
    """Return a better `bytes_per_token`. `factor`: the counted tokens, divided by the estimated ones.

    If too many were estimated, which is harmless, go only half the way to the value that fits.
    """
    wanted = bytes_per_token / factor
    if factor < 1:
        wanted = (bytes_per_token + wanted) / 2
    return min(max(wanted, 0.5), 12.0)


def _merge(items: Iterable[ContextItem]) -> list[ContextItem]:
    """Merge neighbours that are never cleared, such as small results: clearing these frees too little."""
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


CALL_AGAIN = "[Cleared to save room. Call the tool again if you need its result.]"
DO_NOT_REPEAT = "[Cleared to save room. The call was made; do not repeat it.]"
READ_AGAIN = "[Cleared to save room" + READ_ON + "]"

_WORTH_CLEARING = 16  # a tool result is cleared only if that frees at least so many tokens
_WORTH_A_SUMMARY = 0.1  # a summary is requested only if it can free more than this share of `Room.low`
_STUB_CHARS = 1000
_SHORTEST_RESULT = 64


StubFor: TypeAlias = Callable[[ContextItem], str]


class Room(Struct, frozen=True):
    """Limits in tokens: if a request is above `high`, old parts are cleared until it has at most `low`."""

    high: int
    low: int


class Fit(Struct, frozen=True, kw_only=True):
    """How a request is made to fit; `ledger` has the sizes after clearing, without the items in `new`."""

    ledger: ContextLedger
    new: Items
    cleared: m.Cleared | None = None
    summarise: bool = False


def room_in(policy: ContextPolicy, window_tokens: int) -> Room:
    """Return `high_water` and `low_water` in tokens."""
    usable = window_tokens - min(policy.reply_tokens, window_tokens // 2)
    return Room(int(usable * policy.high_water), int(usable * policy.low_water))


def stub_of(
    tool: str,
    policy: ContextPolicy,
    offered: Mapping[str, m.ToolDefinition],
    *,
    plain: bool = False,
    handle: str = "",
) -> str:
    """Return the text in place of a cleared result. `handle`, if given, is its handle for `read_result`."""
    if handle:
        return READ_AGAIN.format(handle=handle)
    definition = offered.get(tool)
    hints = hints_of(definition.annotations if definition is not None and definition.trusted else None)
    stub = CALL_AGAIN if hints.read_only or matches_any(tool, policy.read_only) else DO_NOT_REPEAT
    return stub if plain else told(success(stub), _STUB_CHARS).text


def fit(
    ledger: ContextLedger, new: Items, room: Room, stub_for: StubFor, named: ToolNames, *, may_summarise: bool
) -> Fit:
    """Decide what is cleared, cut or summarised so that a request that adds `new` fits into the window."""
    added = sum(ledger.item_of(item, named).tokens for item in new)
    if ledger.tokens + added <= room.high:
        return Fit(ledger=ledger, new=new)
    ledger, cleared = clear(ledger, room.low - added, stub_for)
    removable = sum(item.tokens for item in ledger.items[: ledger.current])
    worth = removable > room.low * _WORTH_A_SUMMARY
    if may_summarise and worth and ledger.tokens + added > room.low:
        return Fit(ledger=ledger, new=new, cleared=cleared, summarise=True)
    if ledger.tokens + added > room.high:
        new = cut(ledger, new, room.high - ledger.tokens, named)
    return Fit(ledger=ledger, new=new, cleared=cleared)


def clear(ledger: ContextLedger, most: int, stub_for: StubFor) -> tuple[ContextLedger, m.Cleared | None]:
    """Replace the oldest items by stubs, if possible until the conversation has at most `most` tokens."""
    excess = ledger.tokens - most
    results: list[m.ToolMessage] = []
    texts = 0
    items = list(ledger.items)
    for at, item in enumerate(items[: ledger.current]):
        if excess <= 0:
            break
        if not item.clearable:
            continue
        stub = stub_for(item) if item.call_id else item.stub
        following = ContextItem(tokens=ledger.estimate(len(stub.encode())))
        if item.tokens - following.tokens < _WORTH_CLEARING and item.call_id:
            continue
        if item.call_id:
            results.append(m.ToolMessage(m.CallId(item.call_id), stub))
        else:
            texts += 1
        items[at] = following
        excess -= item.tokens - following.tokens
    if not results and not texts:
        return ledger, None
    return replace(ledger, items=tuple(items)), m.Cleared(results=tuple(results), texts=texts)


def cut(ledger: ContextLedger, new: Sequence[m.ConversationItem], most: int, named: ToolNames) -> Items:
    """Cut results in the middle, the largest first, if possible until `new` has at most `most` tokens."""
    sizes = [ledger.item_of(item, named).tokens for item in new]
    results = {at: sizes[at] for at, item in enumerate(new) if isinstance(item, m.ToolMessage)}
    share = _share(sorted(results.values()), most - (sum(sizes) - sum(results.values())))
    return tuple(
        _shorter(ledger, item, share, sizes[at])
        if isinstance(item, m.ToolMessage) and sizes[at] > share
        else item
        for at, item in enumerate(new)
    )


def cut_last(
    ledger: ContextLedger, last: Sequence[m.ToolMessage], most: int
) -> tuple[ContextLedger, tuple[m.ToolMessage, ...]]:
    """Cut the results that the last request added, if possible until the prompt has at most `most` tokens."""
    sizes = {item.call_id: item.tokens for item in ledger.items[ledger.current :] if item.call_id}
    share = _share(sorted(sizes.values()), most - (ledger.tokens - sum(sizes.values())))
    shorter = {
        result.call_id: _shorter(ledger, result, share, sizes[result.call_id])
        for result in last
        if sizes.get(result.call_id, 0) > share
    }
    items = tuple(
        replace(item, tokens=min(item.tokens, share), counted=False) if item.call_id in shorter else item
        for item in ledger.items
    )
    return replace(ledger, items=items), tuple(shorter.values())


def without_oldest(ledger: ContextLedger, most: int) -> tuple[ContextLedger, float] | None:
    """Return the ledger cut to about `most` tokens, and the share of `items` kept; `None`: nothing to cut."""
    rest = sum(item.tokens for item in ledger.items)
    if not rest or not any(item.tokens for item in ledger.items[: ledger.current]):
        return None
    share = max(0.0, min(1.0, (most - ledger.head.tokens - ledger.tools.tokens) / rest))
    newer = ledger.items[ledger.current :]
    older = ContextItem(tokens=max(0, int(rest * share) - sum(item.tokens for item in newer)))
    return replace(ledger, items=(older, *newer), current=1), share


def _share(sizes: Sequence[int], most: int) -> int:
    """Return the limit to which larger `sizes` (ascending) are cut, so that all add up to at most `most`.

    It is at least `_SHORTEST_RESULT`, even if they then add up to more; if nothing is cut, the largest size.
    """
    left = most
    for done, size in enumerate(sizes):
        share = left // (len(sizes) - done)
        if size > share:
            return max(share, _SHORTEST_RESULT)
        left -= size
    return max(sizes, default=0)


def _shorter(ledger: ContextLedger, result: m.ToolMessage, tokens: int, whole_tokens: int) -> m.ToolMessage:
    """Cut a result of `whole_tokens` tokens to `tokens`: drop its attachments and the middle of its text."""
    lines = "".join(
        f"\n[{each.mime}, {each.bytes:,} bytes: not shown: there is no room for it]"
        for each in result.attachments
    )
    size = ledger.estimate(text_bytes(result)) if lines else whole_tokens
    kept = int(len(result.content) * max(0, tokens - ledger.estimate(len(lines))) / max(1, size))
    return replace(result, content=cut_middle(result.content, kept) + lines, attachments=())
