"""The settings that a replay can change, and the recorded events that changed time limits make impossible.

For example, a result that was recorded after 8 s is impossible if calls now time out after 5 s.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from grue import messages as m
from grue.field_checks import fault_of
from grue.policies import FailurePolicy, TurnLimits
from grue.protocol.turn.end import kept_for_closing
from grue.tracing.reading import EpisodeEnvelope

NOT_REPLAYED = frozenset({"fallbacks_before_stop", "on_tool_drift", "max_samplings"})
"""Fields of policy and limits that a replay cannot change: they do not affect the replayed decisions."""


class Changes(Struct, frozen=True, kw_only=True):
    """The settings in which a replay differs from the recorded episode."""

    # A field that does not exist or that a replay cannot change, or a value of the wrong type, raises
    # `ValueError`; a value out of its range raises `MCPConfigError`.

    policy: Mapping[str, object] = field(default_factory=dict)  # new values of `FailurePolicy`, by field
    limits: Mapping[str, object] = field(default_factory=dict)  # new values of `TurnLimits`, by field
    system: str | None = None  # new system text of all turns; here and in the next two, `None`: as recorded
    user: str | None = None
    final_request: str | None = None  # the text that asks for the final answer

    def __post_init__(self) -> None:
        merged(FailurePolicy(), self.policy)
        merged(TurnLimits(), self.limits)

    def __bool__(self) -> bool:
        return any(getattr(self, name) not in (None, {}) for name in self.__struct_fields__)

    def run(self, recorded: m.RunTurn) -> m.RunTurn:
        """Return a copy of a recorded `RunTurn` with the changed settings."""
        return replace(
            recorded,
            policy=merged(recorded.policy, self.policy),
            limits=merged(recorded.limits, self.limits),
            system=recorded.system if self.system is None else self.system,
            user=recorded.user if self.user is None else self.user,
            final_request=recorded.final_request if self.final_request is None else self.final_request,
        )

    def carried(self, command: Any, recorded: Any) -> Any:
        """Return the replayed `command` in the form in which it is compared with the message `recorded`."""
        # If settings are changed, use limits and policy of a recorded message of the same class. Otherwise
        # each message that repeats a changed limit or policy would be reported as a difference.
        if not self or type(command) is not type(recorded):
            return command
        match command:
            case m.OpenSession():
                return replace(command, timeout_s=recorded.timeout_s, policy=recorded.policy)
            case m.CallTools():
                return replace(command, timeout_s=recorded.timeout_s, after_timeout=recorded.after_timeout)
            case m.IterationStarted():
                return replace(command, max_iterations=recorded.max_iterations)
            case _:
                return command

    def excludes(self, envelope: EpisodeEnvelope, begun: EpisodeEnvelope) -> str:
        """Return why the changed time limits exclude a recorded event; empty if they do not."""
        if not self.limits or not isinstance(begun.body, m.RunTurn):
            return ""
        old, new = begun.body.limits, self.run(begun.body).limits
        late = _turn_time(envelope, begun, old, new)
        return late or _call_time(envelope.body, old, new) or _start_time(envelope.body, old, new)


def parted(changed: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Split changed settings, such as `budget.requests`, into those of `FailurePolicy` and `TurnLimits`."""
    # Raises `ValueError` for an unknown field, for a part of a field of `FailurePolicy`, for a field that is
    # set as a whole after one of its parts, and for a part of a field that has been set to something other
    # than a mapping. Does not check the names of parts.
    policy: dict[str, object] = {}
    limits: dict[str, Any] = {}
    for name, value in changed.items():
        outer, _, inner = name.partition(".")
        if name in FailurePolicy.__struct_fields__:
            policy[name] = value
        elif outer not in TurnLimits.__struct_fields__:
            known = "; of ".join(
                f"{kind.__name__}: {', '.join(n for n in kind.__struct_fields__ if n not in NOT_REPLAYED)}"
                for kind in (FailurePolicy, TurnLimits)
            )
            raise ValueError(f"there is no field {name}; the fields are, of {known}")
        elif not inner and outer not in limits:
            limits[outer] = value
        elif inner and isinstance(whole := limits.get(outer, {}), dict):
            limits[outer] = {**whole, inner: value}
        else:
            raise ValueError(f"{outer} is {limits[outer]!r}, so {name} cannot be set too")
    return policy, limits


