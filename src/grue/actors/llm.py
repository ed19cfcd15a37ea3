"""The LLM actor: keeps the conversation, sends requests to the endpoint and reports replies to the agent.

`protocol/turn/completion_attempts.py` decides what follows a failed or a cut reply.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, assert_never, runtime_checkable

import anyio
import anyio.to_thread
from msgspec import Struct, field
from msgspec.structs import replace

from grue import messages as m
from grue.policies import SupportCheck
from grue.protocol.answers import has_shape
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile, changed_fields, left_out
from grue.protocol.chat_wire.wire_format import Choice, Delta, Reply
from grue.protocol.chat_wire.written_calls import Part, ThoughtSplitter
from grue.protocol.context.fit import TEXT_BYTES_PER_TOKEN, sizes_of
from grue.protocol.context.history import History
from grue.protocol.retry import RetryPolicy
from grue.protocol.turn import completion_attempts as attempts
from grue.protocol.turn.prices import Price, most_usage, with_cost
from grue.runtime.actor import Actor, Mailbox, Note, reply
from grue.runtime.large_data import JOINED_AT_ONCE, LONG
from grue.runtime.trace.recorder import Envelope
from grue.transports.llm import exchange
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings, ReplyRoom, RequestPostponed, current_room

__all__ = ["LentConversation", "LlmActor", "LlmEndpoint", "LlmSettings"]
REFUSED_MEDIA = "the endpoint refused a request with images or files"


class Asking(Struct, eq=False):
    """Gets one completion: sends HTTP requests until `attempt_step` returns `Finish`."""

    # The endpoint is open already, and the conversation contains `command.new`.

    endpoint: LlmEndpoint
    conversation: EncodedConversation
    command: m.RequestCompletion
    say: Callable[[m.LlmNote], object]
    on_sent: Callable[[], None] | None = None  # called when a request is written, and when its exchange ends
    choice: Choice | None = None
    lost: m.Usage = m.Usage()  # what this completion has cost at other endpoints, and in broken replies
    retry: RetryPolicy | None = None  # `None`: the endpoint's
    sleep: Callable[[float], Awaitable[object]] = anyio.sleep
    unreported: m.Usage = m.Usage()  # the estimated cost so far, reported on failure or cancellation
    _shown: bool = False
    _cut: m.Usage = m.Usage()
    _price: Price | None = None
    _room: ReplyRoom | None = field(default_factory=current_room)
    _thoughts: ThoughtSplitter | None = None  # of the reply, if it is shown

    def __post_init__(self) -> None:
        self.unreported, self._price = self.lost, self.endpoint.price

    def go_on(self, endpoint: LlmEndpoint, retry: RetryPolicy) -> None:
        """Ask another endpoint from now on, by the policy `retry`."""
        self.take_back()
        self.endpoint, self.retry, self._price = endpoint, retry, endpoint.price
        self.lost, self._cut = self.unreported, m.Usage()

    def take_back(self) -> None:
        """If text of the reply has been streamed, report that it is to be discarded."""
        if self._shown:
            self.say(m.TextDelta(request=self.command.request, text="", restart=True))

    async def outcome(self) -> Reply | m.LlmFailure:
        """Carry out the commands of `attempt_step`, and return the outcome. May raise `RequestPostponed`."""
        settings = self.endpoint.settings
        retry = self.retry or settings.retry
        if self._room is not None:
            # The reply comes from a provider's batch: a retry would read the same reply again.
            retry = replace(retry, max_retries=0)
        state: attempts.AttemptState = attempts.Sent(
            request=self.command.request, settings=settings, retry=retry, clears=self.command.clears
        )
        event = await self._exchange(settings)
        while True:
            state, commands = attempts.attempt_step(state, event)
            for command in commands:
                match command:
                    case attempts.SendRequest(limited, delay_s):
                        if delay_s:
                            await self.sleep(delay_s)
                        event = await self._exchange(limited)
                    case attempts.Finish(Reply() as reply):
                        return replace(reply, usage=reply.usage + self.lost)
                    case attempts.Finish(outcome):
                        return outcome
                    case attempts.AdaptProfile(fault):
                        self._adapt(fault)
                    case attempts.DropAttachments():
                        self._drop_attachments()
                    case attempts.ShowAgain(reply):
                        self._show_again(reply)
                    case m.ReplyCut():
                        self._cut = command.usage
                        self.say(command)
                    case note:
                        self.say(note)

    def _drop_attachments(self) -> None:
        rewritten = self.conversation.drop_attachments()
        if rewritten is not None and not self.command.aside:  # an aside request uses a copy
            conversation = self.command.conversation
            self.say(m.HistoryRewritten(conversation=conversation, rewrite=rewritten, reason=REFUSED_MEDIA))

    def _show_again(self, reply: Reply) -> None:
        self._thoughts = ThoughtSplitter()
        for delta in (Delta(reply.reasoning or "", "reasoning"), Delta(reply.content or "")):
            if delta.text:
                self._show(delta)

    def _adapt(self, fault: Fault) -> None:
        before, prompt = self.conversation.profile, self.conversation.prompt
        self.endpoint.adapt_to_error(fault, before)
        self.conversation.adopt(self.endpoint.profile)
        changed = changed_fields(before, self.conversation.profile)
        rewritten = self.conversation.prompt != prompt
        self.say(m.FormAdapted(request=self.command.request, changed=changed, rewritten=rewritten))

    async def _exchange(self, settings: ModelSettings) -> attempts.ReplyRead | attempts.RequestFailed:
        self._shown = False
        profile = self.conversation.profile
        self._report_left_out(profile)
        must_stream = self.endpoint.profile.must_stream and self._room is None
        streams = self.endpoint.profile.streams or must_stream
        shown = self.command.stream and streams and self._room is None
        stream = shown or must_stream
        self._thoughts = ThoughtSplitter() if shown else None
        write = functools.partial(self.conversation.body, settings, choice=self.choice, stream=stream)
        long = self.conversation.size >= JOINED_AT_ONCE
        body = await anyio.to_thread.run_sync(write) if long else write()
        # Every request gets a `Streamed`: some gateways stream the reply even if no stream is asked for.
        show = self._show if shown else lambda _: None
        streamed = exchange.Streamed(
            self.conversation.format.assembler(), show, asked=stream and profile.streams
        )
        limit = profile.limit(settings)
        permit: exchange.Permit | str | None = None
        if self._room is None:  # otherwise nothing is sent now: the request goes to the provider in a batch
            model = self.endpoint.settings.model
            wanted = exchange.WantedRequest(model=model, prompt_bytes=len(body), max_tokens=limit)
            permit = await exchange.permit_for(wanted)
        if isinstance(permit, str):
            fault = exchange.not_sent(permit)
            return attempts.RequestFailed(fault=fault, failure=self.endpoint.describe(fault), profile=profile)
        per_token = self.conversation.bytes_per_token or TEXT_BYTES_PER_TOKEN
        before = self._cut + self.lost
        self.unreported = before + most_usage(len(body), per_token, limit, self._price)
        reply = await self._posted(body, streamed, permit)
        self.unreported = before
        if isinstance(reply, Fault) and (reply.received or reply.usage.input_tokens):
            # Providers bill the part of a broken reply that has arrived. The usage usually comes with the end
            # of a reply; if it has not come, estimate it.
            tokens = math.ceil(reply.received / per_token)
            estimate = most_usage(len(body), per_token, tokens, self._price)
            stated = with_cost(reply.usage, None, self._price)
            lost = stated if stated.input_tokens else estimate
            self.lost, self.unreported = self.lost + lost, before + lost
        if self._thoughts is not None:
            for part, text in self._thoughts.flush():
                self._say_delta(text, part)
        if isinstance(reply, Reply):
            return attempts.ReplyRead(reply, profile, self._shown)
        return attempts.RequestFailed(
            fault=reply,
            failure=self.endpoint.describe(reply),
            profile=profile,
            attachments=self.conversation.has_attachments,
            shown=self._shown,
            jitter=self.endpoint.jitter(),
        )

    def _report_left_out(self, profile: WireProfile) -> None:
        endpoint = self.endpoint
        names = left_out(profile, endpoint.settings) - endpoint.left_out
        if names:
            endpoint.left_out |= names
            note = m.SettingsLeftOut(
                request=self.command.request,
                settings=tuple(sorted(names)),
                endpoint=profile.name,
                model=endpoint.settings.model,
            )
            self.say(note)

    async def _posted(
        self, body: bytes, streamed: exchange.Streamed, permit: exchange.Permit | None
    ) -> Reply | Fault:
        outcome = exchange.RequestOutcome()
        try:
            request, wire = self.command.request, self.conversation.profile.wire
            answer = await self.endpoint.post(body, streamed, self.on_sent, request=request, wire=wire)
            reply = await self._read(answer)
            if isinstance(reply, Reply):
                reported = answer.cost_usd if isinstance(answer, exchange.Answered) else None
                # If the endpoint reports no tokens, estimate them: the limits of a budget need them.
                counted = reply.usage
                if counted == m.Usage(cost_usd=counted.cost_usd):
                    counted = replace(self._estimated(len(body), reply), cost_usd=counted.cost_usd)
                usage = with_cost(counted, reported, self._price)
                facts = reply.facts
                if isinstance(answer, exchange.Answered) and answer.first_chunk_s is not None:
                    facts = replace(facts, first_chunk_s=answer.first_chunk_s)
                reply = replace(reply, prompt_tokens=reply.usage.input_tokens, usage=usage, facts=facts)
            elif isinstance(answer, exchange.Answered):
                reply = replace(reply, received=answer.received)
            outcome = exchange.request_outcome(answer, reply)
            if self._room is not None:
                self._room.read(self.endpoint.settings.model, outcome)
            return reply
        finally:
            if permit is not None:
                permit.settle(outcome)

    def _estimated(self, prompt_bytes: int, reply: Reply) -> m.Usage:
        per_token = self.conversation.bytes_per_token or TEXT_BYTES_PER_TOKEN
        texts = (
            reply.reasoning,
            reply.refusal,
            reply.content,
            *(call.arguments for call in reply.tool_calls),
        )
        size = sum(len(text) for text in texts if text)
        prompt = math.ceil(prompt_bytes / per_token)
        if self.conversation.has_attachments:
            # The bytes of an image or a file say nothing about its tokens.
            prompt = sum(each.tokens for each in sizes_of(self.conversation.history.entries, per_token))
        return m.Usage(input_tokens=prompt, output_tokens=math.ceil(size / per_token))

    async def _read(self, answer: exchange.Answered | Fault) -> Reply | Fault:
        if isinstance(answer, Fault):
            return answer
        if len(answer.body) <= exchange.LONG_BYTES:
            return self._understood(answer)
        return await anyio.to_thread.run_sync(self._understood, answer, abandon_on_cancel=True)

    def _understood(self, answer: exchange.Answered) -> Reply | Fault:
        if not 200 <= answer.status < 300:
            return answer.fault
        history = self.conversation.history
        # A tool call without an id gets one with this number. To keep ids unique, it rises from turn to turn.
        request = max(self.command.request, history.replies + 1)
        reply = self.conversation.read(
            answer.body,
            request=request,
            used_ids=history.call_ids,
            text_tool_calls=self.endpoint.settings.text_tool_calls,
        )
        if isinstance(reply, Fault) and reply.kind == "invalid_reply" and reply.status == 200:
            return replace(reply, status=answer.status)
        return reply

    def _show(self, delta: Delta) -> None:
        if delta.part != "content":
            self._say_delta(delta.text, delta.part)
            return
        assert self._thoughts is not None, "only replies that are shown come here"
        for part, text in self._thoughts.feed(delta.text):
            self._say_delta(text, part)

    def _say_delta(self, text: str, part: Part) -> None:
        self._shown = True
        self.say(m.TextDelta(request=self.command.request, text=text, part=part))


_Outcome: TypeAlias = (
    m.ToolSupportChecked | m.CompletionReceived | m.CompletionFailed | m.CompletionPostponed | m.ReplyDropped
)


def offer_changed(
    command: m.RequestCompletion, before: tuple[m.ToolDefinition, ...], now: tuple[m.ToolDefinition, ...]
) -> m.OfferChanged | None:
    """Return how the tools `now` differ from `before`; `None`: no difference, or `before` is empty."""
    if before is now or not before:
        return None
    old, new = (
        {tool.name: (tool.description, tool.input_schema) for tool in tools} for tools in (before, now)
    )
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
    """Do nothing: a conversation that ends with its turn has no file."""


class LentConversation(Struct):
    """A conversation that an LLM actor uses during one turn; its earlier entries are encoded already.

    Attributes:
        id: The id by which the turn's requests name the conversation.
        encoded: The conversation. During the turn nobody but the actor uses it.
        save: Writes new entries of the conversation to its file. Called before the agent can act on a new
            entry. Default: nothing is written.
        told: The last request whose items (texts and tool results) were added to the conversation.
        reported: How many replies had thoughts that the model could not read, when they were counted last.
            `ThoughtsDropped` is recorded again only if the number has changed.
    """

    id: m.ConversationId
    encoded: EncodedConversation
    save: Callable[[], Awaitable[None]] = _save_nothing
    told: m.RequestCompletion | None = None
    reported: int = 0

    async def ask(self, command: m.RequestCompletion, *, long: bool = False) -> EncodedConversation:
        """Add a request's texts and tool results to the conversation, save them, and return what to send.

        If `command.aside` is set (the request is for a summary), they are added to a copy, and not saved.
        """
        if command.aside:
            return self.encoded.aside(command.new, command.mode)
        if long:
            # There may be megabytes. `run_sync` waits for the thread even if this task is cancelled. So the
            # conversation's next turn cannot begin while the thread is still adding the items.
            await anyio.to_thread.run_sync(self.encoded.ask, command.new, command.mode)
        else:
            self.encoded.ask(command.new, command.mode)
        self.told = command
        await self.save()
        return self.encoded

    async def answered(
        self, command: m.RequestCompletion, asked: EncodedConversation, reply: Reply, elapsed_s: float
    ) -> m.CompletionReceived:
        """Add the reply to `asked`, save the conversation, and return the event for the agent.

        `asked` is the conversation that `ask` returned; nothing is saved if `command.aside` is set.
        `elapsed_s` is the time since the LLM actor received the request, retries included.
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
        """Change the conversation's history, and save the change."""
        self.encoded.change(command.change)
        await self.save()


