"""The rows of a trace for tables."""

import json
from pathlib import Path

import pytest

from grue.messages import (
    CallId,
    CompletionReceived,
    ConversationId,
    DropCompletion,
    Interrupted,
    OfferTools,
    ReplyDropped,
    RequestCompletion,
    Resumption,
    RunTurn,
    ToolCallRecord,
    ToolCallResult,
    TurnCompleted,
    TurnFailed,
    TurnParked,
    Usage,
)
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Recorder
from grue.tracing.counts import count_episode
from grue.tracing.overview import Overview
from grue.tracing.reading import open_episode
from grue.tracing.stats_table import summary
from grue.tracing.tables import CallRow, RequestRow, TurnRow, trace_rows

pytestmark = pytest.mark.made_up_trace


def test_a_turn_lasts_as_long_as_it_took_also_if_the_wall_clock_was_set_back(tmp_path: Path) -> None:
    clock, wall_clock = iter((0.0, 1.0, 3.5)), iter((1000.0, 400.0))
    recorder = Recorder(clock=clock.__next__, wall_clock=wall_clock.__next__)
    with TraceWriter(tmp_path / "trace.jsonl", episode="e") as writer:
        recorder.add(writer)
        begun = recorder.record(RunTurn(turn=1, system="", user=""), sender="host", receiver="agent", turn=1)
        ended = TurnCompleted(turn=1, kind="answered", answer="x")
        recorder.record(ended, sender="agent", receiver="host", turn=1, cause=begun.seq)
    (row,) = trace_rows(tmp_path / "trace.jsonl", "e")
    assert isinstance(row, TurnRow)
    assert (row.began_at, row.duration_s) == (1000.0, 2.5)


def test_a_trace_that_another_program_has_written_anew_has_the_same_rows(tmp_path: Path) -> None:
    recorder = Recorder()
    with TraceWriter(tmp_path / "trace.jsonl", episode="e") as writer:
        recorder.add(writer)
        begun = recorder.record(RunTurn(turn=1, system="", user=""), sender="host", receiver="agent", turn=1)
        ended = TurnCompleted(turn=1, kind="answered", answer="x")
        recorder.record(ended, sender="agent", receiver="host", turn=1, cause=begun.seq)
    lines = (tmp_path / "trace.jsonl").read_text().splitlines()
    spaced = tmp_path / "spaced.jsonl"
    spaced.write_text("".join(f"{json.dumps(json.loads(line), sort_keys=True)}\n" for line in lines))
    assert [*trace_rows(spaced, "e")] == [*trace_rows(tmp_path / "trace.jsonl", "e")] != []
    assert [line.tag for line in open_episode(spaced).lines()] == ["RunTurn", "TurnCompleted"]


@pytest.mark.parametrize("late_reply", [True, False])
def test_a_dropped_request_has_one_row_with_its_cost_also_if_its_reply_still_comes(
    tmp_path: Path, late_reply: bool
) -> None:
    name, usage = ConversationId("turn-1"), Usage(input_tokens=7)
    recorder = Recorder()
    with TraceWriter(tmp_path / "trace.jsonl", episode="e") as writer:
        recorder.add(writer)
        request = RequestCompletion(conversation=name, request=1, new=(), mode=OfferTools())
        asked = recorder.record(request, sender="agent", receiver="llm", turn=1)
        drop = DropCompletion(conversation=name, request=1, reason="a tool has changed")
        dropping = recorder.record(drop, sender="agent", receiver="llm", turn=1)
        if late_reply:
            reply = CompletionReceived(request=1, content="x", usage=usage)
            recorder.record(reply, sender="llm", receiver="agent", turn=1, cause=asked.seq)
        dropped = ReplyDropped(request=1, usage=Usage() if late_reply else usage)
        recorder.record(dropped, sender="llm", receiver="agent", turn=1, cause=dropping.seq)
    (row,) = trace_rows(tmp_path / "trace.jsonl", "e")
    assert isinstance(row, RequestRow)
    assert (row.outcome, row.input_tokens) == ("received" if late_reply else "dropped", 7)


