"""What is under way, learned from an episode's messages, and how a status line says it."""

import os
import re
from typing import Any

import pytest
from case_tables import each_case
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from grue.cli.live import Progress, status_rows
from grue.cli.live_terminal import ASCII_SPINNER, SPINNER
from grue.hosts.zork.facts import Decided, EpisodeEnded, EpisodeStarted, Observed
from grue.messages import (
    BatchId,
    CallId,
    CallTools,
    CheckToolSupport,
    CloseSession,
    CompletionFailed,
    CompletionReceived,
    CompletionRetried,
    ConnectFailed,
    ConversationId,
    DeadlinePassed,
    LlmFailure,
    McpDisabled,
    OpenSession,
    ReplyCut,
    RequestCompletion,
    RequireAnswer,
    RunTurn,
    ServerDied,
    ServerFailure,
    ServerName,
    ServerNoted,
    SessionClosed,
    SessionOpened,
    StartupFailed,
    TextDelta,
    ToolCalled,
    ToolCallResult,
    ToolReturned,
    ToolSkipped,
    ToolSupportChecked,
    ToolTimedOut,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    Usage,
)
from grue.policies import TurnLimits
from grue.runtime.trace.recorder import Envelope
from grue.tracing.columns import cells

MIND, FS = ServerName("mind"), ServerName("fs")
BATCH, CALL = BatchId(1), CallId("c1")
BROKEN = ServerFailure(server=MIND, phase="call", command="mind", cause="it ended")
BUSY = LlmFailure(kind="unavailable", endpoint="http://x", model="m", message="busy")
FAILED = TurnFailed(turn=1, failure=BUSY)
STARTED = EpisodeStarted(episode_id="e", game="g", game_hash="1", seed=7, model="m", max_turns=60)
ASK = RequestCompletion(conversation=ConversationId("c"), request=1, new=(), mode=RequireAnswer())
RETRIED = CompletionRetried(request=1, attempt=1, delay_s=2.5, failure=BUSY)
CALLED = ToolCalled(server=MIND, batch=BATCH, call_id=CALL, tool="think", arguments={"thought": "A door."})
SUPPORTED = ToolSupportChecked(model="m", endpoint="x", supported=True, by="name")
WIDE = os.terminal_size((200, 24))


def opening(server: ServerName) -> OpenSession:
    return OpenSession(server=server, turn=1, timeout_s=10)


def seen(turn: int = 1, score: int | None = 5, most: int | None = 100) -> Observed:
    return Observed(turn=turn, text="A hall.", score=score, max_score=most)


def run(turn_timeout_s: float | None = None) -> RunTurn:
    return RunTurn(turn=1, system="s", user="u", limits=TurnLimits(turn_timeout_s=turn_timeout_s))


def enveloped(seq: int, at: float, body: Struct) -> Envelope[Struct]:
    return Envelope(seq=seq, t=at, at=at, turn=1, sender="a", receiver="b", cause=None, body=body)


def after(*told: Struct | tuple[float, Struct]) -> Progress:
    """What is known after these messages, told at 0 s or at the time beside them."""
    progress = Progress()
    for seq, one in enumerate(told, start=1):
        at, body = one if isinstance(one, tuple) else (0.0, one)
        progress.note(enveloped(seq, at, body), at)
    return progress


def shown(progress: Progress, now: float = 0.0, size: os.terminal_size = WIDE) -> list[str]:
    return ["".join(text for text, _ in row) for row in status_rows(progress, now, size, "*")]


def delta(text: str) -> TextDelta:
    return TextDelta(request=1, text=text)


ACTIVITIES: dict[str, tuple[Struct, ...]] = {
    "starting mind": (opening(MIND),),
    "starting mind, fs": (opening(MIND), opening(FS)),
    "starting fs": (opening(MIND), opening(FS), SessionOpened(server=MIND, tools=())),
    "starting mind, attempt 2": (
        opening(MIND),
        ConnectFailed(server=MIND, attempt=1, failure=BROKEN, then="retry"),
    ),
    "asking about the model": (CheckToolSupport(),),
    "thinking": (CheckToolSupport(), SUPPORTED, ASK),
    "asking again in 3 s": (ASK, RETRIED),
    "mind.think": (ASK, CompletionReceived(request=1), CALLED),
    "closing mind": (CloseSession(server=MIND),),
    "stopping": (opening(MIND), CALLED, TurnInterrupted(reason="Ctrl-C")),
    "closing fs": (CALLED, DeadlinePassed(limit_s=1), CloseSession(server=FS)),
    "playing": (Decided(turn=1, action="a", reasoning="", new_objective=None, kind="answered"),),
    "finishing": (ASK, EpisodeEnded(reason="quit", detail="", turns=1)),
}


