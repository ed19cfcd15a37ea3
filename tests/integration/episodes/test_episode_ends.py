"""Who holds an episode, and for how long: runners that begin anew, handles that are kept, threads refused."""

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
from fault_turns import Mode
from patient_turns import wait_until
from promises import within
from worded_turns import WordedModel, ask

import grue.engine.current_episode
from grue import AnswerSpec, FunctionTools, MCPError
from grue.engine.current_episode import Episode
from grue.errors import TurnCancelled
from grue.messages import TurnFailed
from grue.runtime.loops import loop_thread as episode_loop
from grue.tracing.reading import read_episode

WITHIN_S = 60.0


def collected(reference: "weakref.ref[Any]") -> Callable[[], bool]:
    def look() -> bool:
        gc.collect()
        return reference() is None

    return look


class Resisting:
    """A tool that, cancelled, does not end before it may."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.cancelled = threading.Event()
        self.may_end = threading.Event()

    async def resist(self) -> None:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()
            with anyio.CancelScope(shield=True):
                while not self.may_end.is_set():  # noqa: ASYNC110 - set by another thread
                    await anyio.sleep(0.001)


@pytest.mark.slow
def test_a_loop_that_began_while_another_one_was_closed_ends_with_its_runner(model: WordedModel) -> None:
    tool = Resisting()
    runner = model.runner("episode", servers={"f": FunctionTools({"resist": tool.resist})})
    handle = runner.start_turn(ask("call f.resist"))
    assert tool.begun.wait(WITHIN_S)
    closing = threading.Thread(target=runner.close)
    closing.start()
    assert tool.cancelled.wait(WITHIN_S)
    assert runner.run_turn(ask()).response == "done", "a turn after it begins a new loop"
    assert closing.is_alive()
    tool.may_end.set()
    closing.join(WITHIN_S)
    assert not closing.is_alive()
    assert handle.done()
    assert runner.run_turn(ask()).response == "done", "and it is not the one that was closed"
    lost = weakref.ref(runner)
    del closing, runner
    wait_until(collected(lost))
    wait_until(lambda: not episode_loop._running_loops)


def test_closing_the_runner_cancels_the_turns_that_other_threads_run(
    model: WordedModel, mode: Mode, tmp_path: Path
) -> None:
    runner = model.runner(mode, trace=tmp_path / "trace.jsonl")
    with ThreadPoolExecutor() as threads:
        turn = threads.submit(runner.run_turn, ask("wait"))
        wait_until(lambda: model.server.requests)
        runner.close()
        with pytest.raises(TurnCancelled):
            turn.result(WITHIN_S)
    assert isinstance(read_episode(tmp_path).envelopes[-1].body, TurnFailed), "the trace has its end"


def test_closing_the_runner_cancels_a_turn_of_the_same_event_loop(model: WordedModel, mode: Mode) -> None:
    runner = model.runner(mode)

    async def close() -> None:
        while not model.server.requests:  # noqa: ASYNC110 - set by another thread
            await anyio.sleep(0.001)
        runner.close()

    async def run() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(close)
            with pytest.raises(TurnCancelled):
                await runner.run_turn_async(ask("wait"))

    anyio.run(run)


class Host:
    """What the host gives to a turn."""

    def on_delta(self, _: object) -> None:
        pass

    def check(self, text: str) -> str:
        return text


@pytest.mark.slow
def test_a_finished_handle_keeps_neither_its_runner_nor_its_turn(model: WordedModel, mode: Mode) -> None:
    runner, host = model.runner(mode), Host()
    handle = runner.start_turn(ask(on_delta=host.on_delta, answer=AnswerSpec(host.check)))
    assert handle.result().response == "done"
    lost_runner, lost_host = weakref.ref(runner), weakref.ref(host)
    del runner, host
    wait_until(collected(lost_runner))
    wait_until(collected(lost_host))
    wait_until(lambda: not episode_loop._running_loops)
    last = handle.progress()
    assert (last.doing, last.requests, handle.result().response) == ("done", 1, "done")


@pytest.mark.parametrize("call", ["run_turn", "start_turn", "warm_up"])
def test_closed_by_a_signal_handler_while_its_loop_begins_it_goes_on(
    model: WordedModel, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The handler runs in the thread that holds what `close` needs, too."""
    runner = model.runner("episode")
    over = threading.Event()

    def begin(*args: Any, **options: Any) -> Episode:
        runner.close()  # as a handler would that strikes here
        return Episode(*args, **options)

    def use() -> None:
        calls: dict[str, Callable[[], object]] = {
            "run_turn": lambda: runner.run_turn(ask()),
            "start_turn": lambda: runner.start_turn(ask()).result(),
            "warm_up": runner.warm_up,
        }
        calls[call]()
        over.set()

    monkeypatch.setattr(grue.engine.current_episode, "Episode", begin)
    threading.Thread(target=use, daemon=True).start()
    assert over.wait(WITHIN_S)
    runner.close()


def test_where_no_thread_can_be_started_the_call_says_so_and_nothing_is_left(
    model: WordedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "grue-episode":
            raise RuntimeError("can't start new thread")
        start(thread)

    with model.runner("episode") as runner:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            for use in (runner.run_turn, runner.start_turn, lambda request: list(runner.map([request]))):
                with pytest.raises(MCPError, match="can't start new thread"):
                    use(ask())
                assert not episode_loop._running_loops
            with within(episode_loop.CLOSE_GRACE_S, "there is nothing to wait for"):
                episode_loop._close_all()  # as the interpreter does when it exits
                runner.close()
        assert runner.run_turn(ask()).turn == 1
