"""What fails in one turn of an episode is that turn's: the next one is served, whatever it was."""

import asyncio
import contextvars
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from fault_turns import LIFETIMES, Mode
from lifetimes import PLAIN_MODES
from patient_turns import wait_until
from transport_servers import faulty
from worded_turns import WordedModel, ask

from grue import AnswerSpec, FunctionTools, Recorder, Runner, TraceWriter
from grue.errors import MCPConfigError, TraceError, TurnCancelled
from grue.hosting import GameConfiguration
from grue.hosts.zork.agent import ZorkAgent
from grue.messages import Interrupted, ServerEnded, SessionPrewarmed, TurnCompleted, TurnFailed
from grue.policies import Start, StartAhead, StartWhen
from grue.runtime.trace.recorder import Envelope

# --- What ends a program ends no turn but its own ---


def leave() -> None:
    sys.exit(3)


async def leave_later() -> None:
    await anyio.lowlevel.checkpoint()
    sys.exit(3)


@pytest.mark.parametrize("function", [leave, leave_later])
def test_a_function_that_exits_the_program_is_an_error_result(
    model: WordedModel, mode: Mode, function: Callable[[], Any]
) -> None:
    with model.runner(mode, servers={"f": FunctionTools({"leave": function})}) as runner:
        for start in (runner.run_turn, lambda request: runner.start_turn(request).result()):
            outcome = start(ask("call f.leave"))
            assert outcome.response == "done"
            (call,) = outcome.tool_calls
            assert call.settlement == "returned"
            assert call.result.is_error
            assert call.result.error_message == "Tool call failed: SystemExit: 3"
        assert runner.run_turn(ask()).turn == 3


def leave_at_once(_: object) -> str:
    sys.exit(3)


@pytest.mark.parametrize(
    "code", [{"answer": AnswerSpec(leave_at_once)}, {"on_delta": leave_at_once}], ids=["check", "on_delta"]
)
def test_a_callback_that_exits_the_program_does_and_the_episode_could_go_on(
    model: WordedModel, mode: Mode, code: dict[str, Any]
) -> None:
    with model.runner(mode) as runner:
        for start in (runner.run_turn, lambda request: runner.start_turn(request).result()):
            with pytest.raises(SystemExit) as left:
                start(ask(**code))
            assert left.value.code == 3
            assert runner.run_turn(ask()).response == "done"


# --- Loops that fail ---


def test_a_turn_after_the_loop_has_failed_begins_a_new_one(model: WordedModel) -> None:
    async def stop() -> None:
        asyncio.get_running_loop().stop()
        await anyio.sleep_forever()

    with model.runner("episode", servers={"f": FunctionTools({"stop": stop})}) as runner:
        assert runner.run_turn(ask()).turn == 1
        with pytest.raises(TurnCancelled):
            runner.run_turn(ask("call f.stop"))
        assert runner.run_turn(ask()).response == "done"
        assert runner.start_turn(ask()).result().turn == 4


class FullDisk:
    """An observer that refuses everything from the end of the first turn on, until there is space."""

    def __init__(self) -> None:
        self.full = False
        self.refused: set[type] = set()

    def __call__(self, envelope: Envelope[Any], _line: bytes) -> None:
        if self.full:
            self.refused.add(type(envelope.body))
            raise TraceError("The trace cannot be written: no space left on device.")
        self.full = isinstance(envelope.body, TurnCompleted) and envelope.turn == 1


@pytest.mark.slow
def test_a_full_trace_is_the_error_of_the_turns_meanwhile(model: WordedModel) -> None:
    pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
    disk, recorder = FullDisk(), Recorder()
    recorder.add(disk)
    with model.runner("ahead", servers={"faulty": faulty()}, recorder=recorder) as runner:
        runner.run_turn(ask("call faulty.echo"))
        loop = runner._episode._episode
        wait_until(lambda: {SessionPrewarmed, ServerEnded} <= disk.refused)
        with pytest.raises(TraceError, match="no space left"):
            runner.run_turn(ask("call faulty.echo"))
        disk.full = False
        outcome = runner.run_turn(ask("call faulty.echo"))
        assert [call.settlement for call in outcome.tool_calls] == ["returned"]
        assert runner._episode._episode is loop, "it has not been shaken by what the owners could not say"


