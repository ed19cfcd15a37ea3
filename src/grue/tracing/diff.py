"""Compare two traces turn by turn, and each pair of turns message by message.

The turns are paired by number if they begin at similar places, otherwise in order. A turn's second run has no
partner if only one trace has it. If a trace has forks, only the messages of turns with a fork's number are
compared, without the hosts' facts. A turn's messages form a tree by their causes. Below each pair of
messages, those with the same sender, receiver and kind are paired: in order if both sides have equally many
(or one has hundreds), otherwise by content. The order in which actors work is irrelevant.

The numbers and times of messages, `IGNORED` fields, and messages whose class has `compared = False` are not
compared. The ids in the fields `IDS` may differ if, within a turn, left and right ids pair one to one.
"""

import hashlib
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import islice, zip_longest
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.runtime.trace.reader import LinePlace
from grue.tracing.divergence import LAST_CAUSES, Comparison, Difference, Divergence, excerpts, is_one_of
from grue.tracing.facts import Fact
from grue.tracing.message_words import kind_of
from grue.tracing.reading import EpisodeEnvelope, EpisodeReader
from grue.tracing.turn_slices import TurnSlice, TurnSplitter

IGNORED = frozenset({
    "pid", "elapsed_s", "duration_s", "duration_ms", "delay_s", "episode_id", "echo", "address", "facts",
    "request_id", "error_code", "asks", "expires_at", "TurnResumed.after", "HistoryReference.file",
    "LlmFailure.endpoint", "ToolsUnsupported.endpoint", "ToolSupportChecked.endpoint",
})  # fmt: skip
"""Not compared: most differ from run to run. If `asks` differs, a host's `conditions` usually differ too."""

IDS = frozenset({"call_id", "batch", "conversation"})
_MOST_MATCHED = 400  # pairing by content has a quadratic cost: more siblings are paired in order
_MOST_ANSWERS = 5
_MOST_AHEAD = 100  # among how many further turns to look for one with the same number


def diff(left: Iterable[EpisodeEnvelope], right: Iterable[EpisodeEnvelope]) -> Iterator[Divergence]:
    """Yield the differences between two traces, in the order of the left one; may raise `TraceError`."""
    forked = _forked_turns(left) | _forked_turns(right)
    lengths: set[int] = set()
    limits: list[float] = []
    lefts = _noting(lengths, limits, lean_turns(left))
    for one, other in _aligned(_only(forked, lefts), _only(forked, lean_turns(right))):
        sides = one or TurnSlice(), other or TurnSlice()
        yield from _TurnDiff(*sides, lengths, limits, forked=bool(forked)).divergences()


def _forked_turns(trace: Iterable[EpisodeEnvelope]) -> set[int]:
    if isinstance(trace, EpisodeReader):
        return {line.line.turn for line in trace.lines() if line.tag == m.TurnForked.__name__}
    known = trace if isinstance(trace, Sequence) else ()
    return {envelope.turn for envelope in known if isinstance(envelope.body, m.TurnForked)}


def _only(forked: set[int], turns: Iterator[TurnSlice]) -> Iterator[TurnSlice]:
    for each in turns:
        if not forked:
            yield each
        elif each.turn in forked:
            # A fork has no host, so it lacks the host's facts and its messages outside turns.
            own = [one for one in each.envelopes if one.turn and not isinstance(whole(one).body, Fact)]
            yield replace(each, envelopes=own)


def _noting(lengths: set[int], limits: list[float], turns: Iterator[TurnSlice]) -> Iterator[TurnSlice]:
    """Yield the turns; note their histories' lengths in `lengths`, and hosts' time limits in `limits`."""
    # Turns that are not compared count too, such as those before a fork.
    for each in turns:
        for body in (envelope.body for envelope in each.envelopes):
            if isinstance(body, m.RunTurn) and body.history is not None:
                lengths.add(body.history.length)
            limit_s = getattr(body, "time_limit_s", None)  # a field of the skill agent's `RunStarted`
            if isinstance(limit_s, float):
                limits.append(limit_s)
        yield each


def render(divergences: Iterable[Divergence], *, every: bool = False) -> Iterator[str]:
    """Yield the lines of a report. It describes the first difference, or with `every` all of them."""
    count = 0
    for divergence in divergences:
        count += 1
        if count == 1:
            yield f"The traces differ from turn {divergence.turn} on."
        elif every:
            yield f"And in turn {divergence.turn}:"
        if count == 1 or every:
            yield from divergence.lines("A", "B")
    if not count:
        yield "The traces are identical, except for numbers, times and ids."
    elif count > 1 and not every:
        yield f"{count - 1} more {'difference' if count == 2 else 'differences'}. --all describes each."


