"""What earlier runs of a batch have completed, by their trace."""

import hashlib
from os import PathLike
from typing import Any, TypeAlias

import msgspec

from grue.answers import AnswerCheck, AnswerSpec
from grue.messages import AnswerAccepted, RunTurn, TurnCompleted, TurnFailed
from grue.tracing.reading import open_episode
from grue.turn_request import TurnOutcome, outcome_of

_Asked: TypeAlias = tuple[int, bytes]
"""A turn's number, and a digest of what was asked."""


class CompletedTurns:
    """Finds the outcome of a turn that was completed before, by its number and what was asked.

    Of each turn it keeps what came of it, and a digest of what was asked. What a secret was taken out of is
    run again: the trace does not know it.

    Args:
        path: The trace of the earlier run, or of several, one after the other.

    Raises:
        TraceError: It cannot be read.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._known: dict[_Asked, tuple[TurnCompleted, float]] = {}
        # Turns of other batches, or of the runner's own, may have the same numbers, and at the same time:
        # what ends one says, as its cause, which word began it.
        begun: dict[int, tuple[_Asked, float]] = {}
        for envelope in open_episode(path):
            if isinstance(envelope.body, RunTurn):
                asked = _asked(envelope.body)
                begun[envelope.seq] = asked, envelope.t
                self._known.pop(asked, None)
            elif isinstance(envelope.body, TurnCompleted | TurnFailed) and envelope.cause in begun:
                asked, began = begun.pop(envelope.cause)
                if isinstance(envelope.body, TurnCompleted) and not envelope.redacted:
                    self._known[asked] = envelope.body, envelope.t - began

    def outcome(self, command: RunTurn, answer: AnswerSpec[Any]) -> TurnOutcome[Any] | None:
        """Return what came of a turn; `None` where it was not completed, or was another one.

        Args:
            command: The turn, as it would be run now.
            answer: What a valid answer is now; one that is none any more is not recalled.
        """
        end, took_s = self._known.get(_asked(command), (None, 0.0))
        if end is None:
            return None
        if end.kind == "fallback":
            return None if answer.fallback is None else outcome_of(end, answer.fallback, took_s)
        check = AnswerCheck(answer)
        return outcome_of(end, check.accepted, took_s) if _accepts(check, end) else None


def _accepts(check: AnswerCheck[Any], end: TurnCompleted) -> bool:
    try:
        return isinstance(check(end.raw_response or ""), AnswerAccepted)
    except Exception:  # noqa: BLE001 - the host's own code; run again, the turn tells of it as any turn does
        return False


def _asked(command: RunTurn) -> _Asked:
    words = (command.system, command.user, command.servers, command.answer)
    return command.turn, hashlib.sha256(msgspec.json.encode(words)).digest()
