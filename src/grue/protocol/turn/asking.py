"""The part of the turn's state machine that asks the model, and makes prompts fit into the context window."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, TypeVar

from msgspec.structs import replace

from grue import messages as m
from grue.policies import ContextItem, ContextOverflow, ContextPolicy, ForceReason
from grue.protocol.context import fit
from grue.protocol.context.history import Items, Mode
from grue.protocol.tools.built_in import READ_RESULT
from grue.protocol.tools.calls import without_doubles
from grue.protocol.tools.names import is_built_in
from grue.protocol.tools.results import READ_ON, is_referred
from grue.protocol.turn.end import fail
from grue.protocol.turn.states import AwaitingCompletion, AwaitingSummary, Commands, Phase, Transition, Turn


def ask(turn: Turn, phase: Phase, new: Items, notes: Commands = ()) -> Transition:
    """Add `new` to the conversation and send the next request. Shorten the history first, if necessary."""
    doubles: Commands = ()
    if phase == "loop":
        tools, doubles = without_doubles(turn.tools)
        turn = _searching(replace(turn, tools=tools))
    if turn.ledger is None:
        return _send(turn, phase, new, (*notes, *doubles))
    policy, _ = _kept(turn)
    may_summarise = turn.summaries < policy.max_summaries and not turn.budget_reached
    if _unread(turn.run):
        # A summary replaces all entries. Request none while the entries include what the model has not read.
        may_summarise = may_summarise and len(turn.ledger.items) - turn.ledger.current <= 1
    return _send_fitted(turn, phase, new, (*notes, *doubles), may_summarise=may_summarise)


def _send_fitted(turn: Turn, phase: Phase, new: Items, notes: Commands, *, may_summarise: bool) -> Transition:
    turn, fitted = _make_room(turn, new, may_summarise=may_summarise)
    notes = (*notes, *_rewrite(turn, fitted.cleared, "window"))
    if fitted.summarise:
        turn = replace(turn, requests=turn.requests + 1, summaries=turn.summaries + 1)
        words = min(int((turn.window or 0) / _SUMMARY_SHARE * _WORDS_PER_TOKEN), _MOST_WORDS)
        text = m.UserText(_kept(turn)[0].summary_request.replace("{words}", str(words)))
        request = _request(turn, (text,), m.RequireAnswer(), aside=True)
        return AwaitingSummary(turn, phase, new), (*notes, request)
    last = tuple(item for item in fitted.new if isinstance(item, m.ToolMessage))
    # The user text is the turn's task: without its `stub`, this turn cannot clear it.
    stays = (replace(item, stub="") if isinstance(item, m.UserText) else item for item in fitted.new)
    turn = replace(turn, ledger=fitted.ledger.say(stays, _named(turn, new)), last=last)
    return _send(turn, phase, fitted.new, notes)


def _send(turn: Turn, phase: Phase, new: Items, notes: Commands) -> Transition:
    turn, mode = _mode(replace(turn, requests=turn.requests + 1, told=()), phase)
    if phase == "loop":
        most = turn.run.limits.max_tool_iterations
        notes = (*notes, m.IterationStarted(iteration=turn.iterations + 1, max_iterations=most))
    return AwaitingCompletion(turn, phase), (*notes, _request(turn, new, mode))


def _mode(turn: Turn, phase: Phase) -> tuple[Turn, Mode]:
    if phase != "loop":
        return turn, m.RequireAnswer(turn.run.answer)
    stated = turn.run.answer if turn.run.states_answer else None
    mode = m.OfferTools(turn.offered if turn.relisted else None, stated)
    return replace(turn, relisted=False), mode


def _request(turn: Turn, new: Items, mode: Mode, *, aside: bool = False) -> m.RequestCompletion:
    return m.RequestCompletion(
        conversation=turn.run.conversation,
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
    return (m.RewriteHistory(conversation=turn.run.conversation, change=change, reason=reason),)


def summarised(state: AwaitingSummary, event: m.CompletionReceived | m.CompletionFailed) -> Transition:
    """Put the summary, if it came, in place of older history, and send the request that waited for it."""
    turn = state.turn.count(event.usage)
    notes: Commands
    match event:
        case m.CompletionFailed(failure=failure):
            notes = (m.SummaryFailed(reason=failure.message),)
        case m.CompletionReceived(stopped="", content=str(text)) if text.strip():
            turn, change = _with_summary(turn, text)
            notes = _rewrite(turn, change, "window")
        case _:
            stopped = f"the provider stopped the reply before its end ({event.stopped})"
            notes = (m.SummaryFailed(reason=stopped if event.stopped else "the reply has no text"),)
    return _send_fitted(turn, state.phase, state.new, notes, may_summarise=False)


def refused(state: AwaitingCompletion, event: m.CompletionFailed) -> Transition:
    """Ask again, once in a turn, with a shorter history if the request was too long; else fail the turn."""
    turn, overflow = state.turn.count(event.usage), event.failure.overflow
    changes: tuple[m.Cleared | m.Shortened, ...] = ()
    if turn.ledger is not None and overflow is not None and not (turn.overflowed or turn.budget_spent):
        turn, changes = _after_overflow(turn, overflow)
    if not changes:
        return fail(turn, event.failure)
    turn, mode = _mode(replace(turn, overflowed=True, requests=turn.requests + 1), state.phase)
    rewrites = (rewrite for change in changes for rewrite in _rewrite(turn, change, "overflow"))
    return AwaitingCompletion(turn, state.phase), (*rewrites, _request(turn, (), mode))


def force(turn: Turn, reason: ForceReason, new: Items, notes: Commands = ()) -> Transition:
    """Ask for the final answer, because of `reason`; no later request offers tools."""
    turn = replace(turn, forced=reason)
    forced = m.FinalForced(reason=reason, iterations=turn.iterations)
    return ask(turn, "forced", (*new, m.UserText(turn.run.final_request)), notes=(*notes, forced))


SUMMARY = "Summary of the conversation so far, which takes its place:\n{summary}"

_SUMMARY_SHARE = 10  # a summary may fill one tenth of the context window
_WORDS_PER_TOKEN = 0.7
_MOST_WORDS = 2000
_WINDOW = 128_000  # the context window, in tokens, that is assumed for `ToolSearch.above` if none is known


def begun(run: m.RunTurn) -> Turn:
    """Return the `Turn` at the beginning of `run`."""
    turn = Turn(run=run, media_bytes=sum(image.bytes for image in run.images))
    if run.references == "now" and run.servers:
        turn = turn.referring()
    if run.context is None:
        return turn
    ledger = fit.ContextLedger(bytes_per_token=run.context.bytes_per_token)
    if run.earlier:
        head, *items = run.earlier
        ledger = replace(ledger, head=head, items=tuple(items), current=len(items) - _unread(run))
    return replace(turn, ledger=ledger, window=run.context.window_tokens)


def _unread(run: m.RunTurn) -> int:
    return 0 if run.resumed is None else run.resumed.unread


def heard(turn: Turn, reply: m.CompletionReceived) -> Turn:
    """Count a reply's usage, and enter the sizes of the reply and its prompt in `turn.ledger`."""
    turn = turn.count(reply.usage)
    if turn.ledger is None:
        return turn
    ledger = turn.ledger.counted(reply.prompt_tokens)
    # `usage` counts all tries of a request, `prompt_tokens` only the last try. If the input tokens differ,
    # `usage.output_tokens` may include earlier tries. Then pass 0, so that the ledger estimates the output.
    output = reply.usage.output_tokens if reply.prompt_tokens == reply.usage.input_tokens else 0
    if turn.run.binds_calls:
        # `output` may include thoughts, which often are not sent back: limit it to the estimate without them.
        output = min(output, ledger.reply_item(reply.content, reply.tool_calls).tokens)
    return replace(turn, ledger=ledger.reply(reply.content, reply.tool_calls, output))