def changed_answers(left: EpisodeReader, right: EpisodeReader) -> Iterator[str]:
    """Yield a line for each of the first few turns that have different answers in the two traces."""
    before, after = _answers(left), _answers(right)
    turns = [turn for turn in after if turn in before and before[turn] != after[turn]]
    for turn in turns[:_MOST_ANSWERS]:
        one, other = excerpts(before[turn], after[turn])
        yield f"answer{f' of turn {turn}' if len(turns) > 1 else ''}: {one} -> {other}"


def _answers(trace: EpisodeReader) -> dict[int, object]:
    ends = (line.envelope().body for line in trace.lines() if line.tag == m.TurnCompleted.__name__)
    return {end.turn: end.answer for end in ends if isinstance(end, m.TurnCompleted)}


def _aligned(
    left: Iterator[TurnSlice], right: Iterator[TurnSlice]
) -> Iterator[tuple[TurnSlice | None, TurnSlice | None]]:
    """Pair the turns of two traces. A turn without a partner, such as a second run, is paired with `None`."""
    one, ahead = next(left, None), deque(islice(right, 1))
    while one is not None or ahead:
        again = one is not None and one.again
        if again and not (ahead and ahead[0].again):
            yield one, None
            one = next(left, None)
        elif not again and ahead and ahead[0].again:
            yield None, ahead.popleft()
        else:
            yield one, _taken(one, ahead, right) if ahead else None
            one = next(left, None)
        if not ahead:
            ahead.extend(islice(right, 1))


def _taken(one: TurnSlice | None, ahead: deque[TurnSlice], right: Iterator[TurnSlice]) -> TurnSlice:
    """Take the partner of `one`: a turn with its number among the next `_MOST_AHEAD`, else the next turn.

    The turns of a `Runner.map` may begin in another order than that of their numbers. Do not look beyond a
    turn at which the host runs turns again.
    """
    place, ahead[0].again = 0, False
    while one is not None and ahead[place].turn != one.turn:
        place += 1
        if place == len(ahead):
            ahead.extend(islice(right, 1))
        if place in (len(ahead), _MOST_AHEAD) or ahead[place].again:
            place = 0
            break
    found = ahead[place]
    del ahead[place]
    return found


_Siblings = list[EpisodeEnvelope]
_Key = tuple[str, str, str]
_ROOT = 0


class _Tree:
    def __init__(self, turn_slice: TurnSlice) -> None:
        self.by_seq = {envelope.seq: envelope for envelope in turn_slice.envelopes}
        self._children: dict[int, _Siblings] = {}
        self._parent: dict[int, int] = {}
        # message number -> (number of its first cause or, without a cause, its own; how many causes it has)
        self._origin: dict[int, tuple[int, int]] = {}
        for envelope in turn_slice.envelopes:
            cause = envelope.cause if envelope.cause in self.by_seq else None
            # A damaged trace may have causes with later numbers, which could lead to a loop.
            parent = _ROOT if cause is None or cause >= envelope.seq else cause
            self._children.setdefault(parent, []).append(envelope)
            self._parent[envelope.seq] = parent
            first, depth = self._origin.get(parent, (envelope.seq, -1))
            self._origin[envelope.seq] = (first, depth + 1)

    def causes(self, envelope: EpisodeEnvelope) -> tuple[tuple[EpisodeEnvelope, ...], int]:
        """Return a message's first cause and its `LAST_CAUSES` last ones, and how many causes are between."""
        parents: list[int] = []
        parent = self._parent.get(envelope.seq, _ROOT)
        while parent != _ROOT and len(parents) < LAST_CAUSES:
            parents.append(parent)
            parent = self._parent[parent]
        left_out = 0
        if parent != _ROOT:
            first, left_out = self._origin[parent]
            parents.append(first)
        return tuple(whole(self.by_seq[seq]) for seq in reversed(parents)), left_out

    def children(self, seq: int) -> dict[_Key, _Siblings]:
        found: dict[_Key, _Siblings] = {}
        for envelope in self._children.get(seq, ()):
            key = (envelope.sender, envelope.receiver, kind_in(envelope))
            found.setdefault(key, []).append(envelope)
        return found

    def below(self, seq: int) -> int:
        """Return the number of messages that the message `seq` caused, directly or indirectly."""
        count, open_ = 0, [seq]
        while open_:
            children = self._children.get(open_.pop(), ())
            count += len(children)
            open_.extend(child.seq for child in children)
        return count


