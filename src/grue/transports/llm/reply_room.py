"""Where requests wait whose replies come from a batch, and are not waited for.

A turn that runs in a batch has such a place. `LlmEndpoint.post` asks it for the reply instead of the network.
If there is none yet, the request is put on file, and the turn ends as one that waits.
"""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from grue.protocol.chat_wire.failures import Fault
from grue.transports.llm.exchange import Answered, RequestOutcome

if TYPE_CHECKING:
    from grue.transports.llm.endpoint import LlmEndpoint


class RequestPostponed(Exception):  # noqa: N818 - what has happened to the request
    """The request is on file, and its reply is read by a later process.

    Args:
        item: Its id in the batch.
    """

    def __init__(self, item: str) -> None:
        super().__init__(f"the request waits for a batch as {item}")
        self.item = item


class ReplyRoom(Protocol):
    """Keeps the requests of one turn or episode, and has the replies that have come."""

    async def reply_to(self, endpoint: "LlmEndpoint", body: bytes, request: int) -> Answered | Fault:
        """Return the reply to a request.

        Args:
            endpoint: Whom it asks.
            body: The request, whole.
            request: Its number in the turn.

        Raises:
            RequestPostponed: There is none yet. The request is on file.
        """

    def read(self, model: str, outcome: RequestOutcome) -> None:
        """Take note of what a reply has cost that was read."""


reply_room: ContextVar[ReplyRoom | None] = ContextVar("reply_room", default=None)
"""The place for the requests of the turn that this code belongs to; `None`: that of the process, if any."""

_of_process: list[ReplyRoom] = []


def set_process_room(room: ReplyRoom | None) -> None:
    """Set the place for all other requests of this process; `None`: they are sent at once."""
    _of_process[:] = [] if room is None else [room]


def current_room() -> ReplyRoom | None:
    """Return where a request of this code waits; `None`: it is sent at once."""
    return reply_room.get() or (_of_process[0] if _of_process else None)


def limit_in(body: bytes) -> int | None:
    """Return the most tokens that a request allows its reply; `None`: it sets no limit."""
    asked = msgspec.json.decode(body, type=_Limits)
    return asked.max_tokens or asked.max_completion_tokens or asked.max_output_tokens


class _Limits(Struct):
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
