"""Summarise each turn of a trace in a few figures: its times, its outcome and reason, and its usage."""

from msgspec import Struct

from grue import messages
from grue.runtime.safe_text import printable
from grue.tracing.facts import Fact
from grue.tracing.message_words import summarize
from grue.tracing.reading import EpisodeBody, EpisodeEnvelope
from grue.tracing.turn_slices import turn_of

_REASON_CHARS = 300


class TurnDigest(Struct, kw_only=True):
    """The summary of one turn; filled while its messages are read.

    Attributes:
        turn: The turn's number; 0 for messages before the first turn.
        start_s: Time of its first message, in seconds since the trace began.
        end_s: Time of its last message.
        outcome: As in `TurnCompleted`; `failed`, `parked`, `unfinished` (the trace ends in it), or
            empty for no turn.
        reason: Why it is not `answered`; printable.
        action: What the host did with the answer, in a few words; printable.
        requests: How many completions were requested.
        tool_calls: How many tool calls the model made.
        usage: Usage of all its completions.
    """

    turn: int
    start_s: float
    end_s: float = 0.0
    outcome: str = ""
    reason: str = ""
    action: str = ""
    requests: int = 0
    tool_calls: int = 0
    usage: messages.Usage = messages.Usage()


class DigestWriter:
    """Summarises turns: call `see` with each envelope in order, then read `digests`.

    Attributes:
        digests: By turn, in the order in which the turns began.
    """

    def __init__(self) -> None:
        self.digests: dict[int, TurnDigest] = {}
        self._latest = 0

    def see(self, envelope: EpisodeEnvelope) -> int:
        """Add a message and return its turn; without a turn it belongs to that of the message before."""
        turn = turn_of(envelope) or self._latest
        self._latest = max(self._latest, turn)
        digest = self.digests.get(turn)
        if digest is None:
            digest = self.digests[turn] = TurnDigest(turn=turn, start_s=envelope.t)
        digest.end_s = max(digest.end_s, envelope.t)
        _add(digest, envelope.body)
        return turn


def _add(digest: TurnDigest, body: EpisodeBody) -> None:
    match body:
        case messages.RunTurn():
            # A turn that a resumed episode runs again gets a new digest.
            digest.outcome, digest.reason = "unfinished", ""
        case messages.TurnCompleted(kind=kind, reason=reason):
            digest.outcome, digest.reason = kind, printable(reason, _REASON_CHARS)
        case messages.TurnFailed():
            digest.outcome, digest.reason = "failed", printable(summarize(body), _REASON_CHARS)
        case messages.TurnParked():
            digest.outcome, digest.reason = "parked", printable(summarize(body), _REASON_CHARS)
        case messages.RequestCompletion():
            digest.requests += 1
        case messages.CompletionReceived(usage=usage, tool_calls=calls):
            digest.usage += usage
            digest.tool_calls += len(calls)
        case Fact() as fact if headline := fact.headline():
            digest.action = printable(headline, _REASON_CHARS)