class _Asked(Asking, eq=False, kw_only=True):
    """A request whose items have been added to `conversation`: that of `lent`, or a copy if it is `aside`."""

    lent: LentConversation
    begun: float  # when the request was received, on the event loop's clock
    failures: tuple[m.LlmFailure, ...] = ()


class LlmActor(Actor[m.LlmCommand]):
    """Requests completions one at a time, from an endpoint or from one of its fallbacks."""

    def __init__(
        self,
        mailbox: Mailbox[m.LlmCommand],
        agent: Mailbox[m.TurnEvent],
        endpoint: LlmEndpoint,
        note: Note,
        lent: LentConversation | None = None,
        on_sent: Callable[[], None] | None = None,
        begins: LlmEndpoint | None = None,
    ) -> None:
        super().__init__(mailbox)
        self._agent = agent
        self._chain = endpoint  # with its fallbacks, `endpoint.chain`
        self._endpoint = begins or endpoint  # asked first; without `begins`, `endpoint.first` chooses
        self._has_chosen = begins is not None or len(endpoint.chain) == 1
        self._note = note
        self._lent = lent  # `None`: the turn's conversation ends with the turn
        self._on_sent = on_sent
        self._conversations = {} if lent is None else {lent.id: lent}
        self._call_ids: set[m.CallId] = set() if lent is None else lent.encoded.history.call_ids
        self._long_reply = False
        self._unreported = m.Usage()
        self._asked: _Asked | None = None

    @property
    def unreported(self) -> m.Usage:
        """An estimate of what the last completion has cost, if it was cancelled."""
        return m.Usage() if self._asked is None else self._asked.unreported

    def around(self) -> contextlib.AbstractAsyncContextManager[object]:
        """Keep the connections to the endpoint and its fallbacks open while the actor runs."""
        return self._chain

    async def receive(self, envelope: Envelope[m.LlmCommand]) -> None:
        """Carry out a command. An outcome goes to the sender if it waits for a reply, else to the agent."""
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
                await self._complete(await self._ask(command, envelope), envelope, anyio.CancelScope())
            case _:
                assert_never(envelope.body)

    async def _outcome(self, asked: _Asked) -> Reply | m.LlmFailure:
        """Ask the current model; if it fails, and `moves_on` returns true, ask others of the chain."""
        tried: list[LlmEndpoint] = []
        while True:
            outcome = await asked.outcome()
            if isinstance(outcome, Reply):
                self._endpoint.breaker = attempts.Breaker()
                return outcome
            asked.failures = (*asked.failures, outcome)
            if len(self._chain.chain) == 1 or not attempts.moves_on(outcome):
                return attempts.after_all(asked.failures)
            self._endpoint.breaker = self._endpoint.breaker.failed(outcome, anyio.current_time())
            tried.append(self._endpoint)
            offers = isinstance(asked.command.mode, m.OfferTools)
            following = self._chain.after(tried, anyio.current_time(), tools=offers)
            if following is None:
                return attempts.after_all(asked.failures)
            await self._move(asked, following, outcome)

    async def _move(self, asked: _Asked, following: LlmEndpoint, failure: m.LlmFailure) -> None:
        """Ask `following` from now on, because the endpoint before it has failed with `failure`."""
        self._endpoint = following
        asked.go_on(following, _patience(following))
        asked.say(_passed_over(asked.command, failure.model, failure.endpoint, failure.message, following))
        adopt = functools.partial(asked.conversation.adopt, following.profile, following.settings.model)
        if asked.conversation.size >= LONG:
            await anyio.to_thread.run_sync(adopt)
        else:
            adopt()
        if asked.lent is self._lent and not asked.command.aside:
            self._report_thoughts(asked.lent, asked.say)

    async def _report(self, outcome: _Outcome, envelope: Envelope[m.LlmCommand]) -> None:
        if envelope.reply_to is not None:
            reply(envelope, outcome)
        else:
            await self._agent.send(outcome, sender=self.name, cause=envelope.seq)

    async def _complete(
        self, asked: _Asked, envelope: Envelope[m.LlmCommand], droppable: anyio.CancelScope
    ) -> None:
        """Ask the model and report the outcome. If `droppable` is cancelled before that, report nothing."""
        event: _Outcome | None = None
        try:
            with droppable:
                outcome = await self._outcome(asked)
            if not droppable.cancelled_caught:
                event = await self._answer(asked, outcome)
        except RequestPostponed as waits:
            event = m.CompletionPostponed(request=asked.command.request, item=waits.item)
        self._asked = None
        if event is not None:
            await self._report(event, envelope)

    async def _complete_unless_dropped(
        self, command: m.RequestCompletion, envelope: Envelope[m.LlmCommand]
    ) -> None:
        """Ask the model in another task. Meanwhile, wait in `mailbox.receive()` for a `DropCompletion`."""
        # The reply does not cancel this wait, because a message could be lost: the wait lasts until the
        # agent's next message, or until the agent closes the mailbox. A `DropCompletion` cancels the
        # exchange, but never interrupts a change of the conversation.
        asked, droppable = await self._ask(command, envelope), anyio.CancelScope()
        following: Envelope[m.LlmCommand] | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._complete, asked, envelope, droppable)
            with contextlib.suppress(anyio.EndOfStream):
                following = await self.mailbox.receive()
            if following is not None and isinstance(following.body, m.DropCompletion):
                droppable.cancel()
        self._unreported = asked.unreported if droppable.cancelled_caught else m.Usage()
        if following is not None:
            await self.receive(following)

    async def _drop(self, command: m.DropCompletion) -> m.ReplyDropped:
        lent = self._conversation(command.conversation)
        lent.encoded.history.forget()
        await lent.save()
        return m.ReplyDropped(request=command.request, usage=self._unreported)

    async def _ask(self, command: m.RequestCompletion, envelope: Envelope[m.LlmCommand]) -> _Asked:
        """Choose the endpoint, and add a request's items and tools to its conversation. Send nothing yet."""
        begun = anyio.current_time()
        say = functools.partial(self._note, sender=self.name, cause=envelope.seq)
        offers = isinstance(command.mode, m.OfferTools)
        if not self._has_chosen:
            self._endpoint, self._has_chosen = self._chain.first(begun, tools=offers), True
        elif offers and len(self._chain.chain) > 1 and not self._endpoint.takes_tools:
            self._leave_without_tools(command, begun, say)
        lent = self._conversation(command.conversation)
        profile, model = self._endpoint.profile, self._endpoint.settings.model
        if (lent.encoded.profile, lent.encoded.model) != (profile, model):
            lent.encoded.adopt(profile, model)
        before = lent.encoded.tools
        conversation = await lent.ask(command, long=self._long_reply or envelope.is_long)
        if lent is self._lent and not command.aside:
            self._report_thoughts(lent, say)
        changed = None if command.aside else offer_changed(command, before, lent.encoded.tools)
        if changed is not None:
            say(changed)
        retry, on_sent = _patience(self._endpoint), self._on_sent
        self._asked = _Asked(
            self._endpoint, conversation, command, say, on_sent, retry=retry, lent=lent, begun=begun
        )
        return self._asked

    def _leave_without_tools(
        self, command: m.RequestCompletion, now_s: float, say: Callable[[m.LlmNote], object]
    ) -> None:
        """Change to a model of the chain that takes tools, if there is one."""
        following, left = self._chain.first(now_s, tools=True), self._endpoint.asked()
        if following is not self._endpoint and following.takes_tools:
            self._endpoint = following
            say(_passed_over(command, left.model, left.address, "it takes no tools", following))

    async def _answer(
        self, asked: _Asked, reply: Reply | m.LlmFailure
    ) -> m.CompletionReceived | m.CompletionFailed:
        command = asked.command
        if isinstance(reply, m.LlmFailure):
            return m.CompletionFailed(request=command.request, failure=reply, usage=asked.unreported)
        self._judge_shape(command, reply, asked.say)
        self._judge_tools(asked, reply)
        if not command.aside:
            texts = (reply.content or "", *(call.arguments for call in reply.tool_calls))
            self._long_reply = sum(map(len, texts)) >= LONG
        elapsed_s = anyio.current_time() - asked.begun
        return await asked.lent.answered(command, asked.conversation, reply, elapsed_s)

    def _conversation(self, name: m.ConversationId) -> LentConversation:
        if name not in self._conversations:
            endpoint, history = self._endpoint, History(call_ids=self._call_ids)
            encoded = EncodedConversation(endpoint.profile, model=endpoint.settings.model, history=history)
            self._conversations[name] = LentConversation(name, encoded)
        return self._conversations[name]

    def _judge_shape(
        self, command: m.RequestCompletion, reply: Reply, say: Callable[[m.LlmNote], object]
    ) -> None:
        """If a final reply does not fit the answer's schema, make later prompts state the schema as text."""
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
        """Report if the endpoint's model seems not to have received the tools; at most once per endpoint."""
        endpoint, conversation = self._endpoint, asked.conversation
        if reply.tool_calls or reply.written:
            endpoint.judged_tools = True
        if endpoint.judged_tools or not conversation.leaves_tools_out(reply):
            return
        endpoint.judged_tools = True
        asked.say(
            m.ToolsUnseen(
                request=asked.command.request,
                tools=len(conversation.tools),
                prompt_tokens=reply.prompt_tokens,
                endpoint=endpoint.profile.name,
                model=endpoint.settings.model,
            )
        )

    def _report_thoughts(self, lent: LentConversation, say: Callable[[m.LlmNote], object]) -> None:
        conversation, replies = lent.encoded, lent.encoded.unread_thoughts
        if replies and replies != lent.reported:
            wire, model = conversation.profile.wire, conversation.model
            say(m.ThoughtsDropped(conversation=lent.id, replies=replies, wire=wire, model=model))
        lent.reported = replies


