"""The rows of the fault matrix (`Fault`) and the functions that run them.

Each `drive_...` function takes a `Fault`, runs a whole turn through a `Runner`, usually with a real server
process and a scripted model, and returns a `RowOutcome`. `fault_matrix.py` compares it with the row.
"""

import contextlib
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct, field

from grue import messages as m
from grue.engine.outside_turns.tool_client import ToolClient
from grue.engine.runner import Runner, TurnRequest
from grue.errors import MCPError
from grue.policies import FailurePolicy, TurnLimits
from grue.protocol.tools.lock import ToolLock, lock_of
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing import faulty_server
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tool_sessions.server_specs import StdioServer
from grue.transports.llm.endpoint import LlmSettings

SERVER = "faulty"
GRACE_S = 0.2
"""Seconds that a server gets for each step of its shutdown. A server that ignores both costs a row 0.4 s."""

Mode: TypeAlias = Literal["turn", "episode", "ahead", "kept", "beside", "presumed"]
"""How long the event loop and the sessions of a turn live, or `presumed`: as `turn`, and the model is asked
while the server starts."""

MODES: tuple[Mode, ...] = get_args(Mode)
LIFETIMES: Mapping[Mode, Mapping[str, Any]] = {
    "turn": {},
    "episode": {"keep": "loop"},
    "ahead": {"keep": "loop", "start": "after_turn"},
    "kept": {"keep": "sessions"},
    "beside": {"keep": "loop", "start": "beside_turn"},
    "presumed": {"start": "beside"},
}
"""The arguments of `Runner` for each mode."""

_PROBE = "GRUE_FAULT_PROBE"
_STAYS_ALIVE_S = 0.1


class RowOutcome(Struct, frozen=True, kw_only=True):
    """The observed outcome of one row.

    Attributes:
        outcome: The kind of the turn's outcome, the name of its error, or a word from the `drive` function.
        settlements: How each tool call ended, in order.
        text: The error's text, or the results of the calls, one a line.
        ending: How the server that the turn used was ended (`polite`, `terminated`, `killed`, ...).
        notes: Kinds of the `ServerNoted` messages; some `drive` functions add words of their own.
    """

    outcome: str
    settlements: tuple[str, ...] = ()
    text: str = ""
    ending: str = "none"
    notes: frozenset[str] = frozenset()


class Fault(Struct, frozen=True, kw_only=True):
    """One row of the matrix: the fault, and the expected outcome.

    Attributes:
        name: Name of the row.
        flags: Flags of `faulty_server`.
        command: Command of another server, instead of `faulty_server`.
        tool: The tool that the model calls.
        arguments: Arguments of the call.
        calls: How often the model calls it, each time in a reply of its own.
        outcome: The expected `RowOutcome.outcome`.
        settlements: The expected settlements of the calls, in order.
        says: Strings that the text must contain.
        ending: The expected ending of the server; `None`: any.
        notes: Kinds that must be among the notes.
        within_s: Time limit of the row, teardown included.
        startup_s: Time limit of the server's start.
        call_s: Time limit of a call.
        turn_s: Time limit of the turn; `None`: none.
        max_line_bytes: Longest line that is accepted from the server.
        policy: The `FailurePolicy` of the turn.
        replies: Replies of the model's endpoint, in order, in rows where the endpoint has the fault.
        settings: Further arguments of `LlmSettings`, such as another wire format.
        request: Further arguments of `TurnRequest`.
        drive: Runs the row; `None`: `drive_turn`.
        modes: The modes that the row can run in.
        mode: The mode that the row runs in.
    """

    name: str
    flags: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    tool: str = "echo"
    arguments: m.JsonObject = field(default_factory=lambda: {"text": "hi"})
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
    drive: Callable[["Fault"], RowOutcome] | None = None
    modes: tuple[Mode, ...] = MODES
    mode: Mode = "turn"

    def server(self) -> StdioServer:
        """Return the server that has the fault."""
        command, *args = self.command or faulty_server.argv(*self.flags)
        return StdioServer(name=SERVER, command=command, args=tuple(args))


def drive_turn(fault: Fault) -> RowOutcome:
    """Run a turn whose model calls the tool `fault.calls` times and then answers; close the runner."""
    trace: list[Any] = []
    with (
        ScriptedLlmServer(lambda asked: scripted(fault, asked)) as llm,
        runner_for(fault, llm, trace) as runner,
    ):
        outcome, settlements, text = run_and_summarize(fault, runner)
    if fault.mode == "presumed" and not any(isinstance(body, m.ToolsPresumed) for body in trace):
        outcome = "nothing was presumed"
    return RowOutcome(
        outcome=outcome,
        settlements=settlements,
        text=text,
        ending=last_ending(trace),
        notes=frozenset(body.kind for body in trace if isinstance(body, m.ServerNoted)),
    )


