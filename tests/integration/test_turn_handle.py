"""`Runner.start_turn`: a turn that is under way, for loops that must not block."""

import asyncio
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fault_turns import Mode
from lifetimes import EVERY_RUN, PLAIN_MODES, modes
from patient_turns import ASK, DEADLINE_S, PatientModel, patient_model, wait_until
from promises import within

from grue import AnswerSpec, TurnRequest
from grue.errors import AnswerError, LLMError, MCPServerStartupError, TurnCancelled
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import error_reply

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

STUBBORN = ("--ignore-eof", "--ignore-term")


@pytest.fixture
def model() -> Iterator[PatientModel]:
    """A model; with the test everything else is gone, too."""
    with patient_model() as model, assert_nothing_left():
        yield model


@pytest.fixture(params=modes(*PLAIN_MODES))
def mode(request: pytest.FixtureRequest) -> Mode:
    """Every lifetime: for turns with a server."""
    return request.param  # type: ignore[no-any-return]  # pytest does not know it


@pytest.fixture(params=["turn", "episode"])
def loop(request: pytest.FixtureRequest) -> Mode:
    """Those that differ without a server."""
    return request.param  # type: ignore[no-any-return]


def test_it_is_done_when_its_result_is_there(model: PatientModel, mode: Mode) -> None:
    with model.runner(mode) as runner:
        model.gate.clear()
        handle = runner.start_turn(ASK)
        wait_until(lambda: "model" in handle.progress().doing)
        assert not handle.done()
        for patience_s in (0, 0.01):
            with pytest.raises(TimeoutError, match="it goes on"):
                handle.result(timeout_s=patience_s)
        model.gate.set()
        outcome = handle.result()
        assert handle.done()
    assert (outcome.response, outcome.kind, outcome.turn) == ("done: What is the plan?", "answered", 1)
    assert handle.result(timeout_s=0) is outcome, "as often as it is asked for"


def test_it_wakes_a_loop_of_the_hosts_at_its_end(model: PatientModel, loop: Mode) -> None:
    woken, late = threading.Event(), threading.Event()
    with model.runner(loop, servers=False) as runner:
        model.gate.clear()
        handle = runner.start_turn(ASK)
        handle.when_done(woken.set)
        assert not woken.is_set()
        model.gate.set()
        assert woken.wait(DEADLINE_S)
        assert handle.done()
        handle.when_done(late.set)
        assert late.is_set()


def test_its_progress_goes_through_the_phases_with_the_right_numbers(model: PatientModel, mode: Mode) -> None:
    model.gate.clear()
    with model.runner(mode, "--slow-call", "0.1") as runner:
        handle = runner.start_turn(ASK)
        seen = [handle.progress()]
        while not handle.done():
            seen.append(handle.progress())
            if "request 1" in seen[-1].doing:
                model.gate.set()
            time.sleep(0.001)
        outcome = handle.result()
        end = handle.progress()
    order = list(dict.fromkeys(progress.doing for progress in seen))
    phases = ["starting faulty", "waiting for the model (request 1)", "waiting for faulty.echo"]
    assert [doing for doing in order if doing in phases] == phases
    (calling,) = {(p.iterations, p.requests, p.tool_calls) for p in seen if p.doing == phases[2]}
    assert calling == (1, 1, 0)
    assert all(one.elapsed_s <= other.elapsed_s for one, other in itertools.pairwise(seen))
    assert (end.doing, end.iterations, end.requests, end.tool_calls) == ("done", 1, 2, 1)
    assert end.usage == outcome.usage
    assert outcome.duration_s <= end.elapsed_s == handle.progress().elapsed_s, "the clock has stopped"


def test_several_handles_queue_up_each_with_its_own_progress(model: PatientModel, mode: Mode) -> None:
    model.gate.clear()
    with model.runner(mode) as runner:
        handles = [runner.start_turn(TurnRequest[str](system="s", user=f"u{n}")) for n in range(3)]
        wait_until(lambda: "model" in handles[0].progress().doing)
        assert [handle.progress().doing for handle in handles[1:]] == ["waiting for its turn"] * 2
        model.gate.set()
        blocking = runner.run_turn(ASK)
        assert [handle.done() for handle in handles] == [True] * 3, "a blocking turn queues up behind them"
        assert [handle.result(0).turn for handle in handles] == [1, 2, 3]
        assert [handle.result(0).response for handle in handles] == ["done: u0", "done: u1", "done: u2"]
        assert blocking.turn == 4


PHASES = {
    "model": ("waiting for the model", ()),
    "tool": ("waiting for faulty.echo", ("--silent-at", "call")),
    "start": ("starting faulty", ("--silent-at", "initialize")),
    "closing": ("closing", STUBBORN),
}
OPEN_ON = ("ahead", "kept", "beside")
"""Where a session is not closed by the turn that used it."""


@pytest.mark.parametrize(
    ("mode", "phase"),
    [
        pytest.param(mode, phase, marks=() if mode in EVERY_RUN else pytest.mark.slow)
        for mode in ("turn", "episode", *OPEN_ON)
        for phase in PHASES
        if phase != "closing" or mode not in OPEN_ON
    ],
)
def test_cancel_ends_it_in_every_phase(model: PatientModel, mode: Mode, phase: str) -> None:
    doing, flags = PHASES[phase]
    if phase == "model":
        model.gate.clear()
    with model.runner(mode, *flags) as runner:
        handle = runner.start_turn(ASK)
        wait_until(lambda: doing in handle.progress().doing)
        with within(3):
            with within(1, "it waits"):
                handle.cancel()
            with pytest.raises(TurnCancelled):
                handle.result(timeout_s=60)
        assert handle.progress().doing == "done"
        model.gate.set()
        again = runner.start_turn(TurnRequest[str](system="s", user="u", tools=False))
        assert again.result(timeout_s=60).response == "done: u"


