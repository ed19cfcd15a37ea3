"""An episode in numbers."""

import math
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from arbitrary_turns import ArbitraryTurn, arbitrary_turns
from hypothesis import given
from hypothesis import strategies as st
from recorded_turns import STARTED_AT, Called, Play, Tape, opened, refused_connection
from trace_files import Chain, TraceFile
from turns import DEADLINE, INTERRUPT
from typer.testing import CliRunner

from grue import messages
from grue.cli.app import app
from grue.cli.live import Progress
from grue.hosts.zork import facts
from grue.messages import (
    BatchId,
    CallId,
    LlmFailure,
    RunTurn,
    ServerName,
    StartupFailed,
    ToolCalled,
    TurnFailed,
    Usage,
)
from grue.runtime.trace.recorder import Envelope
from grue.tracing.counts import EpisodeTally, count_episode
from grue.tracing.facts import EpisodeResumed
from grue.tracing.overview import Overview
from grue.tracing.page_feed import TurnWriter
from grue.tracing.stats import Durations, EpisodeStats, ToolStats, nearest_rank
from grue.tracing.stats_table import render, summary

pytestmark = pytest.mark.made_up_trace

THINK = "thoughtbox.think"
REFUSED = LlmFailure(kind="refused", endpoint="e", model="m", message="no credit")


@pytest.fixture
def file(tmp_path: Path) -> TraceFile:
    return TraceFile(tmp_path / "trace.jsonl")


def turn(tape: Tape, number: int, *replies: Any, **play: Any) -> None:
    Play(tape, RunTurn(turn=number, system="s", user="u", servers=("thoughtbox",)), replies, **play)


def test_calls_that_a_host_makes_after_a_turn_count_for_it(file: TraceFile) -> None:
    tape = Chain(file)
    turn(tape, 1, "look")
    turn(tape, 2, "look")
    dig = ToolCalled(
        server=ServerName("cave"), batch=BatchId(1), call_id=CallId("c"), tool="dig", arguments={}
    )
    tape.say(dig, dig, dig, turn=1)
    slow = {each.turn: each.tool_calls for each in count_episode(file.read()).slowest_turns}
    assert slow == {1: 3, 2: 0}


def test_turns_are_counted_by_outcome_with_their_durations(file: TraceFile) -> None:
    tape = Chain(file)
    for number, took_s in enumerate([1.0, 4.0, 2.0, 8.0], start=1):
        turn(tape, number, [Called(THINK, took_s=took_s)], "look")
    turn(tape, 5, [Called(THINK, outcome="died", took_s=0.5)], "look")
    tape.say(RunTurn(turn=6, system="s", user="u"), TurnFailed(turn=6, failure=REFUSED), turn=6)
    tape.say(RunTurn(turn=7, system="s", user="u"), turn=7)
    stats = count_episode(file.read())
    assert stats.turns.started == 7
    assert stats.turns.outcomes == {"answered": 4, "forced": 1, "failed": 1, "unfinished": 1}
    assert stats.turns.iterations == 5
    assert stats.turns.duration == Durations(count=6, total_s=15.5, p50_s=1.0, p95_s=8.0, max_s=8.0)
    assert [(slow.turn, slow.duration_s, slow.outcome) for slow in stats.slowest_turns] == [
        (4, 8.0, "answered"),
        (2, 4.0, "answered"),
        (3, 2.0, "answered"),
        (1, 1.0, "answered"),
        (5, 0.5, "forced"),
    ]
    slowest = stats.slowest_turns[0]
    assert (slowest.requests, slowest.tool_calls, slowest.phases.tools_s) == (2, 1, 8.0)


def test_a_turn_that_a_resumed_batch_runs_again_is_not_open_at_the_end(file: TraceFile) -> None:
    tape = Chain(file)
    tape.say(RunTurn(turn=1, system="s", user="u"), turn=1)
    turn(tape, 2, "look")
    killed = count_episode(file.read())
    assert killed.turns.open == 1
    assert "in the middle of a turn" in summary(killed)[-1]
    turn(tape, 1, "look")
    resumed = count_episode(file.read())
    assert resumed.turns.outcomes == {"answered": 2, "unfinished": 1}
    assert resumed.turns.open == 0
    assert "in the middle of a turn" not in summary(resumed)[-1]


def test_of_turns_that_took_as_long_the_earlier_ones_are_kept(file: TraceFile) -> None:
    tape = Tape(file)
    for number in range(1, 9):
        turn(tape, number, [Called(THINK, took_s=1.0)], "look")
    assert [slow.turn for slow in count_episode(file.read()).slowest_turns] == [1, 2, 3, 4, 5]


