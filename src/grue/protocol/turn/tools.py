"""The part of the turn's state machine that follows a reply: its tool calls are judged, sent and settled.

The rules for the calls of a reply, besides those in `tool_loop.py` and, for decisions, `tools/policy.py`:

- A call that is not made gets a note in the trace. The notes about calls that are rejected or denied before
  any is sent are recorded in the order of the reply's calls.
- A call that an earlier process has sent, and that became a task, is neither asked about nor counted again.
- If no person decides now, the turn is parked. A resumed turn judges the reply again. If the definition of a
  tool has changed, a question about its call is asked again, and a call that needs no approval is not made.
- When a call has started a server (`RunTurn.when_called`), the tools that the server lists replace those that
  the model was offered, if any tool differs. The session (`actors/mcp_session.py`) does not send calls of
  changed tools, and the next request offers the new list.
- If such a server does not start, calls of its tools are answered with the reason, and the turn goes on
  without these tools; or the turn fails, if `FailurePolicy.first_connect` is `raise` for this server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice, takewhile

from msgspec.structs import replace

from grue import messages as m
from grue.policies import ApprovalDecision, ApprovalQuestion
from grue.protocol.context.history import Items
from grue.protocol.tools import calls as tool_calls
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.policy import Decisions, Judged, definition_digest, judge, judged, question_about
from grue.protocol.tools.policy import settled as settled_decisions
from grue.protocol.tools.results import NOT_AS_DECIDED
from grue.protocol.turn import states as s
from grue.protocol.turn.asking import ask, force
from grue.protocol.turn.end import answers_at_end, close, fail, progress, with_calls_ended
from grue.protocol.turn.states import CallNotes, Commands, Notes, Phase, Transition, Turn, without

_LOOK_AHEAD = 32  # how many unsent runs are looked at to find one whose server is idle


def _placed(state: s.AwaitingApproval) -> tuple[s.PlacedNote, ...]:
    notes = {note.call_id: note for note in state.noted}
    made = {each.call.call_id for each in state.open}
    placed: list[s.PlacedNote] = []
    settled = len(state.settled)
    for call_id in state.calls:
        settled += call_id in made
        if call_id in notes:
            placed.append(s.PlacedNote(settled, notes[call_id]))
    return tuple(placed)


def _send_runs(state: s.AwaitingTools, notes: CallNotes = ()) -> Transition:
    """Start servers, and send the runs that need not wait. If no call is left, go on with the turn."""
    state, starts = _start_called(state)
    due = tuple(each.note for each in takewhile(lambda each: each.settled <= len(state.settled), state.noted))
    state = replace(state, noted=state.noted[len(due) :])
    if notes and due:
        place = {call_id: number for number, call_id in enumerate(state.calls)}
        notes = tuple(sorted((*notes, *due), key=lambda note: place[note.call_id]))
    commands: list[m.TurnCommand | m.TurnNote] = [*(notes or due), *starts]
    while (run := _next_run(state)) is not None:
        state, command = _sent(state, run)
        commands.append(command)
    if state.under_way or state.starting:
        return state, tuple(commands)
    following, more = _after_tools(state)
    return following, (*commands, *more)


def _next_run(state: s.AwaitingTools) -> tool_calls.Run | None:
    """Return the `Run` of calls to send now; `None`: no run is unsent, or each has to wait.

    A run waits for its server to start and for the runs before it. But of consecutive parallel runs, only
    those at the same server wait for each other, because a session makes one run's calls at a time.
    """
    if not all(batch.parallel for batch in state.under_way):
        return None
    busy = {*state.starting, *state.turn.unstarted, *(batch.server for batch in state.under_way)}
    for before, run in enumerate(state.unsent[:_LOOK_AHEAD], len(state.under_way)):
        if run.server not in busy and (run.parallel or not before):
            return run
        if not run.parallel:
            return None
    return None


def called_first(state: s.AwaitingTools, event: m.ConnectOutcome) -> Transition:
    """Go on after a server, started for a tool call, has become ready or has failed to start."""
    match event:
        case m.SessionOpened():
            offered, turn = state.turn, with_report(state.turn, event)
            changed = changed_tools(offered.tools, tool_calls.without_doubles(turn.tools)[0])
            if not changed and not event.serves_unlisted:
                turn = replace(turn, tools=offered.tools, relisted=offered.relisted)
            verified = m.ToolsVerified(request=turn.requests, changed=changed, server=event.server)
            state = replace(state, turn=turn, starting=without(state.starting, event.server))
            following, commands = _send_runs(state)
            return following, (verified, *commands)
        case m.McpDisabled(server=server, reason=reason):
            turn = replace(with_report(state.turn, event), batches=state.turn.batches + 1)
            state = replace(state, turn=turn, starting=without(state.starting, server))
            answer = tool_results.NOT_STARTED.format(server=server, reason=reason)
            state, notes = _skip_unsent(state, answer, m.BatchId(turn.batches), of=server)
            return _send_runs(state, notes)
        case _:
            turn, notes = with_calls_ended(state, without(state.starting, event.server))
            return fail(turn, event.failure, notes)


def _sent(state: s.AwaitingTools, run: tool_calls.Run) -> tuple[s.AwaitingTools, m.CallTools]:
    turn = replace(state.turn, batches=state.turn.batches + 1)
    number = m.BatchId(turn.batches)
    pending = tuple(call.call_id for call in run.calls)
    under_way = (*state.under_way, s.Batch(number, run.server, pending, run.parallel))
    limits, policy = turn.run.limits, turn.run.policy
    command = m.CallTools(
        server=run.server,
        batch=number,
        calls=run.calls,
        timeout_s=limits.tool_call_timeout_s,
        after_timeout="continue" if policy.after_timeout == "continue" else "skip",
    )
    return replace(state, turn=turn, under_way=under_way, unsent=without(state.unsent, run)), command


def settle(state: s.AwaitingTools, event: m.Settlement) -> Transition:
    """Record how a call ended, and send the next calls. After the last call, go on with the turn."""
    call_id = event.call_id
    settled = tool_calls.record_settlement(state.calls[call_id], state.turn.iterations, event)
    if call_id in state.changed:
        settled = replace(settled, changed_arguments=state.changed[call_id])
    left = (
        replace(each, pending=without(each.pending, call_id)) if each.number == event.batch else each
        for each in state.under_way
    )
    under_way = tuple(each for each in left if each.pending)
    state = replace(state, under_way=under_way, settled=(*state.settled, settled))
    notes: CallNotes = ()
    match event:
        case m.ServerDied():
            state, notes = _skip_unsent(state, tool_results.SKIPPED_AFTER_DEATH, event.batch)
            state = replace(state, died=event.server)
        case m.ToolTimedOut() if state.turn.run.policy.after_timeout != "continue":
            state, notes = _skip_unsent(state, tool_results.SKIPPED_AFTER_TIMEOUT, event.batch)
            state = replace(state, timed_out=True)
    return _send_runs(state, notes)


def _skip_unsent(
    state: s.AwaitingTools, reason: str, batch: m.BatchId, *, of: m.ServerName | None = None
) -> tuple[s.AwaitingTools, CallNotes]:
    left = tuple(run for run in state.unsent if of not in (None, run.server))
    skipped = (run for run in state.unsent if of in (None, run.server))
    sent_before = {call.call_id: call.task is not None for run in skipped for call in run.calls}
    # Calls that an earlier process has sent come last: old traces have this order, and must replay.
    ids = sorted((call_id for call_id in state.calls if call_id in sent_before), key=sent_before.__getitem__)
    answer = {False: reason, True: tool_results.INTERRUPTED}
    unmade = (
        tool_calls.Unmade(state.calls[call_id], answer[sent_before[call_id]], "skipped") for call_id in ids
    )
    notes, records = tool_calls.answer_unmade(unmade, state.turn.iterations, batch)
    return replace(state, unsent=left, settled=(*state.settled, *records)), notes


def _after_tools(state: s.AwaitingTools) -> Transition:
    by_id = {record.call_id: record for record in state.settled}
    records = tuple(by_id[call_id] for call_id in state.calls)
    turn, new = state.turn.tell(records)
    policy = turn.run.policy
    used_up = turn.iterations >= turn.run.limits.max_tool_iterations
    if state.died is not None:
        if policy.after_death == "reconnect" and not turn.reconnected and not used_up:
            return s.AwaitingReconnect(turn, state.died, new), (m.CloseSession(server=state.died),)
        return force(turn, "server_died", new)
    if state.timed_out and policy.after_timeout == "force":
        return force(turn, "tool_timeout", new)
    if used_up:
        return force(turn, "max_iterations", new)
    if turn.budget_reached:
        return force(turn, "budget", new)
    # Perhaps no tool is left: servers may have removed their tools during the turn, or failed to start.
    return ask(turn, "loop" if turn.can_call else "only", new)


TOO_LATE = "it came after the question was closed"


def call(turn: Turn, calls: tuple[m.ToolCall, ...], resumed: m.Resumption | None = None) -> Transition:
    """Judge the calls of a reply: ask a person about them, send them, or answer them without a server.

    `resumed`: how the turn was resumed, if it was parked or killed before all these calls were settled.
    """
    settled = () if resumed is None else resumed.parked.settled
    definitions = {} if resumed is None else resumed.parked.definitions
    done = {record.call_id for record in settled}
    tasks = turn.open_tasks
    left = tuple(call for call in calls if call.call_id not in done and call.call_id not in tasks)
    valid, rejected = tool_calls.read_calls(
        left, turn.callable, turn.unlisted, offered=turn.offered, missing=turn.missing
    )
    before = turn.used
    judged = [*valid]
    if turn.run.tool_policy.rules:
        terms, used = judge(turn.run.tool_policy, (each.tool for each in valid), turn.used)
        turn = replace(turn, used=used)
        judged = [replace(each, terms=found) for each, found in zip(valid, terms, strict=True)]
    judged += (tool_calls.open_call(call, tasks[call.call_id]) for call in calls if call.call_id in tasks)
    place = {call.call_id: number for number, call in enumerate(calls)}
    judged.sort(key=lambda each: place[each.call.call_id])
    unmade = [*rejected]
    made: list[tool_calls.ValidCall] = []
    for each in judged:
        if _is_outdated(each, definitions):
            unmade.append(tool_calls.Unmade(each.call, f"Tool call failed: {NOT_AS_DECIDED}"))
        elif each.terms.verdict == "deny":
            unmade.append(tool_calls.Unmade(each.call, each.terms.reason, "denied"))
        else:
            made.append(each)
    unmade.sort(key=lambda each: each.settlement == "denied")  # traces contain this order
    notes, records = tool_calls.answer_unmade(unmade, turn.iterations, m.BatchId(turn.batches + 1))
    state = s.AwaitingApproval(
        turn=turn,
        calls={call.call_id: call for call in calls},
        open=tuple(made),
        earlier=settled,
        settled=(*settled, *records),
        used_before=before,
    )
    state, at_once = _noted(state, notes)
    return _ask(state, () if resumed is None else resumed.decisions, at_once)


def _noted(state: s.AwaitingApproval, notes: CallNotes) -> tuple[s.AwaitingApproval, CallNotes]:
    """Store the notes in `state`. In the replay of an old trace, return them instead, to be recorded now."""
    if not state.turn.run.binds_calls:
        return state, notes
    return replace(state, noted=(*state.noted, *notes)), ()


def _is_outdated(each: tool_calls.ValidCall, definitions: Mapping[str, str]) -> bool:
    """Return whether a call is not made because its tool has changed; `False` if a person is asked first."""
    made_for = definitions.get(each.tool.name)
    if made_for is None or each.terms.verdict == "ask" or each.task is not None:
        return False
    return made_for != definition_digest(each.tool)


def _ask(state: s.AwaitingApproval, decisions: tuple[ApprovalDecision, ...], notes: Notes) -> Transition:
    """Ask about each call that still needs a decision. If no call needs one, go on to send the calls."""
    # A decision counts even if the policy has changed since the question and allows the call now.
    answered = frozenset(each.call_id for each in decisions)
    accepted, ignored = settled_decisions(_questions(state, answered), decisions)
    state = replace(state, questions=_without(_questions(state), accepted), decisions=accepted)
    notes = (*notes, *ignored)
    if not state.questions:
        return _send(state, notes)
    return state, (*notes, m.AskApproval(questions=state.questions))


def decide(state: s.AwaitingApproval, event: m.CallsDecided) -> Transition:
    """Add the decisions in `event`. If each question now has a decision, send the calls."""
    accepted, ignored = settled_decisions(state.questions, event.decisions, state.decisions)
    state = replace(state, questions=_without(state.questions, accepted), decisions=accepted)
    return (state, ignored) if state.questions else _send(state, ignored)


def ignore(event: m.CallsDecided) -> tuple[m.DecisionIgnored, ...]:
    """Return the notes about decisions that came too late."""
    return tuple(
        m.DecisionIgnored(call_id=m.CallId(each.call_id), reason=TOO_LATE) for each in event.decisions
    )


def park(state: s.AwaitingApproval, event: m.ApprovalPostponed) -> Transition:
    """Close the sessions, and end the turn with a `TurnParked`, from which a later process resumes it."""
    return close(state.turn, parked_at_questions(state, event.expires_at))


def parked_at_questions(state: s.AwaitingApproval, expires_at: float | None = None) -> m.TurnParked:
    """Return the `TurnParked` with all that a later process needs to ask the questions again and go on."""
    turn, calls, questions = state.turn, state.calls, _questions(state)
    definitions = tool_calls.definitions_of(calls.values(), turn.callable, turn.unlisted)
    if turn.resuming is not None and turn.run.binds_parked:
        # Only the tools in the questions are decided on as they are now; the others, as they were before.
        asked = {question.name for question in questions}
        earlier = turn.resuming.parked.definitions
        definitions |= {name: digest for name, digest in earlier.items() if name not in asked}
    return replace(
        progress(turn),
        questions=questions,
        calls=tuple(calls.values()),
        settled=state.earlier,
        expires_at=expires_at,
        used={**state.used_before},
        definitions=definitions,
        untold=answers_at_end(turn, calls, state.earlier, calls.keys() - turn.open_tasks.keys()),
    )


def _questions(
    state: s.AwaitingApproval, answered: frozenset[str] = frozenset()
) -> tuple[ApprovalQuestion, ...]:
    """Return a question about each call that needs approval, or whose id is in `answered`."""
    show = state.turn.run.show_schemas
    return tuple(
        question_about(each.call.call_id, each.tool, each.arguments, each.terms.reason, show_schema=show)
        for each in state.open
        if each.terms.verdict == "ask" or each.call.call_id in answered
    )


def _without(questions: tuple[ApprovalQuestion, ...], decided: Decisions) -> tuple[ApprovalQuestion, ...]:
    return tuple(question for question in questions if question.call_id not in decided)


def _send(state: s.AwaitingApproval, notes: Notes) -> Transition:
    """Begin to make a reply's calls. If there is no call to make, go on as after the last call."""
    turn = state.turn
    approved: list[tool_calls.ValidCall] = []
    denied: list[tool_calls.Unmade] = []
    # A call that an earlier process has sent keeps the arguments that a person chose for it in that process.
    tasks = turn.open_tasks.items()
    changed = {name: task.changed_arguments for name, task in tasks if task.changed_arguments is not None}
    for each in state.open:
        decision = state.decisions.get(each.call.call_id)
        found = Judged() if decision is None else judged(decision)
        if found.denied:
            denied.append(tool_calls.Unmade(each.call, found.denied, "denied"))
        elif found.changed is None:
            approved.append(each)
        else:
            approved.append(replace(each, arguments=found.changed))
            changed[each.call.call_id] = found.changed
    denials, records = tool_calls.answer_unmade(denied, turn.iterations, m.BatchId(turn.batches + 1))
    state = replace(state, open=tuple(approved), settled=(*state.settled, *records))
    state, at_once = _noted(state, denials)
    runs = tool_calls.runs_of(approved, bind=turn.run.binds_calls)
    if not runs:
        # No batch is sent, but the notes about the calls that are not made have used the next batch's number.
        turn = replace(turn, batches=turn.batches + 1)
    placed, tools = _placed(state), turn.callable
    following, commands = _send_runs(
        s.AwaitingTools(
            turn, state.calls, (), runs, state.settled, changed=changed, tools=tools, noted=placed
        )
    )
    return following, (*notes, *at_once, *commands)


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
    """Go on after the reply to a request that offered tools. `turn` counts the reply's tokens already."""
    if reply.tool_calls:
        meant = tuple(map(turn.meant, reply.tool_calls))
        return call(replace(turn, iterations=turn.iterations + 1), meant)
    seen = "thoughts and nothing else" if reply.reasoning else ""
    if reply.written is not None:
        seen = f"a tool call written as text ({reply.written})"
    iteration = turn.iterations + 1
    unusable = m.ReplyUnusable(finish_reason=reply.finish_reason, iteration=iteration, seen=seen)
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
        batch = m.BatchId(turn.batches + 1)
        answer, why = tool_results.SKIPPED_TOO_LATE, "it calls tools, which are no longer available"
        if turn.missing and phase == "only":
            answer = f"not called: {turn.degraded}"
            why = f"it calls tools, and there are none: {turn.degraded}"
        unmade = (tool_calls.Unmade(each, answer, "skipped") for each in reply.tool_calls)
        notes, records = tool_calls.answer_unmade(unmade, turn.iterations, batch)
        turn, new = replace(turn, batches=batch).tell(records)
        return refuse(turn, phase, m.NoAnswer(reason=why, raw=reply.content), new=new, notes=notes)
    why = _why_not(reply)
    if not why and _has_text(reply.content):
        return _check(turn, phase, reply)
    if reply.written is not None and phase == "repair":
        why += RUN_THEM
    return refuse(turn, phase, _no_answer(reply, why or "the reply was empty"))


