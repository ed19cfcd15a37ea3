"""Which message begins a step, which one ends it, and what is abandoned."""

from typing import Any

import pytest
from recorded_turns import opened, refused_connection

from grue import messages
from grue.hosts.zork import facts
from grue.messages import ConnectFailed, RunTurn, TurnCompleted
from grue.runtime.actor import ActorFailed
from grue.runtime.trace.recorder import Envelope
from grue.tracing.facts import EpisodeResumed
from grue.tracing.steps import StepBegan, StepTracker

S = "thoughtbox"
RUN, DONE = RunTurn(turn=1, system="s", user="u"), TurnCompleted(turn=1, kind="answered")
OPEN = messages.OpenSession(server=S, turn=1, timeout_s=10)
ASK = messages.RequestCompletion(conversation="turn-1", request=1, new=(), mode=messages.RequireAnswer())
REPLY = messages.CompletionReceived(request=1, content="x")
BUSY = messages.LlmFailure(kind="unavailable", endpoint="e", model="m", message="busy")
AGAIN = messages.CompletionRetried(request=1, attempt=1, delay_s=2.0, failure=BUSY)
CALLED = messages.ToolCalled(server=S, batch=1, call_id="c1", tool="think", arguments={})
LATE = messages.ToolTimedOut(batch=1, call_id="c1", timeout_s=3)
CRASH = ActorFailed(actor="agent", error="KeyError", where=())
RESUMED = EpisodeResumed(episode_id="e", turns=0)
DECIDED = facts.Decided(turn=1, action="look", reasoning="", new_objective=None, kind="answered")


def changes(*bodies: Any, causes: dict[int, int] | None = None) -> list[str]:
    """`+kind` for each step that begins, `-kind` for one that ends, `~kind` retried, `xkind` abandoned."""
    tracker, found = StepTracker(), []
    for seq, body in enumerate(bodies, start=1):
        envelope = Envelope(
            seq=seq, t=seq, at=seq, turn=1, sender="a", receiver="b", cause=(causes or {}).get(seq), body=body
        )
        for change in tracker.take(envelope):
            sign = "+"
            if not isinstance(change, StepBegan):
                sign = "~" if change.retried else "-" if change.reported else "x"
            found.append(f"{sign}{change.step.kind}")
    return [*found, *(f"?{step.kind}" for step in tracker.open.values())]


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        ((RUN, DONE), ["+turn", "-turn"]),
        ((OPEN, opened()), ["+session", "+startup", "-startup", "?session"]),
        (
            (OPEN, messages.StartupFailed(server=S, failure=refused_connection())),
            ["+session", "+startup", "-startup", "-session"],
        ),
        (
            (OPEN, ConnectFailed(server=S, attempt=1, failure=refused_connection(), then="retry"), opened()),
            ["+session", "+startup", "~startup", "+startup", "-startup", "?session"],
        ),
        ((CALLED, LATE), ["+tool", "-tool"]),
        ((ASK, REPLY), ["+model", "-model"]),
        ((ASK, AGAIN, REPLY), ["+model", "~model", "+model", "-model"]),
        ((DECIDED, facts.Observed(turn=2, text="")), ["+host", "-host"]),
        ((REPLY, LATE, DONE), []),
    ],
)
def test_steps_begin_and_end(bodies: tuple[Any, ...], expected: list[str]) -> None:
    assert changes(*bodies) == expected


def test_a_reply_ends_the_request_that_caused_it() -> None:
    assert changes(ASK, ASK, REPLY, causes={3: 2}) == ["+model", "+model", "-model", "?model"]
    assert changes(ASK, REPLY, causes={2: 7}) == ["+model", "?model"]


def test_a_retry_begins_after_its_pause_and_keeps_its_first_message() -> None:
    tracker = StepTracker()
    for seq, body in enumerate((ASK, AGAIN), start=1):
        envelope = Envelope(seq=seq, t=seq, at=seq, turn=1, sender="a", receiver="b", cause=None, body=body)
        tracker.take(envelope)
    (step,) = tracker.open.values()
    assert (step.began.seq, step.first, step.attempt, step.start_s) == (1, 2, 2, 4.0)


@pytest.mark.parametrize(
    ("after", "abandoned"),
    [
        (DONE, ["-turn", "xtool"]),
        (DECIDED, ["xturn", "xtool", "+host", "?host"]),
        (RESUMED, ["xturn", "xtool"]),
        (RUN, ["xturn", "xtool", "+turn", "?turn"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_under_way_in_a_turn_ends_with_it(after: Any, abandoned: list[str]) -> None:
    assert changes(RUN, CALLED, after) == ["+turn", "+tool", *abandoned]


def test_a_session_that_is_opened_ahead_stays_under_way_when_its_turn_begins() -> None:
    assert changes(OPEN, RUN, opened()) == ["+session", "+startup", "+turn", "-startup", "?session", "?turn"]


def test_finish_abandons_everything() -> None:
    tracker = StepTracker()
    tracker.take(Envelope(seq=1, t=0, at=0, turn=1, sender="a", receiver="b", cause=None, body=OPEN))
    assert [change.step.kind for change in tracker.finish()] == ["session", "startup"]
    assert not tracker.open


def test_a_crashed_turn_is_over_when_another_one_begins() -> None:
    tracker = StepTracker()
    for seq, (turn, body) in enumerate(((1, RUN), (1, CRASH), (2, RUN)), start=1):
        envelope = Envelope(
            seq=seq, t=seq, at=seq, turn=turn, sender="a", receiver="b", cause=None, body=body
        )
        tracker.take(envelope)
    assert [step.turn for step in tracker.open.values()] == [2]
