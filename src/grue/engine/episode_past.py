"""Read from a trace how far a host's episode got, so that the host can resume it.

A host derives a class from `Past` that also reads the host's own messages:

```python
class DeskPast(Past[EpisodeStarted]):
    assigned: list[Assigned] = msgspec.field(default_factory=list)

    def take_fact(self, envelope: Envelope[Any]) -> None:
        if isinstance(envelope.body, Assigned):
            self.assigned.append(envelope.body)
            self.end = None

past = DeskPast.read("runs/1", needed=(Assigned,))
```
"""

from collections.abc import Container, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import msgspec
from msgspec import Struct, field

from grue import messages as m
from grue.engine.conversations.recorded_conversation import listing_in, parked_at
from grue.errors import LLMError, TraceError
from grue.protocol.turn.connection import Disabled, Proven, Settled
from grue.protocol.turn.prices import Spent
from grue.runtime.files import read_regular
from grue.tracing import facts
from grue.tracing.facts import ConditionChanged, EpisodeEnded, EpisodeResumed, EpisodeStarted
from grue.tracing.message_words import kind_of
from grue.tracing.observers.run_folder import RESULT_FILE
from grue.tracing.reading import EpisodeEnvelope, open_episode

__all__ = ["FINAL_STATUSES", "Past", "ends_episode", "has_result"]

FINAL_STATUSES = frozenset({401, 402, 403, 404})
"""HTTP statuses after which every further turn would fail too. They count only for an error without a
`reason`."""

FINAL_REASONS = frozenset({"key", "permission", "credit", "region", "model", "tools", "address"})
"""Reasons of failures after which every further turn would fail too. `content` is not among them: moderation
may refuse the text of one turn and accept the text of the next turn."""


def ends_episode(error: LLMError | m.LlmFailure, *, answered: bool) -> bool:
    """Return whether an error ends the whole episode, and not only the turn in which it occurred.

    `answered`: the model has answered in the episode. If not, an endpoint that cannot be reached ends the
    episode: the address is most likely wrong.
    """
    final = error.reason in FINAL_REASONS if error.reason else error.status in FINAL_STATUSES
    return final or (error.kind == "unreachable" and not answered)


_LARGEST_RESULT = 64 * 2**20
_Started = TypeVar("_Started", bound=EpisodeStarted)


