"""Decide whether and how often to connect to a tool server during an episode; a pure state machine.

`FailurePolicy` has the rules: `first_connect`, `connect_retries` and `retry_disabled_s`. Until a connect to a
server has succeeded in the episode (in a resumed turn: in the turn), each connect gets one attempt.

`Untried`, `Proven` and `Disabled` are the states between turns. `Connecting` exists only within a turn.

Source: R6.1, R6.7-10
"""

from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.policies import FailurePolicy

_LONGEST_WAIT_S = 900.0
_MOST_DOUBLINGS = 30


class Untried(Struct, frozen=True, tag=True):
    """The session has not yet connected to the server in this episode."""


class Proven(Struct, frozen=True, tag=True):
    """A connect has succeeded in this episode, and the server was not disabled since."""


class Disabled(Struct, frozen=True, tag=True):
    """The server is not used, for this `reason`, before `until_s` on the clock of `ConnectRequested.at_s`."""

    reason: str
    failures: int = 1  # how often it was disabled since a connect last succeeded
    until_s: float | None = None  # `None`: not in this episode
    last_words: str = ""


class Connecting(Struct, frozen=True, tag=True):
    """The session makes attempt number `attempt` of this connect; `first`: the state before was `Untried`."""

    server: m.ServerName
    attempt: int
    first: bool
    policy: FailurePolicy
    failures: int = 0


Settled: TypeAlias = Untried | Proven | Disabled
ConnectionState: TypeAlias = Settled | Connecting


class ConnectRequested(Struct, frozen=True, tag=True):
    """A turn needs the server. `at_s` is the time on a clock that all events share."""

    server: m.ServerName
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
    """Try to connect. `number` counts the attempts of one connect; a reconnect begins at 1 again."""

    number: int


class ReportOpened(Struct, frozen=True, tag=True):
    """Tell the agent that the session is open."""


ConnectionCommand: TypeAlias = Attempt | ReportOpened | m.McpDisabled | m.StartupFailed
"""A message (`McpDisabled`, `StartupFailed`) is to be sent to the agent."""

ConnectionTransition: TypeAlias = tuple[ConnectionState, ConnectionCommand]


class IllegalConnectionEvent(Exception):  # noqa: N818 - a bug in the caller, and no error to handle
    """The event cannot happen in this state."""


def connection_step(state: ConnectionState, event: ConnectionEvent) -> ConnectionTransition:
    """Return the next state and the one command to carry out, or raise `IllegalConnectionEvent`."""
    match state, event:
        case Disabled(reason, last_words=words), ConnectRequested(server, policy, at_s) if is_given_up(
            state, policy, at_s
        ):
            return state, m.McpDisabled(server=server, reason=reason, last_words=words)
        case Untried() | Proven() | Disabled(), ConnectRequested(server, policy):
            failures = state.failures if isinstance(state, Disabled) else 0
            return Connecting(server, 1, isinstance(state, Untried), policy, failures), Attempt(1)
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
    policy, words = state.policy, failure.last_words
    if state.first and policy.on_first_connect(state.server) == "raise":
        return Untried(), m.StartupFailed(server=state.server, failure=failure)
    if not (state.first or state.failures) and state.attempt <= policy.connect_retries:
        number = state.attempt + 1
        return replace(state, attempt=number), Attempt(number)
    given_up, first_s, wait_s = Disabled(failure.cause, last_words=words), policy.retry_disabled_s, None
    if first_s is not None:
        wait_s = max(first_s, min(first_s * 2 ** min(state.failures, _MOST_DOUBLINGS), _LONGEST_WAIT_S))
        given_up = Disabled(failure.cause, state.failures + 1, at_s + wait_s, words)
    report = m.McpDisabled(
        server=state.server, reason=failure.cause, newly=not state.failures, last_words=words, retry_s=wait_s
    )
    return given_up, report
