"""`Runner.map`: what one item, or one process too many, can do to the others."""

import contextlib
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from worded_turns import WordedModel, ask

from grue import AnswerSpec, FunctionTools, MCPError, Recorder, TraceWriter
from grue.runtime.loops import loop_thread as episode_loop

WITHIN_S = 60.0


class Undumpable:
    """A fallback of the host's that cannot be written down."""

    def model_dump(self, **_: object) -> object:
        raise LookupError("a bug of the host's")


BAD: dict[str, tuple[Any, type[Exception] | None]] = {
    "no request": (None, None),
    "a fallback that is no JSON": (ask("bad", answer=AnswerSpec(str, fallback=Undumpable())), LookupError),
    "a schema that is no JSON": (ask("bad", answer=AnswerSpec(str, schema={"type": object()})), TypeError),
}


@pytest.fixture
def trace(model: WordedModel, tmp_path: Path) -> Path:
    """Of an earlier run of two other requests."""
    path = tmp_path / "trace.jsonl"
    writer, recorder = TraceWriter(path, episode="batch"), Recorder()
    recorder.add(writer)
    with model.runner("turn", recorder=recorder) as runner:
        assert all(item.outcome for item in runner.map([ask("a"), ask("b")]))
    writer.close()
    return path


@pytest.mark.parametrize(
    ("bad", "recalled"),
    # What the schema is made of is seen by who compares it, and else not before it is sent.
    [(bad, recalled) for bad in BAD for recalled in (False, True) if recalled or "schema" not in bad],
)
def test_a_request_that_cannot_be_run_is_an_item_with_its_error(
    model: WordedModel, trace: Path, bad: str, recalled: bool
) -> None:
    request, cause = BAD[bad]
    with model.runner("turn") as runner:
        requests = [ask("a"), request, ask("c"), ask("d")]
        items = list(runner.map(requests, concurrency=1, resume_from=trace if recalled else None))
    assert [item.index for item in items] == [0, 1, 2, 3]
    assert [item.outcome is None for item in items] == [False, True, False, False]
    assert [item.recalled for item in items] == [recalled, False, False, False]
    error = items[1].error
    assert isinstance(error, MCPError)
    assert not isinstance(error.__cause__, MCPError)
    if cause is None:
        assert "TurnRequest(user=" in str(error)
    else:
        assert isinstance(error.__cause__, cause)
        assert type(error.__cause__).__name__ in str(error)


def test_a_function_that_exits_the_program_ends_no_other_turn(model: WordedModel) -> None:
    requests = [ask("a"), ask("call f.leave"), ask("b")]
    with model.runner("turn", servers={"f": FunctionTools({"leave": lambda: sys.exit(3)})}) as runner:
        items = list(runner.map(requests, concurrency=2))
    outcomes = [item.outcome for item in items if item.outcome]
    assert [outcome.response for outcome in outcomes] == ["done"] * 3
    assert outcomes[1].tool_calls[0].result.is_error


@pytest.mark.parametrize("concurrency", ["8", 1.5, None, 0, -1, pytest.param(-(10**5000), id="huge")])
def test_a_concurrency_that_is_none_is_refused_before_anything_begins(
    model: WordedModel, concurrency: Any
) -> None:
    with model.runner("turn") as runner, pytest.raises(ValueError, match="whole number, at least 1, not"):
        runner.map([ask()], concurrency=concurrency)


def test_closed_by_one_of_its_own_turns_it_does_not_wait_for_that(
    model: WordedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_loop.interrupts, "INTERRUPT_GRACE_S", 6 * WITHIN_S)
    taken, closed = threading.Event(), threading.Event()

    async def close() -> None:
        while not taken.is_set():  # noqa: ASYNC110 - set by another thread
            await anyio.sleep(0.001)
        items.close()  # type: ignore[attr-defined]
        closed.set()

    with model.runner("turn", servers={"f": FunctionTools({"close": close})}) as runner:
        items = runner.map([ask(), ask("call f.close"), ask()], concurrency=1)
        assert next(items).index == 0
        taken.set()
        assert closed.wait(WITHIN_S)
        assert list(items) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("what", ["next", "close"])
@pytest.mark.slow
def test_in_a_forked_child_it_is_refused_at_once_and_the_parents_goes_on(
    model: WordedModel, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(episode_loop.interrupts, "INTERRUPT_GRACE_S", 6 * WITHIN_S)
    with model.runner("turn") as runner:
        # By the first item all are begun: what is left is to wait, or not.
        items = runner.map([ask("u"), ask("wait")], concurrency=1)
        assert next(items).index == 0
        told, to_tell = os.pipe()
        pid = os.fork()
        if not pid:
            said = b"nothing"
            with contextlib.suppress(BaseException):
                said = _in_a_child(items, what).encode()
            os.write(to_tell, said)
            os._exit(0)
        os.close(to_tell)
        at_once, _, _ = select.select([told], [], [], WITHIN_S)
        if not at_once:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with os.fdopen(told, "rb") as pipe:
            assert pipe.read() == b"well"
        model.gate.set()
        assert [item.index for item in items if item.outcome] == [1]


def _in_a_child(items: Any, what: str) -> str:
    with contextlib.closing(items):
        if what == "next":
            with pytest.raises(MCPError, match="its parent process's: make a new runner after a fork"):
                next(items)
    return "well"
