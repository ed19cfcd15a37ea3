"""An episode's numbers as people see them."""

import math
import re
from pathlib import Path

import msgspec
import pytest
from recorded_turns import Called, Play, Tape
from trace_files import Chain, TraceFile

from grue import messages
from grue.hosts.zork.facts import EpisodeEnded, EpisodeStarted
from grue.messages import CompletionReceived, LlmFailure, RunTurn, TurnFailed, Usage
from grue.tracing.columns import cells
from grue.tracing.counts import count_episode
from grue.tracing.stats import Durations, EpisodeStats
from grue.tracing.stats_table import duration, render, summary

pytestmark = pytest.mark.made_up_trace

THINK = "thoughtbox.think"
EVIL = "evil\x1b[2J\u202e<script>.think"


@pytest.fixture
def file(tmp_path: Path) -> TraceFile:
    return TraceFile(tmp_path / "trace.jsonl")


def played(file: TraceFile, *, end: bool = True) -> EpisodeStats:
    """Two turns, the second with every kind of bad call, and a third that fails."""
    tape = Chain(file)
    tape.say(EpisodeStarted(episode_id="ep-1", game="house", game_hash="1", seed=7, model="m"))
    for turn, replies in enumerate(
        [
            [[Called(THINK)], "take lamp"],
            [
                [Called(THINK, outcome="error"), Called(EVIL)],
                [Called(THINK, outcome="timeout"), Called(THINK)],
                [Called(THINK, outcome="died")],
                "look",
            ],
        ],
        start=1,
    ):
        Play(tape, RunTurn(turn=turn, system="s", user="u", servers=("thoughtbox",)), replies)
    failure = LlmFailure(kind="refused", endpoint="e", model="m", message="no credit")
    tape.say(RunTurn(turn=3, system="s", user="u"), TurnFailed(turn=3, failure=failure), turn=3)
    if end:
        tape.say(EpisodeEnded(reason="won", detail="lamp\x1b[2J on", turns=2, score=90, max_score=100))
    return count_episode(file.read())


def test_a_summary_counts_turns_requests_calls_and_outcomes(file: TraceFile) -> None:
    assert summary(played(file)) == (
        "turns       3: 1 answered, 1 forced, 1 failed",
        "requests    6: 60 tokens in, 12 out",
        "tool calls  4: 1 returned, 1 returned an error, 1 timed out, 1 lost with the server;"
        " never sent: 1 skipped, 1 rejected",
        "ended       won, score 90 of 100, after 800 ms: lamp\\u001b[2J on",
    )


def test_a_summary_goes_on_below_where_the_terminal_is_narrow(file: TraceFile) -> None:
    stats = played(file)
    narrow = summary(stats, 40)
    assert max(map(len, narrow)) <= 40
    assert narrow[:2] == ("turns       3: 1 answered, 1 forced, 1", "            failed")
    assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(summary(stats)).split())


def test_an_episode_without_an_end_was_killed_or_still_plays(file: TraceFile) -> None:
    told = summary(played(file, end=False))[-1]
    assert told == "ended       after 800 ms; its host recorded no end: it was killed, or is still running"


def test_an_empty_trace_has_a_summary_and_no_tables(file: TraceFile) -> None:
    stats = count_episode(file.read())
    assert summary(stats) == (
        "turns       0",
        "requests    0: 0 tokens in, 0 out",
        "tool calls  0",
        "ended       at once; nothing was recorded",
    )
    assert "" not in list(render(stats))


def test_retries_cut_replies_kinds_of_tokens_and_cost_are_told_where_there_are_any(file: TraceFile) -> None:
    failure = LlmFailure(kind="unavailable", endpoint="e", model="m", message="busy")
    usage = Usage(input_tokens=9, output_tokens=8, cached_tokens=7, reasoning_tokens=6, cost_usd=0.5)
    Tape(file).say(
        messages.RequestCompletion(conversation="c", request=1, new=(), mode=messages.OfferTools()),
        messages.CompletionRetried(request=1, attempt=1, delay_s=1, failure=failure),
        messages.ReplyCut(request=1, limit_tokens=100),
        CompletionReceived(request=1, usage=usage),
    )
    lines = list(render(count_episode(file.read())))
    assert "requests    1 (1 tried again, 1 cut short): 9 tokens in, 8 out, 0.5000 USD" in lines
    assert "of these    7 in cached, 6 out reasoning" in lines


def test_the_tables_have_what_was_counted(file: TraceFile) -> None:
    lines = list(render(played(file)))
    rows = {line.split("  ")[1].strip(): line.split() for line in lines if line.startswith("  ")}
    assert rows[THINK] == [THINK, "4", "1", "1", "1", "1", "0", *["200", "ms"] * 3]
    assert rows["tools"][:4] == ["tools", "800", "ms", "100.0%"]
    assert rows["thoughtbox"] == ["thoughtbox", "2", "0", "0", "1", "30.0", "ms", "30.0", "ms", "2", "polite"]
    assert rows["turn 2"] == ["turn", "2", "600", "ms", "forced", "4", "5", "tools", "600", "ms"]
    assert "turn time   p50 200 ms, p95 600 ms, max 600 ms" in lines
    assert "reply time  p50 0.0 ms, p95 0.0 ms, max 0.0 ms" in lines
    assert any(re.fullmatch(r"trace       \d+ messages, \d+\.\d kB", line) for line in lines)


def test_the_tables_fit_eighty_columns(file: TraceFile) -> None:
    tables = [line for line in render(played(file)) if line.startswith("  ")]
    assert max(map(cells, tables)) <= 80
    assert not any("…" in line for line in tables if THINK in line)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_lines_are_cut_to_the_terminal_and_printable(file: TraceFile, width: int) -> None:
    stats = msgspec.structs.replace(played(file), episode=EVIL)
    for line in render(stats, width=width):
        assert cells(line) <= width
        assert line.isprintable()


def test_colours_are_only_what_is_asked_for(file: TraceFile) -> None:
    stats = played(file)
    coloured = list(render(stats, colour=True))
    assert any(line.startswith("\x1b[1m") for line in coloured)
    assert [re.sub(r"\x1b\[[0-9]*m", "", line) for line in coloured] == list(render(stats))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0.0 ms"),
        (0.00004, "0.0 ms"),
        (0.0994, "99.4 ms"),
        (0.0999, "100 ms"),
        (0.9994, "999 ms"),
        (0.9999, "1.00 s"),
        (99.9, "99.90 s"),
        (3600, "3600 s"),
    ],
)
def test_a_time_is_told_to_three_places_or_so(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_a_call_that_was_sent_and_never_settled_is_counted(file: TraceFile) -> None:
    stats = played(file)
    first, *others = stats.tools
    pending = msgspec.structs.replace(first, calls=first.calls + 2)
    lines = summary(msgspec.structs.replace(stats, tools=(pending, *others)))
    assert any("1 lost with the server, 2 without a result;" in line for line in lines)


def test_a_resumed_and_cut_trace_says_so(file: TraceFile) -> None:
    stats = msgspec.structs.replace(
        played(file), resumptions=2, cut_short=True, payload_bytes=2_500_000, trace_bytes=12
    )
    lines = list(render(stats))
    assert "resumed     2 times" in lines
    (trace,) = [line for line in lines if line.startswith("trace")]
    assert trace.endswith("12 bytes, 2.5 MB of payloads beside it; its last line was cut short")


def test_durations_that_add_up_to_more_than_a_float_holds_are_no_error() -> None:
    assert Durations.of([1.5e308, 1.5e308]).total_s == math.inf
