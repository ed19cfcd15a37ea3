"""Where the time of a trace goes: each phase by the two envelopes that bound it."""

from collections.abc import Sequence
from typing import Any

import pytest
from arbitrary_turns import ArbitraryTurn, arbitrary_turns
from hypothesis import given
from hypothesis import strategies as st
from recorded_turns import opened, refused_connection

from grue import messages
from grue.hosts.zork import facts
from grue.messages import CompletionReceived, RunTurn, TurnCompleted
from grue.runtime.trace.recorder import Envelope
from grue.tracing.facts import EpisodeResumed
from grue.tracing.stats import PHASES, PhaseClock, Phases
from grue.tracing.steps import StepTracker

S = "thoughtbox"
RUN = RunTurn(turn=1, system="s", user="u", servers=(S,))
DONE = TurnCompleted(turn=1, kind="answered")
OPEN = messages.OpenSession(server=S, turn=1, timeout_s=10)
CLOSE, CLOSED = messages.CloseSession(server=S), messages.SessionClosed(server=S)
ASK = messages.RequestCompletion(conversation="turn-1", request=1, new=(), mode=messages.RequireAnswer())
REPLY = CompletionReceived(request=1, content="x")
CALLED = messages.ToolCalled(server=S, batch=1, call_id="c1", tool="think", arguments={})
RESULT = messages.ToolReturned(batch=1, call_id="c1", result=messages.ToolCallResult("ok"))
DECIDED = facts.Decided(turn=1, action="look", reasoning="", new_objective=None, kind="answered")
REFUSED = messages.LlmFailure(kind="refused", endpoint="e", model="m", message="no")


def timeline(*entries: tuple[float, Any] | tuple[float, Any, int]) -> list[Envelope[Any]]:
    """Envelopes at these seconds, numbered from 1; the third is the cause."""
    return [
        Envelope(
            seq=seq, t=t, at=t, turn=1, sender="a", receiver="b", cause=cause[0] if cause else None, body=body
        )
        for seq, (t, body, *cause) in enumerate(entries, start=1)
    ]


def phases(envelopes: Sequence[Envelope[Any]]) -> Phases:
    clock, steps = PhaseClock(), StepTracker()
    for envelope in envelopes:
        resumed = isinstance(envelope.body, EpisodeResumed)
        clock.note(envelope.t, steps.take(envelope), resumed=resumed)
    return clock.phases


def test_each_phase_lasts_from_its_first_envelope_to_its_last() -> None:
    turn = timeline(
        (0.0, DECIDED),
        (1.0, RUN),
        (3.0, OPEN, 2),
        (7.0, opened(), 3),
        (15.0, ASK, 4),
        (31.0, REPLY, 5),
        (63.0, CALLED, 6),
        (127.0, RESULT, 6),
        (255.0, CLOSE, 8),
        (511.0, CLOSED, 9),
        (1023.0, DONE, 2),
        (2047.0, DECIDED),
    )
    assert phases(turn) == Phases(
        host_s=1 + 1024, startup_s=4, model_s=16, tools_s=64, teardown_s=256, other_s=2 + 8 + 32 + 128 + 512
    )


