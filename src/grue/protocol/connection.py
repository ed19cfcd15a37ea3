"""Decide whether and how often to connect to a tool server during an episode; a pure state machine.

Come here to change the rules for retries, for disabling a server, or for a failed first connect. The MCP
session carries out the one command that `connection_step` returns. This module starts no process and opens
no connection.

The rules:

- The first connect of an episode gets one attempt. If it fails, the episode ends with the failure, or, by
  policy, goes on without the server.
- A later connect is retried in the same turn, `connect_retries` times (by default once), in every turn.
- If the retries fail too, the server is disabled: the rest of the episode makes no further attempt.

```
Untried ──ConnectRequested──▶ Connecting ──ConnectSucceeded──▶ Proven ──ConnectRequested──▶ Connecting ...
                                  │
                                  └─ConnectFailed─▶ Connecting (next attempt) | Disabled | Untried (raised)
```

`Untried`, `Proven` and `Disabled` are the states between turns. `Connecting` exists only within a turn.

Source: R6.1, R6.7-10
"""

from typing import TypeAlias, assert_never

from msgspec import Struct

from grue.messages import FailurePolicy, ServerFailure


class Untried(Struct, frozen=True, tag=True):
    """No connect of this episode has succeeded yet."""


class Proven(Struct, frozen=True, tag=True):
    """A connect has succeeded in this episode."""


class Disabled(Struct, frozen=True, tag=True):
    """The server is not used for the rest of the episode, for this `reason`."""

    reason: str


class Connecting(Struct, frozen=True, tag=True):
    """An attempt is under way.

    Attributes:
        attempt: Number of the attempt within the turn, from 1.
        first: Whether no connect of this episode has succeeded before.
        policy: Decides how often to retry and what a failed first connect leads to.
    """

    attempt: int
    first: bool
    policy: FailurePolicy


Settled: TypeAlias = Untried | Proven | Disabled
ConnectionState: TypeAlias = Settled | Connecting


class ConnectRequested(Struct, frozen=True, tag=True):
    """A turn needs the server."""

    policy: FailurePolicy


class ConnectSucceeded(Struct, frozen=True, tag=True):
    """The server is connected and initialised, and has listed its tools."""


class AttemptFailed(Struct, frozen=True, tag=True):
    """The connect attempt failed."""

    failure: ServerFailure


ConnectionEvent: TypeAlias = ConnectRequested | ConnectSucceeded | AttemptFailed


class Attempt(Struct, frozen=True, tag=True):
    """Try to connect; `number` counts the attempts of the turn."""

    number: int


class ReportOpened(Struct, frozen=True, tag=True):
    """Tell the agent that the session is open."""

    attempt: int


class ReportDisabled(Struct, frozen=True, tag=True):
    """Tell the agent that this server is disabled; `newly` if this turn disabled it."""

    reason: str
    newly: bool


class ReportStartupFailure(Struct, frozen=True, tag=True):
    """Tell the agent that the first connect failed and that the policy is to raise."""

    failure: ServerFailure


ConnectionCommand: TypeAlias = Attempt | ReportOpened | ReportDisabled | ReportStartupFailure


class IllegalConnectionEvent(Exception):  # noqa: N818 - a bug in the caller, named for what it met
    """The event cannot happen in this state. This is a bug in the caller."""


def connection_step(
    state: ConnectionState, event: ConnectionEvent
) -> tuple[ConnectionState, ConnectionCommand]:
    """Return the next state and the one command to carry out.

    Raises:
        IllegalConnectionEvent: The event cannot happen in this state; the text names both.
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
        match state.policy.on_first_connect(failure.server):
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
