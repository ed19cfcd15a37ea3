"""The part of the turn's machine that reads replies: tool calls, an answer, a refusal, or nothing usable.

`tool_loop.step` calls these functions; they are pure.
"""

from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.calls import skip
from grue.protocol.turn.approval import call
from grue.protocol.turn.asking import ask, force
from grue.protocol.turn.end import close, fail
from grue.protocol.turn.states import AwaitingVerdict, Phase, Transition, Turn

DECLINED = "the model declined to answer: {words}"
STOPPED = "the provider stopped the reply before its end ({why})"
CUT = "it was cut at the length limit of a reply, so its end is missing; what there is of it: {reason}"
WRITTEN = "it is a tool call written as text ({written}), which was not made"
AS_A_CALL = (
    "Your last reply has a tool call in its text ({written}). It was not made. If you want it to be made,"
    " call the tool, in the way that calls are made here, and not in the text. If not, answer in plain words."
)
RUN_THEM = '; the setting text_tool_calls = "run" makes such calls'


def loop_reply(turn: Turn, reply: m.CompletionReceived) -> Transition:
    """Go on after the reply to a request that offered tools; the caller has counted its tokens."""
    if reply.tool_calls:
        meant = tuple(map(turn.meant, reply.tool_calls))
        return call(replace(turn, iterations=turn.iterations + 1), meant)
    unusable = m.ReplyUnusable(
        finish_reason=reply.finish_reason, iteration=turn.iterations + 1, seen=_seen(reply)
    )
    if reply.written is not None and not turn.reminded:
        turn, reminder = replace(turn, reminded=True), m.UserText(AS_A_CALL.format(written=reply.written))
        if turn.budget_reached:
            return force(turn, "budget", (reminder,), (unusable,))
        return ask(turn, "loop", (reminder,), (unusable,))
    if reply.written is None and not reply.stopped and _has_text(reply.content):
        return _check(turn, "loop", reply)
    why = _why_not(reply)
    if why:
        notes = () if reply.written is None else (unusable,)
        return refuse(turn, "loop", _no_answer(reply, why), notes=notes)
    return force(turn, "no_content", (), (unusable,))


def final_reply(turn: Turn, phase: Phase, reply: m.CompletionReceived) -> Transition:
    """Go on after the reply to a request that offered no tools."""
    if reply.tool_calls:
        return _refuse_calls(turn, phase, reply)
    why = _why_not(reply)
    if not why and _has_text(reply.content):
        return _check(turn, phase, reply)
    if reply.written is not None and phase == "repair":
        why += RUN_THEM
    return refuse(turn, phase, _no_answer(reply, why or "the reply was empty"))


def _no_answer(reply: m.CompletionReceived, reason: str) -> m.NoAnswer:
    return m.NoAnswer(reason=reason, raw=reply.refusal or reply.content, stopped=reply.stopped)


def _why_not(reply: m.CompletionReceived) -> str:
    """Return why the text of a reply is not an answer; empty: it may be one, if there is any."""
    if reply.stopped:
        return STOPPED.format(why=reply.stopped)
    if reply.written is not None:
        return WRITTEN.format(written=reply.written)
    if reply.refusal and not _has_text(reply.content):
        return DECLINED.format(words=reply.refusal)
    return ""


def _seen(reply: m.CompletionReceived) -> str:
    if reply.written is not None:
        return f"a tool call written as text ({reply.written})"
    return "thoughts and nothing else" if reply.reasoning else ""


def _check(turn: Turn, phase: Phase, reply: m.CompletionReceived) -> Transition:
    """Ask the host whether the text of a reply is an answer."""
    text = reply.content or ""
    state = AwaitingVerdict(turn, phase, text, cut=reply.finish_reason == "length")
    return state, (m.CheckAnswer(content=text),)


def refuse_answer(state: AwaitingVerdict, reason: str) -> Transition:
    """Go on after the host's check has refused a text."""
    reason = CUT.format(reason=reason) if state.cut else reason
    return refuse(state.turn, state.phase, m.NoAnswer(reason=reason, raw=state.content))


def _has_text(content: str | None) -> bool:
    return bool(content and content.strip())


def _refuse_calls(turn: Turn, phase: Phase, reply: m.CompletionReceived) -> Transition:
    """Answer the tool calls of a reply to a request that offered no tools, without making the calls."""
    batch = m.BatchId(turn.batches + 1)
    notes, records = skip(reply.tool_calls, turn.iterations, batch, tool_results.SKIPPED_TOO_LATE)
    turn, new = replace(turn, batches=batch).tell(records)
    why = "it calls tools, which are no longer available"
    return refuse(turn, phase, m.NoAnswer(reason=why, raw=reply.content), new=new, notes=notes)


def refuse(
    turn: Turn,
    phase: Phase,
    why: m.NoAnswer,
    *,
    new: tuple[m.ConversationItem, ...] = (),
    notes: tuple[m.TurnNote, ...] = (),
) -> Transition:
    """Ask for a repair, once in a turn; after that use the fallback, or fail."""
    if phase != "repair" and not turn.budget_spent:
        text = m.UserText(turn.run.repair_request.replace("{reason}", why.reason))
        return ask(turn, "repair", (*new, text), notes=(*notes, m.RepairRequested(reason=why.reason)))
    if phase != "repair":
        why = replace(why, reason=f"{why.reason} (the budget leaves no second try)")
    if turn.run.fallback is None:
        return fail(turn, why, notes)
    end = _completed(turn, "fallback", turn.run.fallback, why.raw, why.reason)
    return close(turn, end, (*notes, m.FellBack(reason=why.reason, raw_response=why.raw)))


def complete(turn: Turn, answer: object, raw: str) -> Transition:
    """End the turn with the answer that the host accepted."""
    kind: m.OutcomeKind = "forced" if turn.forced else "degraded" if turn.degraded else "answered"
    return close(turn, _completed(turn, kind, answer, raw, turn.forced or turn.degraded))


def _completed(
    turn: Turn, kind: m.OutcomeKind, answer: object, raw: str | None, reason: str
) -> m.TurnCompleted:
    return m.TurnCompleted(
        turn=turn.run.turn,
        kind=kind,
        answer=answer,
        raw_response=raw,
        reason=reason,
        iterations=turn.iterations,
        requests=turn.requests,
        tool_calls=turn.records,
        usage=turn.usage,
        untold=turn.untold,
    )
