"""Whether and how often to connect to a tool server, over an episode (R6.1, R6.7-10).

The rules:

- The first connect of an episode has one try. If it fails, the episode ends (or, by policy, goes on without).
- A later connect that fails has one more try in the same turn, and again in every later turn.
- When that fails too, the server is disabled: no further attempt in this episode, ever.

```
Untried ──ConnectRequested──▶ Connecting ──ConnectSucceeded──▶ Proven ──ConnectRequested──▶ Connecting ...
                                  │
                                  └─ConnectFailed─▶ Connecting (next attempt) | Disabled | Untried (raised)
```

`Untried`, `Proven` and `Disabled` are what an episode remembers between turns; `Connecting` lives within one.
"""

from typing import TypeAlias, assert_never

from msgspec import Struct

from grue.messages import FailurePolicy, ServerFailure


class Untried(Struct, frozen=True, tag=True):
    """No connect of this episode has succeeded or been given up yet."""


class Proven(Struct, frozen=True, tag=True):
    """A connect has succeeded in this episode."""


class Disabled(Struct, frozen=True, tag=True):
    """Given up for the rest of the episode."""

    reason: str


class Connecting(Struct, frozen=True, tag=True):
    """An attempt is under way.

    Attributes:
        attempt: One-based, within the turn.
        first: No connect of this episode has succeeded before.
        policy: What failures lead to.
    """

    attempt: int
    first: bool
    policy: FailurePolicy


Settled: TypeAlias = Untried | Proven | Disabled
ConnectionState: TypeAlias = Settled | Connecting


class ConnectRequested(Struct, frozen=True, tag=True):
    """A turn wants the server."""

    policy: FailurePolicy


class ConnectSucceeded(Struct, frozen=True, tag=True):
    """The server is connected, initialised and listed."""


class AttemptFailed(Struct, frozen=True, tag=True):
    """The attempt failed."""

    failure: ServerFailure


ConnectionEvent: TypeAlias = ConnectRequested | ConnectSucceeded | AttemptFailed


class Attempt(Struct, frozen=True, tag=True):
    """Try to connect, now."""

    number: int


class ReportOpened(Struct, frozen=True, tag=True):
    """Tell the agent that the session is open."""

    attempt: int


class ReportDisabled(Struct, frozen=True, tag=True):
    """Tell the agent that there are no tools from this server; `newly`: as of now."""

    reason: str
    newly: bool


class ReportStartupFailure(Struct, frozen=True, tag=True):
    """Tell the agent that the episode cannot start."""

    failure: ServerFailure


ConnectionCommand: TypeAlias = Attempt | ReportOpened | ReportDisabled | ReportStartupFailure


class IllegalConnectionEvent(Exception):  # noqa: N818 - a mistake in the caller, named for what it met
    """The event is not possible in this state."""


def connection_step(
    state: ConnectionState, event: ConnectionEvent
) -> tuple[ConnectionState, ConnectionCommand]:
    """Return the next state and the one thing to do.

    Raises:
        IllegalConnectionEvent: The pair is not listed; both are named.
    """
    match state, event:
        case Untried(), ConnectRequested(policy):
            return Connecting(1, first=True, policy=policy), Attempt(1)
        case Proven(), ConnectRequested(policy):
            return Connecting(1, first=False, policy=policy), Attempt(1)
        case Disabled(reason), ConnectRequested():
            return state, ReportDisabled(reason, newly=False)
        case Connecting(attempt), ConnectSucceeded():
            return Proven(), ReportOpened(attempt)
        case Connecting(), AttemptFailed(failure):
            return _after_failure(state, failure)
        case _:
            raise IllegalConnectionEvent(f"{type(event).__name__} in state {type(state).__name__}")


def _after_failure(state: Connecting, failure: ServerFailure) -> tuple[ConnectionState, ConnectionCommand]:
    if state.first:
        match state.policy.first_connect:
            case "raise":
                return Untried(), ReportStartupFailure(failure)
            case "disable":
                return Disabled(failure.cause), ReportDisabled(failure.cause, newly=True)
            case unknown:
                assert_never(unknown)
    if state.attempt <= state.policy.connect_retries:
        number = state.attempt + 1
        return Connecting(number, first=False, policy=state.policy), Attempt(number)
    return Disabled(failure.cause), ReportDisabled(failure.cause, newly=True)