def test_calls_are_counted_by_tool_and_settlement(file: TraceFile) -> None:
    tape = Tape(file)
    turn(
        tape,
        1,
        [Called(THINK, took_s=0.1), Called(THINK, outcome="error", took_s=0.3), Called("nowhere.go")],
        [Called(THINK, outcome="timeout", took_s=3.0), Called(THINK), Called(THINK, "[1]")],
        [Called(THINK, outcome="died", took_s=0.2), Called(THINK)],
        "look",
    )
    nowhere, think = count_episode(file.read()).tools
    assert think == ToolStats(
        tool=THINK,
        calls=4,
        returned=1,
        errors=1,
        timed_out=1,
        lost=1,
        skipped=2,
        rejected=1,
        duration=Durations(count=4, total_s=3.6, p50_s=0.2, p95_s=3.0, max_s=3.0),
    )
    assert (nowhere.tool, nowhere.calls, nowhere.rejected) == ("nowhere.go", 0, 1)
    assert nowhere.duration == Durations()


def test_a_denied_call_is_counted_as_denied(file: TraceFile) -> None:
    call: dict[str, Any] = {"batch": 1, "call_id": "call_1", "name": "a.b"}
    Tape(file).say(
        messages.ToolDenied(**call, reason="the policy does not allow this tool"),
        messages.ToolRejected(**call, error="no such tool"),
    )
    stats = count_episode(file.read())
    (tool,) = stats.tools
    assert (tool.denied, tool.rejected, tool.calls) == (1, 1, 0)
    assert any("never sent: 1 rejected, 1 denied" in line for line in summary(stats))
    lines = [line.split() for line in render(stats)]
    assert ["calls", "err", "late", "lost", "skip", "rej", "deny", "p50", "p95", "max"] in lines
    assert ["a.b", "0", "0", "0", "0", "0", "1", "1"] in [line[:8] for line in lines]


def test_a_call_without_a_turn_has_its_servers_name_for_it(file: TraceFile) -> None:
    tape = Tape(file)
    call = messages.ServerCall(call_id="call_1", tool="think", arguments={})
    batch = messages.CallTools(server="thoughtbox", batch=1, calls=(call,), timeout_s=3)
    called = messages.ToolCalled(server="thoughtbox", batch=1, call_id="call_1", tool="think", arguments={})
    result = messages.ToolReturned(batch=1, call_id="call_1", result=messages.ToolCallResult("ok"))
    tape.say(opened(), batch, called, result)
    (tool,) = count_episode(file.read()).tools
    assert (tool.tool, tool.calls, tool.returned) == (THINK, 1, 1)


@given(arbitrary_turns())
@pytest.mark.slow
def test_counts_are_those_of_the_turns_own_record(arbitrary: ArbitraryTurn) -> None:
    """What `TurnCompleted` says of each call is what the messages said."""
    if arbitrary.came(type(DEADLINE), type(INTERRUPT), StartupFailed):
        return  # then it settles calls that nobody said a word about any more
    with tempfile.TemporaryDirectory() as folder:
        file = TraceFile(Path(folder) / "trace.jsonl")
        Tape(file).say(*(entry.body for entry in arbitrary.log))
        stats = count_episode(file.read())
    recorded = Counter(
        (
            record.name,
            "error" if record.settlement == "returned" and record.result.is_error else record.settlement,
        )
        for record in arbitrary.end.tool_calls
    )
    counted = Counter[tuple[str, str]]()
    for tool in stats.tools:
        settled = (tool.returned, tool.errors, tool.timed_out, tool.lost, tool.skipped)
        settled += (tool.rejected, tool.denied)
        kinds = ("returned", "error", "timed_out", "died", "skipped", "rejected", "denied")
        counted.update(
            {(tool.tool, kind): count for kind, count in zip(kinds, settled, strict=True) if count}
        )
    assert counted == recorded
    assert stats.turns.iterations == arbitrary.end.iterations
    assert stats.model.requests == arbitrary.end.requests


def test_requests_retries_tokens_and_cost_are_summed(file: TraceFile) -> None:
    tape = Tape(file)
    ask = messages.RequestCompletion(conversation="c", request=1, new=(), mode=messages.OfferTools())
    usage = Usage(input_tokens=10, output_tokens=2, cached_tokens=4, reasoning_tokens=1, cost_usd=0.25)
    for cause, took_s in ((1, 0.5), (5, 1.5)):
        tape.say(ask)
        tape.say(messages.CompletionRetried(request=1, attempt=1, delay_s=1, failure=REFUSED))
        tape.say(messages.ReplyCut(request=1, limit_tokens=1, retried_with=4))
        tape.tick(took_s)
        tape.recorder.record(
            messages.CompletionReceived(request=1, usage=usage), sender="llm", receiver="agent", cause=cause
        )
    model = count_episode(file.read()).model
    assert (model.requests, model.retries, model.cut_replies) == (2, 2, 2)
    assert model.usage == usage + usage
    assert model.duration == Durations(count=2, total_s=2.0, p50_s=0.5, p95_s=1.5, max_s=1.5)


