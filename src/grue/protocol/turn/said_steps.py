"""The recorded messages that a conversation consists of, and the step that each of them takes.

All readers of traces take these steps: the conversation of a trace, a resumed turn, and a batch that recalls
a turn.
"""

from typing import TypeAlias

from grue import messages as m
from grue.protocol.context.history import History

SaidStep: TypeAlias = (
    m.RunTurn
    | m.RequestCompletion
    | m.CompletionReceived
    | m.ReplyDropped
    | m.HistoryRewritten
    | m.RewriteHistory
    | m.TurnCompleted
    | m.TurnFailed
)


def take_step(history: History, step: SaidStep) -> None:
    """Repeat the step that the recording process took with a message.

    Raises:
        ValueError: It does not fit what was said before.
    """
    match step:
        case m.RunTurn(plain_results=plain):
            history.plain = plain
        case m.RequestCompletion(new=new, mode=mode):
            history.say(new, mode.answer, beside_tools=isinstance(mode, m.OfferTools))
        case m.CompletionReceived(content=content, tool_calls=calls, echo=echo):
            history.keep(m.AssistantReply(content=content, tool_calls=calls, echo=echo))
        case m.ReplyDropped():
            history.forget()
        case m.HistoryRewritten(rewrite=rewrite):
            history.rewrite(rewrite)
        case m.RewriteHistory(change=change):
            history.change(change)
        case _:
            history.close(step)
