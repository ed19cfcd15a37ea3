"""Turn trace envelopes into log events: which message makes which event, with which text and fields.

`EventFeed` takes the envelopes of an episode in order and returns the events that each one makes. It does no
I/O; `json_log`, `episode_log` and `python_log` write what it returns. If the requirements name an event,
its text and fields are theirs too.

The settlement of a tool call decides its events. Each call that was sent has one `mcp_tool_call`. Each
settlement has the events of its row in the table. Each failure, that is, each tool message with an error, has
exactly one failure event:

| settlement                | completion        | failure            |
|---------------------------|-------------------|--------------------|
| returned a result         | `mcp_tool_result` |                    |
| returned an error         | `mcp_tool_result` | `mcp_tool_error`   |
| timed out                 |                   | `mcp_tool_timeout` |
| server died               |                   | `mcp_tool_error`   |
| rejected, never sent      |                   | `mcp_tool_error`   |
| skipped, never sent       |                   | `mcp_tool_skipped` |

A turn in which tools were on offer has one `mcp_session_started`, with its first request, and one
`mcp_session_complete`, with its end, whose `tool_calls_count` and `tools_used` count the calls that were
sent.

Source: R7.1-3, P21, P28-30
"""

from typing import Any, TypeAlias, assert_never

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tools.lock import drift_text
from grue.runtime.supervisor import ActorFailed
from grue.runtime.trace.recorder import Envelope
from grue.tracing.facts import EpisodeEnded, EpisodeResumed, EpisodeStarted, Fact
from grue.tracing.observers.event import Event, Moment

_FORCED = {
    "max_iterations": "the last tool iteration",
    "no_content": "a reply without content",
    "tool_timeout": "tool timeout",
    "server_died": "the server's death",
    "budget": "reaching the budget",
}
_CALL_FAILED = "Tool call failed: "
_CALL_SKIPPED = "Tool call skipped: "


class _Call(Struct, frozen=True):
    """A tool call of the latest reply; `name` is canonical, `arguments` are the model's text."""

    name: str
    server: str
    arguments: str = ""


_Connecting: TypeAlias = (
    m.RunTurn
    | m.SessionOpened
    | m.McpDisabled
    | m.ConnectFailed
    | m.ServerNoted
    | m.ToolDrifted
    | m.PrewarmLost
    | m.DropCompletion
)
_Calling: TypeAlias = (
    m.CompletionReceived
    | m.ToolCalled
    | m.ToolReturned
    | m.ToolTimedOut
    | m.ServerDied
    | m.ToolRejected
    | m.ToolDenied
    | m.ToolSkipped
)
_OfModel: TypeAlias = (
    m.CompletionRetried
    | m.ReplyCut
    | m.ThoughtsDropped
    | m.SettingsLeftOut
    | m.SchemaIgnored
    | m.CostUncounted
)
_Asking: TypeAlias = (
    m.IterationStarted | _OfModel | m.ReplyUnusable | m.FinalForced | m.RepairRequested | m.FellBack
)
_Ending: TypeAlias = m.TurnCompleted | m.TurnFailed | ActorFailed