def _no_answer(reply: m.CompletionReceived, reason: str) -> m.NoAnswer:
    return m.NoAnswer(reason=reason, raw=reply.refusal or reply.content, stopped=reply.stopped)


def _why_not(reply: m.CompletionReceived) -> str:
    """Return why a reply cannot be the turn's answer; empty: its text may be the answer."""
    if reply.stopped:
        return STOPPED.format(why=reply.stopped)
    if reply.written is not None:
        return WRITTEN.format(written=reply.written)
    if reply.refusal and not _has_text(reply.content):
        return DECLINED.format(words=reply.refusal)
    return ""


def _check(turn: Turn, phase: Phase, reply: m.CompletionReceived) -> Transition:
    text = reply.content or ""
    state = s.AwaitingVerdict(turn, phase, text, cut=reply.finish_reason == "length")
    return state, (m.CheckAnswer(content=text),)


def refuse_answer(state: s.AwaitingVerdict, reason: str) -> Transition:
    """Ask for a repair, or end the turn, because the host has refused a reply's text."""
    reason = CUT.format(reason=reason) if state.cut else reason
    return refuse(state.turn, state.phase, m.NoAnswer(reason=reason, raw=state.content))


def _has_text(content: str | None) -> bool:
    return bool(content and content.strip())


def refuse(turn: Turn, phase: Phase, why: m.NoAnswer, *, new: Items = (), notes: Notes = ()) -> Transition:
    """Ask the model to repair its answer, once in a turn, or end the turn with the fallback or a failure."""
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
        requests=turn.requests + turn.sampled,
        tool_calls=turn.records,
        usage=turn.usage,
        untold=turn.untold,
    )


