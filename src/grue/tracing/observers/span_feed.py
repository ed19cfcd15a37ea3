"""Turn trace envelopes into spans: when each begins and ends, which span contains it, and how it ended.

An envelope belongs to the turn of the envelope that caused it; without a cause (a deadline, a crash), to the
latest open turn that has its turn number. A session that was opened outside a turn is a child of the episode,
and the calls that the host makes in it are children of the session, or of the turn that has just ended if the
host records them with its number. For any sequence of envelopes:
- Each span that is opened is closed exactly once, after everything inside it, except for a host's calls in a
  turn that has ended.
- A call that was sent has a span (`ToolUse`). A call that was not sent has only a `SpanNoted`.
- A turn has one `ToolSession`, from its first request that offers tools, if there is one, to its end.
- A completion or call that is open when its turn ends is closed without an outcome. So is a turn without a
  recorded end, because its agent crashed or the episode ended first: at the time of its last envelope.
- A host's `EpisodeEnded` decides how the episode ended. If a host recorded only the beginning, the episode
  was cut off. Without a host's facts, it ended as its last turn did, or was cut off if a turn is still open.
- Times never run backwards: each is the first envelope's wall clock plus the monotonic time since then.

Source: P31-32
"""

from collections.abc import Hashable
from typing import Any

from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tools.built_in import named_call
from grue.protocol.tools.calls import record_settlement
from grue.runtime.actor import ActorFailed
from grue.runtime.trace.recorder import Envelope
from grue.tracing.facts import EpisodeEnded, EpisodeResumed, EpisodeStarted
from grue.tracing.message_words import Verdict, crash_verdict, note_of
from grue.tracing.observers import spans
from grue.tracing.observers.conversations import AsSent, Conversations
from grue.tracing.steps import StepBegan, StepTracker
from grue.tracing.turn_slices import OwnMessages


class SpanScope:
    """The open spans and the state of a running turn, or of a session that was opened outside a turn."""

    def __init__(self, turn: int, command: m.RunTurn | m.OpenSession) -> None:
        self.turn = turn
        self.command = command
        self.root = self.session = spans.SpanId(0)
        self.last_at = 0.0
        self.envelopes: list[int] = []
        self.open: dict[spans.SpanId, spans.SpanOpened] = {}
        self.steps = StepTracker()
        self.spans: dict[Hashable, spans.SpanId] = {}
        self.names: dict[m.CallId, str] = {}
        self.timeouts: dict[tuple[m.ServerName, int], float] = {}
        self.servers: dict[m.ServerName, m.SessionOpened] = {}
        self.descriptions: dict[tuple[m.ServerName, str], str] = {}
        self.asks = m.ModelAsked(model="")
        self.conversation = ""
        self.finish_reason: str | None = None
        self.iteration = 0
        self.replies_with_calls = 0
        self.sent = 0
        self.crash: ActorFailed | None = None

    @property
    def innermost(self) -> spans.SpanId:
        """The parent span of generations and tool calls: the tool session or, without one, the turn."""
        return self.session or self.root

    def summary(self, end: m.TurnCompleted | m.TurnFailed | None) -> spans.SessionSummary:
        """Return the totals of this tool session. `end`: how its turn ended; `None`: unknown, or parked."""
        answer = end.answer if isinstance(end, m.TurnCompleted) else None
        return spans.SessionSummary(
            iterations_used=self.replies_with_calls if end is None else end.iterations,
            tools_called=self.sent,
            final_action=answer.get("action") if isinstance(answer, dict) else answer,
        )


_NO_TURN = (0, spans.SpanId(0))


