"""Compare two traces, turn by turn, and within a turn message by message, along the causes.

The i-th turn is compared with the i-th turn. Within a turn, the messages that a message caused are compared
with those that its counterpart caused: same sender, same receiver, same kind, in order. So two traces can be
identical even if their actors took turns in a different order. Numbers, times, durations, processes and what
a provider wants echoed are ignored. Ids of calls and batches may differ if they are used consistently. Pieces
of streamed replies are left out, because the whole reply follows.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from difflib import SequenceMatcher

import msgspec
from msgspec import Struct

from grue.messages import TextDelta
from grue.tracing.differences import Comparison
from grue.tracing.divergence import Divergence
from grue.tracing.presentation import kind_of
from grue.tracing.reading import EpisodeEnvelope
from grue.tracing.turn_slices import TurnSlice, causes, split_turns

IGNORED = frozenset(
    {
        "pid",
        "elapsed_s",
        "duration_s",
        "delay_s",
        "episode_id",
        "echo",
        "address",
        "facts",
        "request_id",
        "asks",
    }
)
"""Fields of messages that differ from run to run, or that the episode's conditions show (the model asked)."""

IDS = frozenset({"call_id", "batch"})
"""Fields of messages that are ids."""

_MOST_MATCHED = 400
"""Most siblings that are matched by their content; the cost is quadratic."""


def diff(left: Iterable[EpisodeEnvelope], right: Iterable[EpisodeEnvelope]) -> Iterator[Divergence]:
    """Yield the differences between two traces, in the order of the first; none if they are identical.

    One turn of each is in memory at a time.

    Args:
        left: A trace: a reader, or its envelopes.
        right: The other one.

    Raises:
        TraceError: While a file is read: it is damaged.
    """
    for one, other in _aligned(split_turns(left), split_turns(right)):
        yield from _TurnDiff(one or TurnSlice(), other or TurnSlice()).divergences()


def render(divergences: Iterable[Divergence], *, every: bool = False) -> Iterator[str]:
    """Yield the report on divergences between `A` and `B`: the first one in full, then the number of others.

    Args:
        divergences: The results of `diff`.
        every: Describe every divergence in full.
    """
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
        yield f"{count - 1} more {'difference' if count == 2 else 'differences'}."


def _aligned(
    left: Iterator[TurnSlice], right: Iterator[TurnSlice]
) -> Iterator[tuple[TurnSlice | None, TurnSlice | None]]:
    """Pair the turns in order. A turn that only one side ran again has no counterpart."""
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if one is not None and one.again and not (other is not None and other.again):
            yield one, None
            one = next(left, None)
        elif other is not None and other.again and not (one is not None and one.again):
            yield None, other
            other = next(right, None)
        else:
            yield one, other
            one, other = next(left, None), next(right, None)


_Siblings = list[EpisodeEnvelope]
_Key = tuple[str, str, str]
_ROOT = 0


class _Tree:
    """A turn's messages by what caused them."""

    def __init__(self, turn_slice: TurnSlice) -> None:
        self.by_seq = {envelope.seq: envelope for envelope in turn_slice.envelopes}
        self._children: dict[int, _Siblings] = {}
        for envelope in turn_slice.envelopes:
            if isinstance(envelope.body, TextDelta):
                continue
            cause = envelope.cause if envelope.cause in self.by_seq else None
            # A cause with a later number is damage; following it could lead to a loop.
            parent = _ROOT if cause is None or cause >= envelope.seq else cause
            self._children.setdefault(parent, []).append(envelope)

    def children(self, seq: int) -> dict[_Key, _Siblings]:
        found: dict[_Key, _Siblings] = {}
        for envelope in self._children.get(seq, ()):
            key = (envelope.sender, envelope.receiver, kind_of(envelope.body))
            found.setdefault(key, []).append(envelope)
        return found

    def below(self, seq: int) -> int:
        """Return how many messages this one caused, directly or indirectly."""
        count, open_ = 0, [seq]
        while open_:
            children = self._children.get(open_.pop(), ())
            count += len(children)
            open_.extend(child.seq for child in children)
        return count