def test_what_is_recorded_again_of_a_request_that_waits_is_counted_once(file: TraceFile) -> None:
    ask = messages.RequestCompletion(conversation="c", request=1, new=(), mode=messages.OfferTools())
    tape = Tape(file)
    tape.say(ask)
    retried = messages.CompletionRetried(request=1, attempt=1, delay_s=1, failure=REFUSED)
    cut = messages.ReplyCut(request=1, limit_tokens=1, retried_with=4)
    waits = messages.CompletionPostponed(request=1, item="i")
    for body in (waits, retried, waits, retried, cut, waits, retried, cut, retried):
        tape.recorder.record(body, sender="llm", cause=1)
    model = count_episode(file.read()).model
    assert (model.requests, model.retries, model.cut_replies) == (1, 2, 1)


def test_a_servers_request_is_counted_once_and_also_if_it_was_cancelled(file: TraceFile) -> None:
    tape = Tape(file)
    cost = [Usage(input_tokens=number) for number in (1, 10, 100, 1000)]
    bodies = [
        messages.CompletionReceived(request=1, usage=cost[0]),
        messages.CompletionFailed(request=2, failure=REFUSED, usage=cost[1]),
        *(messages.ServerSampled(server=ServerName("s"), usage=usage) for usage in cost[:3]),
    ]
    for body in bodies:
        tape.recorder.record(body, sender="llm-sampling", receiver="agent")
    failed = messages.CompletionFailed(request=3, failure=REFUSED, usage=cost[3])
    tape.recorder.record(failed, sender="llm", receiver="agent")
    dropped = messages.ReplyDropped(request=4, usage=Usage(output_tokens=5))
    tape.recorder.record(dropped, sender="llm", receiver="agent")
    assert count_episode(file.read()).model.usage == Usage(input_tokens=1111, output_tokens=5)
    overview, page, live = Overview(), TurnWriter(1, 0.0), Progress()
    for envelope in file.read():
        overview.see(envelope)
        page.add(envelope)
        live.note(envelope, 0.0)
    assert overview.usage == page.page.usage == live.usage == Usage(input_tokens=1111, output_tokens=5)


def test_servers_are_counted_from_start_to_ending(file: TraceFile) -> None:
    tape = Tape(file)
    failed = messages.ConnectFailed(
        server="thoughtbox", attempt=1, failure=refused_connection(), then="retry"
    )
    closed = messages.SessionClosed(server="thoughtbox", ending="polite")
    tape.say(failed, opened(attempt=2), closed, closed)
    tape.say(opened(), messages.SessionClosed(server="thoughtbox", ending="killed"))
    died = messages.ServerDied(server="thoughtbox", batch=1, call_id="c", failure=refused_connection())
    tape.say(opened(), died, messages.SessionClosed(server="thoughtbox", ending="died"))
    tape.say(msgspec.structs.replace(failed, then="disable"))
    tape.say(messages.McpDisabled(server="thoughtbox", reason="r", newly=True))
    tape.say(messages.McpDisabled(server="thoughtbox", reason="r"))
    (server,) = count_episode(file.read()).servers
    assert (server.starts, server.failed_starts, server.retries, server.disabled) == (3, 2, 1, 1)
    assert server.deaths == 1
    assert server.endings == {"polite": 1, "killed": 1, "died": 1}, "a second word that it is closed is none"
    assert server.startup == Durations(count=3, total_s=0.09, p50_s=0.03, p95_s=0.03, max_s=0.03)


def test_how_an_episode_ended_is_what_its_host_said_last(file: TraceFile) -> None:
    tape = Tape(file)
    assert count_episode(file.read()).hosted is False
    tape.say(facts.EpisodeStarted(episode_id="ep-1", game="g", game_hash="h", seed=1, model="m"))
    assert (count_episode(file.read()).hosted, count_episode(file.read()).ending) == (True, None)
    ended = facts.EpisodeEnded(reason="interrupted", detail="Ctrl-C", turns=2)
    tape.say(ended)
    assert count_episode(file.read()).ending == ended
    tape.say(EpisodeResumed(episode_id="ep-1", turns=2))
    stats = count_episode(file.read())
    assert (stats.ending, stats.resumptions) == (None, 1)


class ResumedByUs(EpisodeResumed, frozen=True, kw_only=True, tag="EpisodeResumed"):
    """What a host records when it resumes an episode."""

    night: int


