"""The LLM actor: keeps the conversation, sends requests to the endpoint and reports replies to the agent.

It decides nothing itself. `protocol/chat_wire/` encodes requests and decodes replies, `protocol/retry.py`
decides whether to retry, and the agent decides what to say next. `llm_transport/` does the HTTP. Come here
for the order of attempts: retries, adapting to an endpoint's error, and asking again after a cut reply.
"""

import time
from collections.abc import Callable

import anyio
import anyio.to_thread
from msgspec.structs import replace

from grue.llm_transport.endpoint import LlmEndpoint, LlmSettings
from grue.llm_transport.exchange import LONG_BYTES, Answered, Streamed
from grue.messages import (
    CheckToolSupport,
    CompletionFailed,
    CompletionReceived,
    CompletionRetried,
    ConversationId,
    LlmCommand,
    LlmFailure,
    LlmNote,
    ReplyCut,
    RequestCompletion,
    TextDelta,
    ToolSupportChecked,
    TurnEvent,
)
from grue.protocol.chat_wire.conversation import Conversation
from grue.protocol.chat_wire.failures import Fault, fault_of_status
from grue.protocol.chat_wire.profile_adaptation import may_blame_attachments
from grue.protocol.chat_wire.reply import Reply
from grue.protocol.chat_wire.wire_format import Delta
from grue.runtime.actor import Actor, Note, reply
from grue.runtime.channel import Mailbox
from grue.runtime.trace import Envelope

__all__ = ["LlmActor", "LlmEndpoint", "LlmSettings"]


