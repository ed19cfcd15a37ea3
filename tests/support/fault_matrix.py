"""The fault matrix: ways in which tool servers and models' endpoints fail, with the expected outcomes.

```python
from fault_matrix import run_matrix

for result in run_matrix():
    print(result.line())
```

Every row is a whole turn, with a real process or over real HTTP. The
matrix checks its outcome, how its calls ended, its time, and that it leaves no process, descriptor or thread
behind. Further rows are in other modules: failures of the model's endpoint in `llm_fault_rows.py`, of
prewarmed sessions in `spare_fault_rows.py`, servers that send too much in `flood_fault_rows.py`, and images
in `media_fault_rows.py`.
"""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from fault_turns import (
    MODES,
    PROBE,
    Fault,
    Mode,
    RowOutcome,
    drive_ended_thread,
    drive_environ_call,
    drive_killed_host,
    drive_turn,
    drive_without_stderr,
)
from flood_fault_rows import FLOOD_FAULTS
from llm_fault_rows import LLM_FAULTS
from media_fault_rows import MEDIA_FAULTS
from msgspec import Struct
from msgspec.structs import replace
from spare_fault_rows import SPARE_FAULTS

from grue.runtime.safe_text import printable
from grue.testing.leftovers import assert_nothing_left

STARTUP = "MCPServerStartupError"
STUBBORN = ("--ignore-eof", "--ignore-term")
_LINUX: tuple[Mode, ...] = MODES if sys.platform == "linux" else ()
"""Modes of rows with a process that has left its group. grue can find such a process only on Linux."""

_ONCE: tuple[Mode, ...] = ("turn",)
"""Modes of rows that `test_lifetimes.py` tries in every mode, with the turns that follow."""

_LISTED: tuple[Mode, ...] = ("turn", "episode", "ahead", "kept", "beside")
"""Modes of rows whose model can only call a tool that has been listed."""

_HANGS_S = 15.0
"""How many seconds beyond its limit a row may take before the matrix stops waiting for it."""

_SDK_SERVER = """
import warnings
warnings.simplefilter("ignore")
from mcp.server import MCPServer
server = MCPServer("faulty")
@server.tool()
def echo(text: str) -> str:
    return text
server.run("stdio")
"""


def _fails_to_start(name: str, *flags: str, says: str = "", within_s: float = 3.0, **more: object) -> Fault:
    """Return a row whose server fails before the first tool call."""
    fault = {"outcome": STARTUP, "says": (says,), **more}
    return Fault(name=name, flags=flags, within_s=within_s, **fault)  # type: ignore[arg-type]  # as they are named


def _calls(name: str, *flags: str, became: str = "returned", **more: object) -> Fault:
    """Return a row whose first call has the settlement `became`."""
    fault = {"settlements": (became,), **more}
    return Fault(name=name, flags=flags, **fault)  # type: ignore[arg-type]  # as they are named


def _works_on_tasks(states: str) -> tuple[str, ...]:
    """Return the command of a server that runs calls as MCP tasks, which go through these states."""
    return (sys.executable, "-m", "grue.testing.task_server", "--states", states)


TOLERATED: Sequence[Fault] = (
    _calls("well-behaved", says=("hi",), ending="polite"),
    _calls("python-sdk-server", command=(sys.executable, "-c", _SDK_SERVER), within_s=10.0),
    _calls(
        "whole-environment",
        drive=drive_environ_call,
        tool="environ",
        arguments=PROBE,
        says=("the whole environment",),
    ),
    _calls("host-without-stderr", "--stderr", "a word", drive=drive_without_stderr),
    _calls("noise-on-stdout", "--noise", "40", notes=frozenset(["noise"])),
    _calls("invalid-utf8", "--invalid-utf8", says=("hi",)),
    _calls("slow-drip", "--drip", "0.0001"),
    _calls("line-of-8-mb", "--huge-result", "8000000", says=("hixxx",), within_s=4.0),
    _calls("stderr-flood", "--flood-stderr", "300000"),
    _calls("logs-and-progress", "--chatty", notes=frozenset(["log", "progress"])),
    _calls("malformed-tools", "--malformed-tool", notes=frozenset(["bad_tool"])),
    _calls("two-tools-of-one-name", "--double-tool", notes=frozenset(["bad_tool"])),
    _calls("listing-goes-round", "--pages", "3", "--page-loop", notes=frozenset(["bad_tool"])),
    _calls("oldest-protocol", "--protocol-version", "2024-11-05"),
    _calls("duplicate-answers", "--duplicate", calls=2, settlements=("returned", "returned")),
    _calls(
        "changes-its-tools",
        "--change-tools",
        calls=2,
        settlements=("returned", "rejected"),
        modes=("turn", "presumed"),
    ),
    _calls("asks-for-sampling", "--ask", "sampling", says=("error",), modes=_ONCE),
    _calls("asks-for-elicitation", "--ask", "elicitation", modes=_ONCE),
    _calls("asks-for-roots", "--ask", "roots"),
    _calls("asks-nonsense", "--ask", "nonsense", says=("error",)),
    _calls("pings", "--ask", "ping", says=("result",)),
)
"""Rows whose turn must succeed although the server is unusual or faulty."""

