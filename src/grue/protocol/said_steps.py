"""The recorded messages that a conversation consists of, and the step that each of them takes.

Come here to change how a conversation is built from a trace. All readers of traces take these steps: the
conversation of a trace, a resumed turn, and a batch that recalls a turn.
"""

from typing import TypeAlias

from grue.messages import (
    AssistantReply,
    CompletionReceived,
    HistoryRewritten,
    ReplyDropped,
    RequestCompletion,
    RequireAnswer,
    RewriteHistory,
    TurnCompleted,
    TurnFailed,
)
from grue.protocol.history import History

SaidStep: TypeAlias = (
    RequestCompletion
    | CompletionReceived
    | ReplyDropped
    | HistoryRewritten
    | RewriteHistory
    | TurnCompleted
    | TurnFailed
)


def take_step(history: History, step: SaidStep) -> None:
    """Repeat the step that the recording process took with a message.

    Raises:
        ValueError: It does not fit what was said before.
    """
    match step:
        case RequestCompletion(new=new, mode=mode):
            history.say(new, mode.answer if isinstance(mode, RequireAnswer) else None)
        case CompletionReceived(content=content, tool_calls=calls, echo=echo):
            history.keep(AssistantReply(content=content, tool_calls=calls, echo=echo))
        case ReplyDropped():
            history.forget()
        case HistoryRewritten(rewrite=rewrite):
            history.rewrite(rewrite)
        case RewriteHistory(change=change):
            history.change(change)
        case _:
            history.close(step)
