"""The progress of a turn, in the form that a later process needs."""

from grue.messages import TurnParked
from grue.protocol.turn_states import Turn


def progress(turn: Turn) -> TurnParked:
    """Return how far a turn has come, without a reply to go on with."""
    return TurnParked(
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
    )
