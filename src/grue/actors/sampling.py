"""Sampling: a server asks the host's model, in a conversation and through an LLM actor of its own.

The turn's conversation is never touched, and a sampled reply that takes long holds nobody up but the server
that asked for it. Off unless the turn's limits allow some.
"""

from grue.mcp_transport.server_requests import Declined, Sample, Sampled, SamplingRequest
from grue.messages import (
    AssistantText,
    CompletionReceived,
    ConversationId,
    ConversationItem,
    LlmCommand,
    RequestCompletion,
    RequireAnswer,
    ServerName,
    SystemText,
    UserText,
)
from grue.runtime.channel import Mailbox


class CurrentSampler:
    """Answers for whichever turn is running: a session may have been opened before it, and outlive it.

    Attributes:
        sampler: The running turn's; `None`: it allows none, or there is no turn.
    """

    def __init__(self) -> None:
        self.sampler: Sampler | None = None

    def on_behalf_of(self, server: ServerName) -> Sample:
        """Return what answers the requests of one server."""

        async def sample(request: SamplingRequest) -> Sampled | Declined:
            if self.sampler is None:
                return Declined("no turn is running that allows it")
            return await self.sampler.on_behalf_of(server)(request)

        return sample


class Sampler:
    """Puts the servers' requests of one turn before a model.

    Args:
        llm: The LLM actor that answers them, by asks.
        most: Requests that are answered in this turn; further ones are declined.
    """

    def __init__(self, llm: Mailbox[LlmCommand], most: int) -> None:
        self._llm = llm
        self._most = most
        self._asked = 0

    def on_behalf_of(self, server: ServerName) -> Sample:
        """Return what answers the requests of one server."""

        async def sample(request: SamplingRequest) -> Sampled | Declined:
            if self._asked >= self._most:
                return Declined(f"this turn allows {self._most} sampling requests, and they are used up")
            self._asked += 1
            reply = await self._llm.ask(self._command(request), sender=server)
            if not isinstance(reply, CompletionReceived):
                return Declined(f"the model gave no completion: {reply.failure.message}")
            return Sampled(reply.content or "", reply.model)

        return sample

    def _command(self, request: SamplingRequest) -> RequestCompletion:
        said: list[ConversationItem] = [SystemText(request.system)]
        for role, text in request.messages:
            said.append(UserText(text) if role == "user" else AssistantText(text))
        return RequestCompletion(
            conversation=ConversationId(f"sampling-{self._asked}"),
            request=self._asked,
            new=tuple(said),
            mode=RequireAnswer(),
        )
