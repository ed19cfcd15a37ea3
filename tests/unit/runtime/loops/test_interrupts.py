"""What a Ctrl-C does in the main thread, and which modules may touch signals."""

import ast
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import pytest
from promises import GUARD_S

import grue
from grue.runtime.loops.interrupts import (
    InterruptWatch,
    defer_interrupts,
    restore_interrupt,
    run_in_main_thread,
)
from grue.runtime.loops.sync_edge import run_loop

PROGRAM = Path(__file__).resolve().parents[3] / "support" / "interrupted_edge.py"


@pytest.mark.parametrize("where", ["plain", "loop", "bare loop", "thread"])
@pytest.mark.slow
def test_ctrl_c_ends_the_call_within_seconds_wherever_it_was_made(where: str) -> None:
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=GUARD_S)
    assert process.returncode == 130, errors
    # Nobody but the interpreter's end can reach a call that another thread of the user's made.
    cleaned = [] if where == "thread" else ["cleaned up", "last word"]
    assert rest.splitlines() == [*cleaned, "KeyboardInterrupt"]
    assert errors == ""


def test_an_interrupt_that_a_lock_has_masked_leaves_as_what_it_is() -> None:
    def masked() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()  # as a condition does that was interrupted while it released its lock

    with pytest.raises(KeyboardInterrupt), restore_interrupt():
        masked()
    with pytest.raises(RuntimeError, match="of its own"), restore_interrupt():
        raise RuntimeError("of its own")


def test_a_ctrl_c_that_a_loop_took_is_told_once_and_to_the_task_that_watches() -> None:
    async def main() -> list[bool]:
        watch = InterruptWatch()
        task = asyncio.current_task()
        assert task is not None
        seen = [watch.struck()]
        task.cancel()
        seen += [watch.struck(), watch.struck(), InterruptWatch().struck()]
        task.uncancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return seen

    assert asyncio.run(main()) == [False, True, False, False]


def test_presses_in_the_main_thread_cancel_the_work_then_kill_then_raise() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await anyio.sleep(60)
        finally:
            seen.append("clean-up")
            signal.raise_signal(signal.SIGINT)
            seen.append("still cleaning up")
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
                seen.append("never")
            seen.append("raised")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_in_main_thread(work, lambda: seen.append("killed"), run_loop)
    assert seen == ["clean-up", "killed", "still cleaning up", "raised"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_deferred_press_is_raised_at_the_end_of_the_outermost_block() -> None:
    reached: list[str] = []

    def deferring() -> None:
        with defer_interrupts():
            with defer_interrupts():
                signal.raise_signal(signal.SIGINT)
                reached.append("inner")
            reached.append("outer")

    with pytest.raises(KeyboardInterrupt):
        deferring()
    assert reached == ["inner", "outer"]


def test_the_hosts_own_handler_is_left_alone() -> None:
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        with defer_interrupts():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert pressed == [signal.SIGINT]


@pytest.fixture
def alarm() -> Iterator[Callable[..., object]]:
    """The handler of SIGALRM, which raises."""

    def strike(*_: object) -> None:
        raise TimeoutError("the host's own alarm")

    before = signal.signal(signal.SIGALRM, strike)
    yield strike
    assert signal.signal(signal.SIGALRM, before) is strike


def strike_in_the_loop(number: int) -> None:
    """Let a signal interrupt the loop's own code, which calls no coroutine at that moment."""
    asyncio.get_running_loop().call_soon(signal.raise_signal, number)


@pytest.mark.usefixtures("alarm")
def test_what_a_handler_raises_in_the_loops_own_code_ends_the_work_and_is_raised() -> None:
    """asyncio would log what a callback raises, and the work would never end."""
    seen: list[str] = []

    async def work() -> None:
        try:
            strike_in_the_loop(signal.SIGALRM)
            await anyio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                strike_in_the_loop(signal.SIGALRM)
                await anyio.sleep(0.01)
            seen.append("cleaned up")

    with pytest.raises(TimeoutError, match="the host's own alarm"):
        run_in_main_thread(work, lambda: seen.append("killed"), run_loop)
    assert seen == ["killed", "cleaned up"]


@pytest.mark.usefixtures("alarm")
def test_a_ctrl_c_is_not_lost_behind_what_another_handler_raises() -> None:
    async def work() -> None:
        strike_in_the_loop(signal.SIGALRM)
        strike_in_the_loop(signal.SIGINT)
        await anyio.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        run_in_main_thread(work, lambda: None, run_loop)


@pytest.mark.usefixtures("alarm")
def test_a_handler_that_interrupts_the_hosts_callback_raises_there() -> None:
    async def work() -> str:
        with pytest.raises(TimeoutError):
            signal.raise_signal(signal.SIGALRM)
        return "done"

    assert run_in_main_thread(work, lambda: None, run_loop) == "done"


def test_what_a_handler_raises_is_deferred_as_a_press_is(alarm: Callable[..., object]) -> None:
    reached: list[str] = []

    def deferring() -> None:
        with defer_interrupts():
            strike = signal.getsignal(signal.SIGALRM)
            assert callable(strike)
            assert strike is not alarm
            strike(signal.SIGALRM, None)
            reached.append("inside")

    with pytest.raises(TimeoutError, match="the host's own alarm"):
        deferring()
    assert reached == ["inside"]


def test_a_handler_that_a_block_has_left_behind_is_removed_by_the_next(alarm: Callable[..., object]) -> None:
    with defer_interrupts():
        left = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, left)
    with pytest.raises(TimeoutError):
        signal.raise_signal(signal.SIGALRM)
    with defer_interrupts():
        pass
    assert signal.getsignal(signal.SIGALRM) is alarm


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGINT])
def test_a_handler_raises_in_a_child_that_is_forked_meanwhile(number: int) -> None:
    with defer_interrupts():
        child = os.fork()
        if child == 0:
            try:
                signal.raise_signal(number)
            except (TimeoutError, KeyboardInterrupt):
                os._exit(0)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_handler_that_the_host_sets_in_a_callback_stays() -> None:
    def other(*_: object) -> None:
        pass

    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        with defer_interrupts():
            signal.signal(signal.SIGALRM, other)
        assert signal.getsignal(signal.SIGALRM) is other
    finally:
        signal.signal(signal.SIGALRM, before)


