"""Turns that overlap, as those of a batch do, are told apart; each is a chapter in the order of beginning."""

from typing import Any

import pytest
from msgspec.structs import replace
from turns import run

from grue.messages import RunTurn, TurnCompleted
from grue.runtime.trace import Envelope
from grue.tracing.turn_slices import TurnSlice, chapters


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
    return list(chapters(told(*words)))


def test_each_message_is_in_its_own_turns_chapter() -> None:
    found = split("run 1", "run 2", "say 2", "say 1", "end 2", "run 3", "say 3", "say 1", "end 1", "end 3")
    assert [chapter.turn for chapter in found] == [1, 2, 3]
    assert all({envelope.turn for envelope in chapter.envelopes} == {chapter.turn} for chapter in found)
    assert [len(chapter.envelopes) for chapter in found] == [4, 3, 3]
    assert all(chapter.over and not chapter.again for chapter in found)


def test_a_second_run_of_a_batch_begins_chapters_anew() -> None:
    found = split("run 1", "run 2", "end 1", "run 3", "run 2", "end 2", "run 3", "end 3")
    assert [chapter.turn for chapter in found] == [1, 2, 3, 2, 3]
    assert [chapter.again for chapter in found] == [False, False, False, True, False]
    assert [chapter.cut_off for chapter in found] == [False, False, True, False, False]
    assert all(sum(isinstance(e.body, RunTurn) for e in chapter.envelopes) == 1 for chapter in found)


@pytest.mark.parametrize("turns", [3000])
def test_a_turn_that_never_ends_does_not_hold_a_whole_trace_in_memory(turns: int) -> None:
    words = ["run 1", *(word for n in range(2, turns) for word in (f"run {n}", f"end {n}"))]
    read = 0

    def counted() -> Any:
        nonlocal read
        for envelope in told(*words):
            read += 1
            yield envelope

    first = next(chapters(counted()))
    assert first.turn == 1
    assert read < len(words) / 2
