"""Summarise a message in one short line."""

from typing import assert_never

import msgspec

from grue import facts, messages
from grue.protocol.tool_lock import drift_text
from grue.runtime.supervisor import ActorFailed
from grue.tracing.reading import EpisodeBody

_SHORT = 80
_LONG = 200
_SAYS_WHO = {
    "forced": "says the configuration",
    "endpoint": "says its endpoint",
    "client": "says the host's client",
    "name": "going by its name",
}


def telling(body: EpisodeBody) -> str:
    """Return a message's most important fields as text; untrusted text in it is not escaped."""
    return _of_turn(body) or _of_session(body) or _of_call(body) or _of_model(body) or _of_host(body)


def _of_turn(body: EpisodeBody) -> str:
    match body:
        case messages.RunTurn(servers=servers, user=user):
            tools = f"tools from {', '.join(servers)}" if servers else "no tools"
            return f"{tools}; {_quoted(user)}"
        case messages.CheckAnswer(content=content):
            return _quoted(content)
        case messages.AnswerAccepted(answer=answer):
            return _json(answer)
        case messages.AnswerRefused(reason=reason) | messages.RepairRequested(reason=reason):
            return reason
        case messages.FellBack(reason=reason, raw_response=raw):
            return f"{reason}; got {_quoted(raw or '')}"
        case messages.IterationStarted(iteration=iteration, max_iterations=most):
            return f"{iteration} of {most}"
        case messages.FinalForced(reason=why, iterations=iterations):
            return f"{why}, after {iterations} iterations"
        case messages.ReplyUnusable(finish_reason=finish_reason):
            return f"finish_reason {finish_reason}"
        case messages.TurnCompleted():
            because = f" ({body.reason})" if body.reason else ""
            counts = f"{_many(body.requests, 'request')}, {_many(len(body.tool_calls), 'tool call')}"
            return f"{body.kind}{because}: {_json(body.answer)}; {counts}"
        case messages.TurnFailed(failure=failure):
            return _failure(failure)
        case messages.DeadlinePassed(limit_s=limit_s):
            return f"limit {limit_s:g} s"
        case messages.TurnInterrupted(reason=reason):
            return reason
        case ActorFailed(error=error, where=where):
            return f"{error}; at {where[-1]}" if where else error
        case _:
            return ""


def _of_session(body: EpisodeBody) -> str:
    match body:
        case messages.OpenSession(server=server, timeout_s=timeout_s):
            return f"{server}, within {timeout_s:g} s"
        case messages.SessionOpened(server=server, tools=tools, attempt=attempt):
            names = ", ".join(tool.tool for tool in tools)
            again = f", attempt {attempt}" if attempt > 1 else ""
            process = f", pid {body.pid}" if body.pid is not None else ""
            listed = f"{_many(len(tools), 'tool')} ({names})" if tools else "no tools"
            return f"{server}{again}{process}, {_time(body.elapsed_s)}: {listed}"
        case messages.ConnectFailed(attempt=attempt, failure=failure, then=then):
            return f"attempt {attempt}, then {then}: {_failure(failure)}"
        case messages.McpDisabled(server=server, reason=reason, newly=newly):
            return f"{server}{'' if newly else ', since an earlier turn'}: {reason}"
        case messages.ToolsChanged(server=server, tools=tools):
            return f"{server} now lists {_many(len(tools), 'tool')}: {', '.join(tool.tool for tool in tools)}"
        case messages.StartupFailed(failure=failure):
            return _failure(failure)
        case messages.CloseSession(server=server):
            return server
        case messages.SessionClosed(server=server, ending=ending, exit_status=status):
            exited = f", exit status {status}" if status is not None else ""
            return f"{server}, {ending}{exited}, {_time(body.elapsed_s)}"
        case messages.ServerNoted(server=server, kind=kind, text=text):
            return f"{server}, {kind}: {_quoted(text)}"
        case messages.ToolDrifted():
            return drift_text(body)
        case messages.SessionPrewarmed(server=server, pid=pid):
            process = f", pid {pid}" if pid is not None else ""
            return f"{server}{process}, {_time(body.elapsed_s)}"
        case messages.PrewarmLost(server=server, cause=cause):
            return f"{server}: {cause}"
        case messages.ServerEnded(server=server, ending=ending, exit_status=status):
            exited = f", exit status {status}" if status is not None else ""
            return f"{server}, {ending}{exited}, {_time(body.elapsed_s)}"
        case _:
            return ""


