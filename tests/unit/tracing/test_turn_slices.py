"""Turns that overlap, as in a batch, are split; the slices are in the order in which the turns began."""

from typing import Any

import pytest
from msgspec.structs import replace
from turns import run

from grue.messages import RunTurn, TurnCompleted
from grue.runtime.trace.recorder import Envelope
from grue.tracing.turn_slices import TurnSlice, TurnSplitter, split_turns


def told(*words: str) -> list[Envelope[Any]]:
    """Envelopes by words: `run 1`, `say 1`, `end 1`."""
    made = []
    for seq, word in enumerate(words, start=1):
        what, number = word.split()
        turn = int(number)
        body: Any = "word"
        if what == "run":
            body = replace(run("a"), turn=turn)
        elif what == "end":
            body = TurnCompleted(turn=turn, kind="answered", answer="", raw_response="", reason="")
        made.append(
            Envelope(seq=seq, t=0.1 * seq, at=0.0, turn=turn, sender="a", receiver="b", cause=None, body=body)
        )
    return made


def split(*words: str) -> list[TurnSlice]:
    return list(split_turns(told(*words)))


def test_each_message_is_in_its_own_turns_chapter() -> None:
    found = split("run 1", "run 2", "say 2", "say 1", "end 2", "run 3", "say 3", "say 1", "end 1", "end 3")
    assert [turn_slice.turn for turn_slice in found] == [1, 2, 3]
    assert all(
        {envelope.turn for envelope in turn_slice.envelopes} == {turn_slice.turn} for turn_slice in found
    )
    assert [len(turn_slice.envelopes) for turn_slice in found] == [4, 3, 3]
    assert all(turn_slice.over and not turn_slice.again for turn_slice in found)


def test_turns_of_several_threads_may_begin_in_another_order_than_their_numbers() -> None:
    found = split("run 2", "run 4", "run 1", "say 2", "run 3", "end 1", "end 4", "end 3", "end 2", "run 5")
    assert [turn_slice.turn for turn_slice in found] == [2, 4, 1, 3, 5]
    assert [len(turn_slice.envelopes) for turn_slice in found] == [3, 2, 2, 2, 1]
    assert not any(turn_slice.again for turn_slice in found)


def test_a_lower_number_while_no_turn_runs_begins_slices_anew() -> None:
    found = split("run 3", "end 3", "run 1", "end 1", "run 3", "end 3")
    assert [turn_slice.turn for turn_slice in found] == [3, 1, 3]
    assert [turn_slice.again for turn_slice in found] == [False, True, False]


def test_turns_of_a_second_batch_may_begin_in_another_order_than_their_numbers() -> None:
    found = split(
        "run 1", "run 2", "end 1", "end 2", "run 2", "run 1", "say 2", "run 3", "end 1", "end 2", "end 3"
    )
    assert [turn_slice.turn for turn_slice in found] == [1, 2, 2, 1, 3]
    assert [len(turn_slice.envelopes) for turn_slice in found] == [2, 2, 3, 2, 2]
    assert [turn_slice.again for turn_slice in found] == [False, False, True, False, False]
    assert all(turn_slice.over for turn_slice in found)


def test_of_many_skipped_numbers_only_the_last_are_kept() -> None:
    splitter = TurnSplitter()
    for envelope in told(*(f"run {1000 * number}" for number in range(1, 20)), "run 10000000000"):
        list(splitter.completed_by(envelope))
        splitter.take(envelope)
        assert len(splitter._skipped) <= 1000
    found = split("run 600", "run 1200", "run 2001", "run 1999", "run 2003", "run 2002")
    assert not any(turn_slice.again for turn_slice in found)


def test_a_second_run_of_a_batch_begins_chapters_anew() -> None:
    found = split("run 1", "run 2", "end 1", "run 3", "run 2", "end 2", "run 3", "end 3")
    assert [turn_slice.turn for turn_slice in found] == [1, 2, 3, 2, 3]
    assert [turn_slice.again for turn_slice in found] == [False, False, False, True, False]
    assert [turn_slice.cut_off for turn_slice in found] == [False, True, True, False, False]
    assert all(sum(isinstance(e.body, RunTurn) for e in turn_slice.envelopes) == 1 for turn_slice in found)


@pytest.mark.parametrize(
    ("said", "cut_off"),
    [
        (("run 1", "say 1", "run 2", "say 2"), [True, True]),
        (("run 1", "say 1", "run 2", "say 2", "end 2"), [False, False]),
        (("run 1", "run 2", "say 1", "say 2", "end 2"), [True, False]),
        (("run 1", "run 2", "say 2", "end 2", "say 1"), [True, False]),
    ],
)
def test_a_turn_is_overtaken_by_a_whole_turn_without_a_word_of_it(
    said: tuple[str, ...], cut_off: list[bool]
) -> None:
    assert [turn_slice.cut_off for turn_slice in split(*said)] == cut_off


@pytest.mark.parametrize("first", [("run 1", "say 1"), ("run 1", "say 1", "end 1")], ids=["cut off", "ended"])
def test_a_turn_that_runs_again_has_a_slice_of_its_own(first: tuple[str, ...]) -> None:
    found = split(*first, "run 1", "say 1", "say 1", "end 1")
    assert [turn_slice.turn for turn_slice in found] == [1, 1]
    assert [len(turn_slice.envelopes) for turn_slice in found] == [len(first), 4]
    assert [turn_slice.again for turn_slice in found] == [False, True]
    assert not any(turn_slice.cut_off for turn_slice in found)


@pytest.mark.parametrize("turns", [3000])
@pytest.mark.slow
def test_a_turn_that_never_ends_does_not_hold_a_whole_trace_in_memory(turns: int) -> None:
    words = ["run 1", *(word for n in range(2, turns) for word in (f"run {n}", f"end {n}"))]
    read = 0

    def counted() -> Any:
        nonlocal read
        for envelope in told(*words):
            read += 1
            yield envelope

    first = next(split_turns(counted()))
    assert first.turn == 1
    assert read < len(words) / 2
