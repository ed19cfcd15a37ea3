"""`CompletedTurns`: the turns that earlier runs of a batch have completed, read from their trace."""

import hashlib
from os import PathLike
from typing import Any, TypeAlias

import msgspec

from grue.answers import AnswerCheck, AnswerSpec
from grue.messages import AnswerAccepted, RunTurn, TurnCompleted, TurnFailed
from grue.tracing.reading import open_episode
from grue.turn_request import TurnOutcome, outcome_of

_Asked: TypeAlias = tuple[int, bytes]
"""A turn's number, and a digest of its request."""


class CompletedTurns:
    """Finds the outcome of a completed turn by its number and its request.

    It keeps the outcome of each turn and a digest of its request. A turn is run again if a secret in its
    request or outcome was redacted, because the trace does not contain the original text.

    Args:
        path: The trace of the earlier run, or of several runs, one after the other.

    Raises:
        TraceError: The trace cannot be read.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._known: dict[_Asked, tuple[TurnCompleted, float]] = {}
        # Turns of other batches, or single turns of the runner, may have the same numbers at the same time.
        # So the end of a turn is matched to its start by its cause, not by its number.
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
        """Return the outcome of a turn; `None` if it was not completed, or its request has changed.

        Args:
            command: The message that would start the turn now.
            answer: The current check of answers. An outcome that it refuses is not returned.
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
    except Exception:  # noqa: BLE001 - the host's code failed; the turn is run again and reports it
        return False


def _asked(command: RunTurn) -> _Asked:
    words = (command.system, command.user, command.servers, command.answer, command.history, command.images)
    return command.turn, hashlib.sha256(msgspec.json.encode(words)).digest()
