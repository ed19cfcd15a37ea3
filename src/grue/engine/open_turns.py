"""The open turn of a conversation: one that can be parked, until it is over.

Come here to change what a conversation does with a turn that was parked, or whose process was killed.
`TurnMark` says where such a turn stands, in the conversation's file too.

| the turn | what happens | what follows |
|---|---|---|
| parked | a new turn | `ConversationParked`; nothing starts |
| parked | `turn(resumed=True)` | it goes on; its reply still waits for the results of its calls |
| parked | `abandon`, or a branch | its calls are answered "not called" |
| resumed | it cannot begin, or its servers do not start | it is parked again |
| running | its process is killed; then a new turn | its calls are answered "interrupted" |
| running | its process is killed; then `catch_up` | what was said is what the trace holds; it is parked |
"""

from collections.abc import Callable

from grue.engine.conversation_file import (
    ConversationFile,
    TurnMark,
    begin_of_turn,
    lines_to_write,
    read_conversation,
)
from grue.errors import ConversationError, ConversationParked
from grue.messages import HistoryReference, ServerFailure, TurnFailed, TurnParked
from grue.protocol.history import History


def require_not_parked(mark: TurnMark | None, name: str) -> None:
    """Check that another turn may begin.

    Args:
        mark: The open turn.
        name: The conversation's id.

    Raises:
        ConversationParked: The open turn is parked.
    """
    if mark is not None and mark.state == "parked":
        asked = ", ".join(dict.fromkeys(question.name for question in mark.questions))
        what = f"waits for an approval of {asked}" if asked else "is parked"
        raise ConversationParked(
            f"Turn {mark.turn} of the conversation {name} {what}. Go on with it (resume), give it up"
            " (abandon), or continue a branch.",
            turn=mark.turn,
            questions=mark.questions,
        )


def given_up(mark: TurnMark | None) -> TurnParked | None:
    """Return how an open turn ends that is given up; `None`: its process was killed."""
    if mark is None or mark.state == "running":
        return None
    return TurnParked(turn=mark.turn, untold=mark.untold)


def is_parked_still(end: object) -> bool:
    """Return whether a turn that was resumed has done nothing, because its servers did not start."""
    return isinstance(end, TurnFailed) and isinstance(end.failure, ServerFailure)


def taken_up(
    file: ConversationFile, began: HistoryReference, replay: Callable[[History], None]
) -> tuple[History, list[bytes]]:
    """Return what was said up to a turn and in it, and the lines that the file lacks of that.

    Args:
        file: The conversation's file.
        began: What was said before the turn, by reference.
        replay: Adds to a history what was said in the turn.

    Raises:
        ConversationError: The file cannot be read, or does not hold what was said before the turn.
    """
    saved = read_conversation(file.path)
    found = begin_of_turn(saved, began)
    if found is None:
        raise ConversationError(
            f"{file.path} does not hold where the turn began: it may be an older copy, or was saved later.",
            path=str(file.path),
        )
    history, lines = found
    assert history.ledger is not None, "the history of a file has a ledger"
    produced: list[bytes] = []
    history.ledger.save = produced.append
    replay(history)
    return history, lines_to_write(saved, lines, produced)
