"""The progress of a turn, in the form that a later process needs."""

from grue import messages as m
from grue.protocol.turn.states import Turn


def progress(turn: Turn) -> m.TurnParked:
    """Return the progress of a turn that has no reply to go on with."""
    return m.TurnParked(
        turn=turn.run.turn,
        iterations=turn.iterations,
        requests=turn.requests,
        tool_calls=turn.records,
        usage=turn.usage,
        batches=turn.batches,
        media_bytes=turn.media_bytes,
        forced=turn.forced,
        degraded=turn.degraded,
        reconnected=turn.reconnected,
        used={**turn.used},
        summaries=turn.summaries,
        overflowed=turn.overflowed,
        window=turn.window,
        refers=turn.refers,
        searching=turn.searching,
    )