@pytest.mark.parametrize(
    ("begins", "ends", "phase"),
    [
        (ASK, messages.CompletionFailed(request=1, failure=REFUSED), "model"),
        (
            messages.CheckToolSupport(),
            messages.ToolSupportChecked(model="m", endpoint="e", supported=True, by="name"),
            "model",
        ),
        (CALLED, messages.ToolTimedOut(batch=1, call_id="c1", timeout_s=3), "tools"),
        (
            CALLED,
            messages.ServerDied(server=S, batch=1, call_id="c1", failure=refused_connection()),
            "tools",
        ),
        (OPEN, messages.McpDisabled(server=S, reason="r"), "startup"),
        (OPEN, messages.StartupFailed(server=S, failure=refused_connection()), "startup"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_phase_ends_however_it_ends(begins: Any, ends: Any, phase: str) -> None:
    turn = timeline((0.0, RUN), (1.0, begins), (3.0, ends, 2), (7.0, DONE))
    assert phases(turn) == Phases(other_s=5, **{f"{phase}_s": 2.0})


def test_of_several_at_once_the_model_goes_before_tools_and_start_up_before_teardown() -> None:
    turn = timeline(
        (0.0, RUN),
        (1.0, CLOSE),
        (2.0, OPEN),
        (4.0, CALLED),
        (8.0, ASK),
        (16.0, REPLY, 5),
        (32.0, RESULT),
        (64.0, opened()),
        (128.0, CLOSED),
        (256.0, DONE),
    )
    assert phases(turn) == Phases(
        teardown_s=1 + 64, startup_s=2 + 32, tools_s=4 + 16, model_s=8, other_s=1 + 128
    )


def test_a_reply_ends_only_the_request_that_caused_it() -> None:
    """A server's sampling has a request of its own under way while the turn's waits."""
    turn = timeline((0.0, RUN), (1.0, ASK), (2.0, ASK), (3.0, REPLY, 3), (5.0, REPLY, 2), (9.0, DONE))
    assert phases(turn) == Phases(model_s=4, other_s=5)


def test_what_is_prepared_between_turns_is_the_hosts_time_until_somebody_waits_for_it() -> None:
    ahead = timeline((0.0, DONE), (1.0, OPEN), (4.0, RUN), (9.0, opened()), (10.0, DONE))
    assert phases(ahead) == Phases(host_s=4, startup_s=5, other_s=1)


@pytest.mark.parametrize("after", [DECIDED, RUN])
def test_a_turn_without_an_end_is_over_with_the_hosts_next_word(after: Any) -> None:
    crashed = timeline((0.0, RUN), (1.0, CALLED), (3.0, after), (7.0, DECIDED))
    rest = Phases(host_s=4, tools_s=2, other_s=1) if after is DECIDED else Phases(other_s=5, tools_s=2)
    assert phases(crashed) == rest


def test_what_a_turn_leaves_under_way_is_not_the_next_turns() -> None:
    begun = [(1.0, OPEN), (1.0, CLOSE), (1.0, CALLED), (1.0, ASK)]
    two_turns = timeline((0.0, RUN), *begun, (2.0, DONE), (4.0, RUN), (8.0, DONE))
    assert phases(two_turns) == Phases(other_s=1 + 4, model_s=1, host_s=2)


def test_time_in_which_no_host_ran_is_nobodys() -> None:
    resumed = EpisodeResumed(episode_id="ep-1", turns=3)
    a_day = 86_400.0
    assert phases(timeline((0.0, RUN), (2.0, ASK), (a_day, resumed), (a_day + 1, RUN))) == Phases(
        other_s=2, host_s=1
    )
    assert phases(timeline((100.0, RUN), (102.0, DECIDED), (0.5, resumed), (1.5, RUN))) == Phases(
        other_s=2, host_s=1
    )


@given(
    arbitrary_turns(),
    st.lists(st.floats(0, 100, allow_nan=False), min_size=1),
    st.randoms(use_true_random=False),
)
def test_phases_add_up_to_the_wall_time(turn: ArbitraryTurn, steps: list[float], random: Any) -> None:
    entries: list[Any] = []
    t = 5.0
    for number, entry in enumerate(turn.log):
        t = round(t + steps[number % len(steps)], 6)
        entries.append((t, entry.body, random.randint(0, number)))
    envelopes = timeline(*entries)
    clock, tracker = PhaseClock(), StepTracker()
    half = Phases()
    for number, envelope in enumerate(envelopes):
        clock.note(envelope.t, tracker.take(envelope))
        if number == len(envelopes) // 2:
            half = clock.phases
    whole = clock.phases
    assert whole.total_s == round(envelopes[-1].t - envelopes[0].t, 6)
    assert all(0 <= half.by_phase[phase] <= seconds for phase, seconds in whole.by_phase.items())


def test_the_longest_phase_is_named() -> None:
    assert Phases(tools_s=2, host_s=3).longest == "host"
    assert tuple(Phases().by_phase) == PHASES


def test_what_is_opened_ahead_and_ends_behind_takes_no_turns_time() -> None:
    ready, ended = messages.SessionPrewarmed(server=S), messages.ServerEnded(server=S)
    behind = messages.SessionClosed(server=S, ending="handed_over")
    turn = timeline(
        (0.0, DECIDED),
        (1.0, ready),
        (3.0, RUN),
        (7.0, OPEN, 3),
        (15.0, opened(), 4),
        (31.0, ended),
        (63.0, CLOSE, 3),
        (127.0, behind, 7),
        (255.0, DONE, 3),
        (511.0, ended),
    )
    told = phases(turn)
    assert told == Phases(host_s=1 + 2 + 256, startup_s=8, teardown_s=64, other_s=4 + 16 + 32 + 128)
