"""The history of a conversation: a sequence of entries, and the rules by which it grows.

A reply that `keep` holds becomes an entry only at the next `say` or `close`: if the turn fails before it has
used the reply (`TurnFailed.unread`), the reply is dropped. Providers refuse a conversation with an unanswered
call. So `say` leaves such calls out, and `close` answers them with an error. `RunTurn.history` refers to the
earlier entries by count and digest (`Ledger`), so that what a turn records does not grow with the history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from itertools import accumulate
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tools import results as tool_results

LEFT_OUT = "[Earlier parts of the conversation were left out here, because it was too long for the model.]"

_MAX_CHARS = 1000

Items: TypeAlias = tuple[m.ConversationItem, ...]
Entry: TypeAlias = m.Said | m.AssistantReply
Mode: TypeAlias = m.OfferTools | m.RequireAnswer


class Ledger:
    """Counts and digests the entries of a conversation that outlives its turns.

    `save` is called with the JSON of each entry (`None`: nothing is saved). A reply is saved before it is an
    entry; until then, `save(b"")` removes it. `length` counts a `Rewritten` as one entry. `digest` is the
    SHA-256, in hexadecimal, of the previous digest and the last entry's JSON; empty at first.
    """

    def __init__(self, save: Callable[[bytes], None] | None = None) -> None:
        self.length = 0
        self.digest = ""
        self.save = save
        self._early: tuple[m.AssistantReply, bytes] | None = None

    def reference(self, conversation: m.ConversationId) -> m.HistoryReference:
        """Return a reference to the entries so far."""
        return m.HistoryReference(conversation=conversation, length=self.length, digest=self.digest)

    def expect(self, reply: m.AssistantReply) -> None:
        """Save a reply that is not an entry yet, before any of its tool calls is made."""
        line = msgspec.json.encode(reply)
        self._early = reply, line
        self._saved(line)

    def forget(self) -> None:
        """Remove from the file the reply that `expect` has saved, and that is not an entry yet."""
        self._early = None
        self._saved(b"")

    def add(self, entry: m.HistoryEntry) -> None:
        """Count an entry. Save it too, unless it is a reply: `expect` has saved the reply already."""
        early = self._early
        line = early[1] if early is not None and early[0] is entry else msgspec.json.encode(entry)
        if isinstance(entry, m.AssistantReply):
            self._early = None
        else:
            if early is not None:
                # In the file, the entry has to precede the reply that `expect` has saved: move the reply.
                self._saved(b"")
            self._saved(line)
            if early is not None:
                self._saved(early[1])
        self.length += 1
        self.digest = hashlib.sha256(self.digest.encode() + line).hexdigest()

    def branch(self) -> Ledger:
        """Return a ledger of the same entries that saves nothing."""
        other = Ledger()
        other.length, other.digest = self.length, self.digest
        return other

    def _saved(self, line: bytes) -> None:
        if self.save is not None:
            self.save(line)


class History:
    """The entries of a conversation, in order; `call_ids` may be shared by several conversations."""

    def __init__(self, ledger: Ledger | None = None, call_ids: set[m.CallId] | None = None) -> None:
        self.ledger = ledger
        self.entries: list[Entry] = []
        self.unread: m.AssistantReply | None = None  # the last reply, while it may be dropped: no entry yet
        self.asked: m.AnswerSchema | None = None  # the last schema that a request asked for
        self.in_words = False  # that request offered tools, so its text states the schema
        self.attached = False  # an entry has had attachments
        self.call_ids: set[m.CallId] = set() if call_ids is None else call_ids
        self.replies = 0  # empty and dropped ones included
        self.plain = False  # `RunTurn.plain_results` of the turn under way
        self.restates = True  # `RunTurn.restates_answer` of the turn under way

    def say(
        self,
        new: Sequence[m.ConversationItem],
        answer: m.AnswerSchema | None = None,
        *,
        beside_tools: bool = False,
    ) -> tuple[Entry, ...]:
        """Add the last reply, without calls that `new` does not answer, then `new`; return what was added.

        An answer to a call that the last reply does not have raises `ValueError`.
        """
        answers = {item.call_id for item in new if isinstance(item, m.ToolMessage)}
        reply = self.unread
        calls = reply.tool_calls if reply else ()
        unknown = answers - {call.call_id for call in calls}
        if unknown:
            raise ValueError(f"no call of the last reply has the id {', '.join(sorted(unknown))}")
        self.unread = None
        added: list[Entry] = []
        if reply is not None:
            answered = tuple(call for call in calls if call.call_id in answers)
            added.append(reply if len(answered) == len(calls) else replace(reply, tool_calls=answered))
        # Leave out an empty system text, which some endpoints refuse.
        items = tuple(item for item in new if not isinstance(item, m.SystemText) or item.text)
        if answer == self.asked and not (beside_tools and self.restates and not self.in_words):
            answer = None
        if items or answer is not None:
            added.append(said := m.Said(items, answer, answer is not None and beside_tools))
            self._note_said(said)
        for entry in added:
            self.entries.append(entry)
            if self.ledger is not None:
                self.ledger.add(entry)
        return tuple(added)

    def keep(self, reply: m.AssistantReply) -> None:
        """Hold a reply until the next `say` or `close`. The ledger saves it at once."""
        self.unread = reply
        self.replies += 1
        self.call_ids.update(call.call_id for call in reply.tool_calls)
        if self.ledger is not None:
            self.ledger.expect(reply)

    def close(self, end: m.TurnEnd | None) -> tuple[Entry, ...]:
        """End a turn, and return the entries added. `end=None`: it is not known how the turn ended."""
        if isinstance(end, m.TurnFailed) and end.unread:
            self.forget()
        if self.unread is None:
            return ()
        told = () if end is None else end.untold
        answered = {item.call_id for item in told}
        reason = tool_results.INTERRUPTED if end is None else tool_results.NOT_CALLED
        tell = tool_results.told_plainly if self.plain else tool_results.told
        text = tell(tool_results.failure(reason), _MAX_CHARS).text
        others = tuple(
            m.ToolMessage(call.call_id, text)
            for call in self.unread.tool_calls
            if call.call_id not in answered
        )
        return self.say((*told, *others))

    def rewrite(self, rewritten: m.Rewritten) -> None:
        """Replace entries of the history; a position that is not in it raises `ValueError`."""
        if not 0 <= rewritten.start <= rewritten.stop <= len(self.entries):
            raise ValueError(
                f"entries {rewritten.start} to {rewritten.stop} of {len(self.entries)} cannot be replaced"
            )
        self.entries[rewritten.start : rewritten.stop] = rewritten.entries
        self.asked, self.in_words = None, False
        for entry in self.entries:
            if isinstance(entry, m.Said):
                self._note_said(entry)
        if self.ledger is not None:
            self.ledger.add(rewritten)

    def restore(self, entry: Entry) -> None:
        """Add an entry, but not to the ledger: the ledger includes it already, or there is no ledger."""
        self.entries.append(entry)
        if isinstance(entry, m.Said):
            self._note_said(entry)
        else:
            self.replies += 1
            self.call_ids.update(call.call_id for call in entry.tool_calls)

    def change(self, change: m.Cleared | m.Shortened | m.Summarised) -> None:
        """Make the history shorter. The first entry stays, and so does a reply that is not an entry yet."""
        match change:
            case m.Cleared():
                self._clear(change)
            case m.Shortened(share):
                self._shorten(share)
            case _:
                self.rewrite(m.Rewritten(1, len(self.entries), (m.Said(change.items),)))

    def _clear(self, cleared: m.Cleared) -> None:
        shorter = {result.call_id: result for result in cleared.results}
        texts = cleared.texts
        changed: dict[int, m.Said] = {}
        for at, entry in enumerate(self.entries):
            if isinstance(entry, m.Said) and at:
                items, texts = _cleared(entry.items, shorter, texts)
                if items != entry.items:
                    changed[at] = replace(entry, items=items)
        if changed:
            start, stop = min(changed), max(changed) + 1
            entries = tuple(changed.get(at, self.entries[at]) for at in range(start, stop))
            self.rewrite(m.Rewritten(start, stop, entries))

    def _shorten(self, share: float) -> None:
        # Never cut between a tool call and its result.
        begins = [
            at
            for at, entry in enumerate(self.entries)
            if at > 1
            and isinstance(entry, m.Said)
            and entry.items
            and not any(isinstance(item, m.ToolMessage) for item in entry.items)
        ]
        if not begins:
            return
        sizes = [len(msgspec.json.encode(entry)) for entry in self.entries]
        sums = [*accumulate(reversed(sizes))][::-1]  # `sums[at]`: total size of the entries from `at` on
        at = next((at for at in begins if sums[at] <= share * sums[1]), begins[-1])
        self.rewrite(m.Rewritten(1, at, (m.Said((m.UserText(LEFT_OUT),)),)))

    def branch(self) -> History:
        """Return an independent copy, whose ledger does not write to a file."""
        other = copy(self)
        other.ledger = None if self.ledger is None else self.ledger.branch()
        other.entries, other.call_ids = [*self.entries], {*self.call_ids}
        return other

    def _note_said(self, said: m.Said) -> None:
        self.attached = self.attached or any(getattr(item, "attachments", ()) for item in said.items)
        if said.answer is not None:
            self.asked, self.in_words = said.answer, said.beside_tools

    def forget(self) -> None:
        """Drop the last reply (`unread`) if it is not an entry yet, also from the conversation's file."""
        if self.unread is not None:
            self.unread = None
            if self.ledger is not None:
                self.ledger.forget()


