"""Turn trace envelopes into spans for Langfuse and OpenTelemetry, and events in them (`SpanNoted`).

```
Episode
├─ RunTurn
│  ├─ ToolSession, from the first request that offers tools to the turn's end
│  │  ├─ Generation, for each completion that the agent asks for
│  │  └─ ToolUse, for each call that was sent to its server
│  │     └─ Generation, for each completion that the server asks for (sampling)
│  ├─ Generation, for a completion before the first offer of tools, or in a turn without tools
│  └─ ToolUse, for each call that the host makes after the turn, and records with the turn's number, or that
│     a resumed turn makes before its first request
└─ ToolSession, which the host opens outside turns
   └─ ToolUse, for each other call that the host makes in it
```

An envelope belongs to the turn or session of its cause. If this turn or session is over, or the envelope has
no cause (a deadline, a crash), `SpanFeed._find` looks for an open turn with the envelope's turn number, and
then for a session outside turns. For any sequence of envelopes:
- Each span that is opened is closed exactly once, at the latest by `finish`, and after everything inside it,
  except for a host's calls in a turn that has ended.
- A completion or call that is open when its turn ends is closed without an outcome. So is a turn whose end is
  not recorded, because its agent crashed or the episode ended first; it ends at its last envelope's time.
- A host's `EpisodeEnded` decides how the episode ended. If a host recorded that the episode began or was
  resumed, but no end, it was cut off. Without a host's facts, the episode ended as its last turn or session
  did; if a turn or session is still open, it was cut off.
- The time of an envelope is the first one's wall clock plus the monotonic time since then, or the time of the
  envelope before it if that is later.

Source: P31-32
"""

from collections import deque
from collections.abc import Hashable
from typing import Any, NewType, TypeAlias, assert_never

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.context.history import History, SaidStep, items_of, take_step
from grue.protocol.tools.built_in import named_call
from grue.protocol.tools.calls import record_settlement
from grue.runtime.actor import ActorFailed
from grue.runtime.trace.recorder import Envelope
from grue.tracing.facts import EpisodeEnded, EpisodeResumed, EpisodeStarted
from grue.tracing.message_words import Verdict, crash_verdict, failure_words, note_of
from grue.tracing.steps import StepBegan, StepTracker
from grue.tracing.turn_slices import OwnMessages

MOST_NUMBERS = 10_000  # of the last messages of a session outside turns, which may last for weeks
MOST_KEPT = 100  # most conversations kept when a turn ends; the least recently used go first


class AsSent(Struct, frozen=True):
    """The conversation up to a request to the model, with the request's messages."""

    said: tuple[m.ConversationItem | m.AssistantReply, ...]  # oldest first
    fresh: int  # how many messages at the end of `said` are new in this request
    missing: int = 0  # how many earlier entries of the history are not in `said`
    tools: tuple[m.ToolDefinition, ...] = ()
    answer: m.AnswerSchema | None = None  # the schema that the request demands, if it demands one
    message: int = 0  # number of the `RequestCompletion` in the trace


class _Talk:
    def __init__(self, missing: int = 0) -> None:
        self.history = History()
        self.missing = missing
        self.tools: tuple[m.ToolDefinition, ...] = ()

    def take(self, step: SaidStep) -> None:
        """Apply `step`. If the trace lacks messages before it, count all earlier entries as missing."""
        try:
            take_step(self.history, step)
        except ValueError:
            self.missing += len(self.history.entries)
            self.history = History()
            if isinstance(step, m.RequestCompletion):
                self.history.restore(m.Said(step.new))