@each_case("words", ACTIVITIES)
def test_what_was_begun_last_is_said(words: str) -> None:
    assert shown(after(*ACTIVITIES[words]))[-1] == f"  * {words}"


ENDINGS: list[tuple[Struct, Struct]] = [
    (opening(MIND), SessionOpened(server=MIND, tools=())),
    (opening(MIND), McpDisabled(server=MIND, reason="it ended")),
    (opening(MIND), StartupFailed(server=MIND, failure=BROKEN)),
    (CheckToolSupport(), SUPPORTED),
    (ASK, CompletionReceived(request=1)),
    (ASK, CompletionFailed(request=1, failure=BUSY)),
    (CALLED, ToolReturned(batch=BATCH, call_id=CALL, result=ToolCallResult("x"))),
    (CALLED, ToolTimedOut(batch=BATCH, call_id=CALL, timeout_s=30)),
    (CALLED, ToolSkipped(batch=BATCH, call_id=CALL, reason="late")),
    (CALLED, ServerDied(server=MIND, batch=BATCH, call_id=CALL, failure=BROKEN)),
    (CloseSession(server=MIND), SessionClosed(server=MIND)),
    (CALLED, TurnCompleted(turn=1, kind="answered")),
    (ASK, FAILED),
    (Decided(turn=1, action="a", reasoning="", new_objective=None, kind="answered"), seen()),
]


@each_case("begun, ended", ENDINGS)
def test_everything_that_begins_ends(begun: Struct, ended: Struct) -> None:
    assert after(begun).doing
    assert not after(begun, ended).doing


def test_what_lasts_shows_its_seconds_and_its_limit() -> None:
    calling = after(CallTools(server=MIND, batch=BATCH, calls=(), timeout_s=30), CALLED)
    assert shown(calling, 0.9)[-1] == "  * mind.think"
    assert shown(calling, 12.3)[-1] == "  * mind.think 12 s of 30 s"
    assert shown(after(ASK), 185.0) == ["  * thinking 3:05 min"]


def test_the_wait_before_a_retry_is_counted_down_and_then_it_thinks_again() -> None:
    waiting = after((10.0, ASK), (11.0, RETRIED))
    texts = [shown(waiting, now)[-1] for now in (11.0, 12.4, 13.4, 13.6, 15.0)]
    assert texts == [
        "  * asking again in 3 s",
        "  * asking again in 2 s",
        "  * asking again in 1 s",
        "  * thinking, attempt 2",
        "  * thinking, attempt 2 1 s",
    ]


def test_the_totals_stand_behind_the_activity() -> None:
    usage = Usage(input_tokens=14_000, output_tokens=240, cost_usd=0.0312)
    known = after(
        STARTED, seen(), (1.0, run(60)), ASK, CompletionReceived(request=1, usage=usage), (2.0, ASK)
    )
    assert shown(known, 5.2) == [
        "  * thinking 3 s · 56 s left · turn 1/60 · 5/100 points · 14.2k tokens · $0.0312"
    ]
    assert shown(after(seen(3, 5, None))) == ["    turn 3 · 5 points"]
    assert shown(after(seen(3, None))) == ["    turn 3"]


def test_a_turns_limit_is_gone_with_the_turn() -> None:
    assert "0 s left" in shown(after(run(1), ASK), 3.0)[-1]
    for end in (TurnCompleted(turn=1, kind="answered"), FAILED):
        assert "left" not in shown(after(run(60), end, ASK), 1.0)[-1]
    assert "left" not in shown(after(run(60), end, run(), ASK), 1.0)[-1]


@pytest.mark.parametrize(
    ("tokens", "text"), [(999, "999 tokens"), (999_900, "999.9k"), (1_250_000, "1.2M"), (0, "")]
)
def test_many_tokens_are_said_in_short(tokens: int, text: str) -> None:
    spent = CompletionReceived(request=1, usage=Usage(input_tokens=tokens, cost_usd=1.5))
    assert text in shown(after(spent))[-1]
    assert ("token" in shown(after(spent))[-1]) == bool(tokens)
    assert "$1.50" in shown(after(spent))[-1]


