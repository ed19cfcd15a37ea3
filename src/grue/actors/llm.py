"""The LLM actor: keeps the conversation, sends requests to the endpoint and reports replies to the agent.

It decides nothing itself. `protocol/chat_wire/` encodes requests and decodes replies,
`protocol/turn/completion_attempts.py` decides what follows a failed or a cut reply, and the agent decides
what to say next. `transports/llm/` does the HTTP.
"""

import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio
import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.actors.asking import Asking
from grue.protocol.answers import has_shape
from grue.protocol.chat_wire.conversation import Conversation
from grue.protocol.chat_wire.reply import Reply
from grue.protocol.context.history import History
from grue.protocol.retry import RetryPolicy
from grue.protocol.turn.completion_attempts import Breaker, after_all, moves_on
from grue.runtime.actor import Actor, Mailbox, Note, reply
from grue.runtime.large_data import LONG
from grue.runtime.loops.beside_loop import now
from grue.runtime.trace.recorder import Envelope
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings
from grue.transports.llm.reply_room import RequestPostponed

__all__ = ["LentConversation", "LlmActor", "LlmEndpoint", "LlmSettings"]

_Outcome: TypeAlias = (
    m.ToolSupportChecked | m.CompletionReceived | m.CompletionFailed | m.CompletionPostponed | m.ReplyDropped
)


def offer_changed(
    command: m.RequestCompletion,
    before: tuple[m.ToolDefinition, ...],
    now: tuple[m.ToolDefinition, ...],
) -> m.OfferChanged | None:
    """Return in what the tools of a request differ from those offered before; `None`: in nothing.

    The first offer of a conversation differs from nothing.
    """
    if before is now or not before:
        return None
    told = [{tool.name: (tool.description, tool.input_schema) for tool in tools} for tools in (before, now)]
    old, new = told
    if old == new:
        return None
    return m.OfferChanged(
        conversation=command.conversation,
        request=command.request,
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        changed=tuple(name for name in new if name in old and old[name] != new[name]),
    )


async def _save_nothing() -> None:
    """Do nothing: the conversation ends with its turn."""


class LentConversation(Struct):
    """A conversation, lent to the actor that asks a model in it.

    One that outlives the turn brings what was said before, encoded already, so that a turn costs no more late
    in a conversation than early in it.

    Attributes:
        id: The conversation that the turn's requests name.
        encoded: The conversation. Only this actor uses it during the turn.
        save: Puts what is new in it on file. Called before the agent can act on it. Default: nothing.
        told: The last request whose items are in the conversation.
        reported: How many replies with thoughts that the endpoint cannot read have been reported.
    """

    id: m.ConversationId
    encoded: Conversation
    save: Callable[[], Awaitable[None]] = _save_nothing
    told: m.RequestCompletion | None = None
    reported: int = 0

    async def ask(self, command: m.RequestCompletion, *, long: bool = False) -> Conversation:
        """Add what a request says, put it on file, and return the conversation whose `body` is to be sent.

        A request aside is not added: its conversation is a copy.

        Args:
            command: The request.
            long: What it says may be megabytes, and is encoded in a thread.
        """
        if command.aside:
            return self.encoded.aside(command.new, command.mode)
        if long:
            # Not abandoned when it is cancelled: the conversation may go on in the next turn.
            await anyio.to_thread.run_sync(self.encoded.ask, command.new, command.mode)
        else:
            self.encoded.ask(command.new, command.mode)
        self.told = command
        await self.save()
        return self.encoded

    async def answered(
        self, command: m.RequestCompletion, asked: Conversation, reply: Reply, elapsed_s: float
    ) -> m.CompletionReceived:
        """Keep the reply, put it on file unless the request was aside, and return what the agent gets.

        Args:
            command: The request.
            asked: What `ask` has returned for it.
            reply: The reply.
            elapsed_s: Seconds since the request was asked, retries included.
        """
        kept = asked.keep(reply)
        if not command.aside:
            await self.save()
        return m.CompletionReceived(
            request=command.request,
            content=reply.content,
            refusal=reply.refusal,
            reasoning=reply.reasoning,
            tool_calls=reply.tool_calls,
            finish_reason=reply.finish_reason,
            model=reply.model or asked.model,
            usage=reply.usage,
            elapsed_s=elapsed_s,
            echo=kept.echo,
            prompt_tokens=reply.prompt_tokens,
            facts=reply.facts,
            stopped=reply.stopped,
            written=reply.written,
            tokens=reply.tokens,
        )

    async def change(self, command: m.RewriteHistory) -> None:
        """Make the history shorter, and put that on file."""
        self.encoded.change(command.change)
        await self.save()


class _Asked(Struct):
    """A request whose texts are in the conversation.

    Attributes:
        lent: The conversation that gets the reply; `conversation` is a copy if the request is aside.
        begun: When it was asked, on the event loop's clock.
        failures: Of the models that could not be asked.
    """

    command: m.RequestCompletion
    conversation: Conversation
    lent: LentConversation
    asking: Asking
    begun: float
    failures: tuple[m.LlmFailure, ...] = ()


