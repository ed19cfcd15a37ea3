"""Rebuilds the conversation of each request to the model: a trace holds only a request's new messages."""

from typing import Any

from msgspec import Struct

from grue import messages as m
from grue.protocol.context.history import History, SaidStep, items_of, take_step
from grue.runtime.trace.recorder import Envelope

MOST_KEPT = 100  # conversations after their turn; the longest unused is forgotten first


class AsSent(Struct, frozen=True):
    """A request to the model with everything that was said before it."""

    said: tuple[m.ConversationItem | m.AssistantReply, ...]  # the conversation, oldest first
    fresh: int  # how many messages at the end of `said` are new in this request
    missing: int = 0  # how many earlier entries of the history are not in the trace
    tools: tuple[m.ToolDefinition, ...] = ()
    answer: m.AnswerSchema | None = None  # the schema that the request demands; `None`: any text
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
        """Add a turn's end to its conversation. Forget the conversation if no later turn can continue it."""
        self._talk(name).take(end)
        if name == f"turn-{end.turn}":
            self._talks.pop(name, None)
        while len(self._talks) > MOST_KEPT:
            del self._talks[next(iter(self._talks))]

    def _talk(self, name: m.ConversationId) -> _Talk:
        # A conversation that is not in `_talks` is a single request of a server (sampling).
        return self._talks.get(name) or _Talk()