def _cleared(items: Items, shorter: dict[m.CallId, m.ToolMessage], texts: int) -> tuple[Items, int]:
    """Replace results by those in `shorter`, and at most `texts` user texts by their stubs.

    Returns the new items, and how many of the `texts` replacements are left.
    """
    kept: list[m.ConversationItem] = []
    for item in items:
        if isinstance(item, m.ToolMessage):
            kept.append(shorter.get(item.call_id, item))
        elif isinstance(item, m.UserText) and item.stub and item.text != item.stub and texts:
            texts -= 1
            kept.append(m.UserText(item.stub, stub=item.stub))
        else:
            kept.append(item)
    return tuple(kept), texts


def history_of(system: str, items: Iterable[m.HistoryItem | m.SystemText], ledger: Ledger) -> History:
    """Build a history, without unanswered calls. Raises `ValueError` for a result that answers no call."""
    history = History(ledger)
    said: list[m.ConversationItem] = [m.SystemText(system)]
    for item in items:
        if isinstance(item, m.AssistantReply):
            history.say(said)
            history.keep(item)
            said = []
        else:
            said.append(item)
    history.say(said)
    return history


def items_of(entries: Iterable[Entry]) -> tuple[m.ConversationItem | m.AssistantReply, ...]:
    """Return the items and replies of the entries, in order."""
    items: list[m.ConversationItem | m.AssistantReply] = []
    for entry in entries:
        items += [entry] if isinstance(entry, m.AssistantReply) else entry.items
    return tuple(items)