class EventFeed:
    """Turn the envelopes of one episode into its events.

    Args:
        episode_id: Carried by every event; `EpisodeStarted` replaces it.
    """

    def __init__(self, episode_id: str = "") -> None:
        self._episode_id = episode_id
        self._attempts: dict[m.ServerName, m.ConnectFailed] = {}
        self._drifted: set[m.ToolDrifted] = set()
        self._begin(())

    def _begin(self, servers: tuple[m.ServerName, ...]) -> None:
        self._expected = set(servers)
        self._open: set[m.ServerName] = set()
        self._newly_disabled = False
        self._iteration = 0
        self._used: list[str] = []
        self._begin_reply(())

    def _begin_reply(self, calls: tuple[m.ToolCall, ...]) -> None:
        self._calls: dict[str, _Call] = {
            call.call_id: _Call(call.name, call.name.partition(".")[0], call.arguments) for call in calls
        }
        self._broken_by: str | None = None

    def feed(self, envelope: Envelope[Any]) -> list[Event]:
        """Return the events that `envelope` makes, in order; most make none or one."""
        body = envelope.body
        if isinstance(body, EpisodeStarted | EpisodeResumed):
            self._episode_id = body.episode_id
        turn = envelope.turn or (body.turns if isinstance(body, EpisodeEnded) else getattr(body, "turn", 0))
        moment = Moment(envelope.at, self._episode_id, turn)
        if isinstance(body, _Connecting):
            return self._connecting(moment, body)
        if isinstance(body, _Calling):
            return self._calling(moment, body)
        if isinstance(body, _Asking):
            return self._asking(moment, body)
        if isinstance(body, _Ending):
            return self._ending(moment, body)
        if isinstance(body, Fact):
            return [moment.event(line) for line in body.log_lines()]
        return []

    def _connecting(self, moment: Moment, body: _Connecting) -> list[Event]:
        match body:
            case m.RunTurn(servers=servers):
                self._begin(servers)
            case m.ConnectFailed(server=server, failure=failure, then=then):
                self._attempts[server] = body
                if then == "retry":
                    return [_retrying(moment, server, failure.cause)]
            case m.SessionOpened(server=server, attempt=attempt):
                self._attempts.pop(server, None)
                self._expected.discard(server)
                self._open.add(server)
                if attempt > 1:
                    return [_retried(moment, server, attempt)]
            case m.McpDisabled(server=server, newly=newly):
                self._expected.discard(server)
                self._open.discard(server)
                self._newly_disabled |= newly
                disabled = [self._disabled(moment, body)] if newly else []
                return [*disabled, *self._without_tools(moment)]
            case m.ServerNoted(server=server, kind="bad_tool", text=text):
                ignored = f"MCP server '{server}' lists a tool that cannot be used: {text}"
                return [moment.warning("mcp_bad_tool", ignored, server_name=server, error=text)]
            case m.ServerNoted(server=server, kind="bad_schema", text=text):
                unchecked = f"MCP server '{server}' gives results that are not checked: {text}"
                return [moment.warning("mcp_bad_schema", unchecked, server_name=server, error=text)]
            case m.ServerNoted():
                pass
            case m.ToolDrifted():
                return self._drift(moment, body)
            case m.DropCompletion(reason=reason, request=request):
                message = f"Reply to presumed tools dropped: {reason}"
                return [moment.warning("mcp_reply_dropped", message, request=request, reason=reason)]
            case m.PrewarmLost(server=server, cause=cause):
                lost = f"MCP session prepared ahead was lost, opening another one: {cause}"
                return [moment.warning("mcp_spare_lost", lost, server_name=server, error=cause)]
            case never:
                assert_never(never)
        return []

    def _drift(self, moment: Moment, body: m.ToolDrifted) -> list[Event]:
        """Return a drift event only once per episode, although every session notes it."""
        if body in self._drifted:
            return []
        self._drifted.add(body)
        return [
            moment.warning(
                "mcp_tool_drift",
                f"MCP tool drift: {drift_text(body)}",
                tool_name=f"{body.server}.{body.tool}",
                server_name=body.server,
                change=body.change,
                parts=list(body.parts),
                refused=body.refused,
            )
        ]

    def _disabled(self, moment: Moment, body: m.McpDisabled) -> Event:
        failed = self._attempts.pop(body.server, None)
        error = body.reason if failed is None else failed.failure.cause
        match failed:
            case None:
                what = "MCP disabled for episode"
            case m.ConnectFailed(attempt=1):
                what = "MCP session connect failed, disabling MCP for episode"
            case _:
                what = "MCP retry failed, disabling MCP for episode"
        return moment.warning("mcp_disabled", f"{what}: {error}", server_name=body.server, error=error)

    def _without_tools(self, moment: Moment) -> list[Event]:
        """Return one event when all servers have reported and none is left for the episode."""
        if self._expected or self._open or not self._newly_disabled:
            return []
        self._newly_disabled = False
        return [moment.warning("mcp_disabled_fallback", "MCP disabled, continuing without tools")]

    def _calling(self, moment: Moment, body: _Calling) -> list[Event]:
        match body:
            case m.CompletionReceived(tool_calls=calls):
                self._begin_reply(calls)
                return []
            case m.ToolCalled(server=server, tool=tool, arguments=arguments):
                call = self._calls[body.call_id] = _Call(f"{server}.{tool}", server)
                self._used.append(call.name)
                return [
                    moment.info(
                        "mcp_tool_call",
                        f"MCP tool call: {call.name}",
                        tool_name=call.name,
                        server_name=server,
                        arguments=arguments,
                        iteration=self._iteration,
                    )
                ]
            case m.ToolReturned():
                return self._returned(moment, body)
            case m.ToolTimedOut():
                self._broken_by = "timeout"
                name = self._name(body.call_id)
                message = f"Tool call timeout: {name}"
                return [
                    moment.warning("mcp_tool_timeout", message, tool_name=name, iteration=self._iteration)
                ]
            case m.ServerDied(failure=failure):
                self._broken_by = "server death"
                return [self._failed(moment, self._name(body.call_id), failure.cause)]
            case m.ToolRejected(name=name, error=error):
                return [self._rejected(moment, name, error, body.call_id)]
            case m.ToolDenied(name=name, reason=reason):
                return [self._failed(moment, name, f"denied: {reason}")]
            case m.ToolSkipped(reason=reason, refused=True):
                return [self._rejected(moment, self._name(body.call_id), reason, body.call_id)]
            case m.ToolSkipped():
                return [self._skipped(moment, body)]
            case never:
                assert_never(never)

    def _name(self, call_id: str) -> str:
        call = self._calls.get(call_id)
        return call_id if call is None else call.name

    def _returned(self, moment: Moment, body: m.ToolReturned) -> list[Event]:
        call = self._calls.get(body.call_id, _Call(body.call_id, ""))
        result = body.result
        completion = moment.info(
            "mcp_tool_result",
            f"MCP tool result: {call.name}",
            tool_name=call.name,
            server_name=call.server,
            result_type=type(result.content).__name__,
            result_length=len(str(result.content)),
            is_error=result.is_error,
            duration_ms=round(body.duration_s * 1000, 3),
            iteration=self._iteration,
        )
        if not result.is_error:
            return [completion]
        return [completion, self._failed(moment, call.name, result.error_message or "")]

    def _rejected(self, moment: Moment, name: str, error: str, call_id: str) -> Event:
        """Return the event of a call that was not sent. No `mcp_tool_call` has its arguments."""
        call = self._calls.get(call_id)
        failed = self._failed(moment, name, error)
        if call is None:
            return failed
        return replace(failed, fields={**failed.fields, "arguments": call.arguments})

    def _failed(self, moment: Moment, name: str, error: str) -> Event:
        # The error text may already begin with the same words as the event's text.
        error = error.removeprefix(_CALL_FAILED)
        return moment.warning(
            "mcp_tool_error",
            f"{_CALL_FAILED}{name} - {error}",
            tool_name=name,
            error=error,
            iteration=self._iteration,
        )

    def _skipped(self, moment: Moment, body: m.ToolSkipped) -> Event:
        name = self._name(body.call_id)
        return moment.warning(
            "mcp_tool_skipped",
            f"{_CALL_SKIPPED}{name} - {body.reason.removeprefix('Skipped: ')}",
            tool_name=name,
            reason=body.reason,
            after=self._broken_by,
            iteration=self._iteration,
        )

    def _asking(self, moment: Moment, body: _Asking) -> list[Event]:
        match body:
            case m.IterationStarted(iteration=iteration, max_iterations=most):
                first, self._iteration = self._iteration == 0, iteration
                started = moment.info(
                    "mcp_session_started",
                    f"MCP session started (max {most} iterations)",
                    max_iterations=most,
                )
                asking = moment.info(
                    "mcp_iteration_start",
                    f"Agent tool-calling iteration {iteration}/{most}",
                    iteration=iteration,
                    max_iterations=most,
                )
                return [started, asking] if first else [asking]
            case m.ReplyUnusable(finish_reason=reason, iteration=iteration, seen=seen):
                message = f"LLM returned {seen or 'no content'} and no tool_calls, finish_reason={reason}"
                return [
                    moment.warning("mcp_unexpected_state", message, finish_reason=reason, iteration=iteration)
                ]
            case m.FinalForced(reason=why, iterations=iterations):
                message = f"Agent exited tool loop without content after {iterations} iterations"
                forcing = f"Forcing final action after {_FORCED[why]}"
                return [
                    moment.warning("mcp_no_content", message, iterations=iterations),
                    moment.info("mcp_forced_final", forcing, reason=why, iterations=iterations),
                ]
            case m.RepairRequested(reason=refusal):
                message = f"Agent response refused, asking once more: {refusal}"
                return [moment.warning("agent_repair_requested", message, reason=refusal)]
            case m.FellBack(reason=refusal, raw_response=raw):
                return [_unparsed(moment, refusal, raw)]
            case _:
                return [_of_model(moment, body)]

    def _ending(self, moment: Moment, body: _Ending) -> list[Event]:
        match body:
            case m.TurnCompleted(answer=answer):
                return self._session_complete(moment, body.iterations, _action(answer))
            case m.TurnFailed(failure=failure):
                reason = describe_failure(failure)
                failed = moment.error(
                    "turn_failed", f"Turn failed: {reason}", failure=type(failure).__name__, error=reason
                )
                unparsed = (
                    [_unparsed(moment, failure.reason, failure.raw)]
                    if isinstance(failure, m.NoAnswer)
                    else []
                )
                return [*unparsed, failed, *self._session_complete(moment, body.iterations, None)]
            case ActorFailed(actor=actor, error=error, where=where):
                message = f"Actor '{actor}' crashed: {error}"
                return [moment.error("actor_failed", message, actor=actor, error=error, where=list(where))]
            case never:
                assert_never(never)

    def _session_complete(self, moment: Moment, iterations: int, action: object) -> list[Event]:
        if self._iteration == 0:
            return []
        count = len(self._used)
        return [
            moment.info(
                "mcp_session_complete",
                f"MCP session complete: {iterations} iterations, {count} tool calls",
                iterations=iterations,
                tool_calls_count=count,
                tools_used=sorted(set(self._used)),
                final_action=action,
            )
        ]