STARTS: Sequence[Fault] = (
    _fails_to_start("command-missing", command=("grue-has-no-such-command",), says="was not found"),
    _fails_to_start("dies-at-start", "--exit-at", "start", "--exit-status", "3", says="exit status 3"),
    _fails_to_start("last-words-on-stderr", "--exit-at", "initialize", "--stderr", "no disk", says="no disk"),
    _fails_to_start("dies-at-listing", "--exit-at", "list", says="tools/list"),
    _fails_to_start("killed-at-start", "--kill-at", "start", says="SIGKILL"),
    _fails_to_start("dies-under-grandchild", "--exit-at", "initialize", "--grandchild", says="exit status 1"),
    _fails_to_start("silent-at-start", "--silent-at", "start", says="no answer", startup_s=0.5),
    _fails_to_start("silent-at-initialize", "--silent-at", "initialize", says="no answer", startup_s=0.5),
    _fails_to_start(
        "silent-at-listing",
        "--silent-at",
        "list",
        says="no answer to tools/list",
        startup_s=2.0,
        within_s=5.0,
        modes=("turn", "ahead"),
    ),
    _fails_to_start(
        "silent-and-stubborn", "--silent-at", "start", *STUBBORN, says="no answer", startup_s=0.5
    ),
    _fails_to_start("null-at-initialize", "--null-at", "initialize", says="not usable"),
    _fails_to_start("null-at-listing", "--null-at", "list", says="not usable"),
    _fails_to_start("error-at-initialize", "--error-at", "initialize", says="told to refuse"),
    _fails_to_start("error-at-listing", "--error-at", "list", says="told to refuse"),
    _fails_to_start("unknown-protocol", "--protocol-version", "1999-01-01", says="1999-01-01"),
    _fails_to_start("closes-stdout", "--close-stdout-at", "initialize", says="broke"),
)
"""Rows whose turn fails because the server does not start; the error must say why."""

CALLS: Sequence[Fault] = (
    _calls("tool-error", tool="fail", arguments={}, says=("told to fail",)),
    _calls("error-at-call", "--error-at", "call", says=("told to refuse",)),
    _calls("null-at-call", "--null-at", "call", says=("not usable",)),
    _calls(
        "task-fails",
        command=_works_on_tasks("working,failed"),
        tool="research",
        arguments={},
        says=("the library is closed",),
        notes=frozenset(["progress"]),
        modes=_LISTED,
    ),
    _calls(
        "task-never-ends",
        command=_works_on_tasks("working"),
        tool="research",
        arguments={},
        became="timed_out",
        call_s=0.5,
        modes=_LISTED,
    ),
    _calls(
        "task-is-lost",
        command=_works_on_tasks("working,lost"),
        tool="research",
        arguments={},
        says=("interrupted; it may have taken effect",),
        modes=_LISTED,
    ),
    _calls("silent-at-call", "--silent-at", "call", became="timed_out", call_s=0.3, modes=_ONCE),
    _calls("wrong-ids", "--wrong-id", became="timed_out", call_s=0.3, notes=frozenset(["noise"])),
    _calls(
        "late-answers",
        "--late",
        "0.4",
        calls=2,
        settlements=("timed_out", "timed_out"),
        call_s=0.3,
    ),
    _calls(
        "stops-reading",
        "--stop-reading-after",
        "list",
        became="timed_out",
        arguments={"text": "x" * 500_000},
        call_s=0.3,
    ),
    _calls(
        "dies-at-call",
        "--exit-at",
        "call",
        became="died",
        outcome="forced",
        says=("exit status 1",),
        modes=_ONCE,
    ),
    _calls("killed-at-call", "--kill-at", "call", became="died", outcome="forced", says=("SIGKILL",)),
    _calls(
        "dies-at-call-under-grandchild",
        "--exit-at",
        "call",
        "--grandchild",
        became="died",
        outcome="forced",
    ),
    _calls(
        "dies-at-call-under-runaway",
        "--exit-at",
        "call",
        "--runaway",
        "2",
        became="died",
        outcome="forced",
        within_s=1.5,
        modes=("turn", "ahead"),
    ),
    _calls("closes-stdout-at-call", "--close-stdout-at", "call", became="died", outcome="forced"),
    _calls(
        "line-beyond-the-cap",
        "--huge-result",
        "1000000",
        became="died",
        outcome="forced",
        max_line_bytes=100_000,
        says=("100000 bytes",),
    ),
)
"""Rows whose tool call fails; the model gets the error as the call's result."""

