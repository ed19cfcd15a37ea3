"""Episodes that are closed, forgotten, interrupted, killed: whatever happens, nothing is left of them.

The processes are real, and found by a mark in their environment. `GRUE_KILL_SEED` chooses other instants.
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import anyio
import pytest
from abandoned_episode import ASK, MODES, Stage, play, runner
from commands import bodies, faulty, forked, group_is_gone, start, wait_for_body, write_servers
from killable_episodes import MARK, alive_of
from promises import within

from grue import FunctionTools, LlmSettings, Runner, TurnHandle, TurnOutcome
from grue.errors import MCPError, MCPServerStartupError
from grue.messages import RunTurn, ToolCalled, TurnCompleted
from grue.runtime.loops.interrupts import INTERRUPT_GRACE_S
from grue.runtime.loops.sync_edge import BlockingInsideEventLoopWarning
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "abandoned_episode.py"
STUBBORN = ("--ignore-eof", "--ignore-term", "--grandchild")
SEED = int(os.environ.get("GRUE_KILL_SEED", "6"))
INSTANTS = 50
KILLS = 8
TURNS_OF_ONE = 4
"""How many turns a runner plays, since a server that has been killed twice in a turn is disabled after it."""
MOVE = json.dumps({"thinking": "Where am I?", "action": "look", "new_objective": None})
WITHIN_S = 3.0
"""What a person who pressed Ctrl-C waits at most."""
DEADLINE_S = 60.0

modes = pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "presumed"])
servers = pytest.mark.parametrize("flags", [(), STUBBORN], ids=["polite", "stubborn"])


def one_call_a_turn(request: LlmRequest) -> LlmReply:
    """Call the tool, then answer; any number of turns."""
    if any(message["role"] == "tool" for message in request.messages):
        return text_reply("done")
    return tool_calls_reply(("faulty.echo", {"text": "hi"}))


@pytest.fixture(scope="module")
def llm() -> Iterator[str]:
    with ScriptedLlmServer(one_call_a_turn) as server:
        yield server.base_url


class Program:
    """`abandoned_episode.py`, running; a context manager that leaves nothing of it.

    It is forked from a process that has imported the SDK: only its end is under test, not its start.
    """

    def __init__(self, *asked: str) -> None:
        self._mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            forked(str(PROGRAM), *asked),
            env={**os.environ, MARK: self._mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=150)

    def servers(self) -> list[int]:
        """What is alive beside the program itself."""
        return [pid for pid in alive_of(self._mark) if pid != self.process.pid]

    def until(self, line: str) -> None:
        """Read until it has said that."""
        assert self.process.stdout is not None
        for said in self.process.stdout:
            if said == f"{line}\n":
                return
        assert self.process.stderr is not None
        raise AssertionError(self.process.stderr.read())

    def end(self) -> tuple[int, str]:
        """Wait for its end, and return its status and what it wrote to standard error."""
        _, errors = self.process.communicate(timeout=150)
        return self.process.returncode, errors


def gone(program: Program) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while program.servers() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not program.servers()


CLOSED = [(mode, way) for mode in ("ahead", "kept") for way in ("close", "exception in with")]


@pytest.mark.parametrize(("mode", "way"), [*CLOSED, ("beside", "close")])
def test_nothing_is_alive_when_close_returns(llm: str, mode: str, way: str) -> None:
    with Program(llm, mode, way, *STUBBORN) as program:
        program.until("over")
        assert program.servers() == []


@pytest.mark.parametrize("mode", ["ahead", "kept"])
@servers
def test_a_forgotten_runner_takes_everything_with_it(llm: str, mode: str, flags: tuple[str, ...]) -> None:
    with Program(llm, mode, "forgotten", *flags) as program:
        program.until("now")
        assert gone(program)


EXITS = {
    "end of script": (0, ""),
    "sys.exit": (3, ""),
    "os._exit": (4, ""),
    "unhandled": (1, "LookupError: the user's own"),
}


@pytest.mark.parametrize("way", EXITS)
def test_an_exit_without_close_leaves_nothing(llm: str, way: str) -> None:
    with Program(llm, "ahead", way, *STUBBORN) as program:
        status, errors = program.end()
        assert gone(program)
    assert (status, errors.strip().rpartition("\n")[2]) == EXITS[way]
    assert errors.count("Traceback") == (way == "unhandled")


CTRL_C = {
    "call": ("--silent-at", "call"),
    "async call": ("--silent-at", "call"),
    "notebook": ("--silent-at", "call"),
    "batch": ("--silent-at", "call"),
    "between turns": (),
    "opening": (),
    "closing": (),
}


PRESSED = [
    *(("ahead", way, 1) for way in CTRL_C),
    ("kept", "call", 1),
    ("kept", "closing", 1),
    ("episode", "call", 1),
    *(("ahead", way, times) for way in ("call", "closing") for times in (2, 3)),
    *(("beside", way, 1) for way in ("call", "batch")),
    ("episode", "batch", 2),
]


@pytest.mark.parametrize(("mode", "way", "times"), PRESSED)
def test_ctrl_c_ends_everything_within_seconds(llm: str, mode: str, way: str, times: int) -> None:
    with Program(llm, mode, way, *CTRL_C[way], *STUBBORN) as program:
        program.until("now")
        with within(WITHIN_S):
            for _ in range(times):
                program.process.send_signal(signal.SIGINT)
                time.sleep(0.15)  # a person's fingers
            status, errors = program.end()
            assert gone(program)
    assert status == -signal.SIGINT, errors
    assert errors.rstrip().endswith("KeyboardInterrupt")


def test_a_second_ctrl_c_kills_what_a_batch_waits_for(llm: str) -> None:
    with Program(llm, "episode", "batch that takes its time", "--silent-at", "call", *STUBBORN) as program:
        for _ in range(3):
            program.until("now")
        program.process.send_signal(signal.SIGINT)
        out, errors = program.process.communicate(timeout=150)
        assert gone(program)
    assert (program.process.returncode, errors) == (0, "")
    assert float(out) < INTERRUPT_GRACE_S, "the first one alone would have waited that long for them"


@pytest.mark.parametrize("mode", ["ahead", "kept"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_that_ends_the_host_ends_its_servers(llm: str, mode: str, number: signal.Signals) -> None:
    with Program(llm, mode, "between turns", *STUBBORN) as program:
        program.until("now")
        program.process.send_signal(number)
        status, errors = program.end()
        assert gone(program)
    assert (status, errors) == (-number, "")


def test_sigkill_at_random_instants_leaves_nothing(llm: str) -> None:
    print(f"GRUE_KILL_SEED={SEED}")
    dice = random.Random(SEED)
    # Every third round strikes hosts that pause: then their spares wait, which otherwise are used at once.
    rounds = ("playing", "playing", "pausing")
    kinds = itertools.cycle(itertools.product(rounds, MODES, [(), STUBBORN]))
    marks: dict[str, str] = {}
    with Stage() as stage:
        for (host, mode, flags), _ in zip(kinds, range(INSTANTS), strict=False):
            mark, pausing = uuid.uuid4().hex, host == "pausing"
            after_s = dice.uniform(0.0, 0.02 if pausing else 0.2)
            marks[mark] = f"{host} {mode} {flags} {after_s:.4f} s"
            assert stage.kill(mark, after_s, llm, mode, *flags, pausing=pausing), marks[mark]
    deadline = time.monotonic() + DEADLINE_S
    while (left := [what for mark, what in marks.items() if alive_of(mark)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []


@pytest.mark.parametrize("killed_mode", ["beside", "presumed"])
def test_servers_killed_at_random_instants_end_each_turn_typed_and_leave_nothing(
    llm: str, killed_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their process does then: it boots beside a turn, waits, answers a call, or ends."""
    print(f"GRUE_KILL_SEED={SEED}")
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    killer = Killer(mark, random.Random(SEED))
    ended: list[str] = []
    with assert_nothing_left():
        while len(killer.killed) < KILLS:
            with runner(llm, killed_mode) as one:
                one.recorder.add(killer)
                ended += [how_it_ends(one) for _ in range(TURNS_OF_ONE)]
    assert alive_of(mark) == []
    assert "answered" in ended


