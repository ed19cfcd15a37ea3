"""Split an episode's trace into its turns, which overlap in `Runner.map`, and find what a fork did itself."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.turn.prices import Spent
from grue.runtime.actor import ActorFailed
from grue.runtime.trace.recorder import Envelope
from grue.tracing.facts import EpisodeResumed
from grue.tracing.reading import EpisodeEnvelope


class TurnSlice(Struct):
    """The messages of a turn, with the facts that its host recorded before and after it."""

    turn: int = 0  # 0 if nothing in the slice names a turn
    resumed: bool = False  # whether an interrupted episode continues with this turn
    again: bool = False  # whether the turn number has not risen: the host runs turns again
    begun: bool = False  # whether the turn's `RunTurn` has arrived
    over: bool = False  # whether the turn has ended or crashed
    overtaken: bool = False  # whether later messages show that the trace does not break off in this turn
    began: int = 0  # number of the turn's first `RunTurn`
    last: int = 0  # number of the slice's last message
    envelopes: list[EpisodeEnvelope] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """`True` if the turn has ended or crashed, or has not begun."""
        return self.over or not self.begun

    @property
    def cut_off(self) -> bool:
        """`True` if the trace breaks off in this turn: it has begun, is not `over`, and not `overtaken`."""
        return self.begun and not self.over and not self.overtaken


# Most slices, and most skipped numbers, in memory: a turn that is cancelled as it begins has no end, and a
# forged trace can skip any number of turns.
_MOST_AT_ONCE = 1000


def split_turns(envelopes: Iterable[EpisodeEnvelope]) -> Iterator[TurnSlice]:
    """Split a trace into its turns, in the order in which they began."""
    splitter = TurnSplitter()
    for envelope in envelopes:
        yield from splitter.completed_by(envelope)
        splitter.take(envelope)
    yield from splitter.slices


class TurnSplitter:
    """Sorts a trace's envelopes into slices, one for each turn. `slices` are those that may still grow."""

    def __init__(self) -> None:
        self.slices: deque[TurnSlice] = deque()
        self._last = 0
        self._skipped: set[int] = set()  # lower numbers than `_last` whose turns have not begun

    def completed_by(self, envelope: EpisodeEnvelope) -> Iterator[TurnSlice]:
        """If `envelope` begins a slice, yield the slices that get no more envelopes, and add the new one."""
        turn, own = turn_of(envelope), self._of(turn_of(envelope))
        runs = isinstance(envelope.body, m.RunTurn)
        goes_on = isinstance(envelope.body, m.RunTurn) and envelope.body.resumed is not None
        # Turn numbers rise within one run of the host, but if several threads start turns at once, one with
        # a higher number can begin first. If this number does not rise, the host runs turns again.
        rises = turn > self._last or self._is_late(turn)
        anew = runs and (not rises if own is None else own.begun)
        if isinstance(envelope.body, EpisodeResumed) or anew:
            unfinished = [turn_slice for turn_slice in self.slices if not turn_slice.complete]
            if anew and not goes_on and len(unfinished) == 1:
                # A host that is resumed after a kill records `EpisodeResumed` first. So this host was not
                # killed in the unfinished turn: it has only called `Runner.map` again.
                unfinished[0].overtaken = True
            self._skipped.clear()
            while self.slices:
                yield self.slices.popleft()
        elif turn and own is None:
            while self.slices and (self.slices[0].complete or len(self.slices) > _MOST_AT_ONCE):
                yield self.slices.popleft()
        else:
            return
        self.slices.append(TurnSlice())

    def take(self, envelope: EpisodeEnvelope) -> TurnSlice:
        """Add an envelope to its slice, and return the slice."""
        turn, body = turn_of(envelope), envelope.body
        resumes = isinstance(body, EpisodeResumed)
        if not self.slices:
            self.slices.append(TurnSlice())
        turn_slice = self._of(turn) or self.slices[-1]
        if turn and not resumes and not turn_slice.turn:
            late = self._is_late(turn)
            turn_slice.turn, turn_slice.again = turn, turn <= self._last and not late
            # If turns run again, as in a second `Runner.map`, those with lower numbers may also begin later.
            skipped = range(1 if turn_slice.again else self._last + 1, turn)[-_MOST_AT_ONCE:]
            if len(self._skipped) + len(skipped) > _MOST_AT_ONCE:
                self._skipped.clear()
            self._skipped.update(skipped)
            self._skipped.discard(turn)
            self._last = max(turn, self._last) if late else turn
        turn_slice.envelopes.append(envelope)
        turn_slice.resumed = turn_slice.resumed or resumes
        turn_slice.begun = turn_slice.begun or isinstance(body, m.RunTurn)
        turn_slice.began = turn_slice.began or (envelope.seq if turn_slice.begun else 0)
        turn_slice.overtaken, turn_slice.last = False, envelope.seq
        if isinstance(body, m.TurnEnd | ActorFailed):
            turn_slice.over = True
            # If the trace breaks off while turns run in parallel, the next message of a turn may be missing
            # although another turn has begun since its last one. If another has begun and also ended since,
            # the trace does not break off in that turn.
            for other in self.slices:
                other.overtaken = other.overtaken or other.last < turn_slice.began
        return turn_slice

    def _is_late(self, turn: int) -> bool:
        """Return whether `turn` has not begun, although a higher number has, and some turn still runs."""
        return turn in self._skipped and not all(turn_slice.complete for turn_slice in self.slices)

    def _of(self, turn: int) -> TurnSlice | None:
        """Return a turn's slice, or `None`. For turn 0, or if the last slice has no turn: the last slice."""
        last = self.slices[-1] if self.slices else None
        if turn == 0 or last is None or last.turn in (0, turn):
            return last
        return next((turn_slice for turn_slice in self.slices if turn_slice.turn == turn), None)