def merged(fields: Any, changed: Mapping[str, object]) -> Any:
    """Return a copy of the Struct `fields` with the values in `changed`; raises the errors of `Changes`."""
    kind = type(fields)
    for name in changed:
        if name in NOT_REPLAYED:
            raise ValueError(f"{name} cannot be changed: it has no effect in a replay")
        if name not in kind.__struct_fields__:
            raise ValueError(f"there is no field {name}; the fields are {', '.join(kind.__struct_fields__)}")
    values = {name: _value(getattr(fields, name), value) for name, value in changed.items()}
    try:
        # `msgspec.structs.replace` would not check the types of the new values.
        return msgspec.convert({**msgspec.structs.asdict(fields), **values}, kind)
    except msgspec.ValidationError as error:
        raise ValueError(fault_of(error)) from error


def _value(before: object, value: object) -> object:
    return merged(before, value) if isinstance(before, Struct) and isinstance(value, Mapping) else value


def _turn_time(envelope: EpisodeEnvelope, begun: EpisodeEnvelope, old: TurnLimits, new: TurnLimits) -> str:
    if (old.turn_timeout_s, old.teardown_s) == (new.turn_timeout_s, new.teardown_s):
        return ""
    elapsed_s = envelope.t - begun.t
    # The end of a turn's time is reserved for closing its sessions.
    work_s = math.inf if new.turn_timeout_s is None else new.turn_timeout_s - kept_for_closing(new)
    if isinstance(envelope.body, m.DeadlinePassed):
        return f"after {elapsed_s:.3f} s the turn would have had time left" if elapsed_s < work_s else ""
    if envelope.receiver == begun.receiver and elapsed_s > work_s:
        return f"it came after {elapsed_s:.3f} s, and the turn's work would have ended after {work_s:g} s"
    return ""


def _call_time(body: object, old: TurnLimits, new: TurnLimits) -> str:
    limit_s = new.tool_call_timeout_s
    if limit_s == old.tool_call_timeout_s:
        return ""
    match body:
        case m.ToolReturned(duration_s=duration_s) | m.ServerDied(duration_s=duration_s) if (
            duration_s > limit_s
        ):
            return f"the call took {duration_s:.3f} s, and would have timed out after {limit_s:g} s"
        case m.ToolTimedOut(timeout_s=timeout_s) if timeout_s > limit_s:
            return f"the call would have timed out after {limit_s:g} s"
        case m.ToolTimedOut(timeout_s=timeout_s) if timeout_s == old.tool_call_timeout_s:
            return f"the call would have had {limit_s:g} s"
        case _:
            return ""


def _start_time(body: object, old: TurnLimits, new: TurnLimits) -> str:
    if not isinstance(body, m.SessionOpened | m.ConnectFailed):
        return ""
    before_s, limit_s = old.startup_timeout_s(body.server), new.startup_timeout_s(body.server)
    if limit_s == before_s:
        return ""
    match body:
        case m.SessionOpened(elapsed_s=elapsed_s) if elapsed_s > limit_s:
            return f"the start took {elapsed_s:.3f} s, and would have been given up after {limit_s:g} s"
        case m.ConnectFailed(failure=failure) if failure.elapsed_s > limit_s:
            return f"the server would have been given up after {limit_s:g} s"
        case m.ConnectFailed(failure=failure) if limit_s > before_s and failure.elapsed_s >= before_s:
            return f"the server would have had {limit_s:g} s to start"
        case _:
            return ""