def _passed_over(
    command: m.RequestCompletion, model: str, address: str, reason: str, following: LlmEndpoint
) -> m.ModelPassedOver:
    asks = following.asked()
    return m.ModelPassedOver(request=command.request, model=model, address=address, reason=reason, asks=asks)


def _patience(endpoint: LlmEndpoint) -> RetryPolicy:
    """Return the endpoint's retry policy, or if its `breaker` counts failures, the same without retries."""
    retry = endpoint.settings.retry
    return replace(retry, max_retries=0) if endpoint.breaker.failures else retry


LlmFactory: TypeAlias = Callable[[Mailbox[m.LlmCommand], Mailbox[m.TurnEvent], Note], Actor[m.LlmCommand]]
"""Makes an LLM actor from its mailbox, the agent's mailbox, and a function that records trace notes."""


@runtime_checkable
class LendingFactory(Protocol):
    """An `LlmFactory` whose actors can continue a conversation that began before their turn."""

    @property
    def profile(self) -> WireProfile:
        """The endpoint's capabilities, which decide how messages to the model are encoded."""

    @property
    def model(self) -> str:
        """The model's name. Thoughts in the conversation are sent only if a model of this name wrote them."""

    def lending(self, lent: LentConversation) -> LlmFactory:
        """Return a factory for one turn, whose actor continues `lent`.

        For a request with the conversation id `lent.id`, the actor calls `lent.ask` and `lent.answered`; for
        a `RewriteHistory` with this id, `lent.change`. It keeps the histories of other conversations itself.
        """