def runner_for(fault: Fault, llm: ScriptedLlmServer, trace: list[Any]) -> Runner:
    """Return a runner in the fault's mode. It appends the recorded messages to `trace`."""

    def keep(envelope: Envelope[Any], line: bytes) -> None:
        del line
        trace.append(envelope.body)

    recorder = Recorder()
    recorder.add(keep)
    options = dict(LIFETIMES[fault.mode])
    if fault.mode == "presumed":
        # The presumed tools come from a lock here. By default they would come from the user's cache.
        options = {"start": "beside_if_locked", "tool_lock": usual_tools()}
    return Runner(
        llm=LlmSettings(base_url=llm.base_url, model="scripted"),
        servers={SERVER: fault.server()},
        limits=TurnLimits(server_startup_timeout_s=fault.startup_s, tool_call_timeout_s=fault.call_s),
        policy=fault.policy,
        recorder=recorder,
        process_limits=_process_limits(fault),
        **options,
    )


@functools.cache
def usual_tools() -> ToolLock:
    """Return a lock with the tools of a sound `faulty_server`: the presumed tools of the mode `presumed`."""
    command, *args = faulty_server.argv()
    with ToolClient({SERVER: StdioServer(name=SERVER, command=command, args=tuple(args))}) as client:
        tools = client.tools()
    return ToolLock({SERVER: lock_of(tools)}, listings={SERVER: tools})


def _process_limits(fault: Fault) -> ProcessLimits:
    # The step that should end the server gets the usual time. On a slow machine, a short time could run out
    # before the server has ended, and the next step would end it.
    usual = ProcessLimits()
    return ProcessLimits(
        exit_grace_s=usual.exit_grace_s if fault.ending == "polite" else GRACE_S,
        term_grace_s=usual.term_grace_s if fault.ending == "terminated" else GRACE_S,
        max_line_bytes=fault.max_line_bytes,
    )


def last_ending(trace: Sequence[Any]) -> str:
    """Return how the server of the last turn was ended, even if that happened after the turn."""
    closed = [body.ending for body in trace if isinstance(body, m.SessionClosed)]
    if closed[-1:] != ["handed_over"]:
        return closed[-1] if closed else "none"
    used = [body.pid for body in trace if isinstance(body, m.SessionOpened)]
    return next((e.ending for e in trace if isinstance(e, m.ServerEnded) and e.pid in used[-1:]), "none")


def run_and_summarize(fault: Fault, runner: Runner) -> tuple[str, tuple[str, ...], str]:
    """Run a turn; return the outcome's kind or the error's name, the calls' settlements, and the text."""
    try:
        outcome = runner.run_turn(
            TurnRequest[str](system="Use the tool.", user="Go on.", turn_timeout_s=fault.turn_s)
        )
    except MCPError as error:
        return type(error).__name__, (), str(error)
    results = [call.result.error_message or str(call.result.content) for call in outcome.tool_calls]
    return outcome.kind, tuple(call.settlement for call in outcome.tool_calls), "\n".join(results)


def scripted(fault: Fault, request: LlmRequest) -> LlmReply:
    """Return the model's next reply: another call of the fault's tool, or its answer."""
    answered = sum(message["role"] == "tool" for message in request.messages)
    named = next((name for name in request.tool_names if name.endswith(fault.tool)), None)
    if named is None or answered >= fault.calls:
        return text_reply("done")
    return tool_calls_reply((named, fault.arguments))


def drive_without_stderr(fault: Fault) -> RowOutcome:
    """Run a turn while `sys.stderr` is `None`, as in some services and notebooks."""
    with contextlib.redirect_stderr(None):
        return drive_turn(fault)


def drive_environ_call(fault: Fault) -> RowOutcome:
    """Run a turn that asks the server for an environment variable that only the host has."""
    os.environ[_PROBE] = "the whole environment"
    try:
        return drive_turn(fault)
    finally:
        del os.environ[_PROBE]


PROBE: m.JsonObject = {"name": _PROBE}


_DOOMED_HOST = """
import sys
from grue.tool_sessions.server_specs import StdioServer
from grue.engine.outside_turns.tool_client import ToolClient

command, *args = sys.argv[1:]
with ToolClient({"faulty": StdioServer(name="faulty", command=command, args=tuple(args))}) as client:
    client.connect()
    print("connected", flush=True)
    client.call("faulty.echo", {"text": "hi"}, timeout_s=600)
"""


def drive_killed_host(fault: Fault) -> RowOutcome:
    """Kill a host with SIGKILL while it waits for a call. The matrix then looks for leftovers."""
    command = (sys.executable, "-c", _DOOMED_HOST, *(fault.command or faulty_server.argv(*fault.flags)))
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        connected = host.stdout.readline()
        host.kill()
        status = host.wait()
    return RowOutcome(outcome=f"killed by {-status}" if connected else f"never connected, status {status}")


def drive_ended_thread(fault: Fault) -> RowOutcome:
    """Start the server from a thread that ends immediately, and check that the server stays alive."""
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
    return RowOutcome(outcome="died" if died else "alive")
