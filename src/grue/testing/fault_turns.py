"""How a fault is tried: a whole turn through a `Runner`, with a real server process and a scripted model.

Each way of driving takes a `Fault` and returns the `Seen` that the matrix in `faults.py` judges.
"""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct, field

from grue.errors import MCPError
from grue.llm_transport.endpoint import LlmSettings
from grue.mcp_transport.process_group import ProcessRegistry
from grue.mcp_transport.stdio import ProcessLimits, StdioServer
from grue.messages import (
    FailurePolicy,
    JsonObject,
    ServerEnded,
    ServerNoted,
    SessionClosed,
    SessionOpened,
    TurnLimits,
)
from grue.runner import Runner, TurnRequest
from grue.runtime.trace import Envelope, Recorder
from grue.testing import faulty_server
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

SERVER = "faulty"
GRACE_S = 0.2
"""What a server gets for each step of its end, so that a stubborn one costs a row 0.4 s."""

Mode: TypeAlias = Literal["turn", "episode", "ahead", "kept"]
"""How long what serves a turn lives: its event loop, and its servers."""

MODES: tuple[Mode, ...] = get_args(Mode)
LIFETIMES: Mapping[Mode, Mapping[str, Any]] = {
    "turn": {},
    "episode": {"lifetime": "episode"},
    "ahead": {"lifetime": "episode", "spawn_ahead": True},
    "kept": {"lifetime": "episode", "keep_sessions": True},
}
"""What each mode is to a `Runner`."""

_PROBE = "GRUE_FAULT_PROBE"
_STAYS_ALIVE_S = 0.1


class Seen(Struct, frozen=True, kw_only=True):
    """What came of trying a fault.

    Attributes:
        outcome: The kind of the turn's outcome, the name of its error, or a word of the way it was driven.
        settlements: What became of each tool call, in order.
        text: The error's text, or the results of the calls, one a line.
        ending: What it took to end the server that the turn used.
        notes: Kinds of what the server did beside the protocol; in rows of a spare what else was noted.
    """

    outcome: str
    settlements: tuple[str, ...] = ()
    text: str = ""
    ending: str = "none"
    notes: frozenset[str] = frozenset()


class Fault(Struct, frozen=True, kw_only=True):
    """One row of the matrix: what the server does, and what has to come of it.

    Attributes:
        name: Of the row.
        flags: For `faulty_server`.
        command: Another server, in its place.
        tool: The tool that the model calls.
        arguments: What it calls it with.
        calls: How often, each in a reply of its own.
        outcome: See `Seen`; so is what follows.
        settlements: What has to become of the calls, in order.
        says: Words that the text has to have.
        ending: What it has to take to end the server; `None`: whatever it takes.
        notes: Kinds that have to be among the notes.
        within_s: Limit for all of it, teardown included.
        startup_s: Time limit of the server's start.
        call_s: Time limit of a call.
        turn_s: Time limit of the turn; `None`: none.
        max_line_bytes: Longest line.
        policy: What failures lead to.
        replies: What the model's endpoint says, in order, where it is the one that has the fault.
        settings: More of its `LlmSettings`, such as another wire format.
        request: More of the `TurnRequest`.
        drive: Does it.
        modes: Those that it can be tried in.
        mode: The one that it is tried in.
    """

    name: str
    flags: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    tool: str = "echo"
    arguments: JsonObject = field(default_factory=lambda: {"text": "hi"})
    calls: int = 1
    outcome: str = "answered"
    settlements: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    ending: str | None = None
    notes: frozenset[str] = frozenset()
    within_s: float = 3.0
    startup_s: float = 10.0
    call_s: float = 10.0
    turn_s: float | None = None
    max_line_bytes: int = 64 * 1024 * 1024
    policy: FailurePolicy = FailurePolicy()
    replies: tuple[LlmReply, ...] = ()
    settings: Mapping[str, Any] = {}
    request: Mapping[str, Any] = {}
    drive: Callable[["Fault"], Seen] | None = None
    modes: tuple[Mode, ...] = MODES
    mode: Mode = "turn"

    def server(self) -> StdioServer:
        """Return the server that has the fault."""
        command, *args = self.command or faulty_server.argv(*self.flags)
        return StdioServer(name=SERVER, command=command, args=tuple(args))


def a_turn(fault: Fault) -> Seen:
    """Run a turn whose model calls the tool as often as the fault says, then answers; close the runner."""
    trace: list[Any] = []
    with (
        ScriptedLlmServer(lambda asked: scripted(fault, asked)) as llm,
        a_runner(fault, llm, trace) as runner,
    ):
        outcome, settlements, text = an_outcome(fault, runner)
    return Seen(
        outcome=outcome,
        settlements=settlements,
        text=text,
        ending=ending_in(trace),
        notes=frozenset(body.kind for body in trace if isinstance(body, ServerNoted)),
    )