HANDLING = {
    "signal",
    "getsignal",
    "pthread_sigmask",
    "default_int_handler",
    "set_wakeup_fd",
    "siginterrupt",
    "sigwait",
    "add_signal_handler",
}
"""The functions by which a program handles signals. Sending signals to other processes is not meant."""

ON_THEIR_OWN = {"runtime/loops/interrupts.py", "cli/__init__.py", "hosts/servers/think.py", "fleet/worker.py"}
"""The module itself; the command's start, before anything is imported; a server, which is another program; a
fleet's worker, which compares what an episode has left changed."""


def handled_names(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in HANDLING:
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner in ("signal", "_signal") or node.attr == "add_signal_handler":
                found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module in ("signal", "_signal"):
            found |= {alias.name for alias in node.names} & HANDLING
    return found


@pytest.mark.slow
def test_one_module_handles_signals() -> None:
    assert handled_names("import signal\nsignal.signal(signal.SIGINT, f)") == {"signal"}
    assert handled_names("from signal import getsignal") == {"getsignal"}
    root = Path(grue.__file__).parent
    texts = {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    handling = {name for name, text in texts.items() if "signal" in text and handled_names(text)}
    assert handling - {name for name in handling if name.startswith("testing/")} == ON_THEIR_OWN


def test_a_press_while_the_loop_starts_cancels_the_work_when_it_begins() -> None:
    reached: list[str] = []

    async def work() -> None:
        reached.append("begun")
        await anyio.sleep(60)

    def press_and_run(function: Callable[[], Awaitable[None]]) -> None:
        signal.raise_signal(signal.SIGINT)
        run_loop(function)

    with pytest.raises(KeyboardInterrupt):
        run_in_main_thread(work, lambda: None, press_and_run)
    assert reached == ["begun"]


def test_a_press_while_the_loop_ends_is_raised_after_its_end() -> None:
    reached: list[str] = []

    async def work() -> int:
        return 1

    def run_and_press(function: Callable[[], Awaitable[None]]) -> None:
        run_loop(function)
        signal.raise_signal(signal.SIGINT)
        reached.append("the loop has ended")

    with pytest.raises(KeyboardInterrupt):
        run_in_main_thread(work, lambda: None, run_and_press)
    assert reached == ["the loop has ended"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