def _of_call(body: EpisodeBody) -> str:
    match body:
        case messages.CallTools(server=server, calls=calls):
            return f"{server}: {', '.join(f'{call.call_id} {call.tool}' for call in calls)}"
        case messages.ToolCalled(server=server, call_id=call_id, tool=tool, arguments=arguments):
            return f"{call_id} {server}.{tool} {_json(arguments)}"
        case messages.ToolReturned(call_id=call_id, result=result):
            took = _time(body.duration_s)
            if result.is_error:
                return f"{call_id} error, {took}: {_quoted(result.error_message or '')}"
            return f"{call_id} {took}: {_json(result.content)}"
        case messages.ToolTimedOut(call_id=call_id, timeout_s=timeout_s):
            return f"{call_id} after {timeout_s:g} s"
        case messages.ToolSkipped(call_id=call_id, reason=reason):
            return f"{call_id}: {reason}"
        case messages.ServerDied(call_id=call_id, failure=failure):
            return f"{call_id}: {_failure(failure)}"
        case messages.ToolRejected(call_id=call_id, name=name, error=error):
            return f"{call_id} {name}: {error}"
        case _:
            return ""


def _of_model(body: EpisodeBody) -> str:
    match body:
        case messages.CheckToolSupport():
            return "can the model call tools?"
        case messages.ToolSupportChecked(model=model, supported=supported, by=by, reason=reason):
            can = "can call tools" if supported else "cannot call tools"
            return f"{model} {can}, {_SAYS_WHO[by]}{f': {reason}' if reason else ''}"
        case messages.RequestCompletion(request=request, new=new, mode=mode):
            wants = "tools on offer" if isinstance(mode, messages.OfferTools) else "an answer, no tools"
            return f"request {request}: {wants}, {_many(len(new), 'new item')}"
        case messages.CompletionReceived(content=content, tool_calls=calls, usage=usage):
            said = [f"{call.call_id} {call.name} {_short(call.arguments)}" for call in calls]
            if content:
                said.insert(0, _quoted(content))
            tokens = f"{usage.input_tokens}+{usage.output_tokens} tokens"
            return f"{'; '.join(said) or 'nothing'} ({tokens}, {_time(body.elapsed_s)})"
        case messages.CompletionFailed(failure=failure):
            return _failure(failure)
        case messages.CompletionRetried(attempt=attempt, delay_s=delay_s, failure=failure):
            return f"attempt {attempt}, again in {delay_s:.1f} s: {_failure(failure)}"
        case messages.ReplyCut(limit_tokens=limit, retried_with=larger):
            most = "the endpoint's limit" if limit is None else f"{limit} tokens"
            then = "taken as it is" if larger is None else f"again with {larger}"
            return f"request {body.request} cut at {most}, {then}"
        case messages.TextDelta(restart=True):
            return f"request {body.request} begins anew: what came of its reply is void"
        case messages.TextDelta(text=text, part=part):
            return f"{'' if part == 'content' else f'{part} '}{_quoted(text, strip=False)}"
        case _:
            return ""


def _of_host(body: EpisodeBody) -> str:
    match body:
        case facts.EpisodeStarted(game=game, model=model, seed=seed, servers=servers):
            by = f"{model} (scripted)" if body.scripted else model
            tools = f"tools from {', '.join(servers)}" if servers else "no tools"
            return f"{body.episode_id}: {game}, played by {by}, seed {seed}, {tools}"
        case facts.EpisodeResumed(episode_id=episode_id, turns=turns, changes=changes):
            changed = "".join(f"; {each.what}: {each.before} -> {each.now}" for each in changes)
            return f"{episode_id} goes on after {_many(turns, 'finished turn')}{changed}"
        case facts.McpInitialized(server=server, ignored=ignored):
            return f"{server}; ignored: {', '.join(ignored)}" if ignored else server
        case facts.McpInitFailed(error=error):
            return error
        case facts.Observed(text=text, location=location, score=score):
            return (
                f"{location or 'somewhere'}, score {'unknown' if score is None else score}: {_quoted(text)}"
            )
        case facts.Decided(action=action, kind=kind):
            return f"{_quoted(action)} ({kind}{', ' + body.reason if body.reason else ''})"
        case facts.Remembered(location=location, text=text):
            return f"{location}: {_quoted(text)}"
        case facts.EpisodeEnded(reason=reason, detail=detail, turns=turns):
            return f"{reason} after {_many(turns, 'turn')}: {detail}"
        case _:
            return ""


def _failure(failure: messages.TurnFailure) -> str:
    match failure:
        case messages.ServerFailure(server=server, phase=phase, cause=cause):
            return f"{server}, {phase}: {cause}"
        case messages.LlmFailure(kind=kind, message=message, status=status):
            return f"{kind}{f' {status}' if status is not None else ''}: {message}"
        case messages.ToolsUnsupported(model=model, reason=reason):
            return f"{model} cannot call tools: {reason}"
        case messages.DeadlineMissed(limit_s=limit_s, doing=doing):
            return f"out of time after {limit_s:g} s, {doing}"
        case messages.Interrupted(reason=reason):
            return f"interrupted: {reason}"
        case messages.NoAnswer(reason=reason):
            return f"no answer: {reason}"
        case never:
            assert_never(never)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _json(value: object) -> str:
    return _short(msgspec.json.encode(value).decode(), _LONG)


def _quoted(text: str, *, strip: bool = True) -> str:
    return f'"{_short(text.strip() if strip else text)}"'


def _short(text: str, limit: int = _SHORT) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