class Conversations:
    """The conversations of an episode. Call `see` with each envelope in order."""

    def __init__(self) -> None:
        self._talks: dict[m.ConversationId, _Talk] = {}
        self._of_turn: dict[int, m.ConversationId] = {}
        self._of_request: dict[int, m.ConversationId] = {}

    def see(self, envelope: Envelope[Any]) -> AsSent | None:
        """Read the next envelope. If it is a request to the model, return what was sent; otherwise `None`."""
        body, cause = envelope.body, envelope.cause or 0
        match body:
            case m.RunTurn():
                self._of_turn[envelope.seq] = self._begin(body)
            case m.RequestCompletion():
                return self._ask(envelope.seq, body)
            case m.DropCompletion(conversation=name):
                self._of_request[envelope.seq] = name
            case m.CompletionReceived() | m.ReplyDropped() if cause in self._of_request:
                self._talk(self._of_request.pop(cause)).take(body)
            case m.CompletionFailed():
                self._of_request.pop(cause, None)
            case m.HistoryRewritten(conversation=name) | m.RewriteHistory(conversation=name):
                self._talk(name).take(body)
            case m.TurnCompleted() | m.TurnFailed() if cause in self._of_turn:
                self._end(self._of_turn.pop(cause), body)
        return None

    def _begin(self, run: m.RunTurn) -> m.ConversationId:
        past = run.history
        name = run.conversation
        known = self._talks.pop(name, None)
        if known is None or (run.resumed is None and not (past and past.length)):
            known = _Talk(missing=0 if past is None else past.length)
        elif run.resumed is None:
            known.history.close(None)
        known.take(run)
        self._talks[name] = known
        return name

    def _ask(self, seq: int, request: m.RequestCompletion) -> AsSent:
        talk = self._talk(request.conversation)
        if isinstance(request.mode, m.OfferTools) and request.mode.tools is not None:
            talk.tools = request.mode.tools
        if request.aside:
            said = (*items_of(talk.history.entries), *request.new)
        else:
            talk.take(request)
            said = items_of(talk.history.entries)
            self._of_request[seq] = request.conversation
        return AsSent(
            said=said,
            fresh=min(len(said), len(request.new)),
            missing=talk.missing,
            tools=talk.tools if isinstance(request.mode, m.OfferTools) else (),
            answer=request.mode.answer if isinstance(request.mode, m.RequireAnswer) else None,
            message=seq,
        )

    def _end(self, name: m.ConversationId, end: m.TurnCompleted | m.TurnFailed) -> None:
        """Add a turn's end to its conversation. Forget a conversation that no later turn continues."""
        self._talk(name).take(end)
        if name == f"turn-{end.turn}":
            self._talks.pop(name, None)
        while len(self._talks) > MOST_KEPT:
            del self._talks[next(iter(self._talks))]

    def _talk(self, name: m.ConversationId) -> _Talk:
        # The conversation of a server's request (sampling), for example, is not in `_talks`.
        return self._talks.get(name) or _Talk()


SpanId = NewType("SpanId", int)  # number of a span in its feed, from 1


class Episode(Struct, frozen=True, kw_only=True):
    """An episode, or its part after a resumption. `started`: the recorded start, if it has one."""

    episode_id: str
    started: EpisodeStarted | None = None


class ToolSession(Struct, frozen=True, kw_only=True):
    """The part of a turn from the first offer of tools on, or a session that was opened outside turns."""

    servers: tuple[m.ServerName, ...]
    max_iterations: int | None = None  # `None` outside turns


class Generation(Struct, frozen=True, kw_only=True):
    """One completion."""

    request: m.RequestCompletion
    asks: m.ModelAsked  # its texts are empty while they are unknown
    sent: AsSent
    asked_by: str = "agent"  # the agent, or a server that samples


class ToolUse(Struct, frozen=True, kw_only=True):
    """One call that was sent to its server."""

    call_id: m.CallId
    name: str  # the tool's name with its server's, such as `files.read`
    server: m.ServerName
    tool: str
    arguments: m.JsonObject
    timeout_s: float | None = None
    iteration: int = 0  # number of the reply with the call, among replies with calls; 0 outside turns
    protocol_version: str = ""  # empty: the server does not speak MCP, or its start is not in the trace
    description: str = ""  # the server's text; untrusted
    address: str = ""  # the URL of a server over HTTP
    request_id: str = ""  # id of the JSON-RPC request, if there was one; set when the call has ended
    error_code: int | None = None  # code of the JSON-RPC error, if there was one; set when the call has ended
    message: int = 0  # number of the `ToolCalled` in the trace