ENDS: Sequence[Fault] = (
    _calls("grandchild-after-polite-exit", "--grandchild", ending="polite"),
    _calls("daemon-after-polite-exit", "--daemon", ending="polite", modes=_LINUX),
    _calls("daemon-without-environment", "--daemon", "--bare", ending="polite", modes=_LINUX),
    _calls("stubborn-with-daemon", *STUBBORN, "--daemon", ending="killed", modes=_LINUX),
    _calls("fork-that-holds-the-pipes", "--fork", ending="polite"),
    _calls("ignores-eof", "--ignore-eof", ending="terminated"),
    _calls("ignores-eof-and-term", *STUBBORN, ending="killed"),
    _calls("stubborn-with-grandchild", *STUBBORN, "--grandchild", ending="killed"),
    Fault(
        name="turn-limit-and-stubborn",
        flags=("--silent-at", "call", *STUBBORN),
        outcome="TurnTimedOut",
        says=("1.5 s",),
        turn_s=1.5,
        within_s=2.5,
        modes=_ONCE,
    ),
    Fault(name="spawning-thread-ends", outcome="alive", drive=drive_ended_thread, modes=("turn",)),
    Fault(
        name="host-killed",
        flags=("--silent-at", "call", *STUBBORN, "--grandchild"),
        outcome=f"killed by {int(signal.SIGKILL)}",
        within_s=10.0,
        drive=drive_killed_host,
        modes=("turn",),
    ),
    Fault(
        name="host-killed-with-daemon",
        flags=("--silent-at", "call", *STUBBORN, "--daemon"),
        outcome=f"killed by {int(signal.SIGKILL)}",
        within_s=10.0,
        drive=drive_killed_host,
        modes=_LINUX[:1],
    ),
)
"""Rows about shutdown: nothing may be left, even of a server that resists it."""

FAULTS: Sequence[Fault] = (
    *TOLERATED,
    *STARTS,
    *CALLS,
    *ENDS,
    *FLOOD_FAULTS,
    *LLM_FAULTS,
    *MEDIA_FAULTS,
    *SPARE_FAULTS,
)


class FaultResult(Struct, frozen=True, kw_only=True):
    """The result of one row.

    Attributes:
        fault: The row.
        seen: The observed outcome; `None`: the row hung, or its `drive` function raised an exception.
        elapsed_s: How many seconds it took.
        wrong: Differences from the expected outcome; empty if the row passed.
    """

    fault: Fault
    seen: RowOutcome | None
    elapsed_s: float
    wrong: tuple[str, ...]

    def line(self) -> str:
        """Return the row as one printable line: name, outcome, time, verdict."""
        seen = self.seen or RowOutcome(outcome="hung")
        outcome = " ".join((seen.outcome, *seen.settlements))
        verdict = printable("; ".join(self.wrong), 200) if self.wrong else "ok"
        mode = "" if self.fault.mode == "turn" else f" ({self.fault.mode})"
        return f"{self.fault.name + mode:<36} {outcome:<28} {self.elapsed_s:6.2f} s  {verdict}"


def run_matrix(
    faults: Sequence[Fault] = FAULTS, *, modes: Sequence[Mode] = ("turn",)
) -> Iterator[FaultResult]:
    """Run each row in each of `modes` that it supports, and yield the results. A row that hangs is given up.

    The first row runs once before, without a result: libraries open descriptors and threads at their first
    use, which would otherwise count as leftovers.
    """
    if faults:
        drive_turn(TOLERATED[0])
    for mode in modes:
        for fault in faults:
            if mode in fault.modes:
                yield try_fault(fault, mode)


def try_fault(fault: Fault, mode: Mode = "turn") -> FaultResult:
    """Run one row in a thread of its own, and compare the outcome with the expected one."""
    fault = replace(fault, mode=mode)
    seen: list[RowOutcome] = []
    crashes: list[BaseException] = []

    def drive() -> None:
        try:
            seen.append((fault.drive or drive_turn)(fault))
        except BaseException as error:  # noqa: BLE001 - reported in the result
            crashes.append(error)

    left = ""
    started = time.monotonic()
    thread = threading.Thread(target=drive, name=f"fault-{fault.name}", daemon=True)
    try:
        with assert_nothing_left():
            thread.start()
            thread.join(fault.within_s + _HANGS_S)
            elapsed_s = time.monotonic() - started
    except AssertionError as error:
        left = str(error)
    crash = f"{type(crashes[0]).__name__}: {crashes[0]}" if crashes else "it hangs"
    wrong = [*_wrong(fault, seen[0], elapsed_s)] if seen else [crash]
    if left:
        wrong.append(left)
    return FaultResult(fault=fault, seen=seen[0] if seen else None, elapsed_s=elapsed_s, wrong=tuple(wrong))


def _wrong(fault: Fault, seen: RowOutcome, elapsed_s: float) -> Iterator[str]:
    if seen.outcome != fault.outcome:
        yield f"the outcome should be {fault.outcome}, not {seen.outcome} ({seen.text})"
    if seen.settlements != fault.settlements:
        yield f"the calls should be {fault.settlements}, not {seen.settlements}"
    if missing := [word for word in fault.says if word not in seen.text]:
        yield f"{missing} should be in {seen.text[:500]!r}"
    if fault.ending not in (None, seen.ending):
        yield f"the server should be {fault.ending}, not {seen.ending}"
    if missing_notes := fault.notes - seen.notes:
        yield f"no note of {', '.join(sorted(missing_notes))}"
    if elapsed_s > fault.within_s:
        yield f"it took {elapsed_s:.2f} s, not {fault.within_s:g} s at most"