def _of_model(moment: Moment, body: _OfModel) -> Event:
    """Return the event of a note of the LLM actor, about a request or its settings."""
    match body:
        case m.CompletionRetried(failure=failure, delay_s=delay_s, attempt=attempt):
            message = f"LLM request failed, trying again in {delay_s:.1f}s: {failure.message}"
            cause = failure.message
            return moment.warning("llm_retry", message, attempt=attempt, delay_s=delay_s, error=cause)
        case m.ReplyCut(limit_tokens=limit, retried_with=larger):
            at = "its length limit" if limit is None else f"{limit} tokens"
            then = "" if larger is None else f", asking once more with {larger}"
            message = f"LLM reply was cut at {at}{then}"
            return moment.warning("llm_reply_cut", message, limit_tokens=limit, retried_with=larger)
        case m.ThoughtsDropped(replies=replies, wire=wire, model=model):
            message = f"LLM {model} is not sent the thoughts of {replies} replies: it cannot read them"
            return moment.warning("llm_thoughts_dropped", message, replies=replies, wire=wire)
        case m.CostUncounted(model=model, endpoint=endpoint, limit_usd=limit_usd):
            message = (
                f"The cost limit of {limit_usd:g} USD has no effect: {endpoint} does not report what"
                f" {model} costs. Set its price under budget.prices"
            )
            return moment.warning("llm_cost_uncounted", message, limit_usd=limit_usd)
        case m.SchemaIgnored(endpoint=endpoint, model=model, request=asked):
            message = f"LLM {model} ({endpoint}) ignored the answer's schema: prompts state it now"
            return moment.warning("llm_schema_ignored", message, request=asked)
        case m.SettingsLeftOut(settings=names, endpoint=endpoint, model=model):
            message = f"LLM {model} ({endpoint}) does not take {' and '.join(names)}: not sent"
            return moment.warning("llm_settings_left_out", message, settings=list(names))
        case never:
            assert_never(never)