def record(call_id: str) -> ToolCallRecord:
    return ToolCallRecord(
        call_id=CallId(call_id),
        name="box.look",
        arguments="{}",
        iteration=1,
        settlement="returned",
        result=ToolCallResult(content="x"),
    )


def test_the_counts_of_a_parked_turn_are_in_one_of_its_rows_only(tmp_path: Path) -> None:
    parked = TurnParked(
        turn=1, iterations=1, requests=1, tool_calls=(record("a"),), usage=Usage(input_tokens=7, cost_usd=0.5)
    )
    again = TurnParked(
        turn=1, iterations=2, requests=2, tool_calls=(record("a"),), usage=Usage(input_tokens=9, cost_usd=0.5)
    )
    done = TurnCompleted(
        turn=1,
        kind="answered",
        answer="x",
        iterations=4,
        requests=5,
        tool_calls=(record("a"), record("b")),
        usage=Usage(input_tokens=20, cost_usd=2.0),
    )
    recorder = Recorder()
    with TraceWriter(tmp_path / "trace.jsonl", episode="e") as writer:
        recorder.add(writer)
        for resumed, end in ((None, parked), (parked, again), (again, done), (None, done)):
            run = RunTurn(
                turn=1, system="", user="", resumed=None if resumed is None else Resumption(parked=resumed)
            )
            begun = recorder.record(run, sender="host", receiver="agent", turn=1)
            recorder.record(end, sender="agent", receiver="host", turn=1, cause=begun.seq)
    rows = list(trace_rows(tmp_path / "trace.jsonl", "e"))
    assert [
        (row.outcome, row.iterations, row.requests, row.tool_calls, row.input_tokens, row.cost_usd)
        for row in rows
        if isinstance(row, TurnRow)
    ] == [
        ("parked", 1, 1, 1, 7, 0.5),
        ("parked", 1, 1, 0, 2, 0.0),
        ("answered", 2, 3, 1, 11, 1.5),
        ("answered", 4, 5, 2, 20, 2.0),
    ]
    assert [row.call_id for row in rows if isinstance(row, CallRow)] == ["a", "b", "a", "b"]
    assert count_episode(open_episode(tmp_path)).turns.iterations == 8


def test_a_parked_turn_counts_once_with_its_last_outcome_although_a_resume_failed(tmp_path: Path) -> None:
    parked = TurnParked(turn=1, iterations=1, requests=1)
    failed = TurnFailed(turn=1, iterations=1, requests=1, failure=Interrupted(reason="cancelled"))
    done = TurnCompleted(turn=1, kind="answered", answer="x", iterations=2, requests=3)
    recorder, seen, told = Recorder(), Overview(), []
    with TraceWriter(tmp_path / "trace.jsonl", episode="e") as writer:
        recorder.add(writer)
        recorder.add(lambda envelope, _: seen.see(envelope))
        for end in (parked, failed, None, done):
            run = RunTurn(
                turn=1, system="", user="", resumed=None if end is parked else Resumption(parked=parked)
            )
            begun = recorder.record(run, sender="host", receiver="agent", turn=1)
            if end is not None:
                recorder.record(end, sender="agent", receiver="host", turn=1, cause=begun.seq)
            writer.flush()
            turns = count_episode(open_episode(tmp_path)).turns
            told.append((turns.started, turns.outcomes, turns.parkings, turns.iterations, seen.failures))
    assert told == [
        (1, {"parked": 1}, 1, 1, 0),
        (1, {"failed": 1}, 1, 1, 1),
        (1, {"unfinished": 1}, 1, 1, 0),
        (1, {"answered": 1}, 1, 2, 0),
    ]
    assert "1: 1 answered; 1 parking" in summary(count_episode(open_episode(tmp_path)))[0]
    rows = [row for row in trace_rows(tmp_path / "trace.jsonl", "e") if isinstance(row, TurnRow)]
    assert [(row.outcome, row.requests) for row in rows] == [
        ("parked", 1), ("failed", 0), ("answered", 2), (None, None),
    ]  # fmt: skip
