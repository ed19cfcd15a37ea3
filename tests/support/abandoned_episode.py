"""A program that runs turns of an episode with a real server, and then abandons the episode in a given way.

    python abandoned_episode.py BASE_URL MODE WAY FLAG...

WAY is a key of `WAYS`. The program prints `now` when the test may send a signal. With the only argument
`serve`, it imports everything, and then forks a child for each requested episode, which runs turns until it
is killed: see `Stage`.
"""

import asyncio
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeAlias

import httpx
from killable_episodes import MARK
from msgspec.structs import replace

from grue import LlmSettings, ProcessLimits, Runner, StdioServer, TurnLimits, TurnRequest
from grue.messages import CloseSession, SessionPrewarmed, ToolCalled
from grue.testing import faulty_server

MODES: dict[str, dict[str, Any]] = {
    "episode": {},
    "ahead": {"start": "after_turn"},
    "kept": {"keep": "sessions"},
    "beside": {"start": "beside_turn"},
    "presumed": {"start": ("beside_turn", "beside")},
}
GRACES = ProcessLimits(exit_grace_s=0.3, term_grace_s=0.3)
ASK = TurnRequest[str](system="Answer.", user="What is the plan?")

Make: TypeAlias = Callable[[], Runner]


def say(text: object) -> None:
    """Print a line to the test, and flush it."""
    print(text, flush=True)


def runner(base_url: str, mode: str, *flags: str) -> Runner:
    """Return a runner in a mode of `MODES`, with one faulty server that gets `flags`."""
    command, *args = faulty_server.argv(*flags)
    return Runner(
        llm=LlmSettings(base_url=base_url, model="m"),
        servers={"faulty": StdioServer(name="faulty", command=command, args=tuple(args))},
        process_limits=GRACES,
        **{"keep": "loop", **MODES[mode]},
    )


def play(one: Runner) -> None:
    """Run a turn. If the runner prepares spares, wait until the next spare is ready."""
    prepared = threading.Event()
    one.recorder.add(lambda sent, _: prepared.set() if isinstance(sent.body, SessionPrewarmed) else None)
    assert one.run_turn(ASK).response == "done"
    if one._episode._sessions in ("ahead", "beside"):
        assert prepared.wait(60)


def wait() -> None:
    """Wait for a signal, like a host that is busy with something else."""
    say("now")
    # Wait in short steps: if a signal arrives right before a wait, CPython notices it only after that wait.
    for _ in range(6000):
        time.sleep(0.01)


def tell_calls(one: Runner) -> Runner:
    """Print `now` when the runner calls a tool."""
    one.recorder.add(lambda sent, _: say("now") if isinstance(sent.body, ToolCalled) else None)
    return one


def _close(make: Make) -> None:
    one = make()
    play(one)
    one.close()
    say("over")
    wait()


def _exception_in_with(make: Make) -> None:
    with contextlib.suppress(LookupError), make() as one:
        play(one)
        raise LookupError
    say("over")
    wait()


def _forgotten(make: Make) -> None:
    one = make()
    # Use the default limits: they give an abandoned server more time to end than the test waits.
    one._wiring = replace(one._wiring, process_limits=ProcessLimits())
    play(one)
    one.itself = one  # type: ignore[attr-defined]
    del one
    gc.collect()
    wait()


kept_to_the_end: list[Runner] = []


def _end_of_script(make: Make) -> None:
    kept_to_the_end.append(make())
    play(kept_to_the_end[0])


def _unhandled(make: Make) -> None:
    _end_of_script(make)
    raise LookupError("the user's own")


def _sys_exit(make: Make) -> None:
    _end_of_script(make)
    sys.exit(3)


def _os_exit(make: Make) -> None:
    _end_of_script(make)
    os._exit(4)


def _between_turns(make: Make) -> None:
    with make() as one:
        play(one)
        wait()


def _opening(make: Make) -> None:
    with make() as one:
        one.run_turn(ASK)
        wait()


def _in_a_call(make: Make) -> None:
    with make() as one:
        tell_calls(one).run_turn(ASK)


def _in_an_async_call(make: Make) -> None:
    with make() as one:
        asyncio.run(tell_calls(one).run_turn_async(ASK))


def _in_a_notebook(make: Make) -> None:
    async def cell() -> None:
        tell_calls(one).run_turn(ASK)

    with make() as one:
        asyncio.run(cell())


def _in_a_batch(make: Make) -> None:
    with make() as one:
        list(tell_calls(one).map([ASK] * 5, concurrency=3))