def a_runner(fault: Fault, llm: ScriptedLlmServer, trace: list[Any]) -> Runner:
    """Return a runner in the fault's mode; what it records is added to `trace`."""

    def keep(envelope: Envelope[Any], line: bytes) -> None:
        del line
        trace.append(envelope.body)

    recorder = Recorder()
    recorder.add(keep)
    return Runner(
        llm=LlmSettings(base_url=llm.base_url, model="scripted"),
        servers={SERVER: fault.server()},
        limits=TurnLimits(server_startup_timeout_s=fault.startup_s, tool_call_timeout_s=fault.call_s),
        policy=fault.policy,
        recorder=recorder,
        process_limits=_process_limits(fault),
        **LIFETIMES[fault.mode],
    )


def _process_limits(fault: Fault) -> ProcessLimits:
    # The step that is expected to be enough has the usual time, and is not missed where a machine is slow.
    usual = ProcessLimits()
    return ProcessLimits(
        exit_grace_s=usual.exit_grace_s if fault.ending == "polite" else GRACE_S,
        term_grace_s=usual.term_grace_s if fault.ending == "terminated" else GRACE_S,
        max_line_bytes=fault.max_line_bytes,
    )


def ending_in(trace: Sequence[Any]) -> str:
    """Return what it took to end the server of the last turn, which may have ended behind it."""
    closed = [body.ending for body in trace if isinstance(body, SessionClosed)]
    if closed[-1:] != ["handed_over"]:
        return closed[-1] if closed else "none"
    used = [body.pid for body in trace if isinstance(body, SessionOpened)]
    return next((e.ending for e in trace if isinstance(e, ServerEnded) and e.pid in used[-1:]), "none")


def an_outcome(fault: Fault, runner: Runner) -> tuple[str, tuple[str, ...], str]:
    """Run a turn; return the outcome's kind or the error's name, what became of the calls, and the text."""
    try:
        outcome = runner.run_turn(
            TurnRequest[str](system="Use the tool.", user="Go on.", turn_timeout_s=fault.turn_s)
        )
    except MCPError as error:
        return type(error).__name__, (), str(error)
    results = [call.result.error_message or str(call.result.content) for call in outcome.tool_calls]
    return outcome.kind, tuple(call.settlement for call in outcome.tool_calls), "\n".join(results)


def scripted(fault: Fault, request: LlmRequest) -> LlmReply:
    """Return what the model says next: another call of the fault's tool, or its answer."""
    answered = sum(message["role"] == "tool" for message in request.messages)
    named = next((name for name in request.tool_names if name.endswith(fault.tool)), None)
    if named is None or answered >= fault.calls:
        return text_reply("done")
    return tool_calls_reply((named, fault.arguments))


def without_stderr(fault: Fault) -> Seen:
    """Run a turn where `sys.stderr` is `None`, as in some services and notebooks."""
    with contextlib.redirect_stderr(None):
        return a_turn(fault)


def asking_for_a_variable(fault: Fault) -> Seen:
    """Run a turn that asks the server for a variable of the host's environment that is not configured."""
    os.environ[_PROBE] = "the whole environment"
    try:
        return a_turn(fault)
    finally:
        del os.environ[_PROBE]


PROBE: JsonObject = {"name": _PROBE}


_DOOMED_HOST = """
import sys
from grue.mcp_transport.stdio import StdioServer
from grue.tool_client import ToolClient

command, *args = sys.argv[1:]
with ToolClient({"faulty": StdioServer(name="faulty", command=command, args=tuple(args))}) as client:
    client.connect()
    print("connected", flush=True)
    client.call("faulty.echo", {"text": "hi"}, timeout_s=600)
"""


def a_killed_host(fault: Fault) -> Seen:
    """Kill a host with SIGKILL while it waits for a call; what is left is the matrix's to find."""
    command = (sys.executable, "-c", _DOOMED_HOST, *(fault.command or faulty_server.argv(*fault.flags)))
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        connected = host.stdout.readline()
        host.kill()
        status = host.wait()
    return Seen(outcome=f"killed by {-status}" if connected else f"never connected, status {status}")


def a_thread_that_ends(fault: Fault) -> Seen:
    """Start the server from a thread that ends at once, and see whether it goes on."""
    registry = ProcessRegistry()
    server = fault.server()
    spawned: list[Any] = []

    def spawn() -> None:
        group = registry.spawn(server.command, server.args, server.environment(), server.cwd)
        spawned.append(group)

    thread = threading.Thread(target=spawn)
    thread.start()
    thread.join()
    died = not spawned or spawned[0].watch.exited_within(_STAYS_ALIVE_S)
    registry.kill_leftovers()
    return Seen(outcome="died" if died else "alive")
