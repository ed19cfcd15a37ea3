"""The LLM actor: keeps the conversation, sends requests to the endpoint and reports replies to the agent.

It decides nothing itself. `protocol/chat_wire/` encodes requests and decodes replies,
`protocol/completion_attempts.py` decides what follows a failed or a cut reply, and the agent decides what to
say next. `llm_transport/` does the HTTP.
"""

import functools
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from grue.large_data import LONG
from grue.llm_transport.endpoint import LlmEndpoint, LlmSettings
from grue.llm_transport.exchange import LONG_BYTES, Answered, Streamed
from grue.llm_transport.request_gate import (
    Permit,
    RequestOutcome,
    WantedRequest,
    not_sent,
    outcome_of,
    permit_for,
)
from grue.messages import (
    AssistantReply,
    CallId,
    CheckToolSupport,
    CompletionFailed,
    CompletionReceived,
    CompletionRetried,
    ConversationId,
    HistoryRewritten,
    LlmCommand,
    LlmFailure,
    LlmNote,
    ReplyCut,
    RequestCompletion,
    RequireAnswer,
    RewriteHistory,
    SchemaIgnored,
    SettingsLeftOut,
    TextDelta,
    ThoughtsDropped,
    ToolSupportChecked,
    TurnEvent,
)
from grue.protocol.chat_wire.answer_shape import has_shape
from grue.protocol.chat_wire.conversation import Conversation
from grue.protocol.chat_wire.failures import Fault, fault_of_status
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile, left_out
from grue.protocol.chat_wire.reply import Reply
from grue.protocol.chat_wire.wire_format import Delta
from grue.protocol.completion_attempts import (
    AdaptProfile,
    AttemptEvent,
    CompletionWanted,
    DropAttachments,
    Finish,
    ReplyRead,
    ReportCut,
    ReportRetry,
    RequestFailed,
    SendRequest,
    ShowAgain,
    TakeBackShown,
    Unsent,
    Wait,
    attempt_step,
)
from grue.protocol.history import History
from grue.protocol.prices import with_cost
from grue.runtime.actor import Actor, Note, reply
from grue.runtime.channel import Mailbox
from grue.runtime.trace import Envelope

__all__ = ["LentConversation", "LlmActor", "LlmEndpoint", "LlmSettings"]

REFUSED_MEDIA = "the endpoint refused a request with images or files"


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


class LlmActor(Actor[LlmCommand]):
    """Requests completions from one endpoint, one at a time.

    Args:
        mailbox: Receives the requests.
        agent: Gets the replies.
        endpoint: The endpoint to ask. It is open while the actor runs, and stays open if another user has
            entered it too.
        note: Records retries, cut replies and streamed text in the trace.
        lent: The conversation that the turn continues; `None`: the turn begins one of its own.
    """

    def __init__(
        self,
        mailbox: Mailbox[LlmCommand],
        agent: Mailbox[TurnEvent],
        endpoint: LlmEndpoint,
        note: Note,
        lent: LentConversation | None = None,
    ) -> None:
        super().__init__(mailbox)
        self._agent = agent
        self._endpoint = endpoint
        self._note = note
        self._lent = lent
        self._conversations: dict[ConversationId, Conversation] = {}
        self._call_ids: set[CallId] = set() if lent is None else lent.encoded.history.call_ids
        self._long_reply = False

    async def run(self) -> None:
        """Serve requests until the mailbox is closed. A cancellation aborts the request in progress."""
        async with self._endpoint:
            await super().run()

    async def receive(self, envelope: Envelope[LlmCommand]) -> None:
        """Ask the endpoint and send the outcome to the agent, or as the reply if the sender awaits one."""
        outcome: ToolSupportChecked | CompletionReceived | CompletionFailed
        match envelope.body:
            case RewriteHistory() as command:
                return await self._rewrite(command)
            case CheckToolSupport():
                outcome = await self._endpoint.tool_support()
            case RequestCompletion() as command:
                outcome = await self._complete(command, envelope)
        if envelope.reply_to is not None:
            reply(envelope, outcome)
        else:
            await self._agent.send(outcome, sender=self.name, cause=envelope.seq)
        return None

    async def _rewrite(self, command: RewriteHistory) -> None:
        lent = self._lent_as(command.conversation)
        if lent is not None:
            await lent.change(command)
        else:
            self._conversation(command.conversation).change(command.change)

    async def _complete(
        self, command: RequestCompletion, envelope: Envelope[LlmCommand]
    ) -> CompletionReceived | CompletionFailed:
        begun = anyio.current_time()
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
        reply = await _Asking(self._endpoint, conversation, command, say).outcome()
        if isinstance(reply, LlmFailure):
            return CompletionFailed(request=command.request, failure=reply)
        self._judge_shape(command, reply, say)
        kept = conversation.keep(reply)
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
            model=reply.model or model,
            usage=reply.usage,
            elapsed_s=anyio.current_time() - begun,
            echo=kept.echo,
            prompt_tokens=reply.prompt_tokens,
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


