"""Where requests wait whose replies come from a batch, and are not waited for.

A turn that runs in a batch has such a place. `LlmEndpoint.post` asks it for the reply instead of the network.
If there is none yet, the request is put on file, and the turn ends as one that waits.
"""

from contextvars import ContextVar
from typing import Protocol

from grue.protocol.chat_wire.failures import Fault
from grue.transports.llm.exchange import Answered


class RequestPostponed(Exception):  # noqa: N818 - what has happened to the request
    """The request is on file, and its reply is read by a later process.

    Args:
        item: Its id in the batch.
    """

    def __init__(self, item: str) -> None:
        super().__init__(f"the request waits for a batch as {item}")
        self.item = item


class ReplyRoom(Protocol):
    """Keeps the requests of one turn, and has the replies that have come."""

    def reply_to(self, body: bytes, request: int) -> Answered | Fault:
        """Return the reply to a request.

        Args:
            body: The request, whole.
            request: Its number in the turn.

        Raises:
            RequestPostponed: There is none yet. The request is on file.
        """


reply_room: ContextVar[ReplyRoom | None] = ContextVar("reply_room", default=None)
"""The place for the requests of the turn that this code belongs to; `None`: they are sent at once."""
