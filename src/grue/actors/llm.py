"""The LLM actor: keeps the conversation, sends requests, reports replies.

It takes no decisions: what a request looks like, what a reply means and whether to try again are the
protocol's (`chat_wire`, `retry`), what to say next is the agent's.
"""

import time

import anyio
from msgspec.structs import replace

from grue.actors.llm_endpoint import Answered, LlmEndpoint, LlmSettings
from grue.messages import (
    CompletionFailed,
    CompletionReceived,
    CompletionRetried,
    ConversationId,
    RequestCompletion,
    TurnEvent,
)
from grue.protocol.chat_wire.chat_completions import Reply, decode_reply
from grue.protocol.chat_wire.conversation import Conversation
from grue.protocol.chat_wire.failures import Fault, fault_of_status
from grue.runtime.actor import Actor, Note, reply
from grue.runtime.channel import Mailbox
from grue.runtime.trace import Envelope

__all__ = ["LlmActor", "LlmEndpoint", "LlmSettings"]


class LlmActor(Actor[RequestCompletion]):
    """Asks one endpoint for completions, one at a time.

    Args:
        mailbox: Where requests come from.
        agent: Where replies go.
        endpoint: Whom to ask; open while the actor runs, and longer where someone else holds it open.
        note: Records retries.
    """

    def __init__(
        self,
        mailbox: Mailbox[RequestCompletion],
        agent: Mailbox[TurnEvent],
        endpoint: LlmEndpoint,
        note: Note,
    ) -> None:
        super().__init__(mailbox)
        self._agent = agent
        self._endpoint = endpoint
        self._note = note
        self._conversations: dict[ConversationId, Conversation] = {}
        self._call_ids: set[str] = set()

    async def run(self) -> None:
        """Serve requests until the mailbox is closed. Cancelled, it drops the request under way."""
        async with self._endpoint:
            await super().run()

    async def receive(self, envelope: Envelope[RequestCompletion]) -> None:
        """Ask the endpoint, and tell the agent what came of it."""
        command = envelope.body
        profile = self._endpoint.profile
        conversation = self._conversations.setdefault(command.conversation, Conversation(profile))
        if conversation.profile != profile:
            conversation.adopt(profile)
        conversation.ask(command.new, command.mode)
        outcome = await self._complete(conversation, command.request, envelope.seq)
        if envelope.reply_to is not None:
            reply(envelope, outcome)
        else:
            await self._agent.send(outcome, sender=self.name, cause=envelope.seq)

    async def _complete(
        self, conversation: Conversation, request: int, cause: int
    ) -> CompletionReceived | CompletionFailed:
        attempt = 0
        while True:
            attempt += 1
            begun = time.monotonic()
            answer = await self._endpoint.post(conversation.body(self._endpoint.settings))
            reply = self._read(answer, conversation, request)
            if isinstance(reply, Reply):
                conversation.keep(reply)
                self._call_ids.update(call.call_id for call in reply.tool_calls)
                return self._received(reply, request, time.monotonic() - begun)
            failure = replace(self._endpoint.describe(reply), attempts=attempt)
            delay_s: float | None = 0.0
            if self._endpoint.learn(reply):
                conversation.adopt(self._endpoint.profile)
            else:
                retry_after_s = answer.retry_after_s if isinstance(answer, Answered) else None
                delay_s = self._endpoint.delay(attempt, failure, retry_after_s)
            if delay_s is None:
                return CompletionFailed(request=request, failure=failure)
            retried = CompletionRetried(request=request, attempt=attempt, delay_s=delay_s, failure=failure)
            self._note(retried, sender=self.name, cause=cause)
            await anyio.sleep(delay_s)

    def _read(self, answer: Answered | Fault, conversation: Conversation, request: int) -> Reply | Fault:
        match answer:
            case Fault():
                return answer
            case Answered(status=status) if 200 <= status < 300:
                return decode_reply(answer.body, conversation.names, request=request, used_ids=self._call_ids)
            case _:
                return fault_of_status(answer.status, answer.body, answer.location)

    def _received(self, reply: Reply, request: int, elapsed_s: float) -> CompletionReceived:
        return CompletionReceived(
            request=request,
            content=reply.content,
            tool_calls=reply.tool_calls,
            finish_reason=reply.finish_reason,
            model=reply.model or self._endpoint.settings.model,
            usage=reply.usage,
            elapsed_s=elapsed_s,
        )
