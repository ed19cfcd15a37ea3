"""Decide whether and how often to connect to a tool server during an episode; a pure state machine.

- A server's first connect of an episode, or of a resumed turn, gets one attempt. If the attempt fails, the
  turn fails, or the server is disabled (`FailurePolicy.first_connect`).
- If a later connect fails, it is retried in the same turn, at most `connect_retries` times (by default 1).
- If the retries fail too, the server is disabled: for the rest of the episode, or for `retry_disabled_s`. The
  first turn after that makes one attempt. If it fails, the wait is doubled, up to 15 minutes or, if that is
  longer, `retry_disabled_s`.

`Untried`, `Proven` and `Disabled` are the states between turns. `Connecting` exists only within a turn.

Source: R6.1, R6.7-10
"""

from typing import TypeAlias, assert_never

from msgspec import Struct

from grue import messages as m
from grue.policies import FailurePolicy

_LONGEST_WAIT_S = 900.0
_MOST_DOUBLINGS = 30


class Untried(Struct, frozen=True, tag=True):
    """The session has not yet connected to the server in this episode."""


class Proven(Struct, frozen=True, tag=True):
    """A connect has succeeded in this episode, and the server was not disabled since."""


class Disabled(Struct, frozen=True, tag=True):
    """The server is not used, for this `reason`, before `until_s` on the clock of `ConnectRequested.at_s`.

    `until_s=None`: not in this episode. `failures`: how often it was disabled since a connect last succeeded.
    """

    reason: str
    failures: int = 1
    until_s: float | None = None
    last_words: str = ""


class Connecting(Struct, frozen=True, tag=True):
    """The session makes its attempt number `attempt` in this turn; `first`: it came from `Untried`."""

    attempt: int
    first: bool
    policy: FailurePolicy
    failures: int = 0


Settled: TypeAlias = Untried | Proven | Disabled
ConnectionState: TypeAlias = Settled | Connecting


class ConnectRequested(Struct, frozen=True, tag=True):
    """A turn needs the server. `at_s` is the time on a clock that all events share."""

    policy: FailurePolicy
    at_s: float = 0.0


class ConnectSucceeded(Struct, frozen=True, tag=True):
    """The server is connected and initialised, and has listed its tools."""


class AttemptFailed(Struct, frozen=True, tag=True):
    """The connect attempt failed."""

    failure: m.ServerFailure
    at_s: float = 0.0


ConnectionEvent: TypeAlias = ConnectRequested | ConnectSucceeded | AttemptFailed


class Attempt(Struct, frozen=True, tag=True):
    """Try to connect. `number` counts the attempts in this turn."""

    number: int


class ReportOpened(Struct, frozen=True, tag=True):
    """Tell the agent that the session is open."""


class ReportDisabled(Struct, frozen=True, tag=True):
    """Tell the agent that this server is disabled; the fields are those of `McpDisabled`."""

    reason: str
    newly: bool
    last_words: str = ""
    retry_s: float | None = None


class ReportStartupFailure(Struct, frozen=True, tag=True):
    """Tell the agent that the first connect failed, and that the turn fails."""

    failure: m.ServerFailure


ConnectionCommand: TypeAlias = Attempt | ReportOpened | ReportDisabled | ReportStartupFailure
ConnectionTransition: TypeAlias = tuple[ConnectionState, ConnectionCommand]


class IllegalConnectionEvent(Exception):  # noqa: N818 - a bug in the caller, and no error to handle
    """The event cannot happen in this state."""


def connection_step(state: ConnectionState, event: ConnectionEvent) -> ConnectionTransition:
    """Return the next state and the one command to carry out."""
    match state, event:
        case Untried(), ConnectRequested(policy):
            return Connecting(1, first=True, policy=policy), Attempt(1)
        case Proven(), ConnectRequested(policy):
            return Connecting(1, first=False, policy=policy), Attempt(1)
        case Disabled(reason, last_words=words), ConnectRequested(policy, at_s):
            if is_given_up(state, policy, at_s):
                return state, ReportDisabled(reason, newly=False, last_words=words)
            return Connecting(1, first=False, policy=policy, failures=state.failures), Attempt(1)
        case Connecting(), ConnectSucceeded():
            return Proven(), ReportOpened()
        case Connecting(), AttemptFailed(failure, at_s):
            return _after_failure(state, failure, at_s)
        case _:
            raise IllegalConnectionEvent(f"{type(event).__name__} in state {type(state).__name__}")


def is_given_up(state: ConnectionState, policy: FailurePolicy, at_s: float) -> bool:
    """Return whether a server is disabled, and the time to try it again has not come."""
    if not isinstance(state, Disabled):
        return False
    return policy.retry_disabled_s is None or state.until_s is None or at_s < state.until_s


def _after_failure(state: Connecting, failure: m.ServerFailure, at_s: float) -> ConnectionTransition:
    if state.first:
        match state.policy.on_first_connect(failure.server):
            case "raise":
                return Untried(), ReportStartupFailure(failure)
            case "disable":
                return _given_up(state, failure, at_s)
            case unknown:
                assert_never(unknown)
    if not state.failures and state.attempt <= state.policy.connect_retries:
        number = state.attempt + 1
        return Connecting(number, first=False, policy=state.policy), Attempt(number)
    return _given_up(state, failure, at_s)


def _given_up(state: Connecting, failure: m.ServerFailure, at_s: float) -> tuple[Disabled, ReportDisabled]:
    first_s, words = state.policy.retry_disabled_s, failure.last_words
    given_up, wait_s = Disabled(failure.cause, last_words=words), None
    if first_s is not None:
        wait_s = max(first_s, min(first_s * 2 ** min(state.failures, _MOST_DOUBLINGS), _LONGEST_WAIT_S))
        given_up = Disabled(failure.cause, state.failures + 1, at_s + wait_s, words)
    return given_up, ReportDisabled(failure.cause, newly=not state.failures, last_words=words, retry_s=wait_s)
