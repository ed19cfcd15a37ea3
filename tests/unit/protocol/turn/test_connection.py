"""Whether and how often a server is connected to: the whole table, and whole episodes."""

from typing import Any, NamedTuple, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from turns import failure

from grue.messages import McpDisabled, StartupFailed
from grue.policies import FailurePolicy
from grue.protocol.turn.connection import (
    Attempt,
    AttemptFailed,
    Connecting,
    ConnectionEvent,
    ConnectionState,
    ConnectRequested,
    ConnectSucceeded,
    Disabled,
    IllegalConnectionEvent,
    Proven,
    ReportOpened,
    Settled,
    Untried,
    connection_step,
    is_given_up,
)

A = failure().server
FOR_GOOD = FailurePolicy(retry_disabled_s=None)
REQUIRED = FOR_GOOD
LENIENT = replace(FOR_GOOD, first_connect="disable")
OPTIONAL = replace(FOR_GOOD, first_connects={failure().server: "disable"})
OTHERS_OPTIONAL = replace(FOR_GOOD, first_connects={"another": "disable"})
AGAIN = FailurePolicy(retry_disabled_s=10.0)
FAILED = AttemptFailed(failure())
CAUSE = "it ended"
LEFT_ALONE = McpDisabled(server=A, reason="gone", newly=False)
LATE = AttemptFailed(failure(), 100.0)


def tried_after(retry_s: float, *, newly: bool = False) -> McpDisabled:
    return McpDisabled(server=A, reason=CAUSE, newly=newly, retry_s=retry_s)


ROWS: list[tuple[ConnectionState, Any, ConnectionState, Any]] = [
    (Untried(), ConnectRequested(A, REQUIRED), Connecting(A, 1, True, REQUIRED), Attempt(1)),
    (Proven(), ConnectRequested(A, REQUIRED), Connecting(A, 1, False, REQUIRED), Attempt(1)),
    (
        Disabled("gone"),
        ConnectRequested(A, REQUIRED),
        Disabled("gone"),
        McpDisabled(server=A, reason="gone", newly=False),
    ),
    (Connecting(A, 1, True, REQUIRED), ConnectSucceeded(), Proven(), ReportOpened()),
    (Connecting(A, 2, False, REQUIRED), ConnectSucceeded(), Proven(), ReportOpened()),
    (Connecting(A, 1, True, REQUIRED), FAILED, Untried(), StartupFailed(server=A, failure=failure())),
    (
        Connecting(A, 1, True, LENIENT),
        FAILED,
        Disabled(CAUSE),
        McpDisabled(server=A, reason=CAUSE, newly=True),
    ),
    (
        Connecting(A, 1, True, OPTIONAL),
        FAILED,
        Disabled(CAUSE),
        McpDisabled(server=A, reason=CAUSE, newly=True),
    ),
    (Connecting(A, 1, True, OTHERS_OPTIONAL), FAILED, Untried(), StartupFailed(server=A, failure=failure())),
    (Connecting(A, 1, False, REQUIRED), FAILED, Connecting(A, 2, False, REQUIRED), Attempt(2)),
    (
        Connecting(A, 2, False, REQUIRED),
        FAILED,
        Disabled(CAUSE),
        McpDisabled(server=A, reason=CAUSE, newly=True),
    ),
    (Disabled("gone", 1, 5.0), ConnectRequested(A, REQUIRED, 9.0), Disabled("gone", 1, 5.0), LEFT_ALONE),
    (Disabled("gone"), ConnectRequested(A, AGAIN, 9.0), Disabled("gone"), LEFT_ALONE),
    (Disabled("gone", 1, 5.0), ConnectRequested(A, AGAIN, 4.9), Disabled("gone", 1, 5.0), LEFT_ALONE),
    (
        Disabled("gone", 3, 5.0),
        ConnectRequested(A, AGAIN, 5.0),
        Connecting(A, 1, False, AGAIN, 3),
        Attempt(1),
    ),
    (Connecting(A, 1, False, AGAIN, 3), ConnectSucceeded(), Proven(), ReportOpened()),
    (Connecting(A, 2, False, AGAIN), LATE, Disabled(CAUSE, 1, 110.0), tried_after(10.0, newly=True)),
    (Connecting(A, 1, False, AGAIN, 1), LATE, Disabled(CAUSE, 2, 120.0), tried_after(20.0)),
    (Connecting(A, 1, False, AGAIN, 3), LATE, Disabled(CAUSE, 4, 180.0), tried_after(80.0)),
    (Connecting(A, 1, False, AGAIN, 999), LATE, Disabled(CAUSE, 1000, 1000.0), tried_after(900.0)),
    (
        Connecting(A, 1, True, replace(AGAIN, first_connect="disable")),
        LATE,
        Disabled(CAUSE, 1, 110.0),
        tried_after(10.0, newly=True),
    ),
]
ILLEGAL: list[tuple[ConnectionState, Any]] = [
    *(
        (state, event)
        for state in (Untried(), Proven(), Disabled(""))
        for event in (ConnectSucceeded(), FAILED)
    ),
    (Connecting(A, 1, True, REQUIRED), ConnectRequested(A, REQUIRED)),
]


def test_the_table_is_complete() -> None:
    pairs = {(type(row[0]), type(row[1])) for row in (*ROWS, *ILLEGAL)}
    states = {kind for member in get_args(ConnectionState) for kind in (get_args(member) or (member,))}
    assert pairs == {(state, event) for state in states for event in get_args(ConnectionEvent)}
    assert len(pairs) == 12


