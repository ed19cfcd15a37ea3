"""MCP sampling: answers the requests of servers for a completion of the host's model.

Each request has a conversation and an LLM actor of its own, so a slow completion blocks neither the agent nor
the requests of other servers. The requests of one server are answered one at a time.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeAlias

import anyio
from msgspec import Struct, field

from grue import messages as m
from grue.actors.llm import LlmActor
from grue.policies import TurnLimits
from grue.protocol.turn.prices import Spent
from grue.runtime.actor import Actor, Mailbox, MailboxClosed
from grue.tool_sessions.server_requests import Declined, Sample, Sampled, SamplingRequest

_REPORT_S = 1.0
StartLlm: TypeAlias = Callable[[], tuple[Actor[m.LlmCommand], anyio.CancelScope]]  # the scope ends the actor


class CurrentSampler:
    """Forwards sampling requests to the running turn, because a pooled session may outlive its turn."""

    def __init__(self) -> None:
        self.sampler: Sampler | None = None  # that of the running turn, if it allows sampling

    def on_behalf_of(self, server: m.ServerName, *, beside: Sampler | None = None) -> Sample:
        """Return the function that answers the sampling requests of one server."""
        # `beside`: the running turn's sampler, if the session is for the next turn. Until the running turn
        # has ended, requests are declined, so that they do not count against its limits.

        async def sample(request: SamplingRequest) -> Sampled | Declined:
            if self.sampler is None or self.sampler is beside:
                return Declined("no turn is running that allows it")
            return await self.sampler.sample(server, request)

        return sample


class Sampler(Struct):
    """Answers the sampling requests of one turn, within `limits`, and tells the agent what each has cost."""

    # `spent` returns what the turn has spent, requests of servers included; `sampled` returns the number of
    # these requests. One request of the budget is held back for the turn's answer.

    start_llm: StartLlm
    agent: Mailbox[m.TurnEvent]
    limits: TurnLimits
    spent: Callable[[], Spent]
    sampled: Callable[[], int]
    _asked: int = 0
    _ended: int = 0
    _reported: int = 0
    _alone: defaultdict[m.ServerName, anyio.Lock] = field(default_factory=lambda: defaultdict(anyio.Lock))

    async def sample(self, server: m.ServerName, request: SamplingRequest) -> Sampled | Declined:
        """Answer or decline a sampling request of a server. The cost is reported after a cancellation too."""
        most, under_way = self.limits.max_samplings, self._asked - self._ended
        under_way += max(0, self._reported - self.sampled())  # the agent may not have read a report yet
        if self._asked >= most:
            return Declined(f"the limit of sampling requests in this turn is used up: {most}")
        if self.spent().plus(under_way + 1, m.Usage()).reached(self.limits.budget):
            return Declined("the budget of this turn is spent")
        self._asked += 1
        command = self._command(request)
        try:
            async with self._alone[server]:
                reply = await self._reply(server, command)
        finally:
            self._ended += 1
        if reply is None:
            return Declined("the turn has ended")
        if isinstance(reply, m.CompletionPostponed):
            return Declined("the model's reply comes later, in a batch of the provider")
        if not isinstance(reply, m.CompletionReceived):
            return Declined(f"the model gave no completion: {reply.failure.message}")
        if reply.stopped:
            return Declined(f"the provider stopped the reply before its end ({reply.stopped})")
        return Sampled(reply.content or "", reply.model)

    async def _reply(self, server: m.ServerName, command: m.RequestCompletion) -> Any:
        """Return the outcome of a request to the model; `None`: the turn ended first."""
        llm, scope = self.start_llm()
        reply: Any = None
        try:
            with contextlib.suppress(MailboxClosed):
                reply = await llm.mailbox.ask(command, sender=server)
        finally:
            scope.cancel()
            if not isinstance(reply, m.CompletionPostponed):
                await self._report(server, llm, reply)
        return reply

    async def _report(
        self,
        server: m.ServerName,
        llm: Actor[m.LlmCommand],
        reply: m.CompletionReceived | m.CompletionFailed | None,
    ) -> None:
        """Tell the agent what a request has cost, even while this task is being cancelled."""
        # The server gets its reply after this report. Otherwise its tool's result could overtake the report.
        usage = m.Usage() if reply is None else reply.usage
        if reply is None and isinstance(llm, LlmActor):
            usage = llm.unreported
        bound = anyio.current_time() + _REPORT_S
        with anyio.CancelScope(shield=True, deadline=bound), contextlib.suppress(MailboxClosed):
            await self.agent.send(m.ServerSampled(server=server, usage=usage), sender=llm.name)
            self._reported = max(self._reported, self.sampled()) + 1

    def _command(self, request: SamplingRequest) -> m.RequestCompletion:
        said = ((m.UserText if role == "user" else m.AssistantText)(text) for role, text in request.messages)
        return m.RequestCompletion(
            conversation=m.ConversationId(f"sampling-{self._asked}"),
            request=self._asked,
            new=(m.SystemText(request.system), *said),
            mode=m.RequireAnswer(),
        )