class EpisodeSummary(Struct, frozen=True, kw_only=True):
    """The result of an episode."""

    ended: EpisodeEnded | None = None
    asked: m.RunTurn | None = None  # the first turn since the episode began or was resumed
    answered: m.TurnCompleted | None = None  # the end of the last turn that was completed since then


class SessionSummary(Struct, frozen=True, kw_only=True):
    """The totals of a tool session; `tools_called` counts the calls that were sent."""

    iterations_used: int
    tools_called: int
    final_action: object = None


Subject: TypeAlias = Episode | m.RunTurn | ToolSession | Generation | ToolUse
Outcome: TypeAlias = (
    EpisodeSummary
    | m.TurnCompleted
    | m.TurnFailed
    | SessionSummary
    | m.CompletionReceived
    | m.CompletionFailed
    | m.ToolCallRecord
)


class SpanOpened(Struct, frozen=True, kw_only=True):
    """A span begins."""

    span: SpanId
    parent: SpanId | None  # `None`: this span is the outermost
    at: float  # seconds since the epoch
    turn: int
    subject: Subject
    conversation: str = ""  # id of the conversation that the turn continues; else the episode's id
    asks: m.ModelAsked | None = None  # the model; outside turns, the last one known; `None`: for an episode


class SpanNoted(Struct, frozen=True, kw_only=True):
    """An event without duration in a span. `facts` is sent even if content is not."""

    span: SpanId
    at: float
    name: str
    verdict: Verdict
    facts: m.JsonObject


class SpanClosed(Struct, frozen=True):
    """A span ends."""

    span: SpanId
    at: float
    subject: Subject  # as in `SpanOpened`, with what later messages have added
    outcome: Outcome | None  # `None`: cut off, crashed, parked or dropped
    verdict: Verdict
    finish_reason: str | None = None  # for a turn: why its last reply ended


SpanEvent: TypeAlias = SpanOpened | SpanNoted | SpanClosed
CUT_OFF = Verdict("warning", "cut_off", "its turn or episode ended first")


def verdict_of(
    outcome: EpisodeEnded
    | m.TurnCompleted
    | m.TurnFailed
    | m.CompletionReceived
    | m.CompletionFailed
    | m.ToolCallRecord,
) -> Verdict:
    """Return the verdict on a span that ended with `outcome`."""
    match outcome:
        case m.CompletionReceived():
            return Verdict()
        case m.CompletionFailed(failure=failure):
            return Verdict("error", failure.kind, failure.message)
        case m.ToolCallRecord(settlement=settlement, result=result):
            if not result.is_error:
                return Verdict()
            return Verdict("error", _FAILED_CALLS.get(settlement, settlement), result.error_message or "")
        case m.TurnCompleted(kind=kind, reason=reason):
            return Verdict("warning" if kind in ("fallback", "degraded") else "default", detail=reason)
        case m.TurnFailed(failure=failure):
            words = failure_words(failure)
            return Verdict("error", words.error_type, words.detail)
        case EpisodeEnded(reason=reason, detail=detail) as ended:
            if ended.failed:
                return Verdict("error", reason, detail)
            return Verdict("warning" if reason == "interrupted" else "default", detail=detail)
        case never:
            assert_never(never)


_FAILED_CALLS = {"returned": "tool_error", "timed_out": "timeout", "died": "server_died"}