class Past(Struct, Generic[_Started], kw_only=True):
    """How far an episode got, read from its trace. Override `take_fact` to read the host's own facts.

    Attributes:
        end: How the last turn ended, if the host has not used its result yet; `None`: no turn has ended, the
            host has used the result, or the turn has to be run again.
        spent: Requests, tokens and cost of all turns, including interrupted ones, but not parked ones.
        tool_calls: Number of tool calls in all turns that have ended.
        connections: The state of the connection to each tool server, for `Runner.remember`.
        listings: The tools that each server last listed when a session opened, for `Runner.remember`.
        ended: The last recorded end of the episode; `None`: no end was recorded, for example after a kill.
        conditions: Settings of the last run, such as `model`.
        max_turns: The last turn limit that was given at a resumption; 0: the limit given at the start holds.
        lasted_s: How long the episode has run, in seconds.
        answered: Whether the model has given an answer.
        parked: The last turn that is parked; only `Runner.resume` can continue it. `None`: no turn is. A
            turn that was resumed is parked again if a server did not start. A turn is not parked any more if
            its conversation has gone on without it.
    """

    started: _Started
    end: m.TurnCompleted | m.TurnFailed | None = None
    spent: Spent = Spent()
    tool_calls: int = 0
    connections: dict[m.ServerName, Settled] = field(default_factory=dict)
    listings: dict[m.ServerName, tuple[m.ToolDefinition, ...]] = field(default_factory=dict)
    ended: EpisodeEnded | None = None
    conditions: dict[str, str] = field(default_factory=dict)
    max_turns: int = 0
    lasted_s: float = 0.0
    answered: bool = False
    parked: m.TurnParked | None = None
    # By turn: its conversation, and its resumption unless it has sent a call since.
    _running: dict[int, tuple[m.ConversationId, m.Resumption | None]] = field(default_factory=dict)
    _parked: dict[m.ConversationId, m.TurnParked] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        path: str | PathLike[str],
        *,
        needed: tuple[type, ...] = (),
        started: type[EpisodeStarted] = EpisodeStarted,
        over: Container[str] = (),
    ) -> Self:
        """Read how far an episode got.

        Args:
            path: The run folder, or the trace in it.
            needed: Classes of the host's facts. It is an error if a secret was redacted from one of these
                facts, from `EpisodeStarted`, or from a `TurnCompleted` that becomes `end`.
            started: The host's class for the start of its episodes.
            over: Values of `EpisodeEnded.reason` after which an episode cannot be resumed, except to write
                its result file if that is still missing.

        Raises:
            TraceError: The trace cannot be read, has no episode, or was recorded by another program. Or the
                episode is over, or a secret was redacted from a message that is needed.
        """
        path = Path(path)
        past: Self | None = None
        unended: dict[int, Spent] = {}  # by turn: the turns of a `map` are interleaved
        last_end: EpisodeEnvelope | None = None
        for envelope in open_episode(path):
            if isinstance(envelope.body, (EpisodeStarted, *needed)):
                _check_whole(path, envelope)
            if isinstance(envelope.body, m.TurnCompleted):
                last_end = envelope
            if past is None and isinstance(envelope.body, EpisodeStarted):
                begun: Any = envelope.body  # its class is checked below
                past = cls(started=begun, conditions=begun.conditions)
            elif past is not None:
                unended[envelope.turn] = past.take(envelope, unended.get(envelope.turn, Spent()))
        if past is None:
            raise TraceError(f"{path} cannot be resumed: its episode had not begun. Start a new one.")
        if past.end is not None and last_end is not None and past.end is last_end.body:
            _check_whole(path, last_end)
        for each in unended.values():
            past.spent = past.spent.plus(each.requests, each.usage)
        if not isinstance(past.started, started):
            raise TraceError(f"{path} cannot be resumed: another program has recorded its episode.")
        if past.ended is not None and past.ended.reason in over and has_result(path, past.ended):
            raise TraceError(f"{path} cannot be resumed: it is over ({past.ended.detail}).")
        return past

    def changes(self, now: Mapping[str, str]) -> tuple[ConditionChanged, ...]:
        """Return the conditions that differ from `now`; conditions that one side lacks are left out."""
        return facts.changed_conditions(self.conditions or {"model": self.started.model}, now)

    def take_fact(self, envelope: EpisodeEnvelope) -> None:
        """Read an envelope that may hold a fact of the host; override this method, which does nothing.

        It is called with each envelope after the start, in order. If the fact shows that the host has used
        the last turn's result, set `self.end` to `None`.
        """

    def take(self, envelope: EpisodeEnvelope, unended: Spent) -> Spent:
        """Read the next envelope. `unended`: what its turn has spent beyond `spent`; return the new value."""
        self.lasted_s = envelope.t
        unended = self._take_message(envelope, unended)
        self.take_fact(envelope)
        return unended

    def _take_message(self, envelope: EpisodeEnvelope, unended: Spent) -> Spent:
        match envelope.body:
            case m.RunTurn() as run:
                self._running[envelope.turn] = run.conversation, run.resumed
                self._parked.pop(run.conversation, None)
                self.parked = next(reversed(self._parked.values()), None)
                self.spent = self.spent.plus(unended.requests, unended.usage)
                return Spent()
            case m.TurnResumed():
                return Spent()
            case m.ToolCalled() if envelope.turn in self._running:
                self._running[envelope.turn] = self._running[envelope.turn][0], None
            case m.ServerSampled(usage=usage):
                return unended.plus(1, usage)
            case m.RequestCompletion() if envelope.sender == "agent":
                return Spent(requests=unended.requests + 1, usage=unended.usage)
            case m.CompletionReceived(usage=usage) | m.CompletionFailed(usage=usage) if (
                envelope.receiver == "agent"
            ):
                return unended.plus(0, usage)
            case m.ReplyDropped(usage=usage):
                return unended.plus(0, usage)
            case m.TurnCompleted() | m.TurnFailed() | m.TurnParked() as end:
                name, resumption = self._running.pop(envelope.turn, (m.ConversationId(""), None))
                parked = parked_at(end, resumption)
                if parked is not None:
                    # Do not count a parked turn: the message that ends it later will have its whole cost.
                    self._parked[name] = self.parked = parked
                    return Spent()
                assert not isinstance(end, m.TurnParked), "`parked_at` has returned it"
                self.end = end if self._has_a_result(end) else None
                self.answered = self.answered or (isinstance(end, m.TurnCompleted) and end.kind != "fallback")
                self.tool_calls += len(end.tool_calls)
                self.spent = self.spent.plus(end.requests, end.usage)
                return Spent()
            case m.SessionOpened(server=server):
                self.connections[server] = Proven()
                self.listings |= listing_in(envelope)
            case m.McpDisabled(server=server, reason=reason, newly=newly, last_words=words):
                known = self.connections.get(server)
                if newly:
                    self.connections[server] = Disabled(reason, until_s=0.0, last_words=words)
                elif not isinstance(known, Disabled):
                    self.connections[server] = Disabled(reason)  # the host itself has disabled the server
            case EpisodeResumed(max_turns=most, conditions=conditions):
                self.max_turns = most or self.max_turns
                self.conditions = conditions or self.conditions
            case EpisodeEnded() as ended:
                self.ended = ended
        return unended

    def _has_a_result(self, end: m.TurnCompleted | m.TurnFailed) -> bool:
        if isinstance(end, m.TurnFailed) and isinstance(end.failure, m.LlmFailure):
            return not ends_episode(end.failure, answered=self.answered)
        return isinstance(end, m.TurnCompleted) or isinstance(end.failure, m.DeadlineMissed)


class _Result(Struct):
    reason: str = ""


def has_result(path: str | PathLike[str], ended: EpisodeEnded) -> bool:
    """Return whether the run folder has a result file with the `reason` of `ended`."""
    path = Path(path)
    file = (path if path.is_dir() else path.parent) / RESULT_FILE
    try:
        written = read_regular(file, _LARGEST_RESULT)
        return msgspec.json.decode(written, type=_Result).reason == ended.reason
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # the file is missing or damaged: the caller writes it again


def _check_whole(path: Path, envelope: EpisodeEnvelope) -> None:
    if envelope.redacted:
        raise TraceError(
            f"{path} cannot be resumed: a secret was removed from message {envelope.seq}, "
            f"{kind_of(envelope.body)}, which is needed for it."
        )