class EndpointActors(Struct, frozen=True):
    """The `LlmFactory` of an endpoint."""

    endpoint: LlmEndpoint
    lent: LentConversation | None = None
    on_sent: Callable[[], None] | None = None
    first: Envelope[m.LlmCommand] | None = None  # a recorded request that the actor carries out first
    begins: LlmEndpoint | None = None

    def __call__(
        self, mailbox: Mailbox[m.LlmCommand], agent: Mailbox[m.TurnEvent], note: Note
    ) -> Actor[m.LlmCommand]:
        if self.first is not None:
            mailbox.put_recorded(self.first)
        return LlmActor(mailbox, agent, self.endpoint, note, self.lent, self.on_sent, self.begins)

    @property
    def profile(self) -> WireProfile:
        """The endpoint's capabilities."""
        return self.endpoint.profile

    @property
    def model(self) -> str:
        """The model's name, as it is sent to the endpoint."""
        return self.endpoint.settings.model

    def lending(self, lent: LentConversation) -> EndpointActors:
        """Return a factory whose actor continues the conversation `lent`."""
        return replace(self, lent=lent)

    def support_check(self) -> SupportCheck:
        """Return at which point of a turn to check that the model takes tools: see `LlmEndpoint`."""
        return self.endpoint.support_check()
