"""`EarlyRequest`: holds back the text of a request with presumed tools, and delays imports until it is sent.

Come here to change what the host sees of a reply that may still be dropped, or when the MCP SDK is imported.
A turn that presumes nothing has no `EarlyRequest`.
"""

from collections.abc import Callable
from typing import Any

import anyio

from grue.actors.agent import AgentActor
from grue.messages import TextDelta, ToolsVerified
from grue.runtime.actor import Note
from grue.runtime.host_code import host_code
from grue.runtime.trace import Envelope

_LONGEST_S = 1.0


class EarlyRequest:
    """A turn's request with presumed tools.

    Args:
        on_delta: The host's callback for pieces of text; `None`: it has none.

    Attributes:
        agent: The turn's agent. Set it before the actors run.
    """

    def __init__(self, on_delta: Callable[[TextDelta], None] | None) -> None:
        self.agent: AgentActor | None = None
        self._on_delta = on_delta
        self._held: list[TextDelta] = []
        self._sent = anyio.Event()

    def show(self, delta: TextDelta) -> None:
        """Pass a piece of text on to the host, or hold it until the tools are verified.

        What is held of a reply that was dropped, or of a turn that has ended, is never shown.
        """
        if self._on_delta is None:
            return
        if self._held and self._held[0].request != delta.request:
            self._held.clear()
        if self._held or (self.agent is not None and self.agent.is_presuming):
            self._held.append(delta)
        else:
            self._on_delta(delta)

    def releasing(self, note: Note) -> Note:
        """Return the agent's `note`, which shows the held text once the tools are verified."""

        def note_and_release(body: Any, *, sender: str, cause: int | None = None) -> Envelope[Any]:
            envelope = note(body, sender=sender, cause=cause)
            if isinstance(body, ToolsVerified) and self._on_delta is not None:
                held, self._held = self._held, []
                with host_code():
                    for delta in held:
                        self._on_delta(delta)
            return envelope

        return note_and_release

    def sent(self) -> None:
        """Note that a request has been written."""
        self._sent.set()

    def stepped(self) -> None:
        """Let the imports begin if the turn does not presume anything after all."""
        if self.agent is not None and not (self.agent.is_presuming or self.agent.may_presume):
            self._sent.set()

    async def wait_sent(self) -> None:
        """Wait until the request has been written, or there will be none before the servers have started.

        The MCP SDK is imported after that. An import takes most of a second, and holds up whatever else the
        process does meanwhile, in the same thread or in another one. A request that is not written within a
        second waits for something else, such as a permit, and so the servers need not wait for it.
        """
        with anyio.move_on_after(_LONGEST_S):
            await self._sent.wait()
