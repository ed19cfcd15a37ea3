"""Record generated turns as the runtime would: each envelope has a cause, and each sent call is recorded."""

from collections import deque
from typing import Any

from arbitrary_turns import ArbitraryTurn
from recorded_turns import STARTED_AT

from grue.messages import (
    AnswerAccepted,
    AnswerRefused,
    CallTools,
    CheckAnswer,
    CheckToolSupport,
    CloseSession,
    CompletionFailed,
    CompletionReceived,
    OpenSession,
    RequestCompletion,
    RunTurn,
    ServerCall,
    ServerDied,
    ToolCalled,
    ToolReturned,
    ToolSupportChecked,
    ToolTimedOut,
)
from grue.runtime.trace.recorder import Envelope, Recorder

STEP_S = 0.25


class TracedTurn:
    """Records a generated turn. Each envelope is a quarter of a second later than the previous one.

    Attributes:
        envelopes: The envelopes as observers get them.
        sent: Ids of the calls that were sent to servers.
    """

    def __init__(self, turn: ArbitraryTurn) -> None:
        self.envelopes: list[Envelope[Any]] = []
        self.sent: list[str] = []
        self._ticks = 0
        self._recorder = Recorder(clock=self._clock, wall_clock=lambda: STARTED_AT)
        self._recorder.add(lambda envelope, _line: self.envelopes.append(envelope))
        self._turn = turn.run.turn
        self._asked: dict[Any, int] = {}
        self._unsent: dict[int, tuple[CallTools, deque[ServerCall], int]] = {}
        self._latest = 0
        for entry in turn.log:
            if entry.way == "in":
                self._arrive(entry.body)
            else:
                self._leave(entry.body)

    def _clock(self) -> float:
        self._ticks += 1
        return self._ticks * STEP_S

    def _record(self, body: Any, *, sender: str, receiver: str, cause: int | None) -> int:
        return self._recorder.record(body, sender=sender, receiver=receiver, cause=cause, turn=self._turn).seq

    def _arrive(self, body: Any) -> None:
        cause, sender = self._cause_of(body)
        self._latest = self._record(body, sender=sender, receiver="agent", cause=cause)
        if isinstance(body, RunTurn):
            self._asked["turn"] = self._latest
        if isinstance(body, ToolReturned | ToolTimedOut | ServerDied):
            batch, unsent, asked = self._unsent[body.batch]
            broken = isinstance(body, ServerDied) or (
                isinstance(body, ToolTimedOut) and batch.after_timeout == "skip"
            )
            if not broken:
                self._send_next(batch, unsent, asked)

    def _cause_of(self, body: Any) -> tuple[int | None, str]:
        if isinstance(body, RunTurn):
            return None, "host"
        if isinstance(body, CompletionReceived | CompletionFailed):
            return self._asked["llm"], "llm"
        if hasattr(body, "batch"):
            batch, _, asked = self._unsent[body.batch]
            return asked, batch.server
        if hasattr(body, "server"):
            return self._asked[body.server], body.server
        if isinstance(body, AnswerAccepted | AnswerRefused):
            return self._asked["check"], "agent"
        if isinstance(body, ToolSupportChecked):
            return self._asked["support"], "llm"
        return None, "clock"

    def _leave(self, body: Any) -> None:
        cause = self._asked["turn"] if hasattr(body, "usage") else self._latest
        receiver = "host" if hasattr(body, "usage") else getattr(body, "server", "trace")
        seq = self._record(body, sender="agent", receiver=receiver, cause=cause)
        match body:
            case OpenSession(server=server) | CloseSession(server=server):
                self._asked[server] = seq
            case RequestCompletion():
                self._asked["llm"] = seq
            case CheckToolSupport():
                self._asked["support"] = seq
            case CheckAnswer():
                self._asked["check"] = seq
            case CallTools(batch=batch, calls=calls):
                self._unsent[batch] = (body, deque(calls), seq)
                self._send_next(*self._unsent[batch])

    def _send_next(self, batch: CallTools, unsent: deque[ServerCall], asked: int) -> None:
        if not unsent:
            return
        call = unsent.popleft()
        called = ToolCalled(
            server=batch.server,
            batch=batch.batch,
            call_id=call.call_id,
            tool=call.tool,
            arguments=call.arguments,
        )
        self.sent.append(call.call_id)
        self._record(called, sender=batch.server, receiver="trace", cause=asked)
