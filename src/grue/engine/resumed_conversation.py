"""Find the conversation that a resumed turn continues: in this process, in its file, or in the trace.

Come here to change where it is looked for. It is brought to what the trace holds of the turn before the turn
goes on, so that file and trace agree from then on.
"""

import contextlib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from grue.engine.kept_conversation import KeptConversation
from grue.engine.recorded_conversation import resume_conversation
from grue.engine.recorded_turn import RecordedTurn, asks_again
from grue.engine.wiring import Wiring
from grue.errors import ConversationError
from grue.messages import HistoryReference, Resumption
from grue.protocol.history import History


@contextlib.contextmanager
def conversation_of(
    part: RecordedTurn,
    where: Resumption,
    given: KeptConversation | None,
    trace: str | PathLike[str],
    wiring: Wiring,
) -> Iterator[KeptConversation | None]:
    """Yield the conversation of a turn, parked; `None`: the turn belongs to none.

    A file that is opened for this is closed again, so that the host can load it.

    Args:
        part: The turn.
        where: Where it goes on.
        given: The conversation, if the host has it.
        trace: Where the turn was read.
        wiring: Of the runner that goes on.

    Raises:
        ConversationError: It is missing, in use or damaged, has gone on, or does not hold what was said
            before the turn.
    """
    began, number = part.run.history, part.run.turn
    if began is None:
        if given is not None:
            raise ConversationError(
                f"Turn {number} of {trace} belongs to no conversation. Use Runner.resume."
            )
        yield None
        return
    if given is not None and given.id != began.conversation:
        raise ConversationError(
            f"Turn {number} of {trace} belongs to the conversation {began.conversation}, not to {given.id}."
        )
    held = given or wiring.under_way.conversations.get(began.conversation)
    kept = held or _found(began, number, trace)
    try:
        mark = kept.require_open(number, began)
        if mark.state == "running":
            again = asks_again(where)

            def replay(history: History) -> None:
                part.replay(history)
                if again:
                    history.forget()

            kept.catch_up(began, replay, where.parked)
        yield kept
    finally:
        if held is None:
            kept.close()


def _found(began: HistoryReference, number: int, trace: str | PathLike[str]) -> KeptConversation:
    if not began.file:
        return resume_conversation(trace, began.conversation).kept
    try:
        return KeptConversation.load(Path(began.file))
    except ConversationError as error:
        raise ConversationError(
            f"Turn {number} of {trace} cannot be resumed: {error} If the file is elsewhere or in use by this"
            f" program, pass the conversation: Conversation.load(...).resume(trace=...).",
            path=error.path,
            line=error.line,
        ) from error