class LlmActor(Actor[m.LlmCommand]):
    """Requests completions one at a time, from an endpoint, or if it cannot be asked, the next of its chain.

    Args:
        mailbox: Receives the requests.
        agent: Gets the replies.
        endpoint: The endpoint to ask, with its chain. They are open while the actor runs, and stay open if
            another user has entered them too.
        note: Records retries, cut replies and streamed text in the trace.
        lent: The conversation that the turn continues; `None`: the turn begins one of its own.
        on_sent: Called whenever a request has been written; `None`: nobody asks.
        first: A request that is in the trace already, asked before all others; `None`: none.
    """

    def __init__(
        self,
        mailbox: Mailbox[m.LlmCommand],
        agent: Mailbox[m.TurnEvent],
        endpoint: LlmEndpoint,
        note: Note,
        lent: LentConversation | None = None,
        on_sent: Callable[[], None] | None = None,
        first: Envelope[m.LlmCommand] | None = None,
    ) -> None:
        super().__init__(mailbox)
        self._first = first
        self._agent = agent
        self._chain = self._endpoint = endpoint
        self._has_chosen = len(endpoint.chain) == 1
        self._note = note
        self._lent = lent
        self._on_sent = on_sent
        self._conversations = {} if lent is None else {lent.id: lent}
        self._call_ids: set[m.CallId] = set() if lent is None else lent.encoded.history.call_ids
        self._long_reply = False
        self._unreported = m.Usage()

    async def run(self) -> None:
        """Serve requests until the mailbox is closed. A cancellation aborts the request in progress."""
        async with self._chain:
            if self._first is not None:
                await self.receive(self._first)
            await super().run()

    async def receive(self, envelope: Envelope[m.LlmCommand]) -> None:
        """Ask the endpoint and send the outcome to the agent, or as the reply if the sender awaits one."""
        match envelope.body:
            case m.RewriteHistory() as command:
                await self._conversation(command.conversation).change(command)
            case m.CheckToolSupport():
                await self._report(await self._endpoint.tool_support(), envelope)
            case m.DropCompletion() as command:
                await self._report(await self._drop(command), envelope)
            case m.RequestCompletion(presumed=True) as command:
                await self._complete_unless_dropped(command, envelope)
            case m.RequestCompletion() as command:
                asked = await self._ask(command, envelope)
                try:
                    outcome = await self._outcome(asked)
                except RequestPostponed as waits:
                    postponed = m.CompletionPostponed(request=command.request, item=waits.item)
                    await self._report(postponed, envelope)
                    return
                await self._report(await self._answer(asked, outcome), envelope)

    async def _outcome(self, asked: _Asked) -> Reply | m.LlmFailure:
        """Ask until a model of the chain has answered, or none is left (`completion_attempts.py`)."""
        tried: list[LlmEndpoint] = []
        while True:
            outcome = await asked.asking.outcome()
            if isinstance(outcome, Reply):
                self._endpoint.breaker = Breaker()
                return outcome
            asked.failures = (*asked.failures, outcome)
            if len(self._chain.chain) == 1 or not moves_on(outcome):
                return after_all(asked.failures)
            self._endpoint.breaker = self._endpoint.breaker.failed(outcome, now())
            tried.append(self._endpoint)
            offers = isinstance(asked.command.mode, m.OfferTools)
            following = self._chain.after(tried, now(), tools=offers)
            if following is None:
                return after_all(asked.failures)
            await self._move(asked, following, outcome)

    async def _move(self, asked: _Asked, following: LlmEndpoint, failure: m.LlmFailure) -> None:
        """Have another endpoint asked, from this request on. The conversation is encoded for it."""
        asking, conversation, command = asked.asking, asked.conversation, asked.command
        asking.take_back()
        self._endpoint = following
        asking.say(
            m.ModelPassedOver(
                request=command.request,
                model=failure.model,
                address=failure.endpoint,
                reason=failure.message,
                asks=following.asked(),
            )
        )
        adopt = functools.partial(conversation.adopt, following.profile, following.settings.model)
        if conversation.size >= LONG:
            await anyio.to_thread.run_sync(adopt)
        else:
            adopt()
        if asked.lent is self._lent and not command.aside:
            self._report_thoughts(asked.lent, asking.say)
        asked.asking = Asking(
            following,
            conversation,
            command,
            asking.say,
            self._on_sent,
            lost=asking.unreported,
            retry=_patience(following),
        )

    async def _report(self, outcome: _Outcome, envelope: Envelope[m.LlmCommand]) -> None:
        if envelope.reply_to is not None:
            reply(envelope, outcome)
        else:
            await self._agent.send(outcome, sender=self.name, cause=envelope.seq)

    async def _complete_unless_dropped(
        self, command: m.RequestCompletion, envelope: Envelope[m.LlmCommand]
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
            outcome: Reply | m.LlmFailure | None = None
            with droppable:
                outcome = await self._outcome(asked)
            if outcome is not None:
                await self._report(await self._answer(asked, outcome), envelope)

        following: Envelope[m.LlmCommand] | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            with contextlib.suppress(anyio.EndOfStream):
                following = await self.mailbox.receive()
            if following is not None and isinstance(following.body, m.DropCompletion):
                droppable.cancel()
        self._unreported = asked.asking.unreported if droppable.cancelled_caught else m.Usage()
        if following is not None:
            await self.receive(following)

    async def _drop(self, command: m.DropCompletion) -> m.ReplyDropped:
        lent = self._conversation(command.conversation)
        lent.encoded.history.forget()
        await lent.save()
        return m.ReplyDropped(request=command.request, usage=self._unreported)

    async def _ask(self, command: m.RequestCompletion, envelope: Envelope[m.LlmCommand]) -> _Asked:
        """Add what a request says to its conversation; nothing is sent yet."""
        begun = now()
        if not self._has_chosen:
            self._endpoint, self._has_chosen = self._chain.first(begun), True
        lent = self._conversation(command.conversation)
        profile, model = self._endpoint.profile, self._endpoint.settings.model
        if (lent.encoded.profile, lent.encoded.model) != (profile, model):
            lent.encoded.adopt(profile, model)
        before = lent.encoded.tools
        conversation = await lent.ask(command, long=self._long_reply or envelope.is_long)

        def say(note: m.LlmNote) -> None:
            self._note(note, sender=self.name, cause=envelope.seq)

        if lent is self._lent and not command.aside:
            self._report_thoughts(lent, say)
        changed = None if command.aside else offer_changed(command, before, lent.encoded.tools)
        if changed is not None:
            say(changed)
        retry = None if len(self._chain.chain) == 1 else _patience(self._endpoint)
        asking = Asking(self._endpoint, conversation, command, say, self._on_sent, retry=retry)
        return _Asked(command, conversation, lent, asking, begun)

    async def _answer(
        self, asked: _Asked, reply: Reply | m.LlmFailure
    ) -> m.CompletionReceived | m.CompletionFailed:
        """Keep the reply, and return what the agent gets."""
        command = asked.command
        if isinstance(reply, m.LlmFailure):
            return m.CompletionFailed(request=command.request, failure=reply, usage=asked.asking.unreported)
        self._judge_shape(command, reply, asked.asking.say)
        self._judge_tools(asked, reply)
        if not command.aside:
            texts = (reply.content or "", *(call.arguments for call in reply.tool_calls))
            self._long_reply = sum(map(len, texts)) >= LONG
        return await asked.lent.answered(command, asked.conversation, reply, now() - asked.begun)

    def _conversation(self, name: m.ConversationId) -> LentConversation:
        if name not in self._conversations:
            endpoint, history = self._endpoint, History(call_ids=self._call_ids)
            encoded = Conversation(endpoint.profile, model=endpoint.settings.model, history=history)
            self._conversations[name] = LentConversation(name, encoded)
        return self._conversations[name]

    def _judge_shape(
        self, command: m.RequestCompletion, reply: Reply, say: Callable[[m.LlmNote], None]
    ) -> None:
        """Let prompts state the schema from now on if the reply does not have the shape asked for."""
        endpoint = self._endpoint
        answer = command.mode.answer if isinstance(command.mode, m.RequireAnswer) else None
        judged = reply.content and not (
            reply.tool_calls or reply.cut or reply.refusal or reply.stopped or reply.written
        )
        if answer is None or not judged or endpoint.profile.states_schema:
            return
        if not has_shape(answer.schema, reply.content or ""):
            endpoint.profile = replace(endpoint.profile, ignores_schema=True)
            model = endpoint.settings.model
            say(m.SchemaIgnored(request=command.request, endpoint=endpoint.profile.name, model=model))

    def _judge_tools(self, asked: _Asked, reply: Reply) -> None:
        """Note it, once for an endpoint, if the model seems not to have been shown the tools."""
        endpoint, conversation = self._endpoint, asked.conversation
        if reply.tool_calls or reply.written:
            endpoint.judged_tools = True
        if endpoint.judged_tools or not conversation.leaves_tools_out(reply):
            return
        endpoint.judged_tools = True
        asked.asking.say(
            m.ToolsUnseen(
                request=asked.command.request,
                tools=len(conversation.tools),
                prompt_tokens=reply.prompt_tokens,
                endpoint=endpoint.profile.name,
                model=endpoint.settings.model,
            )
        )

    def _report_thoughts(self, lent: LentConversation, say: Callable[[m.LlmNote], None]) -> None:
        conversation, replies = lent.encoded, lent.encoded.unread_thoughts
        if replies and replies != lent.reported:
            say(
                m.ThoughtsDropped(
                    conversation=lent.id,
                    replies=replies,
                    wire=conversation.profile.wire,
                    model=conversation.model,
                )
            )
        lent.reported = replies


def _patience(endpoint: LlmEndpoint) -> RetryPolicy:
    """Return the retries of an endpoint of a chain: none, if it could not be asked the last time."""
    retry = endpoint.settings.retry
    return replace(retry, max_retries=0) if endpoint.breaker.failures else retry