class LlmActor(Actor[LlmCommand]):
    """Requests completions from one endpoint, one at a time.

    Args:
        mailbox: Receives the requests.
        agent: Gets the replies.
        endpoint: The endpoint to ask. It is open while the actor runs, and stays open if another user has
            entered it too.
        note: Records retries, cut replies and streamed text in the trace.
    """

    def __init__(
        self,
        mailbox: Mailbox[LlmCommand],
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
        """Serve requests until the mailbox is closed. A cancellation aborts the request in progress."""
        async with self._endpoint:
            await super().run()

    async def receive(self, envelope: Envelope[LlmCommand]) -> None:
        """Ask the endpoint and send the outcome to the agent, or as the reply if the sender awaits one."""
        outcome: ToolSupportChecked | CompletionReceived | CompletionFailed
        match envelope.body:
            case CheckToolSupport():
                outcome = await self._endpoint.tool_support()
            case RequestCompletion() as command:
                outcome = await self._complete(command, envelope.seq)
        if envelope.reply_to is not None:
            reply(envelope, outcome)
        else:
            await self._agent.send(outcome, sender=self.name, cause=envelope.seq)

    async def _complete(
        self, command: RequestCompletion, cause: int
    ) -> CompletionReceived | CompletionFailed:
        begun = time.monotonic()
        profile = self._endpoint.profile
        conversation = self._conversations.setdefault(command.conversation, Conversation(profile))
        if conversation.profile != profile:
            conversation.adopt(profile)
        conversation.ask(command.new, command.mode)

        def say(note: LlmNote) -> None:
            self._note(note, sender=self.name, cause=cause)

        asking = _Asking(self._endpoint, conversation, command, self._call_ids, say)
        reply = await asking.whole_reply()
        if isinstance(reply, LlmFailure):
            return CompletionFailed(request=command.request, failure=reply)
        conversation.keep(reply)
        self._call_ids.update(call.call_id for call in reply.tool_calls)
        return CompletionReceived(
            request=command.request,
            content=reply.content,
            refusal=reply.refusal,
            reasoning=reply.reasoning,
            tool_calls=reply.tool_calls,
            finish_reason=reply.finish_reason,
            model=reply.model or self._endpoint.settings.model,
            usage=reply.usage,
            elapsed_s=time.monotonic() - begun,
        )


class _Asking:
    """One completion, which may take several requests: retries, adaptations, a larger token limit."""

    def __init__(
        self,
        endpoint: LlmEndpoint,
        conversation: Conversation,
        command: RequestCompletion,
        used_ids: set[str],
        say: Callable[[LlmNote], None],
    ) -> None:
        self._endpoint = endpoint
        self._conversation = conversation
        self._command = command
        self._used_ids = used_ids
        self._say = say
        self._shown = False

    async def whole_reply(self) -> Reply | LlmFailure:
        """Return the reply. If it was cut, ask once more with a larger token limit where there is one.

        If the second request fails, the cut reply is returned.
        """
        settings = self._endpoint.settings
        reply = await self._reply(settings)
        if isinstance(reply, LlmFailure) or not reply.cut:
            return reply
        larger = self._endpoint.larger_limit()
        self._say_cut(reply, settings, retried_with=larger)
        if larger is None:
            return reply
        shown = self._shown
        self._start_over()
        settings = replace(settings, max_tokens=larger)
        again = await self._reply(settings)
        if isinstance(again, LlmFailure):
            if shown:
                self._show_again(reply)
            return reply
        if again.cut:
            self._say_cut(again, settings)
        return replace(again, usage=reply.usage + again.usage)

    async def _reply(self, settings: LlmSettings) -> Reply | LlmFailure:
        endpoint, conversation = self._endpoint, self._conversation
        attempt = lessons = 0
        while True:
            attempt += 1
            answer = await self._exchange(settings)
            reply = await self._read(answer)
            if isinstance(reply, Reply):
                return reply
            failure = replace(endpoint.describe(reply), attempts=attempt)
            delay_s: float | None = 0.0
            if endpoint.adapt_to_error(reply, conversation.profile):
                lessons += 1
                conversation.adopt(endpoint.profile)
            elif may_blame_attachments(reply.status) and conversation.drop_attachments():
                lessons += 1
            else:
                retry_after_s = answer.retry_after_s if isinstance(answer, Answered) else None
                delay_s = endpoint.delay(attempt - lessons, failure, retry_after_s)
            if delay_s is None:
                return failure
            request = self._command.request
            self._say(CompletionRetried(request=request, attempt=attempt, delay_s=delay_s, failure=failure))
            self._start_over()
            await anyio.sleep(delay_s)

    async def _exchange(self, settings: LlmSettings) -> Answered | Fault:
        stream = self._command.stream and self._endpoint.profile.streams
        body = self._conversation.body(settings, stream=stream)
        streamed = Streamed(self._conversation.format.assembler(), self._show) if stream else None
        return await self._endpoint.post(body, streamed)

    async def _read(self, answer: Answered | Fault) -> Reply | Fault:
        if isinstance(answer, Fault):
            return answer
        if len(answer.body) <= LONG_BYTES:
            return self._understood(answer)
        return await anyio.to_thread.run_sync(self._understood, answer, abandon_on_cancel=True)

    def _understood(self, answer: Answered) -> Reply | Fault:
        if not 200 <= answer.status < 300:
            return fault_of_status(answer.status, answer.body, answer.location)
        request = self._command.request
        return self._conversation.read(answer.body, request=request, used_ids=self._used_ids)

    def _say_cut(self, reply: Reply, settings: LlmSettings, retried_with: int | None = None) -> None:
        self._say(
            ReplyCut(
                request=self._command.request,
                limit_tokens=self._endpoint.profile.limit(settings),
                retried_with=retried_with,
                usage=reply.usage,
            )
        )

    def _show(self, delta: Delta) -> None:
        self._shown = True
        self._say(TextDelta(request=self._command.request, text=delta.text, part=delta.part))

    def _start_over(self) -> None:
        """Tell observers of the stream to discard the text of this reply that they have so far."""
        if self._shown:
            self._shown = False
            self._say(TextDelta(request=self._command.request, text="", restart=True))

    def _show_again(self, reply: Reply) -> None:
        """Stream a reply again, because the reply that was to replace it has failed."""
        self._start_over()
        if reply.reasoning:
            self._show(Delta(reply.reasoning, "reasoning"))
        if reply.content:
            self._show(Delta(reply.content))
