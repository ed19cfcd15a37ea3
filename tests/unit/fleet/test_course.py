"""What a trace says of an attempt, also a trace that is damaged or was never grue's."""

from pathlib import Path

import pytest
from story_traces import full_story
from viewer_traces import EpisodeTape

from grue import messages as m
from grue.errors import TraceError
from grue.fleet.broker import Amount
from grue.fleet.course import Course, read_course, read_said, read_spent
from grue.protocol.turn.prices import Price
from grue.tracing.overview import Overview
from grue.tracing.reading import read_episode

pytestmark = pytest.mark.made_up_trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    full_story(tmp_path / "trace.jsonl")
    return tmp_path / "trace.jsonl"


def test_the_last_thing_that_went_wrong_is_named_with_its_message(trace: Path) -> None:
    course = read_course(trace)
    assert course is not None
    assert (course.turns, course.failed_calls, course.outcome, course.host_reason) == (
        3,
        1,
        "answered",
        "done",
    )
    assert (course.error, course.error_kind, course.turn) == ("too dark", "ToolReturned", 2)
    (envelope,) = (each for each in read_episode(trace).envelopes if each.seq == course.message)
    assert type(envelope.body).__name__ == "ToolReturned"


def test_the_last_question_and_its_answer_are_read(trace: Path) -> None:
    assert read_said(trace) == ("And then?", "down")


def test_the_estimated_tokens_of_cancelled_requests_count_as_spent(tmp_path: Path) -> None:
    asks = m.ModelAsked(model="big")
    paid = m.Usage(input_tokens=10, output_tokens=1)
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        tape.say(m.RunTurn(turn=1, system="", user="Go.", asks=asks), "host agent")
        for number in (1, 2):
            request = m.RequestCompletion(
                conversation=m.ConversationId("t"), request=number, new=(), mode=m.OfferTools()
            )
            tape.say(request, "agent llm")
        tape.say(m.ReplyDropped(request=1, usage=paid), "llm agent")
        tape.say(
            m.CompletionReceived(request=2, content="yes", finish_reason="stop", usage=paid), "llm agent"
        )
        tape.say(
            m.CompletionReceived(request=1, content="a", finish_reason="stop", usage=paid),
            "llm-sampling agent",
        )
        tape.say(m.ServerSampled(server=m.ServerName("mind"), usage=paid), "sampling agent")  # repeats it
        tape.say(m.ServerSampled(server=m.ServerName("mind"), usage=paid), "sampling agent")  # was cancelled
    spent = read_spent(tmp_path / "trace.jsonl", {"big": Price(input=1e6, output=0)})
    assert spent == Amount(2, 44, 40.0)


def test_a_message_that_cannot_be_read_and_costs_nothing_hides_no_cost(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    request = m.RequestCompletion(conversation=m.ConversationId("t"), request=1, new=(), mode=m.OfferTools())
    with EpisodeTape(trace) as tape:
        tape.say(m.ServerNoted(server=m.ServerName("mind"), kind="log", text="Ready."), "mind agent")
        tape.say(request, "agent llm")
    trace.write_bytes(trace.read_bytes().replace(b'"ServerNoted"', b'"OfLaterGrue"'))
    assert read_spent(trace, {}) == Amount(1)


def test_what_comes_before_the_damage_counts(trace: Path) -> None:
    lines = trace.read_bytes().splitlines(keepends=True)
    trace.write_bytes(b"".join([*lines[: len(lines) // 2], b"{]\n", *lines[len(lines) // 2 :]]))
    course = read_course(trace)
    assert course is not None
    assert 0 < course.turns < 3
    with pytest.raises(TraceError):
        read_said(trace)


def test_a_turn_that_waits_for_a_person_is_the_last_one(trace: Path) -> None:
    lines = trace.read_bytes().splitlines(keepends=True)
    parked = next(place for place, line in enumerate(lines) if b'"TurnParked"' in line)
    trace.write_bytes(b"".join(lines[: parked + 1]))
    course, overview = read_course(trace), Overview()
    for envelope in read_episode(trace).envelopes:
        overview.see(envelope)
    assert course is not None
    assert course.outcome == overview.last == "parked"


def done(turn: int) -> m.TurnCompleted:
    return m.TurnCompleted(turn=turn, kind="answered")


def test_a_turn_that_goes_on_after_a_person_or_a_kill_counts_once(tmp_path: Path) -> None:
    # Turn 1 is parked and goes on, turn 2 is killed and goes on, and another runner counts from 1 again.
    ends = (m.TurnParked(turn=1), done(1), None, done(2), done(1))
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        for turn, end in zip((1, 1, 2, 2, 1), ends, strict=True):
            tape.turn = turn
            run = tape.say(m.RunTurn(turn=turn, system="", user="Go."), "host agent")
            if end is not None:
                tape.say(end, "agent host", cause=run)
    course = read_course(tmp_path / "trace.jsonl")
    assert course is not None
    assert course.turns == 3


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}\n", b"[" * 9000])
def test_a_file_that_is_no_trace_says_nothing(tmp_path: Path, content: bytes) -> None:
    assert read_course(tmp_path / "trace.jsonl") is None
    (tmp_path / "trace.jsonl").write_bytes(content)
    assert read_course(tmp_path / "trace.jsonl") == Course()
