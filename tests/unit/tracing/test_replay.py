"""Replay: what was recorded is derived again, what was not is told with its causes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from episode_scenes import SCENES, cave, place_of, scene, with_body, with_fields
from growth import assert_linear
from recorded_episodes import RecordedEpisode

from grue import TurnLimits
from grue.messages import (
    AnswerAccepted,
    CallTools,
    CloseSession,
    CompletionReceived,
    CompletionRetried,
    DeadlineMissed,
    DeadlinePassed,
    IterationStarted,
    LlmFailure,
    McpDisabled,
    ModelAsked,
    ModelPassedOver,
    OpenSession,
    ReplyCut,
    RequestCompletion,
    RunTurn,
    ServerName,
    SessionClosed,
    SessionOpened,
    ToolCalled,
    ToolReturned,
    ToolsChanged,
    ToolSkipped,
    TurnCompleted,
    TurnFailed,
)
from grue.protocol.turn.connection import Disabled, Proven, Untried
from grue.runtime.actor import ActorFailed
from grue.testing import replay as assert_replays
from grue.tracing.divergence import Difference, Divergence, derived
from grue.tracing.facts import EpisodeResumed
from grue.tracing.reading import EpisodeEnvelope, open_episode
from grue.tracing.replay import (
    Changes,
    Connections,
    TurnReplay,
    quote_placeholders,
    render,
    replay,
    same_redacted,
)
from grue.tracing.turn_slices import TurnSlice

CLOSED = SessionClosed(server="cave")
INPUTS = (RunTurn, AnswerAccepted, ActorFailed)


def first(turns: Iterator[TurnReplay]) -> Any:
    return next((turn.divergence for turn in turns if turn.divergence is not None), None)


def test_causes_are_looked_up_for_differences_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else a turn of 8,000 messages takes long: the last of them have thousands of causes.
    envelopes = scene(next(iter(SCENES)), tmp_path)
    monkeypatch.setattr("grue.tracing.replay.causes", None)
    assert [turn.divergence for turn in replay(envelopes)] == [None] * 2


@pytest.mark.parametrize("name", SCENES)
def test_what_was_recorded_replays(name: str, tmp_path: Path) -> None:
    envelopes = scene(name, tmp_path)
    turns = list(replay(envelopes))
    assert [turn.divergence for turn in turns] == [None] * len(turns), "\n".join(render(turns))
    assert len(turns) == sum(isinstance(envelope.body, RunTurn) for envelope in envelopes)
    said = [e for e in envelopes if e.sender == "agent" and not isinstance(e.body, INPUTS)]
    assert sum(turn.compared for turn in turns) > len(said) * 0.9


@pytest.mark.parametrize("name", SCENES)
def test_a_trace_cut_short_anywhere_replays_as_far_as_it_goes(name: str, tmp_path: Path) -> None:
    envelopes = scene(name, tmp_path)
    for length in range(1, len(envelopes)):
        assert first(replay(envelopes[:length])) is None, f"after {length} envelopes"


def test_how_turns_end_is_told(tmp_path: Path) -> None:
    assert [turn.end for turn in replay(scene("broken-check", tmp_path))] == ["crashed", "finished"]
    envelopes = scene("tools", tmp_path)
    (turn,) = replay(envelopes[: place_of(envelopes, CallTools) + 2])
    assert turn.end == "unfinished"
    lines = list(render([turn]))
    assert lines == [
        f"identical: 1 turn, {turn.compared} messages compared;"
        " 1 turn did not finish, replayed as far as recorded"
    ]


DERIVED = (OpenSession, RequestCompletion, CallTools, CloseSession, TurnCompleted, ToolCalled, ToolSkipped)


@pytest.mark.parametrize("name", ["tools", "timeout", "death-reconnect", "retry", "disabled"])
def test_each_derived_message_that_is_missing_is_missed(name: str, tmp_path: Path) -> None:
    envelopes = scene(name, tmp_path)
    for place, envelope in enumerate(envelopes):
        # The end of the file may have cut off the last turn.
        if isinstance(envelope.body, DERIVED) and envelope.turn < envelopes[-1].turn:
            divergence = first(replay([*envelopes[:place], *envelopes[place + 1 :]]))
            assert divergence is not None, envelope
            assert divergence.turn == envelope.turn


CHANGED: dict[type, dict[str, Any]] = {
    OpenSession: {"timeout_s": 99.0},
    RequestCompletion: {"new": ()},
    CallTools: {"after_timeout": "continue"},
    ToolCalled: {"arguments": {"x": 1}},
    ToolSkipped: {"reason": "for fun"},
    TurnCompleted: {"iterations": 99},
    TurnFailed: {"failure": DeadlineMissed(limit_s=1.0, doing="nothing")},
}


@pytest.mark.parametrize("kind", CHANGED, ids=lambda kind: kind.__name__)
def test_a_derived_message_that_was_changed_is_told_with_its_causes(kind: type, tmp_path: Path) -> None:
    envelopes = scene("deadline" if kind is TurnFailed else "timeout", tmp_path)
    place = place_of(envelopes, kind)
    recorded = envelopes[place]
    body: Any = msgspec.structs.replace(recorded.body, **CHANGED[kind])
    divergence = first(replay(with_body(envelopes, place, body)))
    assert divergence.left.body == body
    assert divergence.right.body == recorded.body
    ((name, value),) = CHANGED[kind].items()
    assert divergence.differences[0].path.startswith(f"$.{name}")
    assert isinstance(divergence.because[0].body, RunTurn | DeadlinePassed)
    assert value is not None


def test_a_message_that_nothing_led_to_is_told(tmp_path: Path) -> None:
    envelopes = scene("tools", tmp_path)
    place = place_of(envelopes, RequestCompletion)
    again = [*envelopes[: place + 1], *envelopes[place:]]
    divergence = first(replay(again))
    assert divergence.left is envelopes[place]
    assert divergence.right is None


@pytest.mark.parametrize("kind", [IterationStarted, ToolCalled])
def test_a_message_after_all_others_is_told(kind: type, tmp_path: Path) -> None:
    envelopes = scene("tools", tmp_path)
    end = place_of(envelopes, RunTurn, 1)
    again = msgspec.structs.replace(envelopes[place_of(envelopes, kind)], cause=None)
    divergence = first(replay([*envelopes[:end], again, *envelopes[end:]]))
    assert divergence.left is again


def test_an_agent_that_was_cancelled_before_it_read_anything_said_nothing(tmp_path: Path) -> None:
    envelopes = scene("tools", tmp_path)
    rest = envelopes[place_of(envelopes, RunTurn, 1) :]
    assert [turn.end for turn in replay([envelopes[0], *rest])] == ["unfinished", "finished"]
    assert first(replay([envelopes[0], *rest])) is None


def test_an_event_that_the_machine_does_not_take_is_told(tmp_path: Path) -> None:
    envelopes = scene("tools", tmp_path)
    place = place_of(envelopes, ToolReturned)
    stranger = msgspec.structs.replace(envelopes[place].body, call_id="nobody's")  # type: ignore[type-var]
    divergence = first(replay(with_body(envelopes, place, stranger)))
    assert divergence is not None
    assert any("nobody's" in line for line in divergence.lines("recorded", "replayed"))


def test_a_session_that_is_opened_again_while_it_opens_is_told(tmp_path: Path) -> None:
    """As in a trace of forks of one turn that ran at the same time: their messages are not told apart."""
    envelopes = scene("tools", tmp_path)
    place = place_of(envelopes, OpenSession)
    again = msgspec.structs.replace(envelopes[place], seq=place_of(envelopes, SessionOpened) + 1)
    divergence = first(replay([*envelopes[: place + 1], again]))
    assert divergence.left is again
    assert "ConnectRequested in state Connecting" in divergence.reason


@pytest.mark.made_up_trace
def test_an_event_from_before_its_turn_began_is_told(tmp_path: Path) -> None:
    envelopes = scene("deadline", tmp_path)
    place = place_of(envelopes, DeadlinePassed)
    envelopes[place] = msgspec.structs.replace(
        envelopes[place], seq=envelopes[place_of(envelopes, RunTurn)].seq - 1
    )
    assert first(replay(envelopes)) is not None


def test_only_one_turn_is_replayed_with_what_earlier_ones_tell(tmp_path: Path) -> None:
    envelopes = scene("disabled", tmp_path)
    (turn,) = replay(envelopes, turn=3)
    assert turn.turn == 3
    assert turn.divergence is None
    later = [envelope for envelope in envelopes if envelope.turn == 2]
    assert first(replay(later)) is not None, "a first connect that fails is not tried again"


def test_a_trace_that_does_not_say_how_long_a_server_is_left_alone_is_replayed(tmp_path: Path) -> None:
    envelopes = scene("disabled", tmp_path)
    place = place_of(envelopes, McpDisabled)
    disabled = envelopes[place].body
    assert isinstance(disabled, McpDisabled)
    other = msgspec.structs.replace(disabled, retry_s=None if disabled.retry_s else 30.0)
    assert first(replay(with_body(envelopes, place, other))) is None


def test_a_resumed_turn_is_not_the_first_if_a_server_was_in_use_before(tmp_path: Path) -> None:
    envelopes = scene("cancelled-once-open", tmp_path)
    turns = [[envelope for envelope in envelopes if envelope.turn == number] for number in (1, 2, 3)]
    fact = EpisodeResumed(episode_id="e", turns=1)
    body = {"seq": 0, "sender": "host", "receiver": "trace", "cause": None, "body": fact}
    resumed = msgspec.structs.replace(turns[2][0], **body)
    assert first(replay(turns[2])) is not None, "its connect was tried again"
    assert first(replay([resumed, *turns[2]])) is not None, "nothing is known of the server"
    opened = turns[0][: place_of(turns[0], SessionOpened) + 1]
    assert first(replay([*opened, resumed, *turns[2]])) is None


def test_the_turn_that_was_cut_off_before_a_resume_replays_as_far_as_it_goes(tmp_path: Path) -> None:
    envelopes = scene("tools", tmp_path)
    cut = envelopes[: place_of(envelopes, CallTools)]
    fact = EpisodeResumed(episode_id="e", turns=0)
    resumed = msgspec.structs.replace(
        envelopes[0], seq=99, sender="host", receiver="trace", body=fact, turn=0
    )
    whole = [msgspec.structs.replace(e, seq=e.seq + 100, cause=e.cause and e.cause + 100) for e in envelopes]
    assert [turn.end for turn in replay([*cut, resumed, *whole])] == ["unfinished", "finished", "finished"]
    assert first(replay([*cut, *whole])) is not None, "without a word of it, a turn does not just stop"


def test_a_trace_that_breaks_off_in_parallel_turns_replays_as_far_as_it_goes(tmp_path: Path) -> None:
    envelopes = scene("tools", tmp_path)
    cut = envelopes[: place_of(envelopes, CallTools)]
    other = [envelope for envelope in envelopes if envelope.turn == 2]
    assert isinstance(other[-1].body, TurnCompleted)
    for size in range(1, len(other)):
        ends = [(turn.end, turn.divergence) for turn in replay([*cut, *other[:size]])]
        assert ends == [("unfinished", None)] * 2
    assert first(replay([*cut, *other])) is not None, "in the time of a whole turn, a turn does not just stop"


def test_what_lay_unread_in_the_mailbox_when_time_was_up_is_not_taken_for_read(tmp_path: Path) -> None:
    envelopes = scene("deadline", tmp_path)
    place = place_of(envelopes, DeadlinePassed)
    passed = envelopes[place]
    request = envelopes[place_of(envelopes, RequestCompletion, 1)]
    unread = msgspec.structs.replace(
        request,
        sender="llm",
        receiver="agent",
        cause=request.seq,
        seq=passed.seq,
        body=CompletionReceived(request=2, content="just too late"),
    )
    later = [msgspec.structs.replace(e, seq=e.seq + 1, cause=_shifted(e, passed)) for e in envelopes[place:]]
    assert first(replay([*envelopes[:place], unread, *later])) is None


def _shifted(envelope: EpisodeEnvelope, start: EpisodeEnvelope) -> int | None:
    if envelope.cause is None or envelope.cause < start.seq:
        return envelope.cause
    return envelope.cause + 1


@pytest.mark.parametrize(
    ("reconnect", "known"),
    [
        ([], Proven()),
        ([(OpenSession(server="cave", turn=1, timeout_s=1.0), None)], Untried()),
        ([(OpenSession(server="cave", turn=1, timeout_s=1.0), None), (CLOSED, None)], Untried()),
        ([(OpenSession(server="cave", turn=1, timeout_s=1.0), None), (CLOSED, 1)], Proven()),
        ([(McpDisabled(server="cave", reason="no"), 1)], Disabled("no", until_s=0.0)),
    ],
    ids=["opened", "reconnecting", "cancelled", "out of time", "disabled"],
)
def test_what_an_episode_knows_of_a_server_after_a_turn(reconnect: Any, known: object) -> None:
    opening = [
        (OpenSession(server="cave", turn=1, timeout_s=1.0), None),
        (SessionOpened(server="cave", tools=()), 1),
    ]
    turn_slice = TurnSlice(turn=1)
    for body, cause in (*opening, *reconnect):
        way = ("agent", "cave") if isinstance(body, OpenSession) else ("cave", "agent")
        envelope = EpisodeEnvelope(
            seq=1, t=0.0, at=0.0, turn=1, sender=way[0], receiver=way[1], cause=cause, body=body
        )
        turn_slice.envelopes.append(envelope)
    connections = Connections()
    connections.learn(turn_slice)
    assert connections.of(ServerName("cave")) == known
    connections.begin(TurnSlice(resumed=True))
    assert connections.of(ServerName("cave")) == (known if isinstance(known, Disabled) else Proven())


# --- Secrets ---


def test_what_was_redacted_is_compared_as_redacted(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    server = cave()
    server.answers("look", "a note: sesame-open-4711, " * 20)
    secrets = {"WORD": "sesame-open-4711", "PIN": "1234567890"}
    with RecordedEpisode(path, {"cave": server}, secrets=secrets) as episode:
        arguments = '{"word": "sesame-open-4711", "pin": 1234567890}'
        episode.turn([("cave.look", arguments)], "sesame-open-4711", system="The word is sesame-open-4711.")
        assert server.calls[0][1] == {"word": "sesame-open-4711", "pin": 1234567890}
    assert "sesame" not in path.read_text()
    (turn,) = replay(open_episode(path))
    assert turn.divergence is None, "\n".join(render([turn]))


@pytest.mark.parametrize("limit", [8, 14, 19, 20, 28, 30, 60, 100, 150])
def test_a_text_that_was_cut_after_a_secret_replays(limit: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    server = cave()
    server.answers("look", "it says open-sesame-4711 and then it says nothing for a very long time" * 3)
    limits = TurnLimits(max_result_chars=limit)
    with RecordedEpisode(path, {"cave": server}, secrets={"W": "open-sesame-4711"}, limits=limits) as episode:
        episode.turn(["cave.look"], "done")
    assert first(replay(open_episode(path))) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a [redacted:K] b", "a [redacted:K] b", True),
        ("a [redacted:K] b", "a [redacted:K] c", False),
        ("a [redacted:K] b", "a word b", False),
        ("name: [redacted:K] Tools:", "name: [redacted:K]. Tools:", True),
        ("name: [redacted:K] Tools:", "name: [redacted:K]x Tools:", False),
        ('{"pin":[redacted:K]}', '{"pin":"[redacted:K]"}', True),
        ("abc… [cut: 5 of 8 characters]", "abcd… [cut: 9 of 13 characters]", True),
        ("abX… [cut: 5 of 8 characters]", "abcd… [cut: 9 of 13 characters]", False),
        ("ab sec… [cut: 5 of 8 characters]", "ab [redacted:K]… [cut: 9 of 13 characters]", True),
        ("a [redacted:K] X… [cut: 1 of 2 c]", "a [redacted:K] Y… [cut: 1 of 2 c]", False),
    ],
)
def test_redacted_texts_are_the_same_as_far_as_one_can_tell(one: str, other: str, same: bool) -> None:
    assert same_redacted(one, other) is same
    assert same_redacted(other, one) is same


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["\\", '\\"', "[redacted:"])
def test_redacted_texts_of_a_hostile_trace_take_linear_time(piece: str) -> None:
    assert_linear(lambda text: same_redacted(text, text[1:]), 100_000, lambda times: '"' + piece * times)
    assert_linear(quote_placeholders, 100_000, lambda times: '"' + piece * times)


# --- What only a damaged or an odd trace has ---


def test_a_crash_of_the_machine_itself_replays_and_its_mending_is_told(tmp_path: Path) -> None:
    envelopes = scene("tools", tmp_path)
    place = place_of(envelopes, ToolReturned)
    odd, crash = SessionClosed(server="cave"), "IllegalEvent: SessionClosed in state AwaitingTools"
    failed = msgspec.structs.replace(
        envelopes[place],
        sender="agent",
        receiver="trace",
        cause=None,
        body=ActorFailed(actor="agent", error=crash, where=()),
    )
    rest = envelopes[place_of(envelopes, RunTurn, 1) :]
    crashed = [*with_body(envelopes[: place + 1], place, odd), failed, *rest]
    assert [turn.end for turn in replay(crashed)] == ["crashed", "finished"]
    assert first(replay(crashed)) is None


def test_a_session_whose_actor_is_gone_is_closed_by_the_agent_itself(tmp_path: Path) -> None:
    envelopes = scene("repair", tmp_path)
    place = place_of(envelopes, CloseSession)
    close, closed = envelopes[place], envelopes[place_of(envelopes, SessionClosed)]
    by_itself = msgspec.structs.replace(closed, cause=close.cause)
    rest = [by_itself if envelope is closed else envelope for envelope in envelopes if envelope is not close]
    assert first(replay(rest)) is None


def test_what_the_model_says_unasked_is_told(tmp_path: Path) -> None:
    envelopes = scene("tools", tmp_path)
    place = place_of(envelopes, CompletionReceived, 1)
    divergence = first(replay(with_fields(envelopes, place_of(envelopes, CompletionReceived), request=9)))
    assert divergence.reason == "it answers request 9, but no such request is open"
    failure = LlmFailure(kind="unavailable", endpoint="e", model="m", message="busy")
    tries = [
        msgspec.structs.replace(
            envelopes[place],
            receiver="trace",
            body=CompletionRetried(request=2, attempt=attempt, delay_s=0.1, failure=failure),
        )
        for attempt in (1, 3, 2)
    ]
    assert first(replay([*envelopes[:place], *tries[:2], *envelopes[place:]])) is None
    divergence = first(replay([*envelopes[:place], *tries, *envelopes[place:]]))
    assert divergence.reason == "attempt 2 comes after attempt 3"


@pytest.mark.parametrize(
    "anew",
    [
        ReplyCut(request=2, limit_tokens=10, retried_with=40),
        ModelPassedOver(request=2, model="m", address="e", reason="busy", asks=ModelAsked(model="n")),
    ],
)
def test_the_attempts_with_a_larger_limit_or_another_model_count_anew(anew: Any, tmp_path: Path) -> None:
    envelopes = scene("tools", tmp_path)
    place = place_of(envelopes, CompletionReceived, 1)
    failure = LlmFailure(kind="unavailable", endpoint="e", model="m", message="busy")
    retried = CompletionRetried(request=2, attempt=1, delay_s=0.1, failure=failure)
    notes = [
        msgspec.structs.replace(envelopes[place], receiver="trace", body=body)
        for body in (retried, anew, retried)
    ]
    assert first(replay([*envelopes[:place], *notes, *envelopes[place:]])) is None


# --- What users call ---


def test_a_trace_is_a_regression_test_in_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    SCENES["tools"](path)
    assert assert_replays(path) == 2
    with pytest.raises(AssertionError, match="does not replay:\nTurn 1 differs") as raised:
        assert_replays(path, Changes(limits={"max_tool_iterations": 1}))
    assert "because of\n" in str(raised.value)
    assert str(raised.value).isprintable() or "\n" in str(raised.value)


def test_a_session_that_closes_itself_and_one_that_is_told_are_both_closed(tmp_path: Path) -> None:
    envelopes = scene("cancelled-in-call", tmp_path)
    closed = [envelope for envelope in envelopes if isinstance(envelope.body, SessionClosed)]
    assert any(envelope.cause is None for envelope in closed), "one said so unasked"
    assert first(replay(envelopes)) is None


def test_a_difference_between_long_texts_is_shown_from_where_more_than_white_space_differs() -> None:
    said = {"result": " ".join(map(str, range(200)))}
    recorded = json.dumps(said, indent=1)
    changed = json.dumps(said, separators=(",", ":")).replace("150", "CUT")
    envelope = derived(ToolsChanged(server="a", tools=()), sender="a", receiver="b", turn=1, cause=None)
    for one, other, shown in (
        (recorded, changed, (" 150 151", " CUT 151")),
        ([recorded], None, ("[", "null")),
    ):
        differences = (Difference("$.content", one, other),)
        divergence = Divergence(turn=1, left=envelope, right=envelope, differences=differences)
        lines = [line for line in divergence.lines("recorded", "changed") if line.startswith("    ")]
        assert [words in line for words, line in zip(shown, lines, strict=True)] == [True, True], lines