class _TurnDiff:
    """Two accounts of one turn."""

    def __init__(self, left: TurnSlice, right: TurnSlice) -> None:
        self._turn = left.turn or right.turn
        self._left = _Tree(left)
        self._right = _Tree(right)
        self._comparison = Comparison(ignored=IGNORED, ids=IDS)
        self._found: list[Divergence] = []
        self._lefts: dict[int, int] = {}  # by the number of its counterpart on the right

    def divergences(self) -> list[Divergence]:
        """Return all divergences in the left side's order; those only on the right are in place."""
        # Depth first, so that an id is met where it is given before it is met where it is used.
        open_: list[tuple[int, int]] = [(_ROOT, _ROOT)]
        while open_:
            one, other = open_.pop()
            open_.extend(reversed(self._compare_children(one, other)))
        rights = sorted(self._lefts)

        def place(divergence: Divergence) -> float:
            if divergence.left is not None:
                return divergence.left.seq
            assert divergence.right is not None, "a divergence has at least one side"
            before = bisect_left(rights, divergence.right.seq)
            return self._lefts[rights[before - 1]] + 0.5 if before else 0.0

        return sorted(self._found, key=place)

    def _compare_children(self, one: int, other: int) -> list[tuple[int, int]]:
        left, right = self._left.children(one), self._right.children(other)
        pairs: list[tuple[int, int]] = []
        for key in dict.fromkeys((*left, *right)):
            for mine, yours in self._paired(left.get(key, []), right.get(key, [])):
                if mine is None or yours is None:
                    self._note_lonely(mine, yours)
                else:
                    self._lefts[yours.seq] = mine.seq
                    self._compare(mine, yours)
                    pairs.append((mine.seq, yours.seq))
        return sorted(pairs)

    def _paired(
        self, left: _Siblings, right: _Siblings
    ) -> Iterator[tuple[EpisodeEnvelope | None, EpisodeEnvelope | None]]:
        """Pair siblings of one kind in order; if one side has more, match them by their content."""
        if len(left) == len(right) or max(len(left), len(right)) > _MOST_MATCHED:
            yield from _in_order(left, right)
            return
        mine = [_gist(envelope.body, self._comparison.counterpart) for envelope in left]
        yours = [_gist(envelope.body, self._comparison.paired) for envelope in right]
        for _, i, j, k, m in SequenceMatcher(None, mine, yours, autojunk=False).get_opcodes():
            yield from _in_order(left[i:j], right[k:m])

    def _compare(self, left: EpisodeEnvelope, right: EpisodeEnvelope) -> None:
        found = tuple(self._comparison.differences(left.body, right.body))
        if found:
            because = causes(left, self._left.by_seq)
            self._found.append(
                Divergence(turn=self._turn, left=left, right=right, differences=found, because=because)
            )

    def _note_lonely(self, left: EpisodeEnvelope | None, right: EpisodeEnvelope | None) -> None:
        tree, envelope = (self._left, left) if left is not None else (self._right, right)
        assert envelope is not None, "a pair has at least one side"
        divergence = Divergence(
            turn=self._turn,
            left=left,
            right=right,
            because=causes(envelope, tree.by_seq),
            descendants=tree.below(envelope.seq),
        )
        self._found.append(divergence)


def _in_order(
    left: _Siblings, right: _Siblings
) -> Iterator[tuple[EpisodeEnvelope | None, EpisodeEnvelope | None]]:
    for position in range(max(len(left), len(right))):
        yield (
            left[position] if position < len(left) else None,
            right[position] if position < len(right) else None,
        )


def _gist(body: object, common: Callable[[str, object], object]) -> bytes:
    """Return a message's content without ignored fields; `common` maps left ids to right ids."""
    return msgspec.json.encode(_counting(body, common))


def _counting(value: object, common: Callable[[str, object], object]) -> object:
    if isinstance(value, Struct):
        return {
            name: common(name, getattr(value, name))
            if name in IDS
            else _counting(getattr(value, name), common)
            for name in value.__struct_fields__
            if name not in IGNORED
        }
    return [_counting(item, common) for item in value] if isinstance(value, tuple) else value
