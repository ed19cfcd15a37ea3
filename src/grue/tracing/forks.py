"""Count only what a fork has done itself: a fork's trace begins with copies of a recorded turn's messages.

A fork runs a recorded turn again, from one of its messages on. The messages before it are marked as copied,
except the `RunTurn`. The message that ends the fork counts the copies' requests and calls too.
"""

from typing import Any

from msgspec.structs import replace

from grue import messages as m
from grue.protocol.turn.prices import Spent
from grue.runtime.trace.recorder import Envelope

_BOUNDS = frozenset((m.TurnForked, m.RunTurn, m.TurnCompleted, m.TurnFailed, m.TurnParked))


class OwnMessages:
    """Selects the messages to count from a trace's messages, in order. Turns may overlap."""

    def __init__(self) -> None:
        self._forked: dict[int, m.TurnForked] = {}  # turn number -> its `TurnForked`, while the fork runs

    def take(self, envelope: Envelope[Any]) -> Envelope[Any] | None:
        """Return the message to count (a fork's end without the counts of copies), or `None` for a copy."""
        if envelope.copied:
            return None
        if type(envelope.body) not in _BOUNDS:
            return envelope
        match envelope.body:
            case m.TurnForked() as forked:
                self._forked[envelope.turn] = forked
            case m.RunTurn():
                self._forked.pop(envelope.turn, None)  # left over if an earlier fork of this turn crashed
            case m.TurnCompleted() | m.TurnFailed() | m.TurnParked() as end:
                before = self._forked.pop(envelope.turn, None)
                if before is not None:
                    return replace(envelope, body=_own_part(end, before))
        return envelope


def _own_part(end: m.TurnEnd, before: m.TurnForked) -> m.TurnEnd:
    copied = Spent(requests=before.requests, usage=before.usage)
    own = Spent(requests=end.requests, usage=end.usage).less(copied)
    return replace(
        end,
        iterations=end.iterations - before.iterations,
        requests=own.requests,
        usage=own.usage,
        tool_calls=tuple(each for each in end.tool_calls if each.call_id not in before.calls),
    )