# --- What strikes the waiting thread ---


@pytest.fixture
def alarm() -> Iterator[None]:
    def strike(*_: object) -> None:
        raise TimeoutError("the host's own alarm")

    before = signal.signal(signal.SIGALRM, strike)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
def test_what_a_signal_handler_raises_ends_the_turn_that_is_waited_for(model: WordedModel) -> None:
    ends: list[Any] = []
    waiting = threading.main_thread().ident
    assert waiting is not None

    def strike() -> None:
        wait_until(lambda: len(model.server.requests) == 2)
        signal.pthread_kill(waiting, signal.SIGALRM)

    with model.runner("episode") as runner:
        runner.recorder.add(lambda envelope, _: ends.append(envelope.body))
        assert runner.run_turn(ask()).turn == 1
        striking = threading.Thread(target=strike)
        striking.start()
        with pytest.raises(TimeoutError, match="the host's own alarm"):
            runner.run_turn(ask("wait"))
        striking.join()
        assert runner.start_turn(ask()).result(timeout_s=60).turn == 3, "it is not held up"
    kinds = [body for body in ends if isinstance(body, TurnCompleted | TurnFailed)]
    assert [type(body) for body in kinds] == [TurnCompleted, TurnFailed, TurnCompleted]
    assert isinstance(kinds[1].failure, Interrupted)


class StruckSender:
    """The socket that wakes an episode's loop. The host's alarm strikes when it has woken the loop."""

    def __init__(self, waker: Any, model: WordedModel) -> None:
        self.waker, self.model = waker, model

    def send(self, data: bytes) -> None:
        self.waker.send(data)
        wait_until(lambda: len(self.model.server.requests) == 2)
        signal.raise_signal(signal.SIGALRM)

    def close(self) -> None:
        self.waker.close()


@pytest.mark.usefixtures("alarm")
def test_a_signal_that_strikes_while_the_turn_is_handed_over_ends_it_too(model: WordedModel) -> None:
    with model.runner("episode") as runner:
        failures: list[Any] = []
        assert runner.run_turn(ask()).turn == 1
        runner.recorder.add(lambda envelope, _: failures.append(envelope.body))
        loop = runner._episode._episode.loop
        waker, loop._waker = loop._waker, StruckSender(loop._waker, model)
        with pytest.raises(TimeoutError, match="the host's own alarm"):
            runner.run_turn(ask("wait"))
        loop._waker = waker
        wait_until(lambda: any(isinstance(body, TurnFailed) for body in failures))
        assert runner.run_turn(ask()).turn == 3


# --- Callers of all kinds ---


@pytest.mark.parametrize("call", ["run_turn", "start_turn", "warm_up"])
def test_a_caller_of_another_async_library_is_served(model: WordedModel, call: str) -> None:
    """Its variable goes into the episode's thread with the rest of the caller's context."""
    library = pytest.importorskip(
        "sniffio", reason="another async library's sign needs it: pip install sniffio"
    )
    context = contextvars.copy_context()
    context.run(library.current_async_library_cvar.set, "trio")
    with model.runner("episode") as runner:
        if call == "warm_up":
            context.run(runner.warm_up)
        elif call == "run_turn":
            assert context.run(runner.run_turn, ask()).response == "done"
        else:
            assert context.run(runner.start_turn, ask()).result().response == "done"
        assert context[library.current_async_library_cvar] == "trio", "and stays what it is"


