"""The part of the turn's machine that asks the model: the next request, the forced one, a summary.

Come here to change what a request carries or which tools it offers. The other parts of the machine call these
functions; they are pure.
"""

from typing import Literal

from msgspec.structs import replace

from grue.messages import (
    Cleared,
    CompletionFailed,
    CompletionReceived,
    ConversationItem,
    FinalForced,
    IterationStarted,
    OfferTools,
    RequestCompletion,
    RequireAnswer,
    RewriteHistory,
    Summarised,
    SummaryFailed,
    UserText,
)
from grue.protocol.tool_calls import without_doubles
from grue.protocol.turn_context import (
    after_overflow,
    make_room,
    may_summarise,
    said,
    summary_request,
    with_summary,
)
from grue.protocol.turn_end import fail
from grue.protocol.turn_states import (
    AwaitingCompletion,
    AwaitingSummary,
    Commands,
    Phase,
    Transition,
    Turn,
)
from grue.vocabulary import ForceReason


def ask(turn: Turn, phase: Phase, new: tuple[ConversationItem, ...], notes: Commands = ()) -> Transition:
    """Send the next request: `new` is added to the conversation, and `phase` says what it asks for.

    If the context window has no room for it, older parts are cleared first, or the model is asked for a
    summary.
    """
    doubles: Commands = ()
    if phase == "loop":
        tools, doubles = without_doubles(turn.tools)
        turn = replace(turn, tools=tools)
    if turn.ledger is None:
        return _send(turn, phase, new, (*notes, *doubles))
    return _send_fitted(turn, phase, new, (*notes, *doubles), may_summarise=may_summarise(turn))


def _send_fitted(
    turn: Turn, phase: Phase, new: tuple[ConversationItem, ...], notes: Commands, *, may_summarise: bool
) -> Transition:
    fitted = make_room(turn, new, may_summarise=may_summarise)
    notes = (*notes, *_rewrite(turn, fitted.cleared, "window"))
    if fitted.summarise:
        return _ask_for_summary(fitted.turn, phase, new, notes)
    return _send(said(fitted.turn, fitted.new), phase, fitted.new, notes)


def _send(turn: Turn, phase: Phase, new: tuple[ConversationItem, ...], notes: Commands) -> Transition:
    turn = replace(turn, requests=turn.requests + 1, told=())
    mode: OfferTools | RequireAnswer = RequireAnswer(turn.run.answer)
    if phase == "loop":
        mode = OfferTools(turn.tools if turn.relisted else None)
        turn = replace(turn, relisted=False)
        most = turn.run.limits.max_tool_iterations
        notes = (*notes, IterationStarted(iteration=turn.iterations + 1, max_iterations=most))
    return AwaitingCompletion(turn, phase), (*notes, _request(turn, new, mode))


def _request(
    turn: Turn, new: tuple[ConversationItem, ...], mode: OfferTools | RequireAnswer, *, aside: bool = False
) -> RequestCompletion:
    return RequestCompletion(
        conversation=turn.conversation,
        request=turn.requests,
        new=new,
        mode=mode,
        stream=turn.run.stream and not aside,
        aside=aside,
        clears=turn.ledger is not None,
    )


def _rewrite(
    turn: Turn, change: Cleared | Summarised | None, reason: Literal["window", "overflow"]
) -> Commands:
    if change is None:
        return ()
    return (RewriteHistory(conversation=turn.conversation, change=change, reason=reason),)


def _ask_for_summary(
    turn: Turn, phase: Phase, new: tuple[ConversationItem, ...], notes: Commands
) -> Transition:
    turn = replace(turn, requests=turn.requests + 1, summaries=turn.summaries + 1)
    request = _request(turn, (summary_request(turn),), RequireAnswer(), aside=True)
    return AwaitingSummary(turn, phase, new), (*notes, request)


def summarised(state: AwaitingSummary, event: CompletionReceived | CompletionFailed) -> Transition:
    """Put the summary in the place of the history, and send the request that had to wait for it.

    Without a summary the history stays as it is, and the new entries are cut instead.
    """
    turn = state.turn
    notes: Commands
    if isinstance(event, CompletionReceived):
        turn = turn.count(event.usage)
    if isinstance(event, CompletionReceived) and event.content and event.content.strip():
        turn, change = with_summary(turn, event.content)
        notes = _rewrite(turn, change, "window")
    else:
        reason = event.failure.message if isinstance(event, CompletionFailed) else "the reply has no text"
        notes = (SummaryFailed(reason=reason),)
    return _send_fitted(turn, state.phase, state.new, notes, may_summarise=False)


def refused(state: AwaitingCompletion, event: CompletionFailed) -> Transition:
    """Go on after a request that failed: once in a turn, clear and try again if it was too long."""
    turn, overflow = state.turn, event.failure.overflow
    cleared = None
    if turn.ledger is not None and overflow is not None and not (turn.overflowed or turn.budget_spent):
        turn, cleared = after_overflow(turn, overflow)
    if cleared is None:
        return fail(turn, event.failure)
    turn = replace(turn, overflowed=True, requests=turn.requests + 1)
    mode = OfferTools() if state.phase == "loop" else RequireAnswer(turn.run.answer)
    commands = (*_rewrite(turn, cleared, "overflow"), _request(turn, (), mode))
    return AwaitingCompletion(turn, state.phase), commands


def force(
    turn: Turn, reason: ForceReason, new: tuple[ConversationItem, ...], notes: Commands = ()
) -> Transition:
    """Ask for the final answer, because of `reason`; no later request offers tools."""
    turn = replace(turn, forced=reason)
    forced = FinalForced(reason=reason, iterations=turn.iterations)
    return ask(turn, "forced", (*new, UserText(turn.run.final_request)), notes=(*notes, forced))