@pytest.mark.parametrize(("state", "event", "following", "command"), ROWS)
def test_a_listed_pair_leads_on(
    state: ConnectionState, event: ConnectionEvent, following: ConnectionState, command: object
) -> None:
    assert connection_step(state, event) == (following, command)


@pytest.mark.parametrize(("state", "event"), ILLEGAL)
def test_every_other_pair_is_illegal_and_names_both(state: ConnectionState, event: ConnectionEvent) -> None:
    with pytest.raises(IllegalConnectionEvent) as error:
        connection_step(state, event)
    assert type(state).__name__ in str(error.value)
    assert type(event).__name__ in str(error.value)


class ConnectedTurn(NamedTuple):
    """One turn of an episode: how many attempts there were, whether the last succeeded, what was reported."""

    attempts: int
    connected: bool
    report: Any


class Episode:
    """The turns of an episode whose connects go as `fates` says; it ends with a startup failure."""

    def __init__(self, policy: FailurePolicy, fates: list[list[bool]]) -> None:
        self.state: Settled = Untried()
        self.turns: list[ConnectedTurn] = []
        for fate in fates:
            self.turns.append(self._turn(policy, iter(fate)))
            if isinstance(self.turns[-1].report, StartupFailed):
                break

    def _turn(self, policy: FailurePolicy, fate: Any) -> ConnectedTurn:
        state, command = connection_step(self.state, ConnectRequested(A, policy))
        attempts, connected = 0, False
        while isinstance(command, Attempt):
            attempts += 1
            assert command.number == attempts
            connected = next(fate, False)
            state, command = connection_step(state, ConnectSucceeded() if connected else FAILED)
        assert isinstance(state, Untried | Proven | Disabled)
        self.state = state
        return ConnectedTurn(attempts, connected, command)


FATES = st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=1, max_size=8)
POLICIES = st.builds(
    FailurePolicy,
    retry_disabled_s=st.none(),
    first_connect=st.sampled_from(["raise", "disable"]),
    connect_retries=st.integers(0, 2),
)


@given(POLICIES, FATES)
def test_p26_one_attempt_first_then_a_retry_only_after_a_failure_and_a_budget_each_turn(
    policy: FailurePolicy, fates: list[list[bool]]
) -> None:
    first, *later = Episode(policy, fates).turns
    assert first.attempts == 1
    for turn, fate in zip(later, fates[1:], strict=False):
        if turn.attempts == 0:
            assert turn.report.newly is False
            continue
        tries = fate + [False] * 3
        wanted = tries.index(True) + 1 if True in tries else 99
        assert turn.attempts == min(wanted, policy.connect_retries + 1)
        assert turn.connected == (wanted <= policy.connect_retries + 1)


@given(POLICIES, FATES)
def test_p27_a_disabled_server_is_never_tried_again(policy: FailurePolicy, fates: list[list[bool]]) -> None:
    turns = Episode(policy, fates).turns
    reports = [turn.report for turn in turns]
    newly = [
        number
        for number, report in enumerate(reports)
        if report == McpDisabled(server=A, reason=CAUSE, newly=True)
    ]
    assert len(newly) <= 1
    for number in newly:
        assert all(
            turn == (0, False, McpDisabled(server=A, reason=CAUSE, newly=False))
            for turn in turns[number + 1 :]
        )
    if not newly:
        assert not any(isinstance(report, McpDisabled) for report in reports)


def test_r6_7_the_budget_is_per_turn_not_per_episode() -> None:
    turns = Episode(REQUIRED, [[True], [False, True], [False, True], [True]]).turns
    assert [(turn.attempts, turn.connected) for turn in turns] == [(1, True), (2, True), (2, True), (1, True)]


def test_r6_1_the_first_connect_failing_raises_without_a_retry() -> None:
    (turn,) = Episode(REQUIRED, [[False, True], [True]]).turns
    assert turn == (1, False, StartupFailed(server=A, failure=failure()))


def test_a_disabled_server_is_left_alone_until_its_time_has_come() -> None:
    again, never = FailurePolicy(retry_disabled_s=30.0), FailurePolicy(retry_disabled_s=None)
    assert not is_given_up(Untried(), again, 0.0)
    assert is_given_up(Disabled("down", until_s=30.0), again, 29.0)
    assert not is_given_up(Disabled("down", until_s=30.0), again, 30.0)
    assert is_given_up(Disabled("down", until_s=30.0), never, 99.0)
    assert is_given_up(Disabled("down"), again, 99.0)


@pytest.mark.parametrize("policy", [LENIENT, replace(AGAIN, first_connect="disable")])
def test_the_last_words_of_a_server_that_was_given_up_are_kept(policy: FailurePolicy) -> None:
    told = "Traceback ...\n\nKeyError: 'RATES_URL'\n \n"
    state, _ = connection_step(Untried(), ConnectRequested(A, policy))
    state, given_up = connection_step(state, AttemptFailed(replace(failure(), stderr_tail=told)))
    _, later = connection_step(state, ConnectRequested(A, policy))
    for report in (given_up, later):
        assert isinstance(report, McpDisabled)
        assert (report.reason, report.last_words) == (CAUSE, "KeyError: 'RATES_URL'")
    assert len(replace(failure(), stderr_tail="x" * 5000).last_words) == 200