class SpanScope:
    """The open spans and the state of a running turn, or of a session that was opened outside a turn."""

    def __init__(self, turn: int, command: m.RunTurn | m.OpenSession) -> None:
        self.turn = turn
        self.command = command
        self.root = self.session = SpanId(0)
        self.last_at = 0.0
        self.envelopes: deque[int] = deque()
        self.open: dict[SpanId, SpanOpened] = {}
        self.steps = StepTracker()
        self.spans: dict[Hashable, SpanId] = {}
        self.names: dict[m.CallId, str] = {}
        self.timeouts: dict[tuple[m.ServerName, int], float] = {}
        self.servers: dict[m.ServerName, m.SessionOpened] = {}
        self.descriptions: dict[tuple[m.ServerName, str], str] = {}
        self.asks = m.ModelAsked(model="")
        self.conversation = ""
        self.finish_reason: str | None = None
        self.drop_reason = ""  # of the last `DropCompletion`
        resumed = command.resumed if isinstance(command, m.RunTurn) else None
        self.iteration = 0 if resumed is None else resumed.parked.iterations
        self.replies_with_calls = 0
        self.sent = 0
        self.crash: ActorFailed | None = None

    @property
    def innermost(self) -> SpanId:
        """The span in which a new one usually begins: the tool session or, without one, the turn."""
        return self.session or self.root

    def summary(self, end: m.TurnCompleted | m.TurnFailed | None) -> SessionSummary:
        """Return this session's totals. `end`: how its turn ended; `None`: unknown, parked, or no turn."""
        answer = end.answer if isinstance(end, m.TurnCompleted) else None
        return SessionSummary(
            iterations_used=self.replies_with_calls if end is None else end.iterations,
            tools_called=self.sent,
            final_action=answer.get("action") if isinstance(answer, dict) else answer,
        )


_NO_TURN = (0, SpanId(0))