def test_waiting_for_turns_takes_none_of_the_threads_of_the_callers_loop(model: WordedModel) -> None:
    async def main() -> list[str]:
        answers: list[str] = []

        async def turn() -> None:
            answers.append((await runner.run_turn_async(ask("wait"))).response)

        anyio.to_thread.current_default_thread_limiter().total_tokens = 1
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(turn)
            await anyio.to_thread.run_sync(wait_until, lambda: model.server.requests)
            with anyio.fail_after(60):
                await anyio.to_thread.run_sync(model.gate.set)
        return answers

    with model.runner("episode") as runner:
        assert anyio.run(main) == ["done"] * 3


@pytest.mark.parametrize("how", ["run_turn", "start_turn", "map"])
def test_words_with_lone_surrogates_are_asked_and_recorded(
    model: WordedModel, mode: Mode, how: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    writer, recorder = TraceWriter(trace, episode="surrogates"), Recorder()
    recorder.add(writer)
    request = ask("a file \udc80", turn=1)
    with model.runner(mode, recorder=recorder) as runner:
        run: dict[str, Callable[[], Any]] = {
            "run_turn": functools.partial(runner.run_turn, request),
            "start_turn": lambda: runner.start_turn(request).result(),
            "map": lambda: next(iter(runner.map([request]))).outcome,
        }
        assert run[how]().response == "done"
    writer.close()
    assert model.server.requests[0].messages[1]["content"] == "a file \ufffd"
    assert "a file \ufffd" in trace.read_text(encoding="utf-8")


# --- What a runner is made with ---


def test_a_lifetime_that_is_none_is_refused(model: WordedModel) -> None:
    with pytest.raises(MCPConfigError, match=r"keep= is one of .*, not 'forever'"):
        model.runner("turn", keep="forever")


def test_a_configured_runner_lives_as_long_as_the_program_says(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.zorkgpt.llm]\nclient_base_url = "http://127.0.0.1:9/v1"\nagent_model = "m"\n')
    of_their_own = ("ahead", "kept", "beside")
    for mode in (*PLAIN_MODES, "beside"):
        made = Runner.from_toml(file, **LIFETIMES[mode])
        sessions = mode if mode in of_their_own else "fresh"
        assert (made._episode.lasting, made._episode._sessions) == (mode != "turn", sessions)
    with pytest.raises(MCPConfigError, match='start="after_turn" needs keep="loop"'):
        Runner.from_toml(file, start="after_turn")


@pytest.mark.parametrize("ahead", ["after_turn", "beside_turn"])
def test_a_configured_start_is_neither_dropped_nor_started_ahead(tmp_path: Path, ahead: StartAhead) -> None:
    file = tmp_path / "pyproject.toml"
    llm = '[tool.grue.llm]\nclient_base_url = "http://127.0.0.1:9/v1"\nagent_model = "m"\n[tool.grue.mcp]\n'
    file.write_text(f'{llm}start = "when_called"\n')
    refused = rf'start="{ahead}", and .* start = "when_called" under \[tool\.grue\.mcp\]: nothing is started'
    with pytest.raises(MCPConfigError, match=refused):
        Runner.from_toml(file, keep="loop", start=ahead)
    with pytest.raises(MCPConfigError, match=refused):
        ZorkAgent(GameConfiguration.from_toml(file), start=ahead)
    (tmp_path / "mcp_config.json").write_text('{"mcpServers": {"box": {"command": "true"}}}')
    given: list[tuple[Start | None, StartWhen]] = [((ahead, "beside"), "beside"), (None, "when_called")]
    for start, when in (*given, ("before", "before")):
        with Runner.from_toml(file, keep="loop", start=start) as made:
            assert made._wiring.servers["box"].options.start == when
    file.write_text(f'{llm}start = "beside"\n')
    with Runner.from_toml(file, keep="loop", start=ahead) as made:
        assert made._wiring.servers["box"].options.start == "beside"
    assert ZorkAgent(GameConfiguration.from_toml(file), start=ahead)._start == (ahead, "beside")
