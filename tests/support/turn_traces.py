"""Record arbitrary turns as traces, as the real runtime would record them."""

from typing import Any

from arbitrary_turns import ArbitraryTurn
from msgspec.structs import replace
from recorded_turns import Play, Tape, opened
from turns import failure

from grue.messages import (
    AnswerAccepted,
    AnswerRefused,
    CallTools,
    CheckToolSupport,
    CloseSession,
    CompletionFailed,
    CompletionReceived,
    ConnectFailed,
    DeadlinePassed,
    McpDisabled,
    OpenSession,
    RequestCompletion,
    RunTurn,
    ServerDied,
    SessionClosed,
    SessionOpened,
    StartupFailed,
    ToolCalled,
    ToolReturned,
    ToolSupportChecked,
    ToolTimedOut,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
)
from grue.runtime.trace.recorder import Envelope


def possible(turn: ArbitraryTurn) -> bool:
    """Return whether the turn can really happen: no server fails to start after it was connected once."""
    opened: set[str] = set()
    for entry in turn.log:
        match entry.body:
            case SessionOpened(server=server):
                opened.add(server)
            case StartupFailed(server=server) if server in opened:
                return False
            case _:
                pass
    return True


class TurnTape:
    """Records a turn with the notes and causes that real actors would add."""

    def __init__(self, turn: ArbitraryTurn) -> None:
        self.tape = Tape()
        self._turn = turn.run.turn
        self._causes: dict[object, int] = {}
        self._cause = self._begun = self._requests = 0
        self._servers: dict[int, str] = {}
        self._calls: dict[str, ToolCalled] = {}
        self._open_before({entry.body.server for entry in turn.log if isinstance(entry.body, McpDisabled)})
        for entry in turn.log:
            self.tape.tick(0.01)
            if entry.way == "in":
                self._came(entry.body)
            else:
                self._went(entry.body)

    @property
    def envelopes(self) -> list[Envelope[Any]]:
        return self.tape.envelopes

    def _open_before(self, servers: set[str]) -> None:
        """Record an earlier turn with connections to these servers.

        Only if a server was connected before, a failed start disables it instead of ending the turn.
        """
        names = tuple(sorted(servers))
        if not names:
            return
        run = RunTurn(turn=self._turn - 1, system="s", user="u", servers=names)
        Play(self.tape, run, ["done"], connects={name: [opened(name)] for name in names})

    def _record(self, body: Any, sender: str, receiver: str, cause: int | None) -> int:
        recorded = self.tape.recorder.record(
            body, sender=sender, receiver=receiver, cause=cause, turn=self._turn
        )
        return recorded.seq

    def _came(self, body: Any) -> None:
        match body:
            case RunTurn():
                self._cause = self._begun = self._record(body, "host", "agent", None)
            case DeadlinePassed():
                self._cause = self._record(body, "clock", "trace", None)
            case TurnInterrupted():
                self._cause = self._record(body, "supervisor", "trace", None)
            case AnswerAccepted() | AnswerRefused():
                self._cause = self._record(body, "agent", "agent", self._causes["check"])
            case ToolSupportChecked():
                self._cause = self._record(body, "llm", "agent", self._causes["support"])
            case CompletionReceived() | CompletionFailed():
                body = replace(body, request=self._requests)
                self._cause = self._record(body, "llm", "agent", self._causes["request"])
            case _:
                self._from_session(body)

    def _from_session(self, body: Any) -> None:
        server = getattr(body, "server", None) or self._servers[body.batch]
        cause = self._causes.get((server, getattr(body, "batch", "open")))
        match body:
            case McpDisabled():
                for attempt, then in ((1, "retry"), (2, "disable")):
                    self._note_failure(server, attempt, then, cause)
            case StartupFailed():
                self._note_failure(server, 1, "raise", cause)
            case SessionClosed():
                cause = self._causes[server, "close"]
            case ToolReturned() | ToolTimedOut() | ServerDied():
                self._record(self._calls[body.call_id], server, "trace", cause)
            case _:
                pass
        self._cause = self._record(body, server, "agent", cause)

    def _note_failure(self, server: Any, attempt: int, then: Any, cause: int | None) -> None:
        failed = ConnectFailed(server=server, attempt=attempt, failure=failure(server), then=then)
        self._record(failed, server, "trace", cause)

    def _went(self, body: Any) -> None:
        match body:
            case OpenSession(server=server):
                self._causes[server, "open"] = self._record(body, "agent", server, self._cause)
            case CallTools(server=server, batch=batch):
                self._causes[server, batch] = self._record(body, "agent", server, self._cause)
                self._servers[batch] = server
                for call in body.calls:
                    ids = {"server": server, "batch": batch, "call_id": call.call_id}
                    self._calls[call.call_id] = ToolCalled(**ids, tool=call.tool, arguments=call.arguments)
            case CloseSession(server=server):
                self._causes[server, "close"] = self._record(body, "agent", server, self._cause)
            case RequestCompletion(request=request):
                self._requests = request
                self._causes["request"] = self._record(body, "agent", "llm", self._cause)
            case CheckToolSupport():
                self._causes["support"] = self._record(body, "agent", "llm", self._cause)
            case TurnCompleted() | TurnFailed():
                self._record(body, "agent", "host", self._begun)
            case _:
                self._causes["check"] = self._record(body, "agent", "trace", self._cause)