def test_the_end_of_what_is_said_is_shown_and_a_retry_begins_it_anew() -> None:
    narrow = os.terminal_size((40, 24))
    talking = after(ASK, delta("one two\n"), delta("three " * 20), delta("four"))
    preview, status = shown(talking, size=narrow)
    assert (status, preview) == ("  * thinking", "    …" + ("one two " + "three " * 20 + "four")[-34:])
    assert shown(after(ASK, delta("a\nb"))) == ["    a b", "  * thinking"]
    hearts = shown(after(ASK, delta("\u2764\ufe0f, " * 40)), size=narrow)[0]
    assert cells(hearts) <= 39, "each of two characters takes two columns together"
    restart = TextDelta(request=1, text="", restart=True)
    for anew in (RETRIED, ReplyCut(request=1, limit_tokens=5, retried_with=9), restart):
        assert len(shown(after(ASK, delta("words"), anew), 9.0)) == 1


def test_what_a_tool_is_asked_and_its_progress_are_shown() -> None:
    progress = ServerNoted(server=MIND, kind="progress", text="3/10 reading")
    assert shown(after(CALLED)) == ["    A door.", "  * mind.think"]
    assert shown(after(CALLED, progress)) == ["    … 3/10 reading", "  * mind.think"]
    other = ServerNoted(server=FS, kind="progress", text="3/10 reading")
    noise = ServerNoted(server=MIND, kind="noise", text="Server listening")
    assert shown(after(CALLED, other, noise)) == ["    A door.", "  * mind.think"]


def test_a_low_terminal_has_the_status_line_alone() -> None:
    assert shown(after(CALLED), size=os.terminal_size((80, 5))) == ["  * mind.think"]


def test_an_episode_that_goes_on_is_told_how_many_turns_there_are() -> None:
    progress = Progress(max_turns=60)
    progress.note(enveloped(1, 0.0, seen(13, None)), 0.0)
    assert shown(progress) == ["    turn 13/60"]


def test_before_there_is_anything_to_say_nothing_is() -> None:
    assert shown(after()) == []
    assert shown(after(STARTED)) == []


def test_the_least_important_goes_first() -> None:
    usage = Usage(input_tokens=14_000, output_tokens=240, cost_usd=0.0312)
    known = after(STARTED, seen(), run(60), CompletionReceived(request=1, usage=usage), ASK)
    lines = [shown(known, size=os.terminal_size((columns, 24)))[-1] for columns in (80, 70, 60, 45, 30, 18)]
    assert [line.removeprefix("  * thinking · 60 s left · ") for line in lines[:4]] == [
        "turn 1/60 · 5/100 points · 14.2k tokens · $0.0312",
        "turn 1/60 · 5/100 points · $0.0312",
        "turn 1/60 · 5/100 points",
        "turn 1/60",
    ]
    assert lines[4:] == ["  * thinking · 60 s left", "  * thinking"]


HOSTILE = st.text(alphabet=st.characters(codec="utf-8"), max_size=80) | st.just("\x1b[2J\x07\r\n门")
SCENES: st.SearchStrategy[Any] = st.lists(
    st.one_of(
        st.builds(lambda name: opening(ServerName(name)), HOSTILE),
        st.builds(lambda name: CloseSession(server=ServerName(name)), HOSTILE),
        st.builds(delta, HOSTILE),
        st.builds(
            lambda server, tool, text: ToolCalled(
                server=ServerName(server), batch=BATCH, call_id=CALL, tool=tool, arguments={text: text}
            ),
            HOSTILE,
            HOSTILE,
            HOSTILE,
        ),
        st.builds(lambda text: ServerNoted(server=MIND, kind="progress", text=text), HOSTILE),
        st.sampled_from([ASK, RETRIED, CALLED, seen(), STARTED, run(60), FAILED, CheckToolSupport()]),
    ),
    max_size=12,
)


@settings(max_examples=examples(200))
@given(SCENES, st.integers(1, 200), st.floats(0, 1e5), st.sampled_from([SPINNER, ASCII_SPINNER]))
@pytest.mark.slow
def test_whatever_is_said_the_rows_fit_and_move_no_cursor(
    scene: list[Any], columns: int, now: float, spinner: str
) -> None:
    rows = status_rows(after(*scene), now, os.terminal_size((columns, 24)), spinner)
    assert len(rows) <= 2
    for row in rows:
        text = "".join(piece for piece, _ in row)
        assert text.isprintable()
        assert cells(text) < columns
        assert all(re.fullmatch(r"[0-9]*", style) for _, style in row)
