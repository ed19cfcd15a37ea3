"""Send the messages of a manager's sessions to its observers, or to the turn that uses the manager."""

from typing import Any

from msgspec import Struct

from grue import messages as m
from grue.hosting import Envelope, Note, Observer


class TurnUse(Struct, frozen=True):
    """A turn that uses a manager.

    Attributes:
        note: Puts a note into the turn's trace.
        startup_timeout_s: Time limit of a connect.
    """

    note: Note
    startup_timeout_s: float


class SessionNews:
    """An observer of a manager's sessions.

    A turn records its own calls and connects for its own observers. The manager's observers get nothing
    during a turn, because they would get everything twice. Messages that only the session sees, such as a
    changed tool, are noted in the turn's trace.

    This class must not refer to the manager. A session refers to it, so an open session would keep the
    manager alive.

    Attributes:
        observers: The manager's observers.
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
        elif isinstance(envelope.body, m.ServerNoted | m.ToolDrifted):
            self.turn.note(envelope.body, sender=envelope.sender)
