"""One completion of the LLM actor: the requests that it takes, sent to the endpoint one after the other.

`protocol/completion_attempts.py` decides what follows a failed or a cut reply. Come here for how its commands
are carried out.
"""

import functools
from collections.abc import Callable

import anyio
import anyio.to_thread
from msgspec.structs import replace

from grue.large_data import JOINED_AT_ONCE
from grue.llm_transport.endpoint import LlmEndpoint
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
    CompletionRetried,
    ContextPolicy,
    HistoryRewritten,
    LlmFailure,
    LlmNote,
    ReplyCut,
    RequestCompletion,
    SettingsLeftOut,
    TextDelta,
    Usage,
)
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
from grue.protocol.prices import most_usage, with_cost

REFUSED_MEDIA = "the endpoint refused a request with images or files"


class Asking:
    """One completion: sends the requests that `completion_attempts.py` asks for, and reports on them.

    Attributes:
        unreported: What it may have cost so far, if it is given up now.
    """

    def __init__(
        self,
        endpoint: LlmEndpoint,
        conversation: Conversation,
        command: RequestCompletion,
        say: Callable[[LlmNote], None],
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._conversation = conversation
        self._command = command
        self.say = say
        self._on_sent = on_sent
        self._shown = False
        self._cut = Usage()
        self.unreported = Usage()

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
                    self.say(
                        HistoryRewritten(
                            conversation=self._command.conversation, rewrite=rewritten, reason=REFUSED_MEDIA
                        )
                    )
            case ReportRetry(attempt, delay_s, failure):
                note = CompletionRetried(request=request, attempt=attempt, delay_s=delay_s, failure=failure)
                self.say(note)
            case ReportCut(limit, retried_with, usage):
                self._cut = usage
                self.say(
                    ReplyCut(request=request, limit_tokens=limit, retried_with=retried_with, usage=usage)
                )
            case TakeBackShown():
                self.say(TextDelta(request=request, text="", restart=True))
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
        long = self._conversation.size >= JOINED_AT_ONCE
        body = await anyio.to_thread.run_sync(write) if long else write()
        streamed = Streamed(self._conversation.format.assembler(), self._show) if stream else None
        permit = await self._permit(len(body), settings.max_tokens)
        if isinstance(permit, str):
            return self._refused(permit, profile)
        per_token = self._conversation.bytes_per_token or ContextPolicy().bytes_per_token
        limit = profile.limit(settings)
        self.unreported = self._cut + most_usage(len(body), per_token, limit, self._endpoint.price)
        answer, reply = await self._posted(body, streamed, permit)
        self.unreported = self._cut
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
            self.say(note)

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
            answer = await self._endpoint.post(body, streamed, self._on_sent)
            reply = await self._read(answer)
            if isinstance(reply, Reply):
                reported = answer.cost_usd if isinstance(answer, Answered) else None
                usage = with_cost(reply.usage, reported, self._endpoint.price)
                facts = reply.facts
                if isinstance(answer, Answered) and answer.first_chunk_s is not None:
                    facts = replace(facts, first_chunk_s=answer.first_chunk_s)
                reply = replace(reply, prompt_tokens=reply.usage.input_tokens, usage=usage, facts=facts)
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
        # The number is part of the ids that are made up for calls without one, so it must not start again in
        # a later turn.
        request = max(self._command.request, history.replies + 1)
        return self._conversation.read(answer.body, request=request, used_ids=history.call_ids)

    def _show(self, delta: Delta) -> None:
        self._shown = True
        self.say(TextDelta(request=self._command.request, text=delta.text, part=delta.part))
