"""The part of the turn's machine that reads replies: tool calls, an answer, a refusal, or nothing usable.

Come here to change what a reply leads to, when a repair is requested, or when the fallback is used.
`tool_loop.step` calls these functions; they are pure.
"""

from msgspec.structs import replace

from grue.messages import (
    BatchId,
    CheckAnswer,
    CompletionReceived,
    ConversationItem,
    FellBack,
    NoAnswer,
    OutcomeKind,
    RepairRequested,
    ReplyUnusable,
    TurnCompleted,
    TurnNote,
    UserText,
)
from grue.protocol import tool_results
from grue.protocol.tool_calls import skip
from grue.protocol.turn_approval import call
from grue.protocol.turn_asking import ask, force
from grue.protocol.turn_end import close, fail
from grue.protocol.turn_states import AwaitingVerdict, Phase, Transition, Turn

DECLINED = "the model declined to answer: {words}"


def loop_reply(turn: Turn, reply: CompletionReceived) -> Transition:
    """Go on after the reply to a request that offered tools; the caller has counted its tokens."""
    if reply.tool_calls:
        return call(replace(turn, iterations=turn.iterations + 1), reply.tool_calls)
    if _has_text(reply.content):
        return _check(turn, "loop", reply.content)
    if reply.refusal:
        return refuse(turn, "loop", DECLINED.format(words=reply.refusal), raw=reply.refusal)
    unusable = ReplyUnusable(finish_reason=reply.finish_reason, iteration=turn.iterations + 1)
    return force(turn, "no_content", (), (unusable,))


def final_reply(turn: Turn, phase: Phase, reply: CompletionReceived) -> Transition:
    """Go on after the reply to a request that offered no tools."""
    if reply.tool_calls:
        return _refuse_calls(turn, phase, reply)
    if _has_text(reply.content):
        return _check(turn, phase, reply.content)
    if reply.refusal:
        return refuse(turn, phase, DECLINED.format(words=reply.refusal), raw=reply.refusal)
    return refuse(turn, phase, "the reply was empty", raw=reply.content)


def _check(turn: Turn, phase: Phase, content: str | None) -> Transition:
    """Ask the host whether `content` is an answer."""
    text = content or ""
    return AwaitingVerdict(turn, phase, text), (CheckAnswer(content=text),)


def _has_text(content: str | None) -> bool:
    return bool(content and content.strip())


def _refuse_calls(turn: Turn, phase: Phase, reply: CompletionReceived) -> Transition:
    """Answer the tool calls of a reply to a request that offered no tools, without making the calls."""
    batch = BatchId(turn.batches + 1)
    notes, records = skip(reply.tool_calls, turn.iterations, batch, tool_results.SKIPPED_TOO_LATE)
    turn, new = replace(turn, batches=batch).tell(records)
    why = "it calls tools, which are no longer available"
    return refuse(turn, phase, why, raw=reply.content, new=new, notes=notes)


def refuse(
    turn: Turn,
    phase: Phase,
    reason: str,
    *,
    raw: str | None,
    new: tuple[ConversationItem, ...] = (),
    notes: tuple[TurnNote, ...] = (),
) -> Transition:
    """Ask for a repair, once in a turn; after that use the fallback, or fail."""
    if phase != "repair" and not turn.budget_spent:
        text = UserText(turn.run.repair_request.replace("{reason}", reason))
        return ask(turn, "repair", (*new, text), notes=(*notes, RepairRequested(reason=reason)))
    if phase != "repair":
        reason = f"{reason} (the budget leaves no second try)"
    if turn.run.fallback is None:
        return fail(turn, NoAnswer(reason=reason, raw=raw), notes)
    end = _completed(turn, "fallback", turn.run.fallback, raw, reason)
    return close(turn, end, (*notes, FellBack(reason=reason, raw_response=raw)))


def complete(turn: Turn, answer: object, raw: str) -> Transition:
    """End the turn with the answer that the host accepted."""
    kind: OutcomeKind = "forced" if turn.forced else "degraded" if turn.degraded else "answered"
    return close(turn, _completed(turn, kind, answer, raw, turn.forced or turn.degraded))


def _completed(turn: Turn, kind: OutcomeKind, answer: object, raw: str | None, reason: str) -> TurnCompleted:
    return TurnCompleted(
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