@pytest.mark.slow
def test_the_turn_after_a_cancelled_one_has_a_server_that_works(
    model: PatientModel, mode: Mode, tmp_path: Path
) -> None:
    with model.runner(mode, "--only-in", "1", str(tmp_path / "lives"), "--silent-at", "call") as runner:
        cancelled = runner.start_turn(ASK)
        wait_until(lambda: "waiting for faulty.echo" in cancelled.progress().doing)
        cancelled.cancel()
        for _ in range(2):
            (call,) = runner.start_turn(ASK).result().tool_calls
            assert call.settlement == "returned"
        with pytest.raises(TurnCancelled):
            cancelled.result(timeout_s=0)


def test_cancelled_before_it_begins_it_asks_for_nothing(model: PatientModel, loop: Mode) -> None:
    model.gate.clear()
    with model.runner(loop, servers=False) as runner:
        first, second = runner.start_turn(ASK), runner.start_turn(ASK)
        wait_until(lambda: model.server.requests)
        second.cancel()
        with pytest.raises(TurnCancelled):
            second.result(timeout_s=60)
        assert not first.done()
        model.gate.set()
        assert first.result().turn == 1
        assert len(model.server.requests) == 1


def test_cancelled_after_its_end_it_keeps_its_result(model: PatientModel, loop: Mode) -> None:
    with model.runner(loop, servers=False) as runner:
        handle = runner.start_turn(ASK)
        outcome = handle.result()
        handle.cancel()
        assert handle.result() is outcome


def test_it_can_cancel_itself_from_inside(model: PatientModel, loop: Mode) -> None:
    told = threading.Event()
    with model.runner(loop, servers=False) as runner:

        def enough(_: object) -> None:
            told.wait()
            handle.cancel()

        handle = runner.start_turn(TurnRequest[str](system="s", user="u", on_delta=enough))
        told.set()
        with pytest.raises(TurnCancelled):
            handle.result(timeout_s=60)


def test_it_raises_what_run_turn_raises(model: PatientModel, mode: Mode) -> None:
    def refuse(_: str) -> str:
        raise ValueError("no")

    with model.runner(mode, servers=False) as runner:
        asked = TurnRequest[str](system="s", user="u", answer=AnswerSpec(refuse))
        with pytest.raises(AnswerError, match="no"):
            runner.start_turn(asked).result()
        model.server._script = lambda _: error_reply(401, "no such key")
        failing = runner.start_turn(ASK)
        for _ in range(2):
            with pytest.raises(LLMError, match="no such key"):
                failing.result()
        assert failing.progress().requests == 1
    with model.runner(mode, "--exit-at", "initialize") as runner, pytest.raises(MCPServerStartupError):
        runner.start_turn(ASK).result()


@pytest.mark.slow
def test_a_handle_that_is_forgotten_does_not_end_its_turn(model: PatientModel, mode: Mode) -> None:
    runner = model.runner(mode)
    model.gate.clear()
    runner.start_turn(ASK)
    lost = weakref.ref(runner)
    wait_until(lambda: model.server.requests)
    del runner
    model.gate.set()
    wait_until(lambda: len(model.server.requests) == 2)

    def collected() -> bool:
        gc.collect()
        return lost() is None

    wait_until(collected)


@pytest.mark.parametrize("flags", [(), ("--silent-at", "call"), STUBBORN], ids=" ".join)
def test_closing_the_runner_cancels_it(model: PatientModel, mode: Mode, flags: tuple[str, ...]) -> None:
    runner = model.runner(mode, *flags)
    if "call" not in flags:
        model.gate.clear()
    first, second = runner.start_turn(ASK), runner.start_turn(ASK)
    wait_until(lambda: model.server.requests)
    runner.close()
    for handle in (first, second):
        with pytest.raises(TurnCancelled):
            handle.result(timeout_s=0)
    model.gate.set()
    later = runner.start_turn(TurnRequest[str](system="s", user="u", tools=False))
    assert later.result().response == "done: u"
    runner.close()


@pytest.mark.slow
def test_an_event_loop_goes_on_meanwhile(model: PatientModel, mode: Mode) -> None:
    async def window(runner: "object") -> tuple[int, str]:
        handle = runner.start_turn(ASK)  # type: ignore[attr-defined]
        ticks = 0
        while not handle.done():
            ticks += 1
            if ticks == 5:
                model.gate.set()
            await asyncio.sleep(0.002)
        return ticks, handle.result(timeout_s=0).response

    model.gate.clear()
    with model.runner(mode) as runner:
        ticks, response = asyncio.run(window(runner))
    assert ticks >= 5
    assert response == "done: What is the plan?"


def test_many_threads_start_and_ask_at_once(model: PatientModel, loop: Mode) -> None:
    with model.runner(loop, servers=False) as runner, ThreadPoolExecutor(8) as threads:

        def one(number: int) -> tuple[int, str]:
            handle = runner.start_turn(TurnRequest[str](system="s", user=f"u{number}"))
            handle.progress()
            outcome = handle.result()
            return outcome.turn, outcome.response

        outcomes = list(threads.map(one, range(24)))
    assert sorted(turn for turn, _ in outcomes) == list(range(1, 25)), "one after the other"
    assert [response for _, response in outcomes] == [f"done: u{number}" for number in range(24)]
