"""What makes the LLM actor of a turn: the factory of an endpoint, or one of the host's.

To ask a model in a way of your own, write such a factory: any actor that takes `RequestCompletion` will do.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from grue import messages as m
from grue.actors.llm import LentConversation, LlmActor
from grue.policies import SupportCheck
from grue.protocol.chat_wire.profile import WireProfile
from grue.runtime.actor import Actor, Mailbox, Note
from grue.runtime.trace.recorder import Envelope
from grue.transports.llm.endpoint import LlmEndpoint

LlmFactory: TypeAlias = Callable[[Mailbox[m.LlmCommand], Mailbox[m.TurnEvent], Note], Actor[m.LlmCommand]]
"""Makes the actor that takes `RequestCompletion`. Arguments: its mailbox, the agent's, and its `note`."""


@runtime_checkable
class LendingFactory(Protocol):
    """An `LlmFactory` whose actors can continue a conversation that began before their turn.

    `Runner.conversation` and `Runner.resume` need one. A factory of your own becomes one with these members.
    """

    @property
    def profile(self) -> WireProfile:
        """How the model's messages are written."""
        ...

    @property
    def model(self) -> str:
        """The model. Thoughts of another one are not sent to it."""
        ...

    def lending(self, lent: LentConversation) -> LlmFactory:
        """Return a factory for one turn, whose actor continues `lent`.

        The actor answers requests for the conversation `lent.id` with `lent.ask` and `lent.keep`, and keeps
        all other conversations itself.
        """
        ...


class EndpointActors:
    """The `LlmFactory` of an endpoint: makes LLM actors that send their requests to it.

    Args:
        endpoint: The endpoint.
        lent: The conversation that the turn continues; `None`: none.
        on_sent: Called whenever a request has been written; `None`: nobody asks.
        first: A request that is in the trace already, asked before all others; `None`: none.
    """

    def __init__(
        self,
        endpoint: LlmEndpoint,
        lent: LentConversation | None = None,
        on_sent: Callable[[], None] | None = None,
        first: Envelope[m.LlmCommand] | None = None,
    ) -> None:
        self._first = first
        self._endpoint = endpoint
        self._lent = lent
        self._on_sent = on_sent

    def __call__(
        self, mailbox: Mailbox[m.LlmCommand], agent: Mailbox[m.TurnEvent], note: Note
    ) -> Actor[m.LlmCommand]:
        """Return an LLM actor for one turn."""
        return LlmActor(mailbox, agent, self._endpoint, note, self._lent, self._on_sent, self._first)

    @property
    def profile(self) -> WireProfile:
        """The endpoint's capabilities, as far as they are known."""
        return self._endpoint.profile

    @property
    def model(self) -> str:
        """The model that the endpoint is asked for."""
        return self._endpoint.settings.model

    def lending(self, lent: LentConversation) -> "EndpointActors":
        """Return a factory for the turn that continues this conversation."""
        return EndpointActors(self._endpoint, lent)

    def asking_first(self, lent: LentConversation, first: Envelope[m.LlmCommand]) -> "EndpointActors":
        """Return a factory for a turn that goes on with a request which is in its trace already."""
        return EndpointActors(self._endpoint, lent, first=first)

    def reporting_sent(self, on_sent: Callable[[], None]) -> "EndpointActors":
        """Return a factory whose actors call `on_sent` whenever a request has been written."""
        return EndpointActors(self._endpoint, self._lent, on_sent)

    def support_check(self) -> SupportCheck:
        """Return when the turn is to check that the model can call tools."""
        return self._endpoint.support_check()
