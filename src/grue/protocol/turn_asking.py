"""The part of the turn's machine that asks the model: the next request of the loop, and the forced one.

Come here to change what a request carries or which tools it offers. The other parts of the machine call these
functions; they are pure.
"""

from msgspec.structs import replace

from grue.messages import (
    ConversationItem,
    FinalForced,
    IterationStarted,
    OfferTools,
    RequestCompletion,
    RequireAnswer,
    TurnNote,
    UserText,
)
from grue.protocol.tool_calls import without_doubles
from grue.protocol.turn_states import AwaitingCompletion, Phase, Transition, Turn
from grue.vocabulary import ForceReason


def ask(
    turn: Turn, phase: Phase, new: tuple[ConversationItem, ...], notes: tuple[TurnNote, ...] = ()
) -> Transition:
    """Send the next request: `new` is added to the conversation, and `phase` says what it asks for."""
    turn = replace(turn, requests=turn.requests + 1, told=())
    mode: OfferTools | RequireAnswer = RequireAnswer(turn.run.answer)
    if phase == "loop":
        tools, doubles = without_doubles(turn.tools)
        mode = OfferTools(tools if turn.relisted else None)
        turn = replace(turn, tools=tools, relisted=False)
        most = turn.run.limits.max_tool_iterations
        notes = (*notes, *doubles, IterationStarted(iteration=turn.iterations + 1, max_iterations=most))
    request = RequestCompletion(
        conversation=turn.conversation,
        request=turn.requests,
        new=new,
        mode=mode,
        stream=turn.run.stream,
    )
    return AwaitingCompletion(turn, phase), (*notes, request)


def force(
    turn: Turn, reason: ForceReason, new: tuple[ConversationItem, ...], notes: tuple[TurnNote, ...] = ()
) -> Transition:
    """Ask for the final answer, because of `reason`; no later request offers tools."""
    turn = replace(turn, forced=reason)
    forced = FinalForced(reason=reason, iterations=turn.iterations)
    return ask(turn, "forced", (*new, UserText(turn.run.final_request)), notes=(*notes, forced))