SaidStep: TypeAlias = (
    m.RunTurn
    | m.RequestCompletion
    | m.CompletionReceived
    | m.ReplyDropped
    | m.HistoryRewritten
    | m.RewriteHistory
    | m.TurnCompleted
    | m.TurnFailed
)


def take_step(history: History, step: SaidStep) -> None:
    """Apply a recorded message to a history; one that does not fit the history raises `ValueError`."""
    match step:
        case m.RunTurn():
            history.plain, history.restates = step.plain_results, step.restates_answer
        case m.RequestCompletion(new=new, mode=mode):
            history.say(new, mode.answer, beside_tools=isinstance(mode, m.OfferTools))
        case m.CompletionReceived(content=content, tool_calls=calls, echo=echo):
            history.keep(m.AssistantReply(content=content, tool_calls=calls, echo=echo))
        case m.ReplyDropped():
            history.forget()
        case m.HistoryRewritten(rewrite=rewrite):
            history.rewrite(rewrite)
        case m.RewriteHistory(change=change):
            history.change(change)
        case _:
            history.close(step)


def items_said(
    steps: Iterable[SaidStep], end: m.TurnEnd, *, plain: bool, begun: History | None = None
) -> tuple[m.HistoryItem, ...]:
    """Return the items of a turn, for `TurnRequest.history`; `begun`: what a resumed turn added earlier."""
    history = History() if begun is None else begun
    history.plain = plain
    for step in steps:
        take_step(history, step)
    history.close(end)
    return tuple(item for item in items_of(history.entries) if not isinstance(item, m.SystemText))
