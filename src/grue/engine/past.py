"""The past of a turn: none, a conversation that its runner keeps, or a history given as plain data."""

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from grue.engine.wiring import Wiring
from grue.messages import (
    AssistantReply,
    HistoryReference,
    RequestCompletion,
    RunTurn,
    Said,
    TurnEnd,
)
from grue.protocol.context_ledger import sizes_of


class TurnReport(Protocol):
    """The questions that a conversation asks a turn's actors after the turn."""

    @property
    def end(self) -> TurnEnd | None:
        """How the turn ended; `None`: its agent did not report it."""
        ...

    @property
    def last_request(self) -> RequestCompletion | None:
        """The last request to the model; `None`: there was none."""
        ...


class Past:
    """The past of a turn.

    Args:
        wiring: The parts that the turn is made from.
        history: What was said before; `None`: nothing.
        entries: The same, whole.
        bytes_per_token: How the endpoint counts it, if that is known.

    Attributes:
        actors: The turn's actors, as soon as there are some.
    """

    def __init__(
        self,
        wiring: Wiring,
        history: HistoryReference | None = None,
        entries: Sequence[Said | AssistantReply] = (),
        bytes_per_token: float | None = None,
    ) -> None:
        self.wiring = wiring
        self.history = history
        self._entries = entries
        self._bytes_per_token = bytes_per_token
        self.actors: TurnReport | None = None

    def sized(self, command: RunTurn) -> RunTurn:
        """Return the command with the sizes of what was said before, if the turn has a `ContextPolicy`."""
        return with_sizes(command, self._entries, self._bytes_per_token)


def with_sizes(
    command: RunTurn, entries: Sequence[Said | AssistantReply], bytes_per_token: float | None = None
) -> RunTurn:
    """Return a turn's command with the sizes of what was said before it, if it has a `ContextPolicy`.

    Args:
        command: The command.
        entries: What was said.
        bytes_per_token: How the endpoint counts it; `None`: that is not known.
    """
    if command.context is None or not entries:
        return command
    # An endpoint can report any number of tokens.
    known = min(max(bytes_per_token or command.context.bytes_per_token, 0.1), 100.0)
    context = replace(command.context, bytes_per_token=known)
    return replace(command, context=context, earlier=sizes_of(entries, known))