def turn_of(envelope: EpisodeEnvelope) -> int:
    """Return the envelope's turn or, if that is 0, the number in its message's field `turn`; else 0."""
    return envelope.turn or getattr(envelope.body, "turn", 0)


def causes(envelope: EpisodeEnvelope, by_seq: dict[int, EpisodeEnvelope]) -> tuple[EpisodeEnvelope, ...]:
    """Return the chain of causes of an envelope, the first cause first, as far as they are in `by_seq`."""
    chain: list[EpisodeEnvelope] = []
    cause = by_seq.get(envelope.cause) if envelope.cause is not None else None
    while cause is not None and cause.seq < (chain[-1] if chain else envelope).seq:
        chain.append(cause)
        cause = by_seq.get(cause.cause) if cause.cause is not None else None
    return tuple(reversed(chain))


class OwnMessages:
    """Selects what a fork has done itself: its first messages may be copies of a recorded turn's."""

    def __init__(self) -> None:
        self._forked: dict[int, m.TurnForked] = {}  # turn number -> its `TurnForked`, while the fork runs

    def take(self, envelope: Envelope[Any]) -> Envelope[Any] | None:
        """Return the message to count (a fork's end without the counts of copies), or `None` for a copy."""
        if envelope.copied:
            return None
        match envelope.body:
            case m.TurnForked() as forked:
                self._forked[envelope.turn] = forked
            case m.RunTurn():
                self._forked.pop(envelope.turn, None)  # left over if an earlier fork of this turn crashed
            case m.TurnCompleted() | m.TurnFailed() | m.TurnParked() as end:
                before = self._forked.pop(envelope.turn, None)
                if before is not None:
                    copied = Spent(requests=before.requests, usage=before.usage)
                    own = Spent(requests=end.requests, usage=end.usage).less(copied)
                    calls = tuple(each for each in end.tool_calls if each.call_id not in before.calls)
                    rounds = end.iterations - before.iterations
                    end = replace(
                        end, requests=own.requests, usage=own.usage, tool_calls=calls, iterations=rounds
                    )
                    return replace(envelope, body=end)
        return envelope
