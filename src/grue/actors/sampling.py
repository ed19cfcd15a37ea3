"""MCP sampling: answers the requests of servers for a completion of the host's model.

Each request has its own conversation. All requests of a turn's servers go to one LLM actor, which answers
them one at a time. The turn's own requests go to another LLM actor, so a server's slow completion does not
delay the turn's requests. Sampling is off if `TurnLimits.max_samplings` is 0.
"""

from __future__ import annotations

from collections.abc import Callable

from grue import messages as m
from grue.policies import TurnLimits
from grue.protocol.turn.prices import Spent
from grue.runtime.actor import Mailbox
from grue.tool_sessions.server_requests import Declined, Sample, Sampled, SamplingRequest


class CurrentSampler:
    """Forwards sampling requests to the turn that is running.

    A session uses this object, and not a turn's `Sampler`, because a pooled session may outlive its turn, or
    be opened before the turn begins.

    Attributes:
        sampler: The running turn's sampler; `None` if no turn runs, or the turn allows no sampling.
    """

    def __init__(self) -> None:
        self.sampler: Sampler | None = None

    def on_behalf_of(self, server: m.ServerName, *, beside: Sampler | None = None) -> Sample:
        """Return the function that answers the sampling requests of one server.

        If the session is opened ahead, for the next turn, `beside` is the running turn's sampler. Until the
        running turn has ended, requests are declined, so that they do not count against that turn's limits.
        """

        async def sample(request: SamplingRequest) -> Sampled | Declined:
            if self.sampler is None or self.sampler is beside:
                return Declined("no turn is running that allows it")
            return await self.sampler.sample(server, request)

        return sample


class Sampler:
    """Answers the sampling requests of one turn, within `limits`, and tells the agent what each has cost.

    Requests above `max_samplings` are declined. So are requests for which the budget has no room: `spent`
    returns what the turn and its servers have spent, and one request is held back for the turn's answer.
    """

    def __init__(
        self,
        llm: Mailbox[m.LlmCommand],
        agent: Mailbox[m.TurnEvent],
        limits: TurnLimits,
        spent: Callable[[], Spent],
    ) -> None:
        self._llm = llm
        self._agent = agent
        self._limits = limits
        self._spent = spent
        self._asked = self._ended = 0

    async def sample(self, server: m.ServerName, request: SamplingRequest) -> Sampled | Declined:
        """Answer or decline a sampling request of a server."""
        most, under_way = self._limits.max_samplings, self._asked - self._ended
        if self._asked >= most:
            return Declined(f"this turn allows {most} sampling requests, and they are used up")
        if self._spent().plus(under_way + 1, m.Usage()).reached(self._limits.budget):
            return Declined("the budget of this turn is spent")
        self._asked += 1
        reply = await self._llm.ask(self._command(request), sender=server)
        self._ended += 1
        if isinstance(reply, m.CompletionPostponed):
            return Declined("the model's reply comes later, in a batch of the provider")
        ended = m.ServerSampled(server=server, usage=reply.usage)
        # Tell the agent before the server gets the reply. Otherwise the server's result could reach the agent
        # first, and the agent would compare the budget without this cost.
        await self._agent.send(ended, sender=self._llm.name)
        if not isinstance(reply, m.CompletionReceived):
            return Declined(f"the model gave no completion: {reply.failure.message}")
        if reply.stopped:
            return Declined(f"the provider stopped the reply before its end ({reply.stopped})")
        return Sampled(reply.content or "", reply.model)

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
