"""A trace as a table for people."""

import re
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from recorded_turns import STARTED_AT, Called, Play, Tape, opened, refused_connection

from grue import facts, messages
from grue.errors import TraceError
from grue.facts import Decided, EpisodeEnded, EpisodeStarted
from grue.messages import LlmFailure, RunTurn, ToolCallResult, TurnFailed
from grue.protocol.safe_text import cells
from grue.runtime.supervisor import ActorFailed
from grue.runtime.trace import Trace, TraceHeader, TraceWriter
from grue.tracing.reading import EpisodeBody, read_episode
from grue.tracing.show import render, summary
from grue.tracing.telling import telling

THINK = "thoughtbox.think"
SGR = re.compile(r"\x1b\[[0-9;]*m")


def played(*observers: Any) -> Tape:
    """Record two turns between an episode's start and end; the second has every kind of bad call."""
    tape = Tape(*observers)
    start = EpisodeStarted(episode_id="ep-1", game="house", game_hash="1", seed=7, model="m", scripted=True)
    tape.say(start, sender="host")
    for turn, replies in enumerate(
        [
            [[Called(THINK, '{"thought": "漢字 \\u001b[2J"}', content={"next": False})], "take lamp"],
            [
                [Called(THINK, outcome="error"), Called("nowhere.go")],
                [Called(THINK, outcome="timeout"), Called(THINK)],
                [Called(THINK, outcome="died")],
                "look\x1b[31m\nnow",
            ],
        ],
        start=1,
    ):
        run = RunTurn(turn=turn, system="s", user="It is dark.\n>", servers=("thoughtbox",))
        action = Play(tape, run, replies).end.answer["action"]
        decided = Decided(turn=turn, action=action, reasoning="", new_objective=None, kind="answered")
        tape.say(decided, sender="host")
    tape.say(EpisodeEnded(reason="won", detail="lamp on", turns=2, score=90, max_score=100), sender="host")
    return tape


def trace_of(tape: Tape, *, cut_short: bool = False) -> Trace[Any]:
    header = TraceHeader(format=1, episode="ep-1", started_at=STARTED_AT)
    return Trace(header, tuple(tape.envelopes), cut_short)


def plain(text: str) -> str:
    return SGR.sub("", text)


def test_each_message_is_one_line_with_its_columns() -> None:
    lines = list(render(trace_of(played())))
    assert lines[0].startswith("Episode ep-1, started 2026-09-21 14:13:20 UTC, ")
    assert lines[1].split() == ["seq", "time", "turn", "cause", "from", "→", "to", "message"]
    (called,) = [line for line in lines if re.search(r" 1 +thoughtbox → trace +ToolCalled ", line)]
    assert called.endswith('call_1 thoughtbox.think {"thought":"漢字 \\u001b[2J"}')


def test_columns_are_aligned() -> None:
    trace = trace_of(played())
    heading, *lines = [line for line in render(trace) if " → " in line]
    assert len(lines) == len(trace.envelopes)
    place = heading.index("message")
    for line, envelope in zip(lines, trace.envelopes, strict=True):
        assert line[place - 2 :].startswith(f"  {type(envelope.body).__name__} ")


def test_turns_stand_under_headings_host_facts_with_their_turn() -> None:
    lines = list(render(trace_of(played())))
    assert [line for line in lines if line.startswith("──")] == [
        "── Turn 1 ──",
        "── Turn 2 ──",
        "── Outside turns ──",
    ]
    (start,) = [number for number, line in enumerate(lines) if line == "── Turn 2 ──"]
    assert "Decided" in lines[start - 2]


def test_a_cause_is_shown_by_its_number() -> None:
    tape = Tape()
    tape.recorder.record(opened(), sender="thoughtbox", receiver="agent", turn=1)
    tape.recorder.record(messages.CloseSession(server="thoughtbox"), sender="agent", cause=1, turn=1)
    last = list(render(trace_of(tape)))[-1]
    assert last.split()[:4] == ["2", "0.000", "1", "1"]


@pytest.mark.parametrize("width", [20, 80, 120])
@pytest.mark.parametrize("colour", [False, True])
def test_lines_are_cut_to_the_terminal(width: int, colour: bool) -> None:
    for line in render(trace_of(played(), cut_short=True), width=width, colour=colour):
        assert cells(plain(line)) <= width


def test_without_colour_there_is_no_escape_and_with_it_nothing_but_colours() -> None:
    trace = trace_of(played())
    bare = list(render(trace))
    assert all(line.isprintable() for line in bare)
    coloured = list(render(trace, colour=True))
    assert coloured != bare
    assert [plain(line) for line in coloured] == bare


@pytest.mark.parametrize(
    ("kind", "colour"), [("ToolTimedOut", "33"), ("ServerDied", "33"), ("TurnCompleted", "32")]
)
def test_what_went_wrong_stands_out(kind: str, colour: str) -> None:
    lines = [line for line in render(trace_of(played()), colour=True) if f" {kind} " in line]
    assert lines
    assert all(line.startswith(f"\x1b[{colour}m") for line in lines)


