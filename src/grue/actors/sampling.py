"""MCP sampling: answers the requests of servers for a completion of the host's model.

Each request has its own conversation and goes to a separate LLM actor, so that a slow completion delays only
the server that asked for it. Sampling is off if `TurnLimits.max_samplings` is 0.
"""

from collections.abc import Callable

from grue import messages as m
from grue.policies import Budget
from grue.protocol.turn.prices import Spent
from grue.runtime.actor import Mailbox
from grue.tool_sessions.server_requests import Declined, Sample, Sampled, SamplingRequest


class CurrentSampler:
    """Forwards sampling requests to the turn that is running.

    Servers get this object because a pooled session may outlive its turn, or be opened before it.

    Attributes:
        sampler: The running turn's sampler; `None` if no turn runs, or the turn allows no sampling.
    """

    def __init__(self) -> None:
        self.sampler: Sampler | None = None

    def on_behalf_of(self, server: m.ServerName, *, beside: "Sampler | None" = None) -> Sample:
        """Return the function that answers the sampling requests of one server.

        If the session is opened ahead, for the next turn, `beside` is the running turn's sampler. Until the
        running turn has ended, requests are declined, so that they do not count against that turn's limits.
        """

        async def sample(request: SamplingRequest) -> Sampled | Declined:
            if self.sampler is None or self.sampler is beside:
                return Declined("no turn is running that allows it")
            return await self.sampler.on_behalf_of(server)(request)

        return sample


class Sampler:
    """Answers at most `most` sampling requests in one turn, and declines further ones.

    It declines them, too, once they and the turn's own requests (`by_turn`) have spent `budget`. `spent` is
    what they alone have spent so far.
    """

    def __init__(
        self, llm: Mailbox[m.LlmCommand], most: int, budget: Budget, by_turn: Callable[[], Spent] = Spent
    ) -> None:
        self.spent = Spent()
        self._by_turn = by_turn
        self._llm = llm
        self._most = most
        self._budget = budget
        self._asked = 0

    def on_behalf_of(self, server: m.ServerName) -> Sample:
        """Return the function that answers the sampling requests of one server."""

        async def sample(request: SamplingRequest) -> Sampled | Declined:
            if self._asked >= self._most:
                return Declined(f"this turn allows {self._most} sampling requests, and they are used up")
            if self._by_turn().plus(self.spent.requests, self.spent.usage).reached(self._budget):
                return Declined("the budget of this turn is spent")
            self._asked += 1
            reply = await self._llm.ask(self._command(request), sender=server)
            if isinstance(reply, m.CompletionReceived | m.CompletionFailed):
                self.spent = self.spent.plus(1, reply.usage)
            if not isinstance(reply, m.CompletionReceived):
                return Declined(f"the model gave no completion: {reply.failure.message}")
            if reply.stopped:
                return Declined(f"the provider stopped the reply before its end ({reply.stopped})")
            return Sampled(reply.content or "", reply.model)

        return sample

    def _command(self, request: SamplingRequest) -> m.RequestCompletion:
        said: list[m.ConversationItem] = [m.SystemText(request.system)]
        for role, text in request.messages:
            said.append(m.UserText(text) if role == "user" else m.AssistantText(text))
        return m.RequestCompletion(
            conversation=m.ConversationId(f"sampling-{self._asked}"),
            request=self._asked,
            new=tuple(said),
            mode=m.RequireAnswer(),
        )
