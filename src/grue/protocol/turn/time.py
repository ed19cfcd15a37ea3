"""Divide a turn's time limit between its work and the closing of its sessions."""

from grue.policies import TurnLimits

_SHARE = 0.1
_MOST_S = 0.5


def kept_for_closing(limits: TurnLimits) -> float:
    """Return the seconds of a turn's time limit that are reserved for closing its sessions.

    By default that is a tenth of the limit, but at most half a second. If the user has set `teardown_s`, it
    is that, but at most half of the limit. It is 0 if the turn has no limit.

    Args:
        limits: The limits of a turn that has sessions. Do not call this for a turn without sessions, which
            reserves nothing.
    """
    limit_s = limits.turn_timeout_s
    if limit_s is None:
        return 0.0
    if limits.teardown_s is None:
        return min(_MOST_S, _SHARE * limit_s)
    return min(limits.teardown_s, limit_s / 2)
