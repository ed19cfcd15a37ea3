"""Record turns of the real turn machine, with a scripted model, scripted servers and a fixed clock."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from grue.messages import (
    AnswerAccepted,
    AnswerRefused,
    CallTools,
    CheckAnswer,
    CloseSession,
    CompletionReceived,
    McpDisabled,
    OpenSession,
    RequestCompletion,
    RunTurn,
    ServerDied,
    ServerFailure,
    SessionClosed,
    SessionOpened,
    StartupFailed,
    ToolCall,
    ToolCalled,
    ToolCallResult,
    ToolDefinition,
    ToolReturned,
    ToolSkipped,
    ToolTimedOut,
    TurnCompleted,
    TurnFailed,
    Usage,
)
from grue.protocol.tool_loop import step
from grue.protocol.tools.results import SKIPPED_AFTER_DEATH, SKIPPED_AFTER_TIMEOUT
from grue.protocol.turn.states import Finished, Idle
from grue.runtime.trace.recorder import Envelope, Observer, Recorder

STARTED_AT = 1_790_000_000.0


class Tape:
    """A recorder whose clock only `tick` moves. `envelopes` has the envelopes as observers get them."""

    def __init__(self, *observers: Observer) -> None:
        self.now = 0.0
        self.envelopes: list[Envelope[Any]] = []
        self.recorder = Recorder(clock=lambda: self.now, wall_clock=lambda: STARTED_AT + self.now)
        self.recorder.add(lambda envelope, _line: self.envelopes.append(envelope))
        for observer in observers:
            self.recorder.add(observer)

    def tick(self, seconds: float) -> None:
        self.now += seconds

    def say(self, *bodies: Any, turn: int = 0, sender: str = "agent", receiver: str = "trace") -> None:
        for body in bodies:
            self.recorder.record(body, sender=sender, receiver=receiver, turn=turn)

    def bodies(self, kind: type) -> list[Any]:
        return [envelope.body for envelope in self.envelopes if isinstance(envelope.body, kind)]


class Called(NamedTuple):
    """A tool call of the scripted model, and its outcome. A tool that no server lists is not called."""

    name: str
    arguments: str = "{}"
    outcome: str = "ok"  # ok | error | timeout | died
    content: object = None
    took_s: float = 0.2


def tool(name: str) -> ToolDefinition:
    server, _, bare = name.partition(".")
    return ToolDefinition(server=server, tool=bare, input_schema={"type": "object"})


def opened(server: str = "thoughtbox", *tools: str, attempt: int = 1) -> SessionOpened:
    listed = tuple(tool(f"{server}.{name}") for name in tools or ("think",))
    return SessionOpened(server=server, tools=listed, attempt=attempt, pid=4711, elapsed_s=0.03)


def refused_connection(cause: str = "Connection refused", server: str = "thoughtbox") -> ServerFailure:
    return ServerFailure(server=server, phase="spawn", command="npx -y thoughtbox", cause=cause)


class Play:
    """Runs one turn of the real turn machine with scripts, and records all its messages.

    Args:
        tape: Records the turn.
        run: The message that starts the turn.
        replies: The model's replies: a text, `None` for an empty reply, or tool calls.
        connects: The messages of each server's session when it is opened; the last one is the result.
        refusals: Number of final texts that the host's check refuses before it accepts one.
    """

    def __init__(
        self,
        tape: Tape,
        run: RunTurn,
        replies: Sequence[str | list[Called] | None],
        *,
        connects: dict[str, list[Any]] | None = None,
        refusals: int = 0,
    ) -> None:
        self._tape = tape
        self._turn = run.turn
        self._replies = deque(replies)
        self._connects = connects or {server: [opened(server)] for server in run.servers}
        self._refusals = refusals
        self._calls: dict[str, Called] = {}
        self._queue: deque[Any] = deque()
        self._receive(run, sender="host")
        self.end = self._run()

    def _run(self) -> TurnCompleted | TurnFailed:
        state: Any = Idle()
        end: Any = None
        while not isinstance(state, Finished):
            state, commands = step(state, self._queue.popleft())
            for command in commands:
                self._say(command, receiver=getattr(command, "server", "trace"))
                self._perform(command)
                end = command
        return end

    def _say(self, body: Any, *, sender: str = "agent", receiver: str = "trace") -> None:
        self._tape.say(body, turn=self._turn, sender=sender, receiver=receiver)

    def _receive(self, body: Any, *, sender: str) -> None:
        self._say(body, sender=sender, receiver="agent")
        self._queue.append(body)

    def _perform(self, command: Any) -> None:
        match command:
            case OpenSession(server=server):
                for body in self._connects[server]:
                    if isinstance(body, SessionOpened | McpDisabled | StartupFailed):
                        self._receive(body, sender=server)
                    else:
                        self._say(body, sender=server)
            case RequestCompletion(request=request):
                self._receive(self._reply(request, self._replies.popleft()), sender="llm")
            case CallTools(server=server):
                for body in self._serve(command):
                    if isinstance(body, ToolCalled):
                        self._say(body, sender=server)
                    else:
                        self._receive(body, sender=server)
            case CheckAnswer():
                verdict = (
                    AnswerRefused(reason="no JSON")
                    if self._refusals > 0
                    else AnswerAccepted(answer={"action": command.content})
                )
                self._refusals -= 1
                self._receive(verdict, sender="agent")
            case CloseSession(server=server):
                self._receive(SessionClosed(server=server, ending="polite"), sender=server)

    def _reply(self, request: int, reply: str | list[Called] | None) -> CompletionReceived:
        usage = Usage(input_tokens=10, output_tokens=2)
        if not isinstance(reply, list):
            return CompletionReceived(request=request, content=reply, finish_reason="stop", usage=usage)
        calls = []
        for called in reply:
            call_id = f"call_{len(self._calls) + 1}"
            self._calls[call_id] = called
            calls.append(ToolCall(call_id=call_id, name=called.name, arguments=called.arguments))
        return CompletionReceived(request=request, tool_calls=tuple(calls), usage=usage)

    def _serve(self, batch: CallTools) -> Iterator[Any]:
        skipping = ""
        for call in batch.calls:
            ids = {"batch": batch.batch, "call_id": call.call_id}
            if skipping:
                yield ToolSkipped(**ids, reason=skipping)
                continue
            yield ToolCalled(**ids, server=batch.server, tool=call.tool, arguments=call.arguments)
            called = self._calls[call.call_id]
            self._tape.tick(called.took_s)
            match called.outcome:
                case "timeout":
                    yield ToolTimedOut(**ids, timeout_s=batch.timeout_s, duration_s=called.took_s)
                    skipping = SKIPPED_AFTER_TIMEOUT if batch.after_timeout == "skip" else ""
                case "died":
                    failure = ServerFailure(
                        server=batch.server, phase="call", command="npx", cause="killed by SIGKILL"
                    )
                    yield ServerDied(**ids, server=batch.server, failure=failure, duration_s=called.took_s)
                    skipping = SKIPPED_AFTER_DEATH
                case "error":
                    result = ToolCallResult(called.content, is_error=True, error_message="no such thought")
                    yield ToolReturned(**ids, result=result, duration_s=called.took_s)
                case _:
                    result = ToolCallResult(called.content)
                    yield ToolReturned(**ids, result=result, duration_s=called.took_s)
