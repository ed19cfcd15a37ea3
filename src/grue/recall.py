"""What earlier runs of a batch have completed, by their trace."""

import hashlib
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from grue.answers import AnswerCheck, AnswerSpec
from grue.messages import AnswerAccepted, RunTurn, TurnCompleted
from grue.tracing.reading import open_episode
from grue.turn_request import TurnOutcome, outcome_of


class Recall:
    """Finds the outcome of a turn that was completed before, by its number and what was asked.

    Of each turn it keeps what came of it, and a digest of what was asked. What a secret was taken out of is
    run again: the trace does not know it.

    Args:
        path: The trace of the earlier run, or of several, one after the other.

    Raises:
        TraceError: It cannot be read.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._asked: dict[int, tuple[bytes, float]] = {}
        self._ends: dict[int, tuple[TurnCompleted, float]] = {}
        for envelope in open_episode(Path(path)):
            if isinstance(envelope.body, RunTurn):
                self._asked[envelope.turn] = (_digest(envelope.body), envelope.t)
                self._ends.pop(envelope.turn, None)
            elif isinstance(envelope.body, TurnCompleted) and not envelope.redacted:
                self._ends[envelope.turn] = (envelope.body, envelope.t)

    def outcome(self, command: RunTurn, answer: AnswerSpec[Any]) -> TurnOutcome[Any] | None:
        """Return what came of a turn; `None` where it was not completed, or was another one.

        Args:
            command: The turn, as it would be run now.
            answer: What a valid answer is now; one that is none any more is not recalled.
        """
        asked, began = self._asked.get(command.turn, (b"", 0.0))
        end, ended = self._ends.get(command.turn, (None, 0.0))
        if end is None or asked != _digest(command):
            return None
        if end.kind == "fallback":
            return None if answer.fallback is None else outcome_of(end, answer.fallback, ended - began)
        check = AnswerCheck(answer)
        return outcome_of(end, check.accepted, ended - began) if _accepts(check, end) else None


def _accepts(check: AnswerCheck[Any], end: TurnCompleted) -> bool:
    try:
        return isinstance(check(end.raw_response or ""), AnswerAccepted)
    except Exception:  # noqa: BLE001 - the host's own code; run again, the turn tells of it as any turn does
        return False


def _digest(command: RunTurn) -> bytes:
    asked = (command.system, command.user, command.servers, command.answer)
    return hashlib.sha256(msgspec.json.encode(asked)).digest()