def how_it_ends(one: Runner) -> str:
    """Run a turn; anything but an outcome or the failure of its first start ends the test."""
    try:
        return one.run_turn(ASK).kind
    except MCPServerStartupError:
        return "not started"


class Killer:
    """An observer that kills one of the living servers each time some messages have been recorded."""

    def __init__(self, mark: str, dice: random.Random) -> None:
        self.killed: list[int] = []
        self._mark = mark
        self._dice = dice
        self._left = 1

    def __call__(self, _sent: object, _line: bytes) -> None:
        self._left -= 1
        if self._left > 0:
            return
        if servers := [pid for pid in alive_of(self._mark) if pid not in self.killed]:
            self.killed.append(self._dice.choice(servers))
            os.kill(self.killed[-1], signal.SIGKILL)
            self._left = self._dice.randint(1, 60)


@modes
@pytest.mark.parametrize("leave", ["sys.exit", "os._exit"])
def test_a_forked_childs_end_does_nothing_to_its_parents_episode(llm: str, mode: str, leave: str) -> None:
    with assert_nothing_left(), runner(llm, mode) as one:
        play(one)
        started = one.start_turn(ASK)
        told, to_tell = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                _use_in_a_child(one, started)
                with runner(llm, mode) as own:
                    play(own)
                one.close()
                os.write(to_tell, b"well")
            except BaseException as error:  # noqa: BLE001 - whatever it is has to reach the test
                os.write(to_tell, repr(error).encode())
            finally:
                if leave == "sys.exit":
                    _leave_as_the_interpreter_does()
                os._exit(0)
        os.close(to_tell)
        with os.fdopen(told, "rb") as said:
            assert said.read() == b"well"
        os.waitpid(pid, 0)
        assert started.result().response == "done"
        play(one)


