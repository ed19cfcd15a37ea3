"""What a host asks of a turn, and what it gets back."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from grue.answers import AnswerSpec
from grue.messages import OutcomeKind, TextDelta, ToolCallRecord, TurnCompleted, Usage

T = TypeVar("T")


class TurnRequest(Struct, Generic[T], frozen=True, kw_only=True):
    """What a host asks of one turn.

    Attributes:
        system: Instructions.
        user: What there is to decide upon.
        answer: What a valid answer is; `None`: any text.
        turn_timeout_s: Limit for the whole turn, teardown included; `None`: the runner's.
        turn: Its number in the episode; `None`: one more than the last.
        tools: Offer the runner's tools; `False`: none this turn.
        on_delta: Takes the model's words as they come, in the thread or task of the turn; what it raises
            ends the turn. A delta with `restart` says that its request is sent again: drop what has come of
            that reply. `None`: replies are not streamed.
    """

    system: str
    user: str
    answer: AnswerSpec[T] | None = None
    turn_timeout_s: float | None = None
    turn: int | None = None
    tools: bool = True
    on_delta: Callable[[TextDelta], None] | None = None


class TurnOutcome(Struct, Generic[T], frozen=True, kw_only=True):
    """What came of a turn that has an answer.

    Attributes:
        kind: `answered`; `forced` (the model was told to finish); `degraded` (without tools that were
            wanted); `fallback` (the host's own value, because the model gave no acceptable answer).
        response: The answer.
        reason: Why the kind is not `answered`; empty otherwise.
        raw_response: The text that the answer was read from, or the last one that was refused.
        tool_calls: Every tool call, in order, with what became of it.
        iterations: Replies with tool calls.
        requests: Completions that were asked for.
        duration_s: Of the whole turn.
    """

    turn: int
    kind: OutcomeKind
    response: T
    reason: str
    raw_response: str | None
    tool_calls: tuple[ToolCallRecord, ...]
    iterations: int
    requests: int
    usage: Usage
    duration_s: float


def outcome_of(end: TurnCompleted, response: Any, duration_s: float) -> TurnOutcome[Any]:
    """Return what a host gets to see of a turn that is completed."""
    return TurnOutcome(
        turn=end.turn,
        kind=end.kind,
        response=response,
        reason=end.reason,
        raw_response=end.raw_response,
        tool_calls=end.tool_calls,
        iterations=end.iterations,
        requests=end.requests,
        usage=end.usage,
        duration_s=duration_s,
    )
