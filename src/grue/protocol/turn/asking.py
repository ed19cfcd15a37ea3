"""The part of the turn's machine that asks the model: the next request, the forced one, a summary.

The other parts of the machine call these functions; they are pure.
"""

from typing import Literal

from msgspec.structs import replace

from grue import messages as m
from grue.policies import ForceReason
from grue.protocol.tools.calls import without_doubles
from grue.protocol.turn.context import (
    after_overflow,
    make_room,
    may_summarise,
    said,
    searching,
    summary_request,
    with_summary,
)
from grue.protocol.turn.end import fail
from grue.protocol.turn.states import AwaitingCompletion, AwaitingSummary, Commands, Phase, Transition, Turn


def ask(turn: Turn, phase: Phase, new: tuple[m.ConversationItem, ...], notes: Commands = ()) -> Transition:
    """Send the next request: `new` is added to the conversation, and `phase` says what it asks for.

    If the context window has no room for it, older parts are cleared first, or the model is asked for a
    summary.
    """
    doubles: Commands = ()
    if phase == "loop":
        tools, doubles = without_doubles(turn.tools)
        turn = searching(replace(turn, tools=tools))
    if turn.ledger is None:
        return _send(turn, phase, new, (*notes, *doubles))
    return _send_fitted(turn, phase, new, (*notes, *doubles), may_summarise=may_summarise(turn))


def _send_fitted(
    turn: Turn, phase: Phase, new: tuple[m.ConversationItem, ...], notes: Commands, *, may_summarise: bool
) -> Transition:
    fitted = make_room(turn, new, may_summarise=may_summarise)
    notes = (*notes, *_rewrite(turn, fitted.cleared, "window"))
    if fitted.summarise:
        return _ask_for_summary(fitted.turn, phase, new, notes)
    return _send(said(fitted.turn, fitted.new), phase, fitted.new, notes)


def _send(turn: Turn, phase: Phase, new: tuple[m.ConversationItem, ...], notes: Commands) -> Transition:
    turn, mode = _mode(replace(turn, requests=turn.requests + 1, told=()), phase)
    if phase == "loop":
        most = turn.run.limits.max_tool_iterations
        notes = (*notes, m.IterationStarted(iteration=turn.iterations + 1, max_iterations=most))
    return AwaitingCompletion(turn, phase), (*notes, _request(turn, new, mode))


def _mode(turn: Turn, phase: Phase) -> tuple[Turn, m.OfferTools | m.RequireAnswer]:
    """Return what a request asks for; it offers the tools anew if they have changed."""
    if phase != "loop":
        return turn, m.RequireAnswer(turn.run.answer)
    mode = m.OfferTools(turn.offered if turn.relisted else None, _stated(turn))
    return replace(turn, relisted=False), mode


def _stated(turn: Turn) -> m.AnswerSchema | None:
    return turn.run.answer if turn.run.states_answer else None


def _request(
    turn: Turn,
    new: tuple[m.ConversationItem, ...],
    mode: m.OfferTools | m.RequireAnswer,
    *,
    aside: bool = False,
) -> m.RequestCompletion:
    return m.RequestCompletion(
        conversation=turn.conversation,
        request=turn.requests,
        new=new,
        mode=mode,
        stream=turn.run.stream and not aside,
        aside=aside,
        clears=turn.ledger is not None,
    )


def _rewrite(
    turn: Turn, change: m.Cleared | m.Shortened | m.Summarised | None, reason: Literal["window", "overflow"]
) -> Commands:
    if change is None:
        return ()
    return (m.RewriteHistory(conversation=turn.conversation, change=change, reason=reason),)


def _ask_for_summary(
    turn: Turn, phase: Phase, new: tuple[m.ConversationItem, ...], notes: Commands
) -> Transition:
    turn = replace(turn, requests=turn.requests + 1, summaries=turn.summaries + 1)
    request = _request(turn, (summary_request(turn),), m.RequireAnswer(), aside=True)
    return AwaitingSummary(turn, phase, new), (*notes, request)


def summarised(state: AwaitingSummary, event: m.CompletionReceived | m.CompletionFailed) -> Transition:
    """Put the summary in the place of the history, and send the request that had to wait for it.

    Without a summary the history stays as it is, and the new entries are cut instead.
    """
    turn = state.turn
    notes: Commands
    turn = turn.count(event.usage)
    stopped = isinstance(event, m.CompletionReceived) and event.stopped
    if isinstance(event, m.CompletionReceived) and not stopped and event.content and event.content.strip():
        turn, change = with_summary(turn, event.content)
        notes = _rewrite(turn, change, "window")
    else:
        reason = event.failure.message if isinstance(event, m.CompletionFailed) else "the reply has no text"
        reason = f"the provider stopped the reply before its end ({stopped})" if stopped else reason
        notes = (m.SummaryFailed(reason=reason),)
    return _send_fitted(turn, state.phase, state.new, notes, may_summarise=False)


def refused(state: AwaitingCompletion, event: m.CompletionFailed) -> Transition:
    """Go on after a request that failed: if it was too long, once in a turn, with a shorter history."""
    turn, overflow = state.turn.count(event.usage), event.failure.overflow
    changes: tuple[m.Cleared | m.Shortened, ...] = ()
    if turn.ledger is not None and overflow is not None and not (turn.overflowed or turn.budget_spent):
        turn, changes = after_overflow(turn, overflow)
    if not changes:
        return fail(turn, event.failure)
    turn, mode = _mode(replace(turn, overflowed=True, requests=turn.requests + 1), state.phase)
    rewrites = (rewrite for change in changes for rewrite in _rewrite(turn, change, "overflow"))
    return AwaitingCompletion(turn, state.phase), (*rewrites, _request(turn, (), mode))


def force(
    turn: Turn, reason: ForceReason, new: tuple[m.ConversationItem, ...], notes: Commands = ()
) -> Transition:
    """Ask for the final answer, because of `reason`; no later request offers tools."""
    turn = replace(turn, forced=reason)
    forced = m.FinalForced(reason=reason, iterations=turn.iterations)
    return ask(turn, "forced", (*new, m.UserText(turn.run.final_request)), notes=(*notes, forced))