def _searching(turn: Turn) -> Turn:
    search = turn.run.tool_search
    if search is None or turn.searching:
        return turn
    if search.above >= 1:
        many = sum(not is_built_in(tool) for tool in turn.tools) > search.above
    else:
        ledger = turn.ledger or fit.ContextLedger()
        many = ledger.offer(turn.tools).tools.tokens > search.above * (turn.window or _WINDOW)
    return replace(turn, searching=True, relisted=True) if many else turn


def _make_room(turn: Turn, new: Items, *, may_summarise: bool) -> tuple[Turn, fit.Fit]:
    policy, ledger = _kept(turn)
    if turn.relisted:
        ledger = ledger.offer(turn.offered)
    turn = replace(turn, ledger=ledger)
    if turn.window is None:
        return turn, fit.Fit(ledger=ledger, new=new)
    room = fit.room_in(policy, turn.window)
    named = _named(turn, new)
    found = fit.fit(ledger, new, room, _stubs(turn), named, may_summarise=may_summarise)
    turn = replace(turn, ledger=found.ledger)
    pairs = zip(new, found.new, strict=True)
    cut = {item.call_id for whole, item in pairs if isinstance(item, m.ToolMessage) and item != whole}
    if turn.run.references != "never" and (cut or (found.cleared is not None and found.cleared.results)):
        turn = turn.referring()
    return turn, replace(found, new=tuple(_with_handle(turn, item, cut, named) for item in found.new))