class SpanFeed:
    """Turn the envelopes of one episode into spans.

    `episode_id` is used until `EpisodeStarted` or `EpisodeResumed` names another.
    """

    def __init__(self, episode_id: str = "") -> None:
        self._episode_id = episode_id
        self._asks = m.ModelAsked(model="")
        self._conversations = Conversations()
        self._own = OwnMessages()
        self._sent: AsSent | None = None
        self._episode: SpanOpened | None = None
        self._announced = False
        self._asked: m.RunTurn | None = None
        self._answered: m.TurnCompleted | None = None
        self._last = CUT_OFF
        self._ended_turn = _NO_TURN
        self._scopes: list[SpanScope] = []
        self._scope_of: dict[int, SpanScope] = {}
        self._spans = 0
        self._epoch: float | None = None
        self._now = 0.0
        self._events: list[SpanEvent] = []

    def feed(self, envelope: Envelope[Any]) -> list[SpanEvent]:
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
                    scope = self._begin(envelope, body, ToolSession(servers=(body.server,)))
                    scope.session = scope.root
                elif scope is not None:
                    self._assign(envelope, scope)
                    self._take(scope, envelope)
        return self._events

    def finish(self) -> list[SpanEvent]:
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

    def _begin_episode(self, started: EpisodeStarted | None) -> SpanId:
        subject = Episode(episode_id=self._episode_id, started=started)
        self._episode = self._open(None, subject, None)
        self._announced = False
        self._asked = self._answered = None
        self._ended_turn = _NO_TURN
        self._last = CUT_OFF
        return self._episode.span

    def _end_episode(self, ended: EpisodeEnded | None) -> None:
        verdict = CUT_OFF if self._announced or self._scopes else self._last
        for scope in list(self._scopes):
            self._abandon(scope)
        if self._episode is not None:
            outcome = EpisodeSummary(ended=ended, asked=self._asked, answered=self._answered)
            verdict = verdict if ended is None else verdict_of(ended)
            opened = self._episode
            self._events.append(SpanClosed(opened.span, self._now, opened.subject, outcome, verdict))
            self._episode = None

    def _begin(
        self, envelope: Envelope[Any], command: m.RunTurn | m.OpenSession, subject: Subject
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
        """End a turn or a session whose end is not recorded, at the time of its last envelope."""
        verdict = CUT_OFF if scope.crash is None else crash_verdict(scope.crash)
        self._end_scope(scope, scope.last_at, None, verdict)

    def _end_scope(
        self, scope: SpanScope, at: float, end: m.TurnCompleted | m.TurnFailed | None, verdict: Verdict
    ) -> None:
        for outer in [each.span for each in scope.open.values() if each.parent not in scope.open]:
            if outer != scope.root:  # a call whose parent span is a turn that has ended
                self._close(scope, outer, at, None, CUT_OFF)
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
        if len(scope.envelopes) > MOST_NUMBERS:
            del self._scope_of[scope.envelopes.popleft()]
        scope.last_at = self._now

    def _take(self, scope: SpanScope, envelope: Envelope[Any]) -> None:
        if not envelope.copied:
            self._take_steps(scope, envelope)
        body = envelope.body
        match body:
            case m.IterationStarted(iteration=iteration, max_iterations=most):
                scope.iteration = iteration
                if not scope.session and isinstance(scope.command, m.RunTurn):
                    session = ToolSession(servers=scope.command.servers, max_iterations=most)
                    scope.session = self._open(scope, session, scope.root).span
            case m.CompletionReceived(tool_calls=calls):
                scope.names.update({call.call_id: call.name for call in map(named_call, calls)})
                scope.replies_with_calls += bool(calls)
            case m.CallTools(server=server, batch=batch, timeout_s=timeout_s):
                scope.timeouts[server, batch] = timeout_s
                if len(scope.timeouts) > MOST_NUMBERS:
                    del scope.timeouts[next(iter(scope.timeouts))]
            case m.SessionOpened(server=server, tools=tools):
                scope.servers[server] = body
                scope.descriptions.update({(server, each.tool): each.description for each in tools})
            case m.ToolsChanged(server=server, tools=tools):
                scope.descriptions.update({(server, each.tool): each.description for each in tools})
            case m.ToolSupportChecked(model=model, endpoint=endpoint):
                self._learn(scope, model, endpoint)
            case m.TurnCompleted():
                self._end_scope(scope, self._now, body, verdict_of(body))
            case m.TurnParked():
                self._end_scope(scope, self._now, None, Verdict("warning", "parked", "waits for an approval"))
            case m.TurnFailed(failure=failure):
                if isinstance(failure, m.LlmFailure | m.ToolsUnsupported):
                    self._learn(scope, failure.model, failure.endpoint)
                verdict = verdict_of(body) if scope.crash is None else crash_verdict(scope.crash)
                self._end_scope(scope, self._now, body, verdict)
            case _ if not envelope.copied:
                self._note(scope, envelope)
                self._outside_turns(scope, body)

    def _learn(self, scope: SpanScope, model: str, endpoint: str) -> None:
        if not scope.asks.address:
            self._asks = scope.asks = replace(scope.asks, model=model, address=endpoint)

    def _outside_turns(self, scope: SpanScope, body: object) -> None:
        """End the span of a session outside turns if `body` says that the session ended or did not open."""
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
            SpanNoted(span=span, at=self._now, name=note.name, verdict=note.verdict, facts=facts)
        )

    def _take_steps(self, scope: SpanScope, envelope: Envelope[Any]) -> None:
        self._change_asked(scope, envelope)
        if isinstance(envelope.body, m.DropCompletion):
            scope.drop_reason = envelope.body.reason
        for change in scope.steps.take(envelope):
            step = change.step
            if isinstance(change, StepBegan):
                if step.attempt == 1 and step.kind == "model":
                    scope.spans[step.key] = self._open_generation(scope, step.began)
                elif step.kind == "tool":
                    scope.spans[step.key] = self._open_use(scope, step.began)
            elif change.reported and not change.retried and step.key in scope.spans:
                self._close_step(scope, scope.spans.pop(step.key), envelope.body)

    def _close_step(self, scope: SpanScope, span: SpanId, end: Any) -> None:
        if isinstance(end, m.ReplyDropped):
            self._close(scope, span, self._now, None, Verdict("warning", "reply_dropped", scope.drop_reason))
            return
        opened = scope.open[span]
        match opened.subject:
            case ToolUse() as use:
                request_id, code = getattr(end, "request_id", ""), getattr(end, "error_code", None)
                scope.open[span] = replace(
                    opened, subject=replace(use, request_id=request_id, error_code=code)
                )
            case Generation(asked_by="agent") if isinstance(end, m.CompletionReceived):
                scope.finish_reason = end.finish_reason
        outcome = _outcome(opened.subject, end)
        self._close(scope, span, self._now, outcome, verdict_of(outcome))

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
        if opened is not None and isinstance(opened.subject, Generation):
            asks = _with_sampling(opened.subject.asks, changed)
            scope.open[opened.span] = replace(opened, subject=replace(opened.subject, asks=asks))

    def _open_generation(self, scope: SpanScope, asked: Envelope[Any]) -> SpanId:
        request: m.RequestCompletion = asked.body
        subject = Generation(
            request=request,
            asks=scope.asks,
            sent=self._sent or AsSent(said=request.new, fresh=len(request.new), message=asked.seq),
            asked_by=asked.sender,
        )
        return self._open(scope, subject, self._asked_by(scope, asked.sender)).span

    def _asked_by(self, scope: SpanScope, sender: str) -> SpanId:
        """Return the parent span of a request to the model. For sampling: the server's open call, if any."""
        for span in scope.open.values():
            if isinstance(span.subject, ToolUse) and span.subject.server == sender:
                return span.span
        return scope.innermost

    def _open_use(self, scope: SpanScope, began: Envelope[Any]) -> SpanId:
        called: m.ToolCalled = began.body
        server, tool = called.server, called.tool
        opened = scope.servers.get(server)
        scope.sent += 1
        use = ToolUse(
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

    def _called_by(self, scope: SpanScope, turn: int) -> SpanId:
        """Return the parent span of a tool call with the turn number `turn`."""
        number, span = self._ended_turn
        outside = isinstance(scope.command, m.OpenSession) and turn != scope.turn
        return span if outside and turn == number else scope.innermost

    # --- Spans ---

    def _open(self, scope: SpanScope | None, subject: Subject, parent: SpanId | None) -> SpanOpened:
        """Begin a span; `scope` is `None` for an episode."""
        self._spans += 1
        opened = SpanOpened(
            span=SpanId(self._spans),
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
        self, scope: SpanScope, span: SpanId, at: float, outcome: Outcome | None, verdict: Verdict
    ) -> None:
        for inner in [opened.span for opened in scope.open.values() if opened.parent == span]:
            self._close(scope, inner, at, None, CUT_OFF)
        opened = scope.open.pop(span, None)
        if opened is not None:
            finish = scope.finish_reason if isinstance(opened.subject, m.RunTurn) else None
            self._events.append(SpanClosed(span, at, opened.subject, outcome, verdict, finish))


def _with_sampling(asks: m.ModelAsked, changed: m.JsonObject) -> m.ModelAsked:
    """Return `asks` with changed sampling settings; the value `None` removes a setting."""
    sampling = {name: value for name, value in {**asks.sampling, **changed}.items() if value is not None}
    return replace(asks, sampling=sampling)


def _outcome(subject: Subject, end: Any) -> m.CompletionReceived | m.CompletionFailed | m.ToolCallRecord:
    if isinstance(subject, ToolUse):
        call = m.ToolCall(call_id=end.call_id, name=subject.name, arguments="")
        return record_settlement(call, subject.iteration, end)
    reply: m.CompletionReceived | m.CompletionFailed = end
    return reply
