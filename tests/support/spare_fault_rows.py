"""Rows of the fault matrix where a prewarmed session fails before its turn.

The server works at its first start, which serves the first turn. It has the fault at its second start, after
the first turn or beside it, and in some rows at later ones. The matrix judges the second turn, which must
open another session and record why.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from fault_turns import (
    Fault,
    Mode,
    RowOutcome,
    last_ending,
    run_and_summarize,
    runner_for,
    scripted,
)
from msgspec.structs import replace

from grue import messages as m
from grue.runtime.processes.descendants import all_processes
from grue.testing.llm_server import ScriptedLlmServer

_WAITS_S = 10.0
_LOOK_EVERY_S = 0.005


def drive_prewarmed_turn(fault: Fault) -> RowOutcome:
    """Run a turn, wait until the fault has struck the prewarmed session of the next turn, and run that turn.

    The notes are the kinds of the `ServerNoted` messages, `spare lost`, what followed a failed connect, and
    `disabled`. The text includes the reasons why prewarmed sessions were lost.
    """
    trace: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        lives, *flags = fault.flags
        fault = replace(fault, flags=("--only-in", lives, str(Path(folder, "lives")), *flags))
        with (
            ScriptedLlmServer(lambda asked: scripted(fault, asked)) as llm,
            runner_for(fault, llm, trace) as runner,
        ):
            first, *_ = run_and_summarize(replace(fault, tool="echo"), runner)
            struck = _HAS_STRUCK.get(flags[-1])
            if struck is not None:
                _wait_until(lambda: struck(trace))
            outcome, settlements, text = run_and_summarize(fault, runner)
    return RowOutcome(
        outcome=outcome if first == "answered" else f"{first} at first",
        settlements=settlements,
        text="\n".join([text, *(body.cause for body in trace if isinstance(body, m.PrewarmLost))]),
        ending=last_ending(trace),
        notes=frozenset(note for body in trace if (note := _note(body))),
    )


def _note(body: Any) -> str:
    match body:
        case m.ServerNoted(kind=kind):
            return kind
        case m.PrewarmLost():
            return "spare lost"
        case m.ConnectFailed(then=then):
            return then
        case m.McpDisabled():
            return "disabled"
    return ""


def _has_ended(trace: Sequence[Any]) -> bool:
    """Return whether the process of the prewarmed session has ended; it need not have been reaped yet."""
    spares = {body.pid for body in trace if isinstance(body, m.SessionPrewarmed)}
    return bool(spares) and not any(each.pid in spares and each.state != "Z" for each in all_processes())


def _has_reported(trace: Sequence[Any]) -> bool:
    """Return whether the server has reported its action in a log message."""
    return any(isinstance(body, m.ServerNoted) and "done: " in body.text for body in trace)


_HAS_STRUCK: Final[dict[str, Callable[[Sequence[Any]], bool]]] = {
    "exit": _has_ended,
    "kill": _has_ended,
    "noise": _has_reported,
    "change-tools": _has_reported,
}
"""By the last flag of rows whose fault strikes an idle prewarmed session: whether it has struck."""


def _wait_until(struck: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAITS_S
    while not struck():
        if time.monotonic() > deadline:
            raise TimeoutError("the fault did not strike the prewarmed session")
        time.sleep(_LOOK_EVERY_S)


def _spare(name: str, lives: str, *flags: str, lost: bool = True, **more: Any) -> Fault:
    """Return a row whose server has the fault at the starts `lives`; the second turn's call must succeed."""
    notes = more.pop("notes", frozenset()) | ({"spare lost"} if lost else frozenset())
    known = {"settlements": ("returned",), "within_s": 6.0, "notes": notes, **more}
    modes: tuple[Mode, ...] = ("ahead", "beside")
    return Fault(
        name=f"spare-{name}", flags=(lives, *flags), drive=drive_prewarmed_turn, modes=modes, **known
    )


SPARE_FAULTS: Sequence[Fault] = (
    _spare("dies-before-use", "2", "--exit-at", "initialize", says=("exit status 1",)),
    _spare("is-killed-before-use", "2", "--kill-at", "list", says=("SIGKILL",)),
    _spare("silent-at-initialize", "2", "--silent-at", "initialize", startup_s=2.0, says=("no answer",)),
    _spare(
        "silent-and-stubborn",
        "2",
        "--ignore-eof",
        "--ignore-term",
        "--silent-at",
        "list",
        startup_s=2.0,
        says=("no answer",),
    ),
    _spare("exits-while-waiting", "2", "--after-listing", "exit", says=("process has ended",)),
    _spare("is-killed-while-waiting", "2", "--after-listing", "kill", says=("process has ended",)),
    _spare(
        "dies-under-grandchild-while-waiting",
        "2",
        "--grandchild",
        "--after-listing",
        "exit",
        says=("process has ended",),
    ),
    _spare("noise-while-waiting", "2", "--after-listing", "noise", lost=False, notes=frozenset(["noise"])),
    _spare(
        "changes-its-tools-while-waiting",
        "2",
        "--after-listing",
        "change-tools",
        tool="added",
        lost=False,
        notes=frozenset(["log"]),
    ),
    _spare("and-the-next-fail", "2,3", "--exit-at", "initialize", notes=frozenset(["retry"])),
    _spare(
        "and-all-after-it-fail",
        "2,3,4",
        "--exit-at",
        "list",
        outcome="degraded",
        settlements=(),
        notes=frozenset(["retry", "disable", "disabled"]),
    ),
)
"""All rows of this module, for the modes with spares. After each, no process of any start may be left."""
