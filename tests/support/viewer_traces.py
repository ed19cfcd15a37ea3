"""Traces for tests of the viewer, written by the real recorder with a clock that only the test moves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from grue.hosts.zork.facts import Decided, EpisodeStarted, Observed
from grue.messages import (
    AnswerAccepted,
    CallTools,
    CheckAnswer,
    CloseSession,
    CompletionReceived,
    CompletionRetried,
    FinalForced,
    IterationStarted,
    LlmFailure,
    OfferTools,
    OpenSession,
    RequestCompletion,
    RequireAnswer,
    RunTurn,
    ServerCall,
    ServerDied,
    ServerFailure,
    SessionClosed,
    SessionOpened,
    ToolCall,
    ToolCalled,
    ToolCallResult,
    ToolDefinition,
    ToolReturned,
    ToolSkipped,
    ToolTimedOut,
    TurnCompleted,
    Usage,
    UserText,
)
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Recorder

STARTED_AT = 1_790_000_000.0


class EpisodeTape:
    """Writes a trace file, message by message; a context manager."""

    def __init__(self, path: Path, *, episode: str = "an-episode") -> None:
        self.now = 0.0
        self._recorder = Recorder(clock=lambda: self.now, wall_clock=lambda: STARTED_AT + self.now)
        self._writer = TraceWriter(path, episode=episode, started_at=STARTED_AT)
        self._recorder.add(self._writer)
        self.turn = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def say(
        self, body: Any, way: str = "host trace", *, cause: int | None = None, after_s: float = 0.0
    ) -> int:
        """Move the clock by `after_s`, record a message, return its number. `way` is `SENDER RECEIVER`."""
        self.now += after_s
        sender, receiver = way.split(" ")
        return self._recorder.record(body, sender=sender, receiver=receiver, cause=cause, turn=self.turn).seq


class TurnTape:
    """Writes one turn with a server `mind`, step by step."""

    def __init__(self, tape: EpisodeTape, *, text: str = "A hall.", tool: str = "think") -> None:
        self._tape = tape
        self._tool = tool
        tape.turn += 1
        self._turn = tape.turn
        tape.say(Observed(turn=tape.turn, text=text, location="Hall", score=0))
        self.run = self._say(
            RunTurn(turn=tape.turn, system="Play.", user=text, servers=("mind",)), "host agent"
        )
        self._latest = self.run
        self._requests = 0
        self._batch = 0

    def _say(self, body: Any, way: str, cause: int | None = None, after_s: float = 0.001) -> int:
        return self._tape.say(body, way, cause=cause, after_s=after_s)

    def open(self) -> None:
        """Start the server, which takes 0.05 s."""
        asked = self._say(OpenSession(server="mind", turn=self._turn, timeout_s=10.0), "agent mind", self.run)
        tools = (ToolDefinition(server="mind", tool=self._tool, input_schema={"type": "object"}),)
        opened = SessionOpened(server="mind", tools=tools, pid=4711, elapsed_s=0.05)
        self._latest = self._say(opened, "mind agent", asked, 0.05)

    def ask(
        self, reply: str | None, calls: Sequence[str] = (), *, retries: int = 0, final: bool = False
    ) -> None:
        """Ask the model, which takes 0.2 s. Each retry takes 0.1 s more, and a wait of 0.3 s."""
        self._requests += 1
        if not final:
            self._say(
                IterationStarted(iteration=self._requests, max_iterations=20), "agent trace", self._latest
            )
        mode = RequireAnswer() if final else OfferTools()
        request = RequestCompletion(
            conversation="turn", request=self._requests, new=(UserText("Go on."),), mode=mode
        )
        asked = self._say(request, "agent llm", self._latest)
        for attempt in range(1, retries + 1):
            failure = LlmFailure(kind="unavailable", endpoint="http://llm.invalid", model="m", message="busy")
            retried = CompletionRetried(request=self._requests, attempt=attempt, delay_s=0.3, failure=failure)
            self._say(retried, "llm trace", asked, 0.1)
            self._tape.now += 0.3
        wanted = tuple(
            ToolCall(call_id=f"c{self._turn}-{call}", name=f"mind.{self._tool}", arguments='{"n": 1}')
            for call in calls
        )
        received = CompletionReceived(
            request=self._requests, content=reply, tool_calls=wanted, usage=Usage(input_tokens=10)
        )
        self._latest = self._say(received, "llm agent", asked, 0.2)

    def call(self, outcomes: Sequence[str], content: object = "a thought") -> None:
        """Call a tool once for each outcome: `ok`, `error` or `died` (0.1 s), `timeout` (1 s), `skipped`."""
        self._batch += 1
        ids = [f"c{self._turn}-{self._batch}-{n}" for n in range(len(outcomes))]
        calls = tuple(ServerCall(call_id=call_id, tool=self._tool, arguments={"n": 1}) for call_id in ids)
        batch = CallTools(server="mind", batch=self._batch, calls=calls, timeout_s=1.0)
        asked = self._say(batch, "agent mind", self._latest)
        for call_id, outcome in zip(ids, outcomes, strict=True):
            self._settle(call_id, outcome, content, asked)

    def _settle(self, call_id: str, outcome: str, content: object, asked: int) -> None:
        of: dict[str, Any] = {"batch": self._batch, "call_id": call_id}
        if outcome == "skipped":
            self._latest = self._say(ToolSkipped(**of, reason="an earlier call failed"), "mind agent", asked)
            return
        called = ToolCalled(**of, server="mind", tool=self._tool, arguments={"n": 1})
        self._say(called, "mind trace", asked)
        failure = ServerFailure(
            server="mind", phase="call", command="mind", cause="killed by SIGKILL", stderr_tail=str(content)
        )
        failed = ToolCallResult(content, is_error=True, error_message="no such thought")
        settled, took_s = {
            "ok": (ToolReturned(**of, result=ToolCallResult(content), duration_s=0.1), 0.1),
            "error": (ToolReturned(**of, result=failed, duration_s=0.1), 0.1),
            "timeout": (ToolTimedOut(**of, timeout_s=1.0, duration_s=1.0), 1.0),
            "died": (ServerDied(**of, server="mind", failure=failure, duration_s=0.1), 0.1),
        }[outcome]
        self._latest = self._say(settled, "mind agent", asked, took_s)

    def force(self, reason: Any) -> None:
        """Force the final answer."""
        self._say(FinalForced(reason=reason, iterations=self._requests), "agent trace", self._latest)

    def close(self, answer: str = "north", kind: Any = "answered") -> None:
        """Check the answer, close the session, end the turn."""
        check = self._say(CheckAnswer(content=answer), "agent trace", self._latest)
        accepted = self._say(AnswerAccepted(answer={"action": answer}), "agent agent", check)
        closing = self._say(CloseSession(server="mind"), "agent mind", accepted)
        self._say(SessionClosed(server="mind", ending="polite"), "mind agent", closing, 0.01)
        reason = "" if kind == "answered" else "for the test"
        done = TurnCompleted(turn=self._turn, kind=kind, answer={"action": answer}, reason=reason)
        self._say(done, "agent host", self.run)
        decided = Decided(turn=self._turn, action=answer, reasoning="", new_objective=None, kind=kind)
        self._tape.say(decided, after_s=0.001)


def begin(tape: EpisodeTape) -> None:
    """Record the start of an episode."""
    tape.say(EpisodeStarted(episode_id="e", game="House", game_hash="", seed=0, model="m", servers=("mind",)))


def plain_turn(tape: EpisodeTape, **texts: str) -> None:
    """Write a turn without problems: two tool calls and an answer."""
    turn = TurnTape(tape, **texts)
    turn.open()
    turn.ask(None, ["1", "2"])
    turn.call(["ok", "ok"])
    turn.ask("north")
    turn.close()


def troubled_turn(tape: EpisodeTape) -> None:
    """Write a turn with a retry, three calls (one times out, one is skipped), and a forced answer."""
    turn = TurnTape(tape)
    turn.open()
    turn.ask(None, ["1", "2", "3"], retries=1)
    turn.call(["ok", "timeout", "skipped"])
    turn.force("tool_timeout")
    turn.ask("wait", final=True)
    turn.close("wait", "forced")


def deadly_turn(tape: EpisodeTape) -> None:
    """Write a turn whose server dies during a call."""
    turn = TurnTape(tape)
    turn.open()
    turn.ask(None, ["1"])
    turn.call(["died"], content="out of ink")
    turn.force("server_died")
    turn.ask("look", final=True)
    turn.close("look", "forced")


def small_episode(path: Path) -> Path:
    """Write an episode of four turns: plain, troubled, deadly, plain. Return the trace's path."""
    with EpisodeTape(path) as tape:
        begin(tape)
        plain_turn(tape)
        troubled_turn(tape)
        deadly_turn(tape)
        plain_turn(tape, text='Says "hi" to <b>you</b> & me.')
    return path


def long_episode(path: Path, turns: int) -> Path:
    """Write an episode of `turns` plain turns, of which each 97th is troubled. Return the trace's path."""
    with EpisodeTape(path) as tape:
        begin(tape)
        for turn in range(1, turns + 1):
            if turn % 97 == 0:
                troubled_turn(tape)
            else:
                plain_turn(tape)
    return path