_Pair = tuple[int | None, int | None]
"""The numbers of two messages that differ. `None` stands for a message that a trace lacks."""


class _TurnDiff:
    """Compares two turns. `lengths` and `limits` are of the left trace: see `_noting`."""

    def __init__(
        self, left: TurnSlice, right: TurnSlice, lengths: set[int], limits: list[float], *, forked: bool
    ) -> None:
        self._forked = forked  # whether one of the turns may be a fork
        self._turn = left.turn or right.turn
        self._left = _Tree(left)
        self._right = _Tree(right)
        self._lengths = lengths
        self._limit_s = max(limits, default=0.0)
        self._comparison = Comparison(ignored=IGNORED, ids=IDS)
        self._found: list[_Pair] = []
        self._lefts: dict[int, int] = {}  # number on the right -> number on the left

    def divergences(self) -> Iterator[Divergence]:
        # In the order of the left trace: a message that only the right trace has follows the pair before it.
        # Go depth first, so that the message that creates an id is compared before messages that use it.
        open_: list[tuple[int, int]] = [(_ROOT, _ROOT)]
        while open_:
            one, other = open_.pop()
            open_.extend(reversed(self._compare_children(one, other)))
        rights = sorted(self._lefts)

        def place(pair: _Pair) -> float:
            one, other = pair
            if one is not None:
                return one
            assert other is not None, "a pair has at least one side"
            before = bisect_left(rights, other)
            return self._lefts[rights[before - 1]] + 0.5 if before else 0.0

        # `_found` holds only numbers, to save memory, so `_divergence` reads the messages again.
        yield from (self._divergence(pair) for pair in sorted(self._found, key=place))

    def _compare_children(self, one: int, other: int) -> list[tuple[int, int]]:
        left, right = self._left.children(one), self._right.children(other)
        pairs: list[tuple[int, int]] = []
        for key in dict.fromkeys((*left, *right)):
            for mine, yours in self._paired(left.get(key, []), right.get(key, [])):
                if mine is None or yours is None:
                    self._found.append((mine.seq if mine else None, yours.seq if yours else None))
                    continue
                self._lefts[yours.seq] = mine.seq
                if any(self._differences(whole(mine), whole(yours))):
                    self._found.append((mine.seq, yours.seq))
                pairs.append((mine.seq, yours.seq))
        return sorted(pairs)

    def _paired(
        self, left: _Siblings, right: _Siblings
    ) -> Iterator[tuple[EpisodeEnvelope | None, EpisodeEnvelope | None]]:
        if len(left) == len(right) or max(len(left), len(right)) > _MOST_MATCHED:
            yield from zip_longest(left, right)
            return
        mine = [_gist(whole(envelope).body, self._comparison.counterpart) for envelope in left]
        yours = [_gist(whole(envelope).body, self._comparison.paired) for envelope in right]
        for _, i, j, k, end in SequenceMatcher(None, mine, yours, autojunk=False).get_opcodes():
            yield from zip_longest(left[i:j], right[k:end])

    def _differences(self, left: EpisodeEnvelope, right: EpisodeEnvelope) -> tuple[Difference, ...]:
        one, other = left.body, right.body
        if _ended_as_asked(one, other):
            return ()
        match one, other:
            case m.RunTurn(), m.RunTurn():
                other = self._as_comparable(one, other)
            case m.SessionOpened(), m.SessionOpened() if self._forked and None in (one.pid, other.pid):
                # A fork that takes its tool results from a trace starts no process, so it has no box.
                other = replace(other, box=one.box)
        # Read all differences, not just the first: reading them pairs the ids for later messages.
        return tuple(self._comparison.differences(one, other))

    def _as_comparable(self, one: m.RunTurn, other: m.RunTurn) -> m.RunTurn:
        longest_s = max(run.limits.turn_timeout_s or math.inf for run in (one, other))
        if (one.resumed and other.resumed) or longest_s <= self._limit_s:
            # The turn's limit is the time that it or its episode had left, which differs from run to run.
            limits = replace(other.limits, turn_timeout_s=one.limits.turn_timeout_s)
            other = replace(other, limits=limits)
        past, history = one.history, other.history
        if past and history and any(length < past.length for length in self._lengths):
            # The history may contain turns compared already. Its digest differs even if only ids differ.
            other = replace(other, history=replace(history, digest=past.digest))
        return other

    def _divergence(self, pair: _Pair) -> Divergence:
        left = None if pair[0] is None else whole(self._left.by_seq[pair[0]])
        right = None if pair[1] is None else whole(self._right.by_seq[pair[1]])
        tree, envelope = (self._left, left) if left is not None else (self._right, right)
        assert envelope is not None, "a pair has at least one side"
        because, left_out = tree.causes(envelope)
        lonely = left is None or right is None
        return Divergence(
            turn=self._turn,
            left=left,
            right=right,
            differences=() if left is None or right is None else self._differences(left, right),
            because=because,
            because_left_out=left_out,
            descendants=tree.below(envelope.seq) if lonely else 0,
        )


