"""The LLM actor: keeps the conversation, sends requests to the endpoint and reports replies to the agent.

It decides nothing itself. `protocol/chat_wire/` encodes requests and decodes replies,
`protocol/completion_attempts.py` decides what follows a failed or a cut reply, and the agent decides what to
say next. `llm_transport/` does the HTTP.
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio
import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from grue.actors.asking import Asking
from grue.large_data import LONG
from grue.llm_transport.endpoint import LlmEndpoint, LlmSettings
from grue.messages import (
    AssistantReply,
    CallId,
    CheckToolSupport,
    CompletionFailed,
    CompletionReceived,
    ConversationId,
    DropCompletion,
    LlmCommand,
    LlmFailure,
    LlmNote,
    ReplyDropped,
    RequestCompletion,
    RequireAnswer,
    RewriteHistory,
    SchemaIgnored,
    ThoughtsDropped,
    ToolSupportChecked,
    TurnEvent,
    Usage,
)
from grue.protocol.chat_wire.answer_shape import has_shape
from grue.protocol.chat_wire.conversation import Conversation
from grue.protocol.chat_wire.reply import Reply
from grue.protocol.history import History
from grue.runtime.actor import Actor, Note, reply
from grue.runtime.background_tasks import BackgroundTasks
from grue.runtime.channel import Mailbox
from grue.runtime.clock import now
from grue.runtime.trace import Envelope

__all__ = ["LentConversation", "LlmActor", "LlmEndpoint", "LlmSettings"]

_AFTER_SPAWN_S = 0.002
"""How long the connect waits at the beginning of a turn, so that the servers are started first."""

_Outcome: TypeAlias = ToolSupportChecked | CompletionReceived | CompletionFailed | ReplyDropped


class LentConversation(Struct):
    """A conversation that outlives the turn, lent to the turn's LLM actor.

    It brings what was said before, encoded already, so that a turn costs no more late in a conversation than
    early in it.

    Attributes:
        id: The conversation that the turn's requests name.
        encoded: The conversation. Only this actor uses it during the turn.
        save: Puts what is new in it on file. Called before the agent can act on it.
        told: The last request whose items are in the conversation.
        reported: How many replies with thoughts that the endpoint cannot read have been reported.
    """

    id: ConversationId
    encoded: Conversation
    save: Callable[[], Awaitable[None]]
    told: RequestCompletion | None = None
    reported: int = 0

    async def ask(self, command: RequestCompletion) -> Conversation:
        """Add what a request says, put it on file, and return the conversation whose `body` is to be sent.

        A request aside is not added: its conversation is a copy.
        """
        if command.aside:
            return self.encoded.aside(command.new, command.mode)
        self.encoded.ask(command.new, command.mode)
        self.told = command
        await self.save()
        return self.encoded

    async def keep(self, reply: Reply) -> AssistantReply:
        """Keep the reply to a request that was not aside, and put it on file before the agent gets it."""
        kept = self.encoded.keep(reply)
        await self.save()
        return kept

    async def change(self, command: RewriteHistory) -> None:
        """Make the history shorter, and put that on file."""
        self.encoded.change(command.change)
        await self.save()


class _Asked(Struct):
    """A request whose texts are in the conversation.

    Attributes:
        lent: The conversation, if it outlives the turn and gets the reply.
        begun: When it was asked, on the event loop's clock.
    """

    command: RequestCompletion
    conversation: Conversation
    lent: LentConversation | None
    asking: Asking
    model: str
    begun: float


class LlmActor(Actor[LlmCommand]):
    """Requests completions from one endpoint, one at a time.

    Args:
        mailbox: Receives the requests.
        agent: Gets the replies.
        endpoint: The endpoint to ask. It is open while the actor runs, and stays open if another user has
            entered it too.
        note: Records retries, cut replies and streamed text in the trace.
        lent: The conversation that the turn continues; `None`: the turn begins one of its own.
        on_sent: Called whenever a request has been written; `None`: nobody asks.

    Attributes:
        open_ahead: Connect to the endpoint at once, while servers start. Set it before the actor runs.
    """

    def __init__(
        self,
        mailbox: Mailbox[LlmCommand],
        agent: Mailbox[TurnEvent],
        endpoint: LlmEndpoint,
        note: Note,
        lent: LentConversation | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(mailbox)
        self._agent = agent
        self._endpoint = endpoint
        self._note = note
        self._lent = lent
        self._on_sent = on_sent
        self.open_ahead = False
        self._conversations: dict[ConversationId, Conversation] = {}
        self._call_ids: set[CallId] = set() if lent is None else lent.encoded.history.call_ids
        self._long_reply = False
        self._unreported = Usage()

    async def run(self) -> None:
        """Serve requests until the mailbox is closed. A cancellation aborts the request in progress."""
        async with self._endpoint:
            if not self.open_ahead:
                await super().run()
                return
            async with BackgroundTasks() as tasks:
                tasks.start(self._open_ahead)
                await super().run()

    async def _open_ahead(self) -> None:
        # The servers' processes are started in the same moment, and are what the turn waits for.
        await anyio.sleep(_AFTER_SPAWN_S)
        await self._endpoint.open_ahead()

    async def receive(self, envelope: Envelope[LlmCommand]) -> None:
        """Ask the endpoint and send the outcome to the agent, or as the reply if the sender awaits one."""
        match envelope.body:
            case RewriteHistory() as command:
                await self._rewrite(command)
            case CheckToolSupport():
                await self._report(await self._endpoint.tool_support(), envelope)
            case DropCompletion() as command:
                await self._report(await self._drop(command), envelope)
            case RequestCompletion(presumed=True) as command:
                await self._complete_unless_dropped(command, envelope)
            case RequestCompletion() as command:
                asked = await self._ask(command, envelope)
                await self._report(await self._answer(asked, await asked.asking.outcome()), envelope)

    async def _report(self, outcome: _Outcome, envelope: Envelope[LlmCommand]) -> None:
        if envelope.reply_to is not None:
            reply(envelope, outcome)
        else:
            await self._agent.send(outcome, sender=self.name, cause=envelope.seq)

    async def _complete_unless_dropped(
        self, command: RequestCompletion, envelope: Envelope[LlmCommand]
    ) -> None:
        """Ask in another task, and read the mailbox meanwhile, because the next message may be to drop this.

        The task that reads is not cancelled when the reply has come: a receive that is cancelled may lose the
        message that it was just given. It waits for the next message in any case. The agent sends one, or
        ends, and then the mailbox is closed. Only the exchange can be dropped. Before it, the conversation
        has to get what the request says; after it, the reply is kept and reported whole.
        """
        asked = await self._ask(command, envelope)
        droppable = anyio.CancelScope()

        async def answer() -> None:
            outcome: Reply | LlmFailure | None = None
            with droppable:
                outcome = await asked.asking.outcome()
            if outcome is not None:
                await self._report(await self._answer(asked, outcome), envelope)

        following: Envelope[LlmCommand] | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            with contextlib.suppress(anyio.EndOfStream):
                following = await self.mailbox.receive()
            if following is not None and isinstance(following.body, DropCompletion):
                droppable.cancel()
        self._unreported = asked.asking.unreported if droppable.cancelled_caught else Usage()
        if following is not None:
            await self.receive(following)

    async def _drop(self, command: DropCompletion) -> ReplyDropped:
        lent = self._lent_as(command.conversation)
        conversation = self._conversation(command.conversation) if lent is None else lent.encoded
        conversation.history.forget()
        if lent is not None:
            await lent.save()
        return ReplyDropped(request=command.request, usage=self._unreported)

    async def _rewrite(self, command: RewriteHistory) -> None:
        lent = self._lent_as(command.conversation)
        if lent is not None:
            await lent.change(command)
        else:
            self._conversation(command.conversation).change(command.change)

    async def _ask(self, command: RequestCompletion, envelope: Envelope[LlmCommand]) -> _Asked:
        """Add what a request says to its conversation; nothing is sent yet."""
        begun = now()
        lent = self._lent_as(command.conversation)
        conversation = self._conversation(command.conversation) if lent is None else lent.encoded
        profile, model = self._endpoint.profile, self._endpoint.settings.model
        if (conversation.profile, conversation.model) != (profile, model):
            conversation.adopt(profile, model)
        if command.aside:
            conversation, lent = conversation.aside(command.new, command.mode), None
        elif self._long_reply or envelope.is_long:
            # Not abandoned when it is cancelled: a lent conversation goes on in the next turn.
            await anyio.to_thread.run_sync(conversation.ask, command.new, command.mode)
        else:
            conversation.ask(command.new, command.mode)

        def say(note: LlmNote) -> None:
            self._note(note, sender=self.name, cause=envelope.seq)

        if lent is not None:
            lent.told = command
            self._report_thoughts(lent, say)
            await lent.save()
        asking = Asking(self._endpoint, conversation, command, say, self._on_sent)
        return _Asked(command, conversation, lent, asking, model, begun)

    async def _answer(
        self, asked: _Asked, reply: Reply | LlmFailure
    ) -> CompletionReceived | CompletionFailed:
        """Keep the reply, and return what the agent gets."""
        command, lent = asked.command, asked.lent
        if isinstance(reply, LlmFailure):
            return CompletionFailed(request=command.request, failure=reply)
        self._judge_shape(command, reply, asked.asking.say)
        kept = asked.conversation.keep(reply)
        if not command.aside:
            texts = (reply.content or "", *(call.arguments for call in reply.tool_calls))
            self._long_reply = sum(map(len, texts)) >= LONG
        if lent is not None:
            await lent.save()
        return CompletionReceived(
            request=command.request,
            content=reply.content,
            refusal=reply.refusal,
            reasoning=reply.reasoning,
            tool_calls=reply.tool_calls,
            finish_reason=reply.finish_reason,
            model=reply.model or asked.model,
            usage=reply.usage,
            elapsed_s=now() - asked.begun,
            echo=kept.echo,
            prompt_tokens=reply.prompt_tokens,
            facts=reply.facts,
        )

    def _lent_as(self, name: ConversationId) -> LentConversation | None:
        return self._lent if self._lent is not None and self._lent.id == name else None

    def _conversation(self, name: ConversationId) -> Conversation:
        if name not in self._conversations:
            endpoint, history = self._endpoint, History(call_ids=self._call_ids)
            self._conversations[name] = Conversation(
                endpoint.profile, model=endpoint.settings.model, history=history
            )
        return self._conversations[name]

    def _judge_shape(self, command: RequestCompletion, reply: Reply, say: Callable[[LlmNote], None]) -> None:
        """Let prompts state the schema from now on if the reply does not have the shape asked for."""
        endpoint = self._endpoint
        answer = command.mode.answer if isinstance(command.mode, RequireAnswer) else None
        judged = reply.content and not (reply.tool_calls or reply.cut or reply.refusal)
        if answer is None or not judged or endpoint.profile.states_schema:
            return
        if not has_shape(answer.schema, reply.content or ""):
            endpoint.profile = replace(endpoint.profile, ignores_schema=True)
            model = endpoint.settings.model
            say(SchemaIgnored(request=command.request, endpoint=endpoint.profile.name, model=model))

    def _report_thoughts(self, lent: LentConversation, say: Callable[[LlmNote], None]) -> None:
        conversation, replies = lent.encoded, lent.encoded.unread_thoughts
        if replies and replies != lent.reported:
            say(
                ThoughtsDropped(
                    conversation=lent.id,
                    replies=replies,
                    wire=conversation.profile.wire,
                    model=conversation.model,
                )
            )
        lent.reported = replies
