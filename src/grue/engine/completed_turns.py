"""`CompletedTurns`: the turns that earlier runs of a batch have completed, read from their trace.

A turn of a conversation is recalled in two cases: the conversation has the entries that it had before that
turn, and then gets those of the turn; or it has the entries that it had after the turn, because its file has
kept them.
"""

import hashlib
from os import PathLike
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct, field

from grue.answers import AnswerCheck, AnswerSpec
from grue.messages import (
    AnswerAccepted,
    CompletionReceived,
    ConversationId,
    HistoryReference,
    HistoryRewritten,
    RequestCompletion,
    RewriteHistory,
    RunTurn,
    TurnCompleted,
    TurnFailed,
    TurnParked,
)
from grue.protocol.history import History, Ledger
from grue.protocol.said_steps import SaidStep, take_step
from grue.tracing.reading import EpisodeEnvelope, open_episode
from grue.turn_request import TurnOutcome, outcome_of

_Asked: TypeAlias = tuple[int, bytes]
"""A turn's number, and a digest of its request and of where its conversation was."""


class RecalledTurn(Struct, frozen=True):
    """A turn that an earlier run has completed.

    Attributes:
        outcome: Its outcome.
        said: What was said in it, if its conversation does not hold that yet.
    """

    outcome: TurnOutcome[Any]
    said: tuple[SaidStep, ...] = ()


class _Begun(Struct):
    """A turn as far as the trace has been read.

    Attributes:
        partial: `said` is not all that was said in it: a secret was redacted, or it was resumed.
    """

    run: RunTurn
    began: float
    said: list[SaidStep] = field(default_factory=list)
    partial: bool = False


class _Completed(Struct, frozen=True):
    end: TurnCompleted
    took_s: float
    said: tuple[SaidStep, ...] = ()


class CompletedTurns:
    """Finds the outcome of a completed turn by its number and its request.

    It keeps the outcome of each turn and a digest of its request, and what was said in the turns of
    conversations. A turn is run again if a secret in its request or outcome was redacted, because the trace
    does not contain the original text.

    Args:
        path: The trace of the earlier run, or of several runs, one after the other.

    Raises:
        TraceError: The trace cannot be read.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._known: dict[_Asked, _Completed] = {}
        # Turns of other batches, or single turns of the runner, may have the same numbers at the same time.
        # So the end of a turn is matched to its start by its cause, not by its number.
        self._begun: dict[int, _Begun] = {}
        self._talks: dict[ConversationId, _Begun] = {}
        self._requests: dict[int, _Begun] = {}
        for envelope in open_episode(path):
            self._see(envelope)

    def _see(self, envelope: EpisodeEnvelope) -> None:
        body, cause = envelope.body, envelope.cause or 0
        if isinstance(body, RunTurn):
            begun = self._begun[envelope.seq] = _Begun(body, envelope.t)
            self._known.pop(_asked(body, body.history), None)
            if body.history is not None:
                begun.partial = body.resumed is not None
                self._talks[body.history.conversation] = begun
        elif isinstance(body, TurnCompleted | TurnFailed | TurnParked) and cause in self._begun:
            self._end(self._begun.pop(cause), envelope)
        else:
            self._say(envelope)

    def _say(self, envelope: EpisodeEnvelope) -> None:
        body = envelope.body
        talk: _Begun | None = None
        if isinstance(body, RequestCompletion) and not body.aside:
            talk = self._talks.get(body.conversation)
            if talk is not None:
                self._requests[envelope.seq] = talk
        elif isinstance(body, HistoryRewritten | RewriteHistory):
            talk = self._talks.get(body.conversation)
        elif isinstance(body, CompletionReceived):
            talk = self._requests.pop(envelope.cause or 0, None)
        if talk is not None and isinstance(body, SaidStep):
            talk.said.append(body)
            talk.partial = talk.partial or envelope.redacted

    def _end(self, begun: _Begun, envelope: EpisodeEnvelope) -> None:
        end, past = envelope.body, begun.run.history
        if past is not None and self._talks.get(past.conversation) is begun:
            del self._talks[past.conversation]
        if not isinstance(end, TurnCompleted) or envelope.redacted or begun.partial:
            return
        took_s = envelope.t - begun.began
        said: tuple[SaidStep, ...] = () if past is None else (*begun.said, end)
        self._known[_asked(begun.run, past)] = _Completed(end, took_s, said)
        after = None if past is None else _place_after(past, said)
        if after is not None:
            self._known[_asked(begun.run, after)] = _Completed(end, took_s)

    def recall(self, command: RunTurn, answer: AnswerSpec[Any]) -> RecalledTurn | None:
        """Return a turn; `None` if it was not completed, or its request has changed.

        Args:
            command: The message that would start the turn now.
            answer: The current check of answers. An outcome that it refuses is not returned.
        """
        known = self._known.get(_asked(command, command.history))
        if known is None:
            return None
        if known.end.kind == "fallback":
            fallback = answer.fallback
            return None if fallback is None else _recalled(known, fallback)
        check = AnswerCheck(answer)
        return _recalled(known, check.accepted) if _accepts(check, known.end) else None


def _recalled(known: _Completed, response: Any) -> RecalledTurn:
    return RecalledTurn(outcome_of(known.end, response, known.took_s), known.said)


def _accepts(check: AnswerCheck[Any], end: TurnCompleted) -> bool:
    try:
        return isinstance(check(end.raw_response or ""), AnswerAccepted)
    except Exception:  # noqa: BLE001 - the host's code failed; the turn is run again and reports it
        return False


def _place_after(past: HistoryReference, said: tuple[SaidStep, ...]) -> HistoryReference | None:
    """Return a conversation's state after a turn; `None` if it takes the entries before the turn to know."""
    ledger = Ledger()
    ledger.length, ledger.digest = past.length, past.digest
    history = History(ledger)
    try:
        for step in said:
            if isinstance(step, HistoryRewritten | RewriteHistory):
                return None
            take_step(history, step)
    except ValueError:
        return None
    return ledger.reference(past.conversation)


def _asked(command: RunTurn, past: HistoryReference | None) -> _Asked:
    place = None if past is None else (past.length, past.digest)
    words = (command.system, command.user, command.servers, command.answer, place, command.images)
    return command.turn, hashlib.sha256(msgspec.json.encode(words)).digest()