def _gist(body: object, common: Callable[[str, object], object]) -> bytes:
    """Return a digest of a message without ignored fields; `common(field, id)` takes the place of each id."""
    return hashlib.sha256(msgspec.json.encode(_counting(body, common))).digest()


def _counting(value: object, common: Callable[[str, object], object]) -> object:
    if isinstance(value, Struct):
        return {
            name: common(name, getattr(value, name))
            if name in IDS
            else _counting(getattr(value, name), common)
            for name in value.__struct_fields__
            if not is_one_of(IGNORED, value, name)
        }
    return [_counting(item, common) for item in value] if isinstance(value, tuple) else value


KEPT_BYTES = 4 * 2**20  # the most bytes of unfinished turns in memory; further messages stay in the file


class LeftInFile(Struct, frozen=True):
    """Replaces a message that stays in the file, to save memory."""

    reader: EpisodeReader
    place: LinePlace
    kind: str


def lean_turns(envelopes: Iterable[EpisodeEnvelope]) -> Iterator[TurnSlice]:
    """Split a trace into its turns, without messages that are not compared."""
    # If `envelopes` is an `EpisodeReader`, messages beyond `KEPT_BYTES` stay in the file; `whole` reads them.
    splitter = TurnSplitter()
    kept: dict[int, int] = {}  # `id()` of a slice -> bytes of its messages in memory
    for envelope, stub, size in _with_stubs(envelopes):
        for complete in splitter.completed_by(envelope):
            kept.pop(id(complete), None)
            yield complete
        turn_slice = splitter.take(envelope)
        if isinstance(envelope.body, m.Message) and not envelope.body.compared:
            turn_slice.envelopes.pop()
        elif sum(kept.values()) + size > KEPT_BYTES:
            turn_slice.envelopes[-1] = stub
        else:
            kept[id(turn_slice)] = kept.get(id(turn_slice), 0) + size
    yield from splitter.slices


def whole(envelope: EpisodeEnvelope) -> EpisodeEnvelope:
    """Return an envelope with its message, which may be read from the file; may raise `TraceError`."""
    body: Any = envelope.body
    return body.reader.at(body.place) if isinstance(body, LeftInFile) else envelope


def kind_in(envelope: EpisodeEnvelope) -> str:
    """Return the name of the kind of an envelope's message. Never reads the message from the file."""
    body: Any = envelope.body
    return body.kind if isinstance(body, LeftInFile) else kind_of(body)


def _with_stubs(
    envelopes: Iterable[EpisodeEnvelope],
) -> Iterator[tuple[EpisodeEnvelope, EpisodeEnvelope, int]]:
    """Yield each envelope, its stub (without a file, itself), and the bytes that the stub saves."""
    if not isinstance(envelopes, EpisodeReader):
        yield from ((envelope, envelope, 0) for envelope in envelopes)
        return
    for line in envelopes.lines():
        envelope = line.envelope()
        left: Any = LeftInFile(envelopes, line.place, kind_of(envelope.body))
        yield envelope, replace(envelope, body=left), line.place.size


def _ended_as_asked(left: object, right: object) -> bool:
    """Return whether both messages are `SessionClosed`, with endings that make a comparison pointless."""
    # Whether a process exits by itself or has to be killed depends on timing, so the messages are compared
    # only if an ending is `died`. But if one is `none`, they are not compared: a fork that takes its tool
    # results from a trace has no process.
    if not (isinstance(left, m.SessionClosed) and isinstance(right, m.SessionClosed)):
        return False
    endings = (left.ending, right.ending)
    return "none" in endings or "died" not in endings