def test_a_returned_error_stands_out_and_a_result_does_not() -> None:
    lines = [line for line in render(trace_of(played()), colour=True) if " ToolReturned " in line]
    assert [line.startswith("\x1b[33m") for line in lines] == [False, True]


def test_a_removed_secret_is_said() -> None:
    tape = Tape()
    tape.recorder.hide("API_KEY", "s3cr3t-value")
    tape.say(facts.McpInitFailed(error="refused s3cr3t-value"))
    assert list(render(trace_of(tape)))[-1].endswith("[redacted:API_KEY] (a secret was removed)")


def test_an_empty_trace_is_a_table_without_rows() -> None:
    assert len(list(render(trace_of(Tape())))) == 2
    assert summary(trace_of(Tape())) == (
        "turns       0",
        "requests    0: 0 tokens in, 0 out",
        "tool calls  0",
        "ended       at once; no host recorded an episode",
    )


def test_a_file_cut_short_is_read_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path, episode="ep-1")
    tape = played(writer)
    writer.close()
    whole = read_episode(path)
    assert [envelope.body for envelope in whole.envelopes] == [envelope.body for envelope in tape.envelopes]
    path.write_bytes(path.read_bytes()[:-20])
    cut = read_episode(path)
    assert len(cut.envelopes) == len(whole.envelopes) - 1
    assert "The last line of the file was cut short" in list(render(cut))[-1]
    assert "cut short" not in "".join(render(whole))


def test_what_is_no_episode_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("{}\n")
    with pytest.raises(TraceError, match="not a grue trace"):
        read_episode(path)


def test_a_summary_counts_turns_requests_calls_and_outcomes() -> None:
    tape = played()
    failure = LlmFailure(kind="refused", endpoint="e", model="m", message="no credit")
    tape.say(RunTurn(turn=3, system="s", user="u"), TurnFailed(turn=3, failure=failure), turn=3)
    assert summary(trace_of(tape)) == (
        "turns       3: 1 answered, 1 forced, 1 failed",
        "requests    6: 60 tokens in, 12 out",
        "tool calls  4: 1 returned, 1 returned an error, 1 timed out, 1 lost with the server;"
        " never sent: 1 skipped, 1 rejected",
        "ended       won, score 90 of 100, after 0.8 s: lamp on",
    )


def test_an_episode_without_an_end_was_killed_or_still_plays() -> None:
    tape = played()
    trace = trace_of(tape)
    unfinished = msgspec.structs.replace(trace, envelopes=trace.envelopes[:-1])
    assert summary(unfinished)[-1] == "ended       not by its host: killed, or still playing, after 0.8 s"


def kinds_of_body() -> list[type]:
    return list(typing.get_args(EpisodeBody))


def sample(annotation: Any) -> Any:
    """Return a value of an annotated type, with text that would move a cursor."""
    if isinstance(annotation, typing.NewType):
        return sample(annotation.__supertype__)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return arguments[0]
    if origin is tuple:
        return (sample(arguments[0]),)
    if origin is dict:
        return {"key": "v\x1b[2J"}
    if arguments:
        return sample(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        hints = typing.get_type_hints(annotation)
        return annotation(**{name: sample(hints[name]) for name in annotation.__struct_fields__})
    return {str: "x\x1b[2J\ny", int: 2, float: 1.5, bool: True, object: {"a": [1]}}[annotation]


@pytest.mark.parametrize("kind", kinds_of_body(), ids=lambda kind: kind.__name__)
def test_every_kind_of_message_has_something_to_tell(kind: type) -> None:
    body = sample(kind)
    assert telling(body)
    tape = Tape()
    tape.say(body)
    assert all(line.isprintable() for line in render(trace_of(tape)))


def test_a_message_that_says_little_is_told_all_the_same() -> None:
    told = [
        telling(opened(attempt=2)),
        telling(messages.SessionOpened(server="a", tools=())),
        telling(messages.CompletionReceived(request=1)),
        telling(messages.McpDisabled(server="a", reason="r")),
        telling(messages.ToolReturned(batch=1, call_id="c", result=ToolCallResult(None))),
        telling(TurnFailed(turn=1, failure=messages.Interrupted(reason="Ctrl-C"))),
        telling(TurnFailed(turn=1, failure=messages.DeadlineMissed(limit_s=3, doing="waiting"))),
        telling(TurnFailed(turn=1, failure=messages.NoAnswer(reason="empty"))),
        telling(TurnFailed(turn=1, failure=refused_connection())),
        telling(ActorFailed(actor="llm", error="KeyError: 1", where=())),
    ]
    assert told == [
        "thoughtbox, attempt 2, pid 4711, 30.0 ms: 1 tool (think)",
        "a, 0.0 ms: no tools",
        "nothing (0+0 tokens, 0.0 ms)",
        "a, since an earlier turn: r",
        "c 0.0 ms: null",
        "interrupted: Ctrl-C",
        "out of time after 3 s, waiting",
        "no answer: empty",
        "thoughtbox, spawn: Connection refused",
        "KeyError: 1",
    ]
