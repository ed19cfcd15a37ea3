"""`SpanScope`: the open spans of one turn, or of one session outside turns. Used by `span_feed`."""

from collections.abc import Hashable

from grue import messages as m
from grue.runtime.supervisor import ActorFailed
from grue.tracing.observers.spans import SessionSummary, SpanId, SpanOpened
from grue.tracing.steps import StepTracker


class SpanScope:
    """A running turn, or a session outside turns: its open spans and their state."""

    def __init__(self, turn: int, command: m.RunTurn | m.OpenSession) -> None:
        self.turn = turn
        self.command = command
        self.root = self.session = SpanId(0)
        self.last_at = 0.0
        self.envelopes: list[int] = []
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
        self.iteration = 0
        self.replies_with_calls = 0
        self.sent = 0
        self.crash: ActorFailed | None = None

    @property
    def innermost(self) -> SpanId:
        """The span that contains generations, tool uses and notes."""
        return self.session or self.root

    def calls_elsewhere(self) -> list[SpanId]:
        """Return the open calls that are inside a turn which has ended, and not inside this scope."""
        outside = (span for span in self.open.values() if span.parent not in self.open)
        return [span.span for span in outside if span.span != self.root]

    def summary(self, end: m.TurnCompleted | m.TurnFailed | None) -> SessionSummary:
        """Return the result of the tool session, as far as it got."""
        answer = end.answer if isinstance(end, m.TurnCompleted) else None
        return SessionSummary(
            iterations_used=self.replies_with_calls if end is None else end.iterations,
            tools_called=self.sent,
            final_action=answer.get("action") if isinstance(answer, dict) else answer,
        )
