"""Closed sets of messages, by the actor that takes them. mypy reports a `match` that lacks a member."""

from typing import TypeAlias

from grue.messages.agent import (
    AnswerAccepted,
    AnswerRefused,
    CheckAnswer,
    DeadlinePassed,
    DecisionIgnored,
    FellBack,
    FinalForced,
    IterationStarted,
    RepairRequested,
    ReplyUnusable,
    SummaryFailed,
    ToolDenied,
    ToolRejected,
    ToolsVerified,
    TurnInterrupted,
)
from grue.messages.approval import ApprovalPostponed, AskApproval, CallsDecided
from grue.messages.llm import (
    CheckToolSupport,
    CompletionFailed,
    CompletionReceived,
    CompletionRetried,
    DropCompletion,
    HistoryRewritten,
    ReplyCut,
    ReplyDropped,
    RequestCompletion,
    RewriteHistory,
    SchemaIgnored,
    SettingsLeftOut,
    TextDelta,
    ThoughtsDropped,
    ToolsPresumed,
    ToolSupportChecked,
)
from grue.messages.session import (
    CallTools,
    CloseSession,
    ConnectFailed,
    McpDisabled,
    OpenSession,
    PrewarmLost,
    ServerDied,
    ServerEnded,
    ServerNoted,
    ServerRequested,
    SessionClosed,
    SessionOpened,
    SessionPrewarmed,
    StartupFailed,
    TaskCreated,
    ToolCalled,
    ToolDrifted,
    ToolReturned,
    ToolsChanged,
    ToolSkipped,
    ToolTimedOut,
)
from grue.messages.turn import RunTurn, TurnCompleted, TurnFailed, TurnParked, TurnResumed

ConnectOutcome: TypeAlias = SessionOpened | McpDisabled | StartupFailed
Settlement: TypeAlias = ToolReturned | ToolTimedOut | ToolSkipped | ServerDied

TurnEvent: TypeAlias = (
    RunTurn
    | CallsDecided
    | ApprovalPostponed
    | SessionOpened
    | McpDisabled
    | StartupFailed
    | ToolsChanged
    | ToolSupportChecked
    | ToolsPresumed
    | CompletionReceived
    | CompletionFailed
    | ReplyDropped
    | ToolReturned
    | ToolTimedOut
    | ToolSkipped
    | ServerDied
    | AnswerAccepted
    | AnswerRefused
    | SessionClosed
    | DeadlinePassed
    | TurnInterrupted
)
"""Events of the turn's state machine."""

TurnCommand: TypeAlias = (
    CheckToolSupport
    | OpenSession
    | RequestCompletion
    | DropCompletion
    | RewriteHistory
    | CallTools
    | CheckAnswer
    | CloseSession
    | AskApproval
    | TurnCompleted
    | TurnFailed
    | TurnParked
)
"""Commands that the state machine returns; the agent carries them out."""

TurnNote: TypeAlias = (
    IterationStarted
    | ToolsVerified
    | ToolRejected
    | ToolDenied
    | DecisionIgnored
    | ToolSkipped
    | ReplyUnusable
    | SummaryFailed
    | FinalForced
    | RepairRequested
    | FellBack
    | ServerNoted
)
"""Notes that the state machine returns, for the trace only."""

SessionCommand: TypeAlias = OpenSession | CallTools | CloseSession
LlmCommand: TypeAlias = RequestCompletion | DropCompletion | RewriteHistory | CheckToolSupport
LlmNote: TypeAlias = (
    CompletionRetried
    | ReplyCut
    | TextDelta
    | HistoryRewritten
    | ThoughtsDropped
    | SettingsLeftOut
    | SchemaIgnored
)
SessionNote: TypeAlias = (
    ConnectFailed
    | ToolCalled
    | TaskCreated
    | ServerNoted
    | ServerRequested
    | ToolDrifted
    | SessionPrewarmed
    | PrewarmLost
    | ServerEnded
)

AnyMessage: TypeAlias = TurnEvent | TurnCommand | TurnNote | SessionNote | LlmNote | TurnResumed
"""Every message above; the trace reader decodes into it."""