def test_time_in_which_no_host_ran_does_not_count_though_the_host_has_a_fact_of_its_own() -> None:
    seen = facts.Observed(turn=1, text="It is dark.", location="Attic", score=0)
    tally = EpisodeTally()
    for seq, (t, body) in enumerate(
        [(0.0, seen), (1.0, seen), (90.0, ResumedByUs(episode_id="ep-1", turns=1, night=2)), (91.0, seen)], 1
    ):
        said = Envelope(seq=seq, t=t, at=t, turn=1, sender="host", receiver="trace", cause=None, body=body)
        tally.take(said)
    assert (tally.clock.phases.total_s, tally.resumptions) == (2.0, 1)


def test_lost_messages_are_counted_by_the_numbers_of_the_others(file: TraceFile) -> None:
    turn(Tape(file), 1, "look")
    head, *lines = file.path.read_bytes().splitlines(keepends=True)
    assert count_episode(file.read()).missing == 0
    file.path.write_bytes(head + b"".join(lines[1:-1]))  # lost at an end, a message leaves no gap
    assert count_episode(file.read()).missing == 0
    del lines[1:3]
    file.path.write_bytes(head + b"".join(lines))
    assert count_episode(file.read()).missing == 2
    for command, said in (
        ("show", "The file lacks 2 messages: "),
        ("stats", "; 2 messages missing between these"),
    ):
        assert said in CliRunner().invoke(app, ["trace", command, str(file.path)]).stdout


def test_a_trace_that_is_cut_short_is_counted_and_says_so(file: TraceFile) -> None:
    turn(Tape(file), 1, "look")
    whole = count_episode(file.read())
    file.cut(5)
    cut = count_episode(file.read())
    assert (whole.cut_short, cut.cut_short) == (False, True)
    assert cut.messages == whole.messages - 1
    assert cut.trace_bytes == whole.trace_bytes - 5 == file.path.stat().st_size


def test_payloads_of_the_trace_are_measured_and_those_of_other_traces_beside_it_are_not(
    file: TraceFile,
) -> None:
    reference, extract, foreign = ("0" * 64, "1" * 64, "2" * 64)
    payloads = file.path.parent / "payloads"
    payloads.mkdir()
    for name, size in ((reference, 700), (extract, 30), (foreign, 4000)):
        (payloads / f"{name}.json").write_bytes(b"x" * size)
    line = {"seq": 1, "t": 0.0, "at": STARTED_AT, "turn": 1, "from": "agent", "to": "llm"}
    body = {"$payload": reference, "bytes": 700, "type": "RequestCompletion"}
    with file.path.open("ab") as trace:
        for seq in (1, 2):
            extracts = [{"at": 0, "$payload": extract, "bytes": 30}]
            trace.write(msgspec.json.encode(line | {"seq": seq, "extracts": extracts, "body": body}) + b"\n")
    episode = file.read()
    assert len([*episode.lines()]) == 2
    assert EpisodeTally().stats(episode).payload_bytes == 730


def test_numbers_are_json_and_come_back(file: TraceFile) -> None:
    turn(Chain(file), 1, [Called(THINK)], "look")
    stats = count_episode(file.read())
    assert stats.wall_s == stats.phases.total_s == stats.phases.tools_s == 0.2
    assert msgspec.json.decode(msgspec.json.encode(stats), type=EpisodeStats) == stats


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(
    values: list[float], percent: int
) -> None:
    ordered = sorted(values)
    found = nearest_rank(ordered, percent)
    enough = math.ceil(percent * len(values) / 100)
    assert found in values
    assert sum(value <= found for value in values) >= enough
    assert sum(value < found for value in values) < enough


def test_what_outlives_its_turns_is_counted_by_its_own_end(file: TraceFile) -> None:
    tape = Tape(file)
    ahead = messages.SessionPrewarmed(server="thoughtbox", pid=2, elapsed_s=9.0)
    behind = messages.SessionClosed(server="thoughtbox", ending="handed_over")
    for ending in ("polite", "killed"):
        tape.say(opened(), behind, ahead, messages.ServerEnded(server="thoughtbox", ending=ending))
    tape.say(messages.PrewarmLost(server="thoughtbox", cause="it died"))
    stats = count_episode(file.read())
    (server,) = stats.servers
    assert server.endings == {"polite": 1, "killed": 1}
    assert (server.starts, server.spares, server.spares_lost) == (2, 2, 1)
    assert server.startup.count == 2, "a turn does not wait for what is opened ahead"
    assert any("1 polite, 1 killed, 2 opened ahead, 1 lost before use" in line for line in render(stats))
