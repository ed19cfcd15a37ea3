"""How a turn's time limit is divided between its work and the closing of its sessions."""

from grue.messages import TurnLimits

_SHARE = 0.1
_MOST_S = 0.5


def kept_for_closing(limits: TurnLimits) -> float:
    """Return how many seconds of a turn's limit are kept for closing its sessions.

    That is a tenth of the limit and at most half a second, or what the user has set as `teardown_s`, of
    which a short limit leaves at most half of itself. 0 where the turn has no limit.

    Args:
        limits: Of a turn that has sessions to close; one without them keeps nothing.
    """
    limit_s = limits.turn_timeout_s
    if limit_s is None:
        return 0.0
    if limits.teardown_s is None:
        return min(_MOST_S, _SHARE * limit_s)
    return min(limits.teardown_s, limit_s / 2)