def _in_a_batch_that_takes_its_time(make: Make) -> None:
    """Send a second SIGINT as soon as the clean-up begins, and print how long the clean-up took after it."""
    one = make()
    patient = ProcessLimits(exit_grace_s=30.0, term_grace_s=30.0, cancelled_grace_s=30.0)
    one._wiring = replace(one._wiring, process_limits=patient)
    one.limits = TurnLimits(teardown_s=100.0)
    pressed: list[float] = []

    def press(sent: Any, _: bytes) -> None:
        if isinstance(sent.body, CloseSession) and not pressed:
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    one.recorder.add(press)
    try:
        list(tell_calls(one).map([ASK] * 3, concurrency=3))
    except KeyboardInterrupt:
        say(time.monotonic() - pressed[0])


def _closing(make: Make) -> None:
    one = make()
    play(one)
    one._episode._episode.loop._work.interrupt = _told(one._episode._episode.loop._work.interrupt)  # type: ignore[method-assign, union-attr]
    one.close()


def _told(function: Callable[[], None]) -> Callable[[], None]:
    def told() -> None:
        function()
        say("now")

    return told


WAYS: dict[str, Callable[[Make], None]] = {
    "close": _close,
    "exception in with": _exception_in_with,
    "forgotten": _forgotten,
    "end of script": _end_of_script,
    "unhandled": _unhandled,
    "sys.exit": _sys_exit,
    "os._exit": _os_exit,
    "between turns": _between_turns,
    "opening": _opening,
    "call": _in_a_call,
    "async call": _in_an_async_call,
    "notebook": _in_a_notebook,
    "batch": _in_a_batch,
    "batch that takes its time": _in_a_batch_that_takes_its_time,
    "closing": _closing,
}


class Stage:
    """Runs this module as a program that plays episodes and kills each of them; a context manager."""

    def __enter__(self) -> Self:
        from commands import forked  # not needed in the forked program

        self._program = subprocess.Popen(
            forked(__file__, "serve"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self._program.communicate(timeout=150)

    def kill(self, mark: str, after_s: float, *asked: str, pausing: bool = False) -> bool:
        """Start an episode, and kill its process after a time. Return whether the process was killed.

        Args:
            mark: A name of the episode, in the environment of its processes.
            after_s: When to kill the process, in seconds from its start.
            asked: The episode, as `BASE_URL MODE FLAG...`.
            pausing: Count `after_s` from the host's pause after the first turn instead, when any spare is
                ready.
        """
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(f"{json.dumps([mark, after_s, pausing, *asked])}\n")
        self._program.stdin.flush()
        killed: bool = json.loads(self._program.stdout.readline())
        return killed


def _serve() -> None:
    # Import what each child would otherwise have to import.
    for module in ("transports.mcp.sdk", "transports.mcp.client", "tool_sessions.session_pool"):
        importlib.import_module(f"grue.{module}")
    importlib.import_module("anyio._backends._asyncio")
    httpx.AsyncHTTPTransport()  # the first one imports `httpcore`
    gc.collect()
    gc.freeze()  # the children share these pages
    for line in sys.stdin:
        mark, after_s, pausing, *asked = json.loads(line)
        say(json.dumps(_killed(mark, after_s, asked, pausing=pausing)))


def _killed(mark: str, after_s: float, asked: list[str], *, pausing: bool) -> bool:
    paused, to_tell = os.pipe()
    pid = os.fork()
    if not pid:
        _play_on(mark, asked, to_tell if pausing else None)
    os.close(to_tell)
    over = os.pidfd_open(pid)
    # If the child ends before its pause, `os.read` returns an empty result.
    well = not pausing or os.read(paused, 1) == b"."
    select.select([over], [], [], after_s)
    os.kill(pid, signal.SIGKILL)
    os.close(over)
    os.close(paused)
    _, status = os.waitpid(pid, 0)
    return well and os.WIFSIGNALED(status)


def _play_on(mark: str, asked: list[str], to_tell: int | None) -> None:
    os.environ[MARK] = mark
    try:
        with runner(*asked) as one:
            if to_tell is not None:
                play(one)
                os.write(to_tell, b".")
                threading.Event().wait(60)
            while True:
                one.run_turn(ASK)
    finally:
        os._exit(0)


def _end_undisturbed(*error: Any) -> None:
    """Print an unhandled exception as the interpreter does, but ignore SIGINT from now on.

    A Ctrl-C during the interpreter's printing or clean-up interrupts either, whatever the program was.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.__excepthook__(*error)


def _main() -> None:
    sys.excepthook = _end_undisturbed
    if sys.argv[1:] == ["serve"]:
        _serve()
        return
    base_url, mode, way, *flags = sys.argv[1:]
    WAYS[way](lambda: runner(base_url, mode, *flags))


if __name__ == "__main__":
    _main()