def _with_summary(turn: Turn, summary: str) -> tuple[Turn, m.Summarised]:
    """Replace the history by `summary`, but keep its first entry, the turn's user text and the last reply."""
    _, ledger = _kept(turn)
    items = [m.UserText(SUMMARY.format(summary=summary.strip()))]
    # Repeat the user text, unless it is in the first entry, or in the request that waits for the summary.
    if turn.run.earlier and turn.requests > turn.summaries:
        items += [item for item in turn.opening if isinstance(item, m.UserText)]
    sizes = tuple(ContextItem(tokens=ledger.item_of(item, {}).tokens) for item in items)
    ledger = replace(ledger, items=(*sizes, *ledger.items[ledger.current :]), current=len(sizes))
    return replace(turn, ledger=ledger), m.Summarised(tuple(items))


def _after_overflow(
    turn: Turn, overflow: ContextOverflow
) -> tuple[Turn, tuple[m.Cleared | m.Shortened, ...]]:
    """Shorten a history that was refused as too long. A request for a summary would be too long too."""
    policy, ledger = _kept(turn)
    ledger = ledger.counted(overflow.prompt_tokens or 0)
    windows = [size for size in (overflow.window_tokens, turn.window) if size is not None]
    window = min(windows, default=ledger.tokens)
    room = fit.room_in(policy, window)
    if _unread(turn.run) and not turn.last:
        # A resumed turn does not have the texts of its newest results, so it clears what it cannot cut.
        ledger = replace(ledger, current=len(ledger.items))
    ledger, cleared = fit.clear(ledger.scaled_to(room.high), room.low, _stubs(turn))
    cleared = cleared or m.Cleared()
    if ledger.tokens > room.low:
        ledger, shorter = fit.cut_last(ledger, turn.last, room.low)
        named, cut = _named(turn, turn.last), {result.call_id for result in shorter}
        shorter = tuple(_with_handle(turn, result, cut, named) for result in shorter)
        cleared = replace(cleared, results=(*cleared.results, *shorter))
    changes: tuple[m.Cleared | m.Shortened, ...] = () if cleared == m.Cleared() else (cleared,)
    if ledger.tokens > room.high:
        shortened = fit.without_oldest(ledger, room.low)
        if shortened is not None:
            ledger, share = shortened
            changes = (*changes, m.Shortened(share))
    if turn.run.references != "never" and cleared.results:
        turn = turn.referring()
    return replace(turn, ledger=ledger, window=window), changes


def _kept(turn: Turn) -> tuple[ContextPolicy, fit.ContextLedger]:
    assert turn.run.context is not None, "only a turn with a policy keeps a ledger"
    assert turn.ledger is not None, "a turn with a policy keeps a ledger"
    return turn.run.context, turn.ledger


def _stubs(turn: Turn) -> fit.StubFor:
    policy, _ = _kept(turn)
    offered = {tool.name: tool for tool in turn.tools}

    def stub_for(item: ContextItem) -> str:
        handle = item.call_id if _has_handle(turn, item.tool) else ""
        return fit.stub_of(item.tool, policy, offered, plain=turn.run.plain_results, handle=handle)

    return stub_for


def _has_handle(turn: Turn, tool: str) -> bool:
    return turn.run.references != "never" and tool != READ_RESULT.name


Item = TypeVar("Item", bound=m.ConversationItem)


def _with_handle(turn: Turn, item: Item, cut: Collection[m.CallId], named: Mapping[str, str]) -> Item:
    if not isinstance(item, m.ToolMessage) or item.call_id not in cut:
        return item
    if not _has_handle(turn, named.get(item.call_id, "")) or is_referred(item.content, item.call_id):
        return item
    return replace(item, content=f"{item.content}\n[cut to save room{READ_ON.format(handle=item.call_id)}]")


def _named(turn: Turn, new: Items) -> dict[str, str]:
    """Return the tool names of the calls whose results are in `new`, by call id."""
    answers = sum(isinstance(item, m.ToolMessage) for item in new)
    return {record.call_id: record.name for record in turn.records[len(turn.records) - answers :]}