def open_session(run: m.RunTurn, server: m.ServerName) -> m.OpenSession:
    """Return the command that opens a session."""
    return m.OpenSession(
        server=server, turn=run.turn, timeout_s=run.limits.startup_timeout_s(server), policy=run.policy
    )


def with_unstarted(turn: Turn) -> Turn:
    """Add to the turn the known tools of those servers that start only when they are called."""
    offered = {listing.server: listing.tools for listing in turn.run.when_called}
    return replace(turn.relist(offered), unstarted=tuple(offered)) if offered else turn


def with_report(turn: Turn, event: m.SessionOpened | m.McpDisabled) -> Turn:
    """Return the turn with an opened session and its tools, or with a disabled server noted as missing."""
    if isinstance(event, m.SessionOpened):
        turn = turn.relist({event.server: event.tools})
        unlisted = (event.server,) if event.serves_unlisted else ()
        return replace(
            turn, open=(*turn.open, event.server), serving_unlisted=(*turn.serving_unlisted, *unlisted)
        )
    missing = f"no tools from '{event.server}': {event.why}"
    return replace(
        turn.relist({event.server: ()}),
        degraded=f"{turn.degraded.removesuffix('.')}; {missing}" if turn.degraded else missing,
        missing={**turn.missing, event.server: event.why},
    )


def changed_tools(offered: Iterable[m.ToolDefinition], listed: Iterable[m.ToolDefinition]) -> tuple[str, ...]:
    """Return the names of tools that differ between the lists, whatever their order."""
    before = {tool.name: tool for tool in offered}
    now = {tool.name: tool for tool in listed}
    return tuple(name for name in {**before, **now} if before.get(name) != now.get(name))


def _start_called(state: s.AwaitingTools) -> tuple[s.AwaitingTools, Commands]:
    """Start the servers that unsent calls wait for, at most `TurnLimits.starts_at_once` at a time."""
    turn = state.turn
    called = dict.fromkeys(run.server for run in state.unsent if run.server in turn.unstarted)
    room = max(1, turn.run.limits.starts_at_once) - len(state.starting)
    names = tuple(islice(called, max(0, room)))
    unstarted = tuple(server for server in turn.unstarted if server not in names)
    state = replace(state, turn=replace(turn, unstarted=unstarted), starting=(*state.starting, *names))
    return state, tuple(open_session(turn.run, name) for name in names)
