"""The input and the result of a turn, as a host sees them: `TurnRequest` and `TurnOutcome`."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

from grue.answers import AnswerSpec, spec_of
from grue.messages import (
    FINAL_REQUEST,
    REPAIR_REQUEST,
    ContextPolicy,
    HistoryItem,
    OutcomeKind,
    TextDelta,
    ToolCallRecord,
    TurnCompleted,
    Usage,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from grue.engine.kept_conversation import KeptConversation

    T = TypeVarWithDefault("T", default=str)
else:
    T = TypeVar("T")

Image: TypeAlias = str | PathLike[str] | bytes
"""An image for the model: the path of a file, or its content."""


class TurnRequest(Struct, Generic[T], frozen=True, kw_only=True):
    """The input of one turn.

    Attributes:
        system: Instructions.
        user: The situation or question that the model is to answer.
        answer: The type of the answer: a pydantic model, msgspec Struct, dataclass, TypedDict, `list[int]`,
            `int`, an enum. Or an `AnswerSpec`, with a check or a fallback; `AnswerSpec.of(...)` makes one of
            any type, `Literal` included. `None`: any text.
        turn_timeout_s: Limit for the whole turn, teardown included; `None`: the runner's.
        turn: Its number in the episode; `None`: one more than the last.
        tools: Offer the runner's tools; `False`: no tools in this turn. Or the names of those to offer, which
            may be patterns: `("files.read", "web.*")`.
        context: How to stay within the model's context window; `None`: as the runner says, which by default
            clears nothing.
        user_stub: What may take the place of `user` in the history, if a later turn of the conversation has
            no room for it; empty: it stays.
        on_delta: Called with each piece of a streamed reply, in the thread or task of the turn. An exception
            ends the turn. A delta with `restart` means that the request is retried: discard the earlier
            pieces of that reply. `None`: replies are not streamed.
        final_request: The text that asks for the final answer, after the last iteration or a failure.
        repair_request: The text that asks for another answer after one was refused. `{reason}` stands for the
            reason.
        images: Images that belong to the user's text: paths of files, or their bytes. PNG, JPEG, GIF, WebP.
        history: What was said before, oldest first: `UserText`, `AssistantReply`, `ToolMessage`. The trace
            holds a digest of it only. It is encoded for each turn; `Runner.conversation` encodes it once.
        conversation: Set by `Conversation.request`: the turn continues that conversation.
    """

    system: str
    user: str
    answer: AnswerSpec[T] | type[T] | None = None
    turn_timeout_s: float | None = None
    turn: int | None = None
    tools: bool | tuple[str, ...] = True
    context: ContextPolicy | None = None
    user_stub: str = ""
    on_delta: Callable[[TextDelta], None] | None = None
    final_request: str = FINAL_REQUEST
    repair_request: str = REPAIR_REQUEST
    images: Sequence[Image] = ()
    history: Sequence[HistoryItem] = ()
    conversation: "KeptConversation | None" = None

    @property
    def answer_spec(self) -> AnswerSpec[T]:
        """How to validate and parse the answer."""
        return spec_of(self.answer)


class TurnOutcome(Struct, Generic[T], frozen=True, kw_only=True):
    """The result of a turn that has an answer.

    Attributes:
        kind: `answered`; `forced` (the model was told to finish); `degraded` (configured tools were not
            available); `fallback` (the host's own value, because the model gave no acceptable answer).
        response: The answer.
        reason: Why the kind is not `answered`; empty otherwise.
        raw_response: The text that the answer was parsed from, or the last one that was refused.
        tool_calls: All tool calls, in order, with their results.
        iterations: Replies with tool calls.
        requests: Requested completions.
        duration_s: Duration of the whole turn.
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
    """Return the outcome of a completed turn for the host."""
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
