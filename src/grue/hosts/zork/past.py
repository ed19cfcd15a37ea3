"""Read from a trace how far an episode got, so that `grue play --resume` can continue it.

A turn is finished as soon as its end is in the trace; its request is not sent to the model again. The replies
of the game are not needed, because the same seed and the same commands give the same game.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct, field

from grue.errors import TraceError
from grue.facts import EpisodeResumed
from grue.hosts.zork.facts import Decided, EpisodeEnded, EpisodeStarted, Observed, Remembered
from grue.messages import (
    CompletionReceived,
    DeadlineMissed,
    LlmFailure,
    McpDisabled,
    RequestCompletion,
    RunTurn,
    ServerName,
    SessionOpened,
    TurnCompleted,
    TurnFailed,
)
from grue.observers.run_folder import RESULT_FILE
from grue.protocol.budget import Spent
from grue.protocol.connection import Disabled, Proven, Settled
from grue.runtime.safe_open import read_regular
from grue.tracing.reading import EpisodeEnvelope, open_episode

TurnEnd: TypeAlias = TurnCompleted | TurnFailed

FINAL_STATUSES = frozenset({401, 402, 403, 404})
"""HTTP statuses after which every further turn would fail too: key, credit, permission, model."""

_FOR_GOOD = ("won", "died", "quit")


class Past(Struct, kw_only=True):
    """The recorded part of an episode.

    Attributes:
        started: The settings that the episode started with.
        decided: The decisions, in the order of the turns.
        shown: The text that the game showed before each turn, if it was recorded.
        end: The end of a turn whose decision was not recorded; `None` if there is none, or if the turn is to
            be played again.
        remembered: The turns whose memory was recorded.
        spent: Requests, tokens and cost of all turns, an unfinished one included.
        tool_calls: Number of tool calls.
        connections: The state of the connection to each tool server.
        ended: How the episode ended the last time, if it did.
        forgiven: The turn at which too many fallbacks in a row ended the episode. Fallbacks up to it are not
            counted again.
        conditions: The conditions, such as the model, of the last run.
        max_turns: The turn limit of the last resume; 0 if it is that of the start.
        lasted_s: How long the episode has been played, in seconds.
    """

    started: EpisodeStarted
    decided: list[Decided] = field(default_factory=list)
    shown: dict[int, Observed] = field(default_factory=dict)
    end: TurnEnd | None = None
    remembered: set[int] = field(default_factory=set)
    spent: Spent = Spent()
    tool_calls: int = 0
    connections: dict[ServerName, Settled] = field(default_factory=dict)
    ended: EpisodeEnded | None = None
    forgiven: int = 0
    conditions: dict[str, str] = field(default_factory=dict)
    max_turns: int = 0
    lasted_s: float = 0.0

    @property
    def turns(self) -> int:
        """Number of turns with a decision."""
        return len(self.decided)

    def take(self, envelope: EpisodeEnvelope, unended: Spent) -> Spent:
        """Read the next envelope; return the requests and usage of the unfinished turn."""
        self.lasted_s = envelope.t
        match envelope.body:
            case Observed(turn=turn) as observed if not envelope.redacted:
                self.shown.setdefault(turn, observed)
            case Decided() as decided:
                self.decided.append(decided)
                self.end = None
            case Remembered(turn=turn):
                self.remembered.add(turn)
            case RunTurn():
                self.spent = self.spent.plus(unended.requests, unended.usage)
                return Spent()
            # A turn does not count the requests that a server makes through sampling.
            case RequestCompletion() if envelope.sender == "agent":
                return Spent(requests=unended.requests + 1, usage=unended.usage)
            case CompletionReceived(usage=usage) if envelope.receiver == "agent":
                return unended.plus(0, usage)
            case TurnCompleted() | TurnFailed() as end:
                self.end = end if _decides(end) else None
                self.tool_calls += len(end.tool_calls)
                self.spent = self.spent.plus(end.requests, end.usage)
                return Spent()
            case SessionOpened(server=server):
                self.connections[server] = Proven()
            case McpDisabled(server=server, reason=reason):
                self.connections[server] = Disabled(reason)
            case EpisodeResumed(max_turns=most, conditions=conditions):
                self.max_turns = most or self.max_turns
                self.conditions = conditions or self.conditions
            case EpisodeEnded(reason=reason) as ended:
                self.ended = ended
                self.forgiven = self.turns if reason == "fallbacks" else self.forgiven
            case _:
                pass
        return unended


def read_past(path: Path) -> Past:
    """Read how far an episode got.

    If an episode was won, lost or quit but its result file was not written, it can be resumed, which writes
    the file.

    Args:
        path: The run folder, or the trace in it.

    Raises:
        TraceError: The trace cannot be read or has no episode, the episode is over, or a message that is
            needed was redacted.
    """
    past: Past | None = None
    unended = Spent()
    last_end: EpisodeEnvelope | None = None
    for envelope in open_episode(path):
        if isinstance(envelope.body, EpisodeStarted | Decided):
            _check_whole(path, envelope)
        if isinstance(envelope.body, TurnCompleted):
            last_end = envelope
        if past is None and isinstance(envelope.body, EpisodeStarted):
            past = Past(started=envelope.body, conditions=envelope.body.conditions)
        elif past is not None:
            unended = past.take(envelope, unended)
    if past is None:
        raise TraceError(f"{path} cannot be resumed: its episode had not begun. Play a new one.")
    if past.ended is not None and past.ended.reason in _FOR_GOOD and _has_result(path, past.ended):
        raise TraceError(f"{path} cannot be resumed: the episode is over ({past.ended.detail}).")
    if past.end is not None and last_end is not None and past.end is last_end.body:
        _check_whole(path, last_end)
    past.spent = past.spent.plus(unended.requests, unended.usage)
    _check_order(path, past.decided)
    return past


def _decides(end: TurnEnd) -> bool:
    """Return whether the host makes a decision after such an end; other failures end the episode."""
    if isinstance(end, TurnCompleted):
        return True
    if isinstance(end.failure, LlmFailure):
        return end.failure.status not in FINAL_STATUSES
    return isinstance(end.failure, DeadlineMissed)


_LARGEST_RESULT = 64 * 2**20


class _Result(Struct):
    reason: str = ""


def _has_result(path: Path, ended: EpisodeEnded) -> bool:
    """Return whether the result file is for this end; it may be left from an earlier one."""
    file = (path if path.is_dir() else path.parent) / RESULT_FILE
    try:
        written = read_regular(file, _LARGEST_RESULT)
        return msgspec.json.decode(written, type=_Result).reason == ended.reason
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # a damaged file is written again


def _check_whole(path: Path, envelope: EpisodeEnvelope) -> None:
    if envelope.redacted:
        kind = type(envelope.body).__name__
        raise TraceError(
            f"{path} cannot be resumed: a secret was removed from message {envelope.seq}, {kind}, "
            "which is needed for it."
        )


def _check_order(path: Path, decided: Iterable[Decided]) -> None:
    for number, decision in enumerate(decided, start=1):
        if decision.turn != number:
            raise TraceError(f"{path} cannot be resumed: the decision of turn {number} is missing.")