class _Asking:
    """One completion: sends the requests that `completion_attempts.py` asks for, and reports on them."""

    def __init__(
        self,
        endpoint: LlmEndpoint,
        conversation: Conversation,
        command: RequestCompletion,
        say: Callable[[LlmNote], None],
    ) -> None:
        self._endpoint = endpoint
        self._conversation = conversation
        self._command = command
        self._say = say
        self._shown = False

    async def outcome(self) -> Reply | LlmFailure:
        """Send the request until it is answered or fails for good. Return the reply, or the failure."""
        settings = self._endpoint.settings
        state, commands = attempt_step(
            Unsent(settings, settings.retry, self._command.clears), CompletionWanted()
        )
        while True:
            event: AttemptEvent = CompletionWanted()
            for command in commands:
                match command:
                    case SendRequest(settings=limited):
                        event = await self._exchange(limited)
                    case Wait(delay_s):
                        await anyio.sleep(delay_s)
                    case Finish(outcome):
                        return outcome
                    case _:
                        self._carry_out(command)
            state, commands = attempt_step(state, event)

    def _carry_out(
        self, command: AdaptProfile | DropAttachments | ReportRetry | ReportCut | TakeBackShown | ShowAgain
    ) -> None:
        request = self._command.request
        match command:
            case AdaptProfile(fault):
                self._endpoint.adapt_to_error(fault, self._conversation.profile)
                self._conversation.adopt(self._endpoint.profile)
            case DropAttachments():
                rewritten = self._conversation.drop_attachments()
                if rewritten is not None:
                    self._say(
                        HistoryRewritten(
                            conversation=self._command.conversation, rewrite=rewritten, reason=REFUSED_MEDIA
                        )
                    )
            case ReportRetry(attempt, delay_s, failure):
                note = CompletionRetried(request=request, attempt=attempt, delay_s=delay_s, failure=failure)
                self._say(note)
            case ReportCut(limit, retried_with, usage):
                self._say(
                    ReplyCut(request=request, limit_tokens=limit, retried_with=retried_with, usage=usage)
                )
            case TakeBackShown():
                self._say(TextDelta(request=request, text="", restart=True))
            case ShowAgain(reply):
                for delta in (Delta(reply.reasoning or "", "reasoning"), Delta(reply.content or "")):
                    if delta.text:
                        self._show(delta)

    async def _exchange(self, settings: ModelSettings) -> ReplyRead | RequestFailed:
        self._shown = False
        profile = self._conversation.profile
        self._report_left_out(profile)
        stream = self._command.stream and self._endpoint.profile.streams
        write = functools.partial(self._conversation.body, settings, stream=stream)
        long = self._conversation.size >= LONG
        body = await anyio.to_thread.run_sync(write) if long else write()
        streamed = Streamed(self._conversation.format.assembler(), self._show) if stream else None
        permit = await self._permit(len(body), settings.max_tokens)
        if isinstance(permit, str):
            return self._refused(permit, profile)
        answer, reply = await self._posted(body, streamed, permit)
        if isinstance(reply, Reply):
            return ReplyRead(reply, profile, self._shown)
        return RequestFailed(
            fault=reply,
            failure=self._endpoint.describe(reply),
            profile=profile,
            retry_after_s=answer.retry_after_s if isinstance(answer, Answered) else None,
            attachments=self._conversation.has_attachments,
            shown=self._shown,
            jitter=self._endpoint.jitter(),
        )

    def _report_left_out(self, profile: WireProfile) -> None:
        endpoint = self._endpoint
        names = left_out(profile, endpoint.settings) - endpoint.left_out
        if names:
            endpoint.left_out |= names
            note = SettingsLeftOut(
                request=self._command.request,
                settings=tuple(sorted(names)),
                endpoint=profile.name,
                model=endpoint.settings.model,
            )
            self._say(note)

    async def _permit(self, size: int, max_tokens: int | None) -> Permit | str | None:
        model = self._endpoint.settings.model
        return await permit_for(WantedRequest(model=model, prompt_bytes=size, max_tokens=max_tokens))

    def _refused(self, why: str, profile: WireProfile) -> RequestFailed:
        fault = not_sent(why)
        return RequestFailed(fault=fault, failure=self._endpoint.describe(fault), profile=profile)

    async def _posted(
        self, body: bytes, streamed: Streamed | None, permit: Permit | None
    ) -> tuple[Answered | Fault, Reply | Fault]:
        """Send the request and read the reply. The permit is settled whatever happens."""
        outcome = RequestOutcome()
        try:
            answer = await self._endpoint.post(body, streamed)
            reply = await self._read(answer)
            if isinstance(reply, Reply):
                reported = answer.cost_usd if isinstance(answer, Answered) else None
                usage = with_cost(reply.usage, reported, self._endpoint.price)
                reply = replace(reply, prompt_tokens=reply.usage.input_tokens, usage=usage)
            outcome = outcome_of(answer, reply)
            return answer, reply
        finally:
            if permit is not None:
                permit.settle(outcome)

    async def _read(self, answer: Answered | Fault) -> Reply | Fault:
        if isinstance(answer, Fault):
            return answer
        if len(answer.body) <= LONG_BYTES:
            return self._understood(answer)
        return await anyio.to_thread.run_sync(self._understood, answer, abandon_on_cancel=True)

    def _understood(self, answer: Answered) -> Reply | Fault:
        if not 200 <= answer.status < 300:
            return fault_of_status(answer.status, answer.body, answer.location)
        history = self._conversation.history
        # The number is part of the ids that are made up for calls without one, and counts on over the turns.
        request = max(self._command.request, history.replies + 1)
        return self._conversation.read(answer.body, request=request, used_ids=history.call_ids)

    def _show(self, delta: Delta) -> None:
        self._shown = True
        self._say(TextDelta(request=self._command.request, text=delta.text, part=delta.part))
