"""The agent to itself: the check of the answer and the deadline; and the notes of the agent."""

from grue.messages.message import BatchId, CallId, Message
from grue.vocabulary import ForceReason


class CheckAnswer(Message, frozen=True, kw_only=True):
    """agent -> agent: run the host's check on this final text."""

    content: str


class AnswerAccepted(Message, frozen=True, kw_only=True):
    """agent -> agent: the check accepted the text as this JSON value."""

    answer: object


class AnswerRefused(Message, frozen=True, kw_only=True):
    """agent -> agent: the check refused the text; `reason` is a text for the model."""

    reason: str


class DeadlinePassed(Message, frozen=True, kw_only=True):
    """agent -> agent: the time for this turn's work is over.

    Attributes:
        limit_s: Limit of the whole turn.
        kept_s: The part of it that is reserved for closing sessions.
    """

    limit_s: float
    kept_s: float = 0.0


class TurnInterrupted(Message, frozen=True, kw_only=True):
    """runtime -> agent: the turn was cancelled, from outside or by another actor's crash."""

    reason: str


class IterationStarted(Message, frozen=True, kw_only=True):
    """agent: sends the nth request that offers tools."""

    iteration: int
    max_iterations: int


class ToolsVerified(Message, frozen=True, kw_only=True):
    """agent: all servers have listed their tools, and the reply to the presumed ones stands.

    Attributes:
        changed: Tools that are not as they were presumed, by name. The reply calls none of them, and the next
            request that offers tools offers them anew.
    """

    request: int
    changed: tuple[str, ...] = ()


class ToolRejected(Message, frozen=True, kw_only=True):
    """agent: a call was rejected and not sent: unknown tool or invalid arguments.

    Source: R6.4
    """

    batch: BatchId
    call_id: CallId
    name: str
    error: str


class ToolDenied(Message, frozen=True, kw_only=True):
    """agent: a call was not sent, because the policy or a person denied it; the model reads `reason`."""

    batch: BatchId
    call_id: CallId
    name: str
    reason: str


class DecisionIgnored(Message, frozen=True, kw_only=True):
    """agent, approval: a decision had no effect: it came too late, or is about another call."""

    call_id: CallId
    reason: str


class ReplyUnusable(Message, frozen=True, kw_only=True):
    """agent: the model's reply had neither content nor tool calls.

    Source: R5.10
    """

    finish_reason: str | None
    iteration: int


class SummaryFailed(Message, frozen=True, kw_only=True):
    """agent: the summary that was to take the place of the history did not come; the history stays."""

    reason: str


class FinalForced(Message, frozen=True, kw_only=True):
    """agent: requests the final answer, without tools.

    Source: R5.7
    """

    reason: ForceReason
    iterations: int


class RepairRequested(Message, frozen=True, kw_only=True):
    """agent: the final answer was refused, and the agent asks the model once more."""

    reason: str


class FellBack(Message, frozen=True, kw_only=True):
    """agent: no acceptable answer; the host's fallback value is used.

    Source: R15.3
    """

    reason: str
    raw_response: str | None