def describe_failure(failure: m.TurnFailure) -> str:
    """Return one sentence that says why a turn has no answer; parts of it are untrusted text."""
    match failure:
        case m.ServerFailure(server=server, cause=cause):
            return f"Failed to start MCP server '{server}': {cause}"
        case m.LlmFailure(model=model, message=message):
            return f"no completion from model '{model}': {message}"
        case m.ToolsUnsupported(model=model, reason=reason):
            return f"model '{model}' cannot call tools: {reason}"
        case m.DeadlineMissed(limit_s=limit_s, doing=doing):
            return f"out of time after {limit_s:g}s, {doing}"
        case m.Interrupted(reason=reason):
            return f"interrupted: {reason}"
        case m.NoAnswer(reason=reason):
            return f"no acceptable answer: {reason}"
        case never:
            assert_never(never)


def _action(answer: object) -> object:
    """Return the action of a host's answer object; of another kind of answer, the answer."""
    return answer.get("action") if isinstance(answer, dict) else answer


def _retrying(moment: Moment, server: str, error: str) -> Event:
    message = f"MCP session connect failed, retrying: {error}"
    return moment.warning("mcp_connect_retry", message, server_name=server, error=error)


def _retried(moment: Moment, server: str, attempt: int) -> Event:
    message = "MCP session retry successful"
    return moment.info("mcp_connect_retry_succeeded", message, server_name=server, attempt=attempt)


def _unparsed(moment: Moment, reason: str, raw: str | None) -> Event:
    return moment.error("agent_parse_error", f"Failed to parse agent response: {reason}", raw_response=raw)
