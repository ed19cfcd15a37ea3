"""Who hears of the sessions that a manager's coroutines open: its observers, or the turn that uses them."""

from typing import Any

from msgspec import Struct

from grue.messages import ServerNoted, ToolDrifted
from grue.runtime.actor import Note
from grue.runtime.trace import Envelope, Observer


class TurnUse(Struct, frozen=True):
    """A turn that uses a manager.

    Attributes:
        note: Puts a note into the turn's trace.
        startup_timeout_s: What a connect may take.
    """

    note: Note
    startup_timeout_s: float


class SessionNews:
    """An observer of a manager's sessions.

    A turn records its calls and connects itself, and tells its own observers, so the manager's observers are
    left out then: they would hear of everything twice. What only the session sees, such as a tool that has
    changed, is noted in the turn's trace.

    It must not refer to the manager: a session keeps it, and nobody could lose the manager otherwise.

    Attributes:
        observers: The manager's.
        turn: The turn that uses the manager now.
    """

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        self.turn: TurnUse | None = None

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Pass a message on."""
        if self.turn is None:
            for observer in self.observers:
                observer(envelope, line)
        elif isinstance(envelope.body, ServerNoted | ToolDrifted):
            self.turn.note(envelope.body, sender=envelope.sender)
