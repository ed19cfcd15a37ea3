"""Short functions that make messages, and `Walk`, which runs the real turn machine, for tests."""

from collections.abc import Sequence
from typing import Any

from grue.messages import (
    AnswerAccepted,
    AnswerRefused,
    AnswerSchema,
    CallId,
    CompletionFailed,
    CompletionReceived,
    ConnectOutcome,
    DeadlinePassed,
    LlmFailure,
    McpDisabled,
    PresumedListing,
    RunTurn,
    ServerDied,
    ServerFailure,
    ServerName,
    SessionClosed,
    SessionOpened,
    Settlement,
    StartupFailed,
    ToolCall,
    ToolCallResult,
    ToolDefinition,
    ToolReturned,
    ToolsChanged,
    ToolSkipped,
    ToolSupportChecked,
    ToolTimedOut,
    TurnInterrupted,
    Usage,
)
from grue.policies import FailurePolicy, SupportCheck, TurnLimits
from grue.protocol.tool_loop import step
from grue.protocol.tools.calls import Run, Unmade, read_calls, runs_of
from grue.protocol.turn.states import Idle, TurnState
from grue.runtime.actor import Mailbox

A, B = ServerName("a"), ServerName("b")


async def settlement(inbox: Mailbox[Any]) -> Any:
    """Receive the session's answer to a command; other messages that it sends before are dropped."""
    while not isinstance(
        received := (await inbox.receive()).body, ConnectOutcome | Settlement | SessionClosed
    ):
        pass
    return received


ANSWER = AnswerSchema("decision", {"type": "object"})
FALLBACK = {"action": "look"}
DEADLINE = DeadlinePassed(limit_s=5.0)
INTERRUPT = TurnInterrupted(reason="cancelled")
ACCEPTED = AnswerAccepted(answer={"action": "go north"})
REFUSED = AnswerRefused(reason="it contains no JSON object")
USAGE = Usage(input_tokens=3, output_tokens=2)


def run(
    *servers: str,
    fallback: object = FALLBACK,
    limits: TurnLimits | None = None,
    support_check: SupportCheck = "skip",
    **policy: Any,
) -> RunTurn:
    return RunTurn(
        turn=7,
        system="You play.",
        user="You are in a house.",
        servers=tuple(ServerName(server) for server in servers),
        answer=ANSWER,
        fallback=fallback,
        limits=limits or TurnLimits(),
        policy=FailurePolicy(**policy),
        support_check=support_check,
    )


def sort_calls(
    calls: tuple[ToolCall, ...],
    tools: tuple[ToolDefinition, ...],
    serving_unlisted: tuple[ServerName, ...] = (),
) -> tuple[tuple[Run, ...], tuple[Unmade, ...]]:
    """Sort the calls of a reply as a turn does if its tool policy allows all calls."""
    valid, rejected = read_calls(calls, tools, serving_unlisted)
    return runs_of(valid), rejected


def support(supported: bool) -> ToolSupportChecked:
    reason = "" if supported else "its list says so"
    return ToolSupportChecked(
        model="m", endpoint="http://x", supported=supported, by="endpoint", reason=reason
    )


def tool(name: str) -> ToolDefinition:
    server, _, bare = name.partition(".")
    return ToolDefinition(server=ServerName(server), tool=bare, input_schema={"type": "object"})


def opened(server: str, *tools: str) -> SessionOpened:
    listing = tuple(tool(f"{server}.{name}") for name in tools or ("look", "think"))
    return SessionOpened(server=ServerName(server), tools=listing)


def listing(server: str, *tools: str) -> PresumedListing:
    return PresumedListing(server=ServerName(server), tools=opened(server, *tools).tools, source="locked")


def empty(server: str) -> SessionOpened:
    return SessionOpened(server=ServerName(server), tools=())


def changed(server: str, *tools: str) -> ToolsChanged:
    listing = tuple(tool(f"{server}.{name}") for name in tools)
    return ToolsChanged(server=ServerName(server), tools=listing)


def failure(server: str = "a", phase: Any = "spawn") -> ServerFailure:
    return ServerFailure(server=ServerName(server), phase=phase, command="./server", cause="it ended")


def disabled(server: str, reason: str = "it ended") -> McpDisabled:
    return McpDisabled(server=ServerName(server), reason=reason, newly=True)


def startup_failed(server: str) -> StartupFailed:
    return StartupFailed(server=ServerName(server), failure=failure(server))


def closed(server: str) -> SessionClosed:
    return SessionClosed(server=ServerName(server))


def call(number: int, name: str = "a.think", arguments: str = "{}") -> ToolCall:
    return ToolCall(call_id=CallId(f"c{number}"), name=name, arguments=arguments)


def calls(*names: str, first: int = 1, content: str | None = None) -> CompletionReceived:
    asked = tuple(call(number, name) for number, name in enumerate(names, start=first))
    return CompletionReceived(request=1, content=content, tool_calls=asked, usage=USAGE)


def text(content: str | None) -> CompletionReceived:
    return CompletionReceived(request=1, content=content, finish_reason="stop", usage=USAGE)


def refusal(words: str) -> CompletionReceived:
    return CompletionReceived(request=1, refusal=words, finish_reason="stop", usage=USAGE)


def llm_failed() -> CompletionFailed:
    failed = LlmFailure(kind="refused", endpoint="http://x", model="m", message="no credit", status=402)
    return CompletionFailed(request=1, failure=failed)


def returned(number: int, batch: int = 1, content: object = "ok") -> ToolReturned:
    return ToolReturned(batch=batch, call_id=f"c{number}", result=ToolCallResult(content), duration_s=0.1)


def timed_out(number: int, batch: int = 1) -> ToolTimedOut:
    return ToolTimedOut(batch=batch, call_id=f"c{number}", timeout_s=30.0, duration_s=30.0)


def skipped(number: int, batch: int = 1, reason: str = "Skipped: by the session") -> ToolSkipped:
    return ToolSkipped(batch=batch, call_id=f"c{number}", reason=reason)


def died(number: int, batch: int = 1, server: str = "a") -> ServerDied:
    return ServerDied(server=server, batch=batch, call_id=f"c{number}", failure=failure(server, "call"))


class Walk:
    """The turn machine after a sequence of events: its state, and its commands at each step."""

    def __init__(self, *events: Any) -> None:
        self.state: TurnState = Idle()
        self.steps: list[tuple[Any, ...]] = []
        self.send(*events)

    def send(self, *events: Any) -> "Walk":
        for event in events:
            self.state, commands = step(self.state, event)
            self.steps.append(commands)
        return self

    @property
    def last(self) -> tuple[Any, ...]:
        """The commands after the last event."""
        return self.steps[-1]

    @property
    def all(self) -> list[Any]:
        return [command for commands in self.steps for command in commands]

    def of(self, *kinds: type) -> list[Any]:
        """Return all commands of these types so far."""
        return [command for command in self.all if isinstance(command, kinds)]

    @property
    def end(self) -> Any:
        """The last command. When the turn has ended, this is its end."""
        return self.all[-1]


def names(commands: Sequence[Any]) -> tuple[str, ...]:
    return tuple(type(command).__name__ for command in commands)