def _use_in_a_child(of_the_parent: Runner, started: TurnHandle[Any]) -> None:
    with pytest.raises(MCPError, match="its parent process's: make a new runner after a fork"):
        of_the_parent.run_turn(ASK)
    if not started.done():
        with pytest.raises(MCPError, match="its parent process's"):
            started.result()


def _leave_as_the_interpreter_does() -> None:
    import atexit
    import gc

    gc.collect()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()


@modes
def test_turns_that_several_threads_ask_for_do_not_overlap(llm: str, mode: str) -> None:
    heard: list[object] = []
    answers: list[str] = []
    barrier = threading.Barrier(6)

    def ask(one: Runner) -> None:
        barrier.wait(60)
        answers.extend(one.run_turn(ASK).response for _ in range(2))

    with assert_nothing_left(), runner(llm, mode) as one:
        one.recorder.add(lambda sent, _: heard.append(type(sent.body)))
        threads = [threading.Thread(target=ask, args=(one,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert answers == ["done"] * 12
    assert [kind for kind in heard if kind in (RunTurn, TurnCompleted)] == [RunTurn, TurnCompleted] * 12


@modes
def test_p40_in_a_running_loop_a_turn_works_and_says_once_that_it_blocks(llm: str, mode: str) -> None:
    from grue.runtime.loops import sync_edge

    sync_edge._warned.clear()

    async def cell(one: Runner) -> list[str]:
        with pytest.warns(BlockingInsideEventLoopWarning, match=r"Runner\.run_turn_async") as caught:
            first = one.run_turn(ASK).response
        assert caught[0].filename == __file__
        return [first, one.run_turn(ASK).response]

    with assert_nothing_left(), runner(llm, mode) as one:
        assert anyio.run(cell, one) == ["done", "done"]


@modes
def test_the_async_twin_leaves_the_callers_loop_running_and_can_be_cancelled(llm: str, mode: str) -> None:
    heard: list[str] = []

    async def main(one: Runner, silent: Runner) -> None:
        ticks = itertools.count()

        async def tick() -> None:
            while next(ticks) < 1_000_000:  # noqa: ASYNC110 - it waits for nothing
                await anyio.sleep(0.001)

        called = anyio.Event()
        loop = asyncio.get_running_loop()

        def look(sent: Any, _: object) -> None:
            heard.append(type(sent.body).__name__)
            if isinstance(sent.body, ToolCalled):
                loop.call_soon_threadsafe(called.set)

        silent.recorder.add(look)
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            assert (await one.run_turn_async(ASK)).response == "done"
            assert next(ticks) > 3
            group.start_soon(silent.run_turn_async, ASK)
            await called.wait()
            group.cancel_scope.cancel()
        assert heard[-1] == "TurnFailed", "the turn is over by now"

    stubborn = ("--silent-at", "call", *STUBBORN)
    with assert_nothing_left(), runner(llm, mode) as one, runner(llm, mode, *stubborn) as silent:
        asyncio.run(main(one, silent))


def test_an_observer_cannot_run_another_turn_of_its_own_episode(llm: str) -> None:
    refused: list[MCPError] = []

    with assert_nothing_left(), runner(llm, "episode") as one:

        def again(sent: Any, _: object) -> None:
            if isinstance(sent.body, ToolCalled):
                with pytest.raises(MCPError, match="must not record a message or run a turn") as raised:
                    one.run_turn(ASK)
                refused.append(raised.value)

        one.recorder.add(again)
        assert one.run_turn(ASK).response == "done"
    assert len(refused) == 1


def test_nor_can_a_function_that_a_turn_calls_in_a_thread_of_its_own() -> None:
    """It would wait, until its limit, for a turn that waits for it. To begin one is no waiting."""
    begun: list[TurnHandle[TurnOutcome[str]]] = []

    def ask_again() -> str:
        """Ask for another turn."""
        with pytest.raises(MCPError, match="cannot wait for another turn"):
            one.run_turn(ASK)
        if not begun:
            begun.append(one.start_turn(ASK))
        return "refused"

    def call_it(request: LlmRequest) -> LlmReply:
        called = any(message["role"] == "tool" for message in request.messages)
        return text_reply("done") if called else tool_calls_reply(("desk.ask_again", {}))

    desk = FunctionTools({"ask_again": ask_again})
    with ScriptedLlmServer(call_it) as llm, assert_nothing_left():
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with Runner(llm=settings, servers={"desk": desk}, keep="loop") as one:
            (call,) = one.run_turn(ASK).tool_calls
            assert call.result is not None
            assert call.result.content == "refused"
            assert begun[0].result().response == "done"


def one_call_a_move(request: LlmRequest) -> LlmReply:
    """Call the tool, then decide."""
    reply = one_call_a_turn(request)
    return text_reply(MOVE) if any(message["role"] == "tool" for message in request.messages) else reply


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_played_episode_with_spares_ends_with_its_host_and_can_be_resumed(
    tmp_path: Path, number: signal.Signals
) -> None:
    config = write_servers(tmp_path / "mcp.json", faulty=faulty("--grandchild"))
    run = tmp_path / "run"
    with ScriptedLlmServer(one_call_a_move) as llm:
        options = (
            "--base-url",
            llm.base_url,
            "--model",
            "m",
            "--mcp-config",
            str(config),
            "--start=after_turn",
        )
        program = start("play", *options, "--run-dir", "run", "--turns", "90", cwd=tmp_path)
        wait_for_body(run, "SpareReady")  # the tag of `SessionPrewarmed` on file
        program.send_signal(number)
        _, errors = program.communicate(timeout=150)
        assert program.returncode == (130 if number == signal.SIGINT else -number), errors
        assert "Traceback" not in errors
        opened = [body["pid"] for kind in ("SessionOpened", "SpareReady") for body in bodies(run, kind)]
        assert all(group_is_gone(pid) for pid in opened)
        played = len(bodies(run, "TurnCompleted"))
        resumed = start(
            "play", "--resume", "run", "--turns", str(played + 3), "--start=after_turn", cwd=tmp_path
        )
        _, errors = resumed.communicate(timeout=150)
        assert resumed.returncode == 0, errors
        assert len(bodies(run, "TurnCompleted")) == played + 3
