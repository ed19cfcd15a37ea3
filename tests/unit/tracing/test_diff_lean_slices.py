"""Turns of a trace with most of their messages left in the file: compared the same, with little memory."""

import tracemalloc
from pathlib import Path

import pytest
from viewer_traces import EpisodeTape, TurnTape, begin, small_episode

from grue.errors import TraceError
from grue.tracing import diff as diff_module
from grue.tracing.diff import LeftInFile, diff, kind_in, lean_turns, render, whole
from grue.tracing.reading import open_episode
from grue.tracing.turn_slices import split_turns

pytestmark = pytest.mark.made_up_trace

RESULT = "lorem ipsum " * 2000


def one_turn(path: Path, calls: int, *changed: int) -> Path:
    """A trace of one turn, with a result of 24 kB for each call."""
    with EpisodeTape(path) as tape:
        begin(tape)
        turn = TurnTape(tape)
        turn.open()
        for number in range(calls):
            turn.ask(None, ["1"])
            turn.call(["ok"], content=f"{'another' if number in changed else 'a'} result: {RESULT}")
        turn.ask("north")
        turn.close()
    return path


def test_messages_that_are_left_in_the_file_are_the_same_when_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff_module, "KEPT_BYTES", 2000)
    path = small_episode(tmp_path / "a.jsonl")
    lean = [envelope for turn in lean_turns(open_episode(path)) for envelope in turn.envelopes]
    full = [envelope for turn in split_turns(open_episode(path)) for envelope in turn.envelopes]
    assert 0 < sum(isinstance(each.body, LeftInFile) for each in lean) < len(lean)
    assert [whole(envelope) for envelope in lean] == full
    assert [kind_in(envelope) for envelope in lean] == [kind_in(envelope) for envelope in full]


@pytest.mark.slow
def test_the_differences_do_not_depend_on_what_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = one_turn(tmp_path / "a.jsonl", 30, 3, 25), one_turn(tmp_path / "b.jsonl", 31)
    in_memory = list(diff(tuple(open_episode(left)), tuple(open_episode(right))))
    monkeypatch.setattr(diff_module, "KEPT_BYTES", 0)
    lean = list(diff(open_episode(left), open_episode(right)))
    assert lean == in_memory
    assert len(lean) > 2
    assert any(each.because_left_out for each in lean)
    assert any("more …" in line for line in render(lean, every=True))


def test_the_causes_that_are_left_out_are_counted(tmp_path: Path) -> None:
    left = tuple(open_episode(one_turn(tmp_path / "a.jsonl", 8, 5, 7)))
    causes = {envelope.seq: envelope.cause for envelope in left}
    for each in diff(left, tuple(open_episode(one_turn(tmp_path / "b.jsonl", 8)))):
        assert each.left is not None
        chain = []
        cause = each.left.cause
        while cause is not None and cause >= each.because[0].seq:
            chain.append(cause)
            cause = causes[cause]
        assert len(chain) == len(each.because) + each.because_left_out


@pytest.mark.slow
def test_two_long_turns_are_compared_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff_module, "KEPT_BYTES", 2**18)
    every = range(200)
    left, right = one_turn(tmp_path / "a.jsonl", 200), one_turn(tmp_path / "b.jsonl", 200, *every)
    assert left.stat().st_size > 4_500_000
    assert not any(diff(open_episode(left), open_episode(left)))  # what the first comparison makes is kept
    readers = open_episode(left), open_episode(right)
    tracemalloc.start()
    try:
        assert sum(1 for _ in diff(*readers)) == 200
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000, "one of the two turns has 4.9 MB"


def test_a_file_that_is_replaced_meanwhile_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff_module, "KEPT_BYTES", 0)
    path = small_episode(tmp_path / "a.jsonl")
    (first, *_) = lean_turns(open_episode(path))
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(TraceError, match=r"a\.jsonl, line"):
        whole(first.envelopes[-1])