class SpanFeed:
    """Turn the envelopes of one episode into spans. A host's fact may replace `episode_id`."""

    def __init__(self, episode_id: str = "") -> None:
        self._episode_id = episode_id
        self._asks = m.ModelAsked(model="")
        self._conversations = Conversations()
        self._own = OwnMessages()
        self._sent: AsSent | None = None
        self._episode: spans.SpanOpened | None = None
        self._announced = False
        self._asked: m.RunTurn | None = None
        self._answered: m.TurnCompleted | None = None
        self._last = spans.CUT_OFF
        self._ended_turn = _NO_TURN
        self._scopes: list[SpanScope] = []
        self._scope_of: dict[int, SpanScope] = {}
        self._spans = 0
        self._epoch: float | None = None
        self._now = 0.0
        self._events: list[spans.SpanEvent] = []

    def feed(self, envelope: Envelope[Any]) -> list[spans.SpanEvent]:
        """Read the next envelope. Return the events that it causes, such as `SpanOpened`, in order."""
        self._events = []
        if self._epoch is None:
            self._epoch = envelope.at - envelope.t
        self._now = max(self._now, self._epoch + envelope.t)
        self._sent = self._conversations.see(envelope)
        # `take` returns `None` for a copied message, which makes no spans. But later spans need its data.
        envelope = self._own.take(envelope) or envelope
        body = envelope.body
        match body:
            case EpisodeStarted() | EpisodeResumed() | EpisodeEnded():
                self._take_host_fact(body)
            case m.RunTurn() if not envelope.copied:
                self._begin_turn(envelope, body)
            case _:
                scope = self._find(envelope)
                if scope is None and isinstance(body, m.OpenSession) and not envelope.copied:
                    scope = self._begin(envelope, body, spans.ToolSession(servers=(body.server,)))
                    scope.session = scope.root
                elif scope is not None:
                    self._assign(envelope, scope)
                    self._take(scope, envelope)
        return self._events

    def finish(self) -> list[spans.SpanEvent]:
        """End all spans that are still open, and return the events that end them."""
        self._events = []
        self._end_episode(None)
        return self._events

    # --- Episodes, turns and sessions ---

    def _take_host_fact(self, fact: EpisodeStarted | EpisodeResumed | EpisodeEnded) -> None:
        if isinstance(fact, EpisodeEnded):
            self._end_episode(fact)
            return
        self._end_episode(None)
        self._episode_id = fact.episode_id
        if isinstance(fact, EpisodeStarted):
            self._asks = m.ModelAsked(model=fact.model)
        self._begin_episode(fact if isinstance(fact, EpisodeStarted) else None)
        self._announced = True

    def _begin_episode(self, started: EpisodeStarted | None) -> spans.SpanId:
        subject = spans.Episode(episode_id=self._episode_id, started=started)
        self._episode = self._open(None, subject, None)
        self._announced = False
        self._asked = self._answered = None
        self._ended_turn = _NO_TURN
        self._last = spans.CUT_OFF
        return self._episode.span

    def _end_episode(self, ended: EpisodeEnded | None) -> None:
        verdict = spans.CUT_OFF if self._announced or self._scopes else self._last
        for scope in list(self._scopes):
            self._abandon(scope)
        if self._episode is not None:
            outcome = spans.EpisodeSummary(ended=ended, asked=self._asked, answered=self._answered)
            verdict = verdict if ended is None else spans.verdict_of(ended)
            opened = self._episode
            self._events.append(spans.SpanClosed(opened.span, self._now, opened.subject, outcome, verdict))
            self._episode = None

    def _begin(
        self, envelope: Envelope[Any], command: m.RunTurn | m.OpenSession, subject: spans.Subject
    ) -> SpanScope:
        parent = self._begin_episode(None) if self._episode is None else self._episode.span
        scope = SpanScope(envelope.turn, command)
        scope.conversation = self._episode_id
        if isinstance(command, m.RunTurn):
            self._asks = command.asks or self._asks
            if command.history is not None:
                scope.conversation = command.history.conversation
        scope.asks = self._asks
        self._scopes.append(scope)
        self._assign(envelope, scope)
        scope.root = self._open(scope, subject, parent).span
        return scope

    def _begin_turn(self, envelope: Envelope[Any], command: m.RunTurn) -> None:
        for crashed in [scope for scope in self._scopes if scope.crash is not None]:
            self._abandon(crashed)
        self._begin(envelope, command, command)
        self._asked = self._asked or command

    def _abandon(self, scope: SpanScope) -> None:
        """End a turn whose end is not recorded, at the time of its last envelope."""
        verdict = spans.CUT_OFF if scope.crash is None else crash_verdict(scope.crash)
        self._end_scope(scope, scope.last_at, None, verdict)

    def _end_scope(
        self, scope: SpanScope, at: float, end: m.TurnCompleted | m.TurnFailed | None, verdict: Verdict
    ) -> None:
        for outer in [each.span for each in scope.open.values() if each.parent not in scope.open]:
            if outer != scope.root:  # a call whose parent span is a turn that has ended
                self._close(scope, outer, at, None, spans.CUT_OFF)
        if scope.session:
            self._close(scope, scope.session, at, scope.summary(end), verdict)
        self._close(scope, scope.root, at, end, verdict)
        self._last = verdict
        if isinstance(scope.command, m.RunTurn):
            self._ended_turn = (scope.turn, scope.root)
        if isinstance(end, m.TurnCompleted):
            self._answered = end
        self._scopes.remove(scope)
        for number in scope.envelopes:  # a search of all `_scope_of` would take too long
            del self._scope_of[number]

    # --- Messages within a turn or a session ---

    def _find(self, envelope: Envelope[Any]) -> SpanScope | None:
        if envelope.cause in self._scope_of:
            return self._scope_of[envelope.cause]
        turns = (scope for scope in reversed(self._scopes) if isinstance(scope.command, m.RunTurn))
        turn = next((scope for scope in turns if scope.turn == envelope.turn), None)
        if turn is not None:
            return turn
        # No open turn fits. The message may belong to a session that the host opened outside turns.
        sessions = {
            scope.command.server: scope for scope in self._scopes if isinstance(scope.command, m.OpenSession)
        }
        server = getattr(envelope.body, "server", m.ServerName(""))
        if server in sessions or isinstance(envelope.body, m.OpenSession):
            return sessions.get(server)
        return next((scope for scope in [*sessions.values()][::-1] if scope.turn == envelope.turn), None)

    def _assign(self, envelope: Envelope[Any], scope: SpanScope) -> None:
        self._scope_of[envelope.seq] = scope
        scope.envelopes.append(envelope.seq)
        scope.last_at = self._now

    def _take(self, scope: SpanScope, envelope: Envelope[Any]) -> None:
        if not envelope.copied:
            self._take_steps(scope, envelope)
        body = envelope.body
        match body:
            case m.IterationStarted(iteration=iteration, max_iterations=most):
                scope.iteration = iteration
                if not scope.session and isinstance(scope.command, m.RunTurn):
                    session = spans.ToolSession(servers=scope.command.servers, max_iterations=most)
                    scope.session = self._open(scope, session, scope.root).span
            case m.CompletionReceived(tool_calls=calls):
                scope.names.update({call.call_id: call.name for call in map(named_call, calls)})
                scope.replies_with_calls += bool(calls)
            case m.CallTools(server=server, batch=batch, timeout_s=timeout_s):
                scope.timeouts[server, batch] = timeout_s
            case m.SessionOpened(server=server, tools=tools):
                scope.servers[server] = body
                scope.descriptions.update({(server, each.tool): each.description for each in tools})
            case m.ToolsChanged(server=server, tools=tools):
                scope.descriptions.update({(server, each.tool): each.description for each in tools})
            case m.ToolSupportChecked(model=model, endpoint=endpoint):
                self._learn(scope, model, endpoint)
            case m.TurnCompleted():
                self._end_scope(scope, self._now, body, spans.verdict_of(body))
            case m.TurnParked():
                self._end_scope(scope, self._now, None, Verdict("warning", "parked", "waits for an approval"))
            case m.TurnFailed(failure=failure):
                if isinstance(failure, m.LlmFailure | m.ToolsUnsupported):
                    self._learn(scope, failure.model, failure.endpoint)
                verdict = spans.verdict_of(body) if scope.crash is None else crash_verdict(scope.crash)
                self._end_scope(scope, self._now, body, verdict)
            case _ if not envelope.copied:
                self._note(scope, envelope)
                self._outside_turns(scope, body)

    def _learn(self, scope: SpanScope, model: str, endpoint: str) -> None:
        """Store the model and endpoint that a message names, unless the turn's `RunTurn` has named them."""
        if not scope.asks.address:
            self._asks = scope.asks = replace(scope.asks, model=model, address=endpoint)

    def _outside_turns(self, scope: SpanScope, body: object) -> None:
        """End the span of a session outside turns if `body` says that the session ended."""
        if isinstance(scope.command, m.RunTurn):
            return
        match body:
            case m.SessionClosed():
                self._end_scope(scope, self._now, None, Verdict())
            case m.StartupFailed(failure=failure):
                self._end_scope(scope, self._now, None, Verdict("error", "server_failed", failure.cause))
            case m.McpDisabled(reason=reason):
                self._end_scope(scope, self._now, None, Verdict("error", "mcp_disabled", reason))

    def _note(self, scope: SpanScope, envelope: Envelope[Any]) -> None:
        if isinstance(envelope.body, ActorFailed):
            scope.crash = scope.crash or envelope.body
        note = note_of(envelope.body)
        if note is None:
            return
        span = scope.spans.get(("model", envelope.cause), scope.innermost)
        name = scope.names.get(getattr(envelope.body, "call_id", m.CallId("")))
        facts = note.facts if name is None else {**note.facts, "tool_name": name}
        self._events.append(
            spans.SpanNoted(span=span, at=self._now, name=note.name, verdict=note.verdict, facts=facts)
        )

    def _take_steps(self, scope: SpanScope, envelope: Envelope[Any]) -> None:
        self._change_asked(scope, envelope)
        for change in scope.steps.take(envelope):
            step = change.step
            if isinstance(change, StepBegan):
                if step.attempt == 1 and step.kind == "model":
                    scope.spans[step.key] = self._open_generation(scope, step.began)
                elif step.kind == "tool":
                    scope.spans[step.key] = self._open_use(scope, step.began)
            elif change.reported and not change.retried and step.key in scope.spans:
                self._close_step(scope, scope.spans.pop(step.key), envelope.body)

    def _close_step(self, scope: SpanScope, span: spans.SpanId, end: Any) -> None:
        if isinstance(end, m.ReplyDropped):
            self._close(scope, span, self._now, None, spans.DROPPED)
            return
        opened = scope.open[span]
        match opened.subject:
            case spans.ToolUse() as use:
                request_id, code = getattr(end, "request_id", ""), getattr(end, "error_code", None)
                scope.open[span] = replace(
                    opened, subject=replace(use, request_id=request_id, error_code=code)
                )
            case spans.Generation(asked_by="agent") if isinstance(end, m.CompletionReceived):
                scope.finish_reason = end.finish_reason
        outcome = _outcome(opened.subject, end)
        self._close(scope, span, self._now, outcome, spans.verdict_of(outcome))

    def _change_asked(self, scope: SpanScope, envelope: Envelope[Any]) -> None:
        """Record that the LLM actor has changed a setting of the request, such as `max_tokens`."""
        match envelope.body:
            case m.SettingsLeftOut(settings=names):
                changed: m.JsonObject = dict.fromkeys(names)
                self._asks = scope.asks = _with_sampling(scope.asks, changed)
            case m.ReplyCut(retried_with=int() as limit):
                changed = {"max_tokens": limit}
            case _:
                return
        span = scope.spans.get(("model", envelope.cause))
        opened = None if span is None else scope.open.get(span)
        if opened is not None and isinstance(opened.subject, spans.Generation):
            asks = _with_sampling(opened.subject.asks, changed)
            scope.open[opened.span] = replace(opened, subject=replace(opened.subject, asks=asks))

    def _open_generation(self, scope: SpanScope, asked: Envelope[Any]) -> spans.SpanId:
        request: m.RequestCompletion = asked.body
        subject = spans.Generation(
            request=request,
            asks=scope.asks,
            sent=self._sent or AsSent(said=request.new, fresh=len(request.new), message=asked.seq),
            asked_by=asked.sender,
        )
        return self._open(scope, subject, self._asked_by(scope, asked.sender)).span

    def _asked_by(self, scope: SpanScope, sender: str) -> spans.SpanId:
        """Return the parent span of a request to the model. For sampling, it is the server's tool call."""
        for span in scope.open.values():
            if isinstance(span.subject, spans.ToolUse) and span.subject.server == sender:
                return span.span
        return scope.innermost

    def _open_use(self, scope: SpanScope, began: Envelope[Any]) -> spans.SpanId:
        called: m.ToolCalled = began.body
        server, tool = called.server, called.tool
        opened = scope.servers.get(server)
        scope.sent += 1
        use = spans.ToolUse(
            call_id=called.call_id,
            name=scope.names.get(called.call_id, f"{server}.{tool}"),
            server=server,
            tool=tool,
            arguments=called.arguments,
            timeout_s=scope.timeouts.get((server, called.batch)),
            iteration=scope.iteration,
            protocol_version="" if opened is None else opened.protocol_version,
            description=scope.descriptions.get((server, tool), ""),
            address="" if opened is None else opened.address,
            message=began.seq,
        )
        return self._open(scope, use, self._called_by(scope, began.turn)).span

    def _called_by(self, scope: SpanScope, turn: int) -> spans.SpanId:
        """Return the parent span of a tool call. `turn` is the turn number in the call's envelope."""
        number, span = self._ended_turn
        outside = isinstance(scope.command, m.OpenSession) and turn != scope.turn
        return span if outside and turn == number else scope.innermost

    # --- Spans ---

    def _open(
        self, scope: SpanScope | None, subject: spans.Subject, parent: spans.SpanId | None
    ) -> spans.SpanOpened:
        """Begin a span; `scope` is `None` for an episode."""
        self._spans += 1
        opened = spans.SpanOpened(
            span=spans.SpanId(self._spans),
            parent=parent,
            at=self._now,
            turn=0 if scope is None else scope.turn,
            subject=subject,
            conversation=self._episode_id if scope is None else scope.conversation,
            asks=None if scope is None else scope.asks,
        )
        self._events.append(opened)
        if scope is not None:
            scope.open[opened.span] = opened
        return opened

    def _close(
        self, scope: SpanScope, span: spans.SpanId, at: float, outcome: spans.Outcome | None, verdict: Verdict
    ) -> None:
        for inner in [opened.span for opened in scope.open.values() if opened.parent == span]:
            self._close(scope, inner, at, None, spans.CUT_OFF)
        opened = scope.open.pop(span, None)
        if opened is not None:
            finish = scope.finish_reason if isinstance(opened.subject, m.RunTurn) else None
            self._events.append(spans.SpanClosed(span, at, opened.subject, outcome, verdict, finish))


def _with_sampling(asks: m.ModelAsked, changed: m.JsonObject) -> m.ModelAsked:
    """Return `asks` with changed sampling settings; the value `None` removes a setting."""
    sampling = {name: value for name, value in {**asks.sampling, **changed}.items() if value is not None}
    return replace(asks, sampling=sampling)


def _outcome(
    subject: spans.Subject, end: Any
) -> m.CompletionReceived | m.CompletionFailed | m.ToolCallRecord:
    if isinstance(subject, spans.ToolUse):
        call = m.ToolCall(call_id=end.call_id, name=subject.name, arguments="")
        return record_settlement(call, subject.iteration, end)
    reply: m.CompletionReceived | m.CompletionFailed = end
    return reply
