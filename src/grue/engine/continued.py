"""Find out what a request continues: a conversation, or a history that is given as plain data."""

import contextlib
from typing import Any

from grue.engine.past import Past
from grue.engine.wiring import Wiring
from grue.errors import ConversationError
from grue.messages import HistoryReference
from grue.turn_request import TurnRequest


def continued(
    request: TurnRequest[Any], number: int, wiring: Wiring, *, resumed: bool = False
) -> contextlib.AbstractContextManager[Past]:
    """Give a turn its past, and keep its entries afterwards; `resumed`: the turn was parked before.

    Raises:
        ConversationError: There is both a conversation and a history, or one of them cannot be used.
    """
    if request.conversation is None and not request.history:
        return contextlib.nullcontext(Past(wiring))
    if request.conversation is not None and request.history:
        raise ConversationError("A turn continues either a conversation or a history, not both.")
    # Few programs need it.
    from grue.engine.kept_conversation import given_conversation

    kept = request.conversation or given_conversation(f"turn-{number}", request.system, request.history)
    return kept.turn(wiring, number, resumed=resumed)


def reference_of(request: TurnRequest[Any], number: int) -> HistoryReference | None:
    """Return the reference to what a request continues; `None`: nothing.

    Raises:
        ConversationError: It cannot be used.
    """
    if request.conversation is not None:
        return request.conversation.ledger.reference(request.conversation.id)
    if not request.history:
        return None
    from grue.engine.kept_conversation import given_conversation

    kept = given_conversation(f"turn-{number}", request.system, request.history)
    return kept.ledger.reference(kept.id)
