"""Rows of the fault matrix where the fault strikes the session that was opened ahead, before its turn.

The server is sound in its first life, which serves the first turn, and has the fault in its second one, or in
later ones too. Judged is the second turn: it opens another session, as any turn does, and says so.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from grue.mcp_transport.process_table import all_processes
from grue.messages import ConnectFailed, McpDisabled, PrewarmLost, ServerNoted, SessionPrewarmed
from grue.testing.fault_turns import Fault, Seen, a_runner, an_outcome, ending_in, scripted
from grue.testing.llm_server import ScriptedLlmServer

_WAITS_S = 10.0
_LOOK_EVERY_S = 0.005


def a_struck_spare(fault: Fault) -> Seen:
    """Run a turn, wait until its successor's session is struck by the fault, and run that turn.

    The notes are the kinds of what the servers did beside the protocol, `spare lost`, what followed a failed
    connect, and `disabled`; of `text` the reasons are a part.
    """
    trace: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        lives, *flags = fault.flags
        fault = replace(fault, flags=("--only-in", lives, str(Path(folder, "lives")), *flags))
        with (
            ScriptedLlmServer(lambda asked: scripted(fault, asked)) as llm,
            a_runner(fault, llm, trace) as runner,
        ):
            first, *_ = an_outcome(replace(fault, tool="echo"), runner)
            struck = _STRUCK.get(flags[-1])
            if struck is not None:
                _wait_until(lambda: struck(trace))
            outcome, settlements, text = an_outcome(fault, runner)
    return Seen(
        outcome=outcome if first == "answered" else f"{first} at first",
        settlements=settlements,
        text="\n".join([text, *(body.cause for body in trace if isinstance(body, PrewarmLost))]),
        ending=ending_in(trace),
        notes=frozenset(note for body in trace if (note := _note(body))),
    )


def _note(body: Any) -> str:
    match body:
        case ServerNoted(kind=kind):
            return kind
        case PrewarmLost():
            return "spare lost"
        case ConnectFailed(then=then):
            return then
        case McpDisabled():
            return "disabled"
    return ""


def _gone(trace: Sequence[Any]) -> bool:
    """Say whether the process of the spare has ended, though nobody has reaped it yet."""
    spares = {body.pid for body in trace if isinstance(body, SessionPrewarmed)}
    return bool(spares) and not any(each.pid in spares and each.state != "Z" for each in all_processes())


def _told(trace: Sequence[Any]) -> bool:
    """Say whether the server has reported its deed."""
    return any(isinstance(body, ServerNoted) and "done: " in body.text for body in trace)


_STRUCK: Final[dict[str, Callable[[Sequence[Any]], bool]]] = {
    "exit": _gone,
    "kill": _gone,
    "noise": _told,
    "change-tools": _told,
}
"""Where the fault strikes while the spare waits, by the last flag: how it can be seen that it has."""


def _wait_until(struck: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAITS_S
    while not struck():
        if time.monotonic() > deadline:
            raise TimeoutError("the fault did not strike the spare")
        time.sleep(_LOOK_EVERY_S)


def _spare(name: str, lives: str, *flags: str, lost: bool = True, **more: Any) -> Fault:
    """A server that has the fault in these lives; the second turn's call returns, whatever came before."""
    notes = more.pop("notes", frozenset()) | ({"spare lost"} if lost else frozenset())
    known = {"settlements": ("returned",), "within_s": 6.0, "notes": notes, **more}
    return Fault(name=f"spare-{name}", flags=(lives, *flags), drive=a_struck_spare, modes=("ahead",), **known)


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
"""Rows for `ahead`; after each, nothing is left of any of the server's lives."""
