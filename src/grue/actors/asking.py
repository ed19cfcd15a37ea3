"""One completion of the LLM actor: the requests that it takes, sent to the endpoint one after the other.

`protocol/turn/completion_attempts.py` decides what follows a failed or a cut reply. Come here for how its
commands are carried out.
"""

import functools
import math
import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
import msgspec
from msgspec.structs import replace

from grue import messages as m
from grue.policies import ContextPolicy
from grue.protocol.chat_wire.conversation import Conversation
from grue.protocol.chat_wire.failures import Fault, fault_of_status
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile, left_out
from grue.protocol.chat_wire.reply import Reply
from grue.protocol.chat_wire.wire_format import Choice, Delta
from grue.protocol.chat_wire.written_calls import Part, ThoughtSplitter
from grue.protocol.retry import RetryPolicy
from grue.protocol.turn.completion_attempts import (
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
from grue.protocol.turn.prices import most_usage, with_cost
from grue.runtime.large_data import JOINED_AT_ONCE
from grue.transports.llm.endpoint import LlmEndpoint
from grue.transports.llm.exchange import LONG_BYTES, Answered, Streamed
from grue.transports.llm.reply_room import RequestPostponed, reply_room
from grue.transports.llm.request_gate import (
    Permit,
    RequestOutcome,
    WantedRequest,
    not_sent,
    permit_for,
    request_outcome,
)

REFUSED_MEDIA = "the endpoint refused a request with images or files"


class Asking:
    """One completion: sends the requests that `completion_attempts.py` asks for, and reports on them.

    Args:
        endpoint: Sends the requests. It is open.
        conversation: Has been asked already.
        command: The request.
        say: Gets the reports.
        on_sent: Called whenever a request has been written; `None`: nobody asks.
        choice: Which of the offered tools has to be called; `None`: the model decides.
        lost: What the same completion has cost at an endpoint that was asked before.
        retry: The limits and the backoff; `None`: those of the endpoint's settings.
        sleep: Waits for a number of seconds between two requests.

    Attributes:
        unreported: What it may have cost so far, if it is given up now or has failed.
    """

    def __init__(
        self,
        endpoint: LlmEndpoint,
        conversation: Conversation,
        command: m.RequestCompletion,
        say: Callable[[m.LlmNote], None],
        on_sent: Callable[[], None] | None = None,
        *,
        choice: Choice | None = None,
        lost: m.Usage | None = None,
        retry: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
    ) -> None:
        self._endpoint = endpoint
        self._conversation = conversation
        self._command = command
        self.say = say
        self._on_sent = on_sent
        self._choice = choice
        self._sleep = sleep
        self._shown = False
        self._cut = m.Usage()
        self._lost = m.Usage() if lost is None else lost
        self._retry = endpoint.settings.retry if retry is None else retry
        self._waits = reply_room.get() is not None
        if self._waits:
            # The reply is on file. Asking for it again would give the same one.
            self._retry = replace(self._retry, max_retries=0)
        self._thoughts = ThoughtSplitter()
        self.unreported = self._lost

    def take_back(self) -> None:
        """Tell observers of the stream to discard the text that they have, if there is any."""
        if self._shown:
            self._carry_out(TakeBackShown())

    async def outcome(self) -> Reply | m.LlmFailure:
        """Send the request until it is answered or fails for good. Return the reply, or the failure."""
        settings = self._endpoint.settings
        state, commands = attempt_step(
            Unsent(settings, self._retry, self._command.clears), CompletionWanted()
        )
        while True:
            event: AttemptEvent = CompletionWanted()
            for command in commands:
                match command:
                    case SendRequest(settings=limited):
                        event = await self._exchange(limited)
                    case Wait(delay_s):
                        await self._sleep(delay_s)
                    case Finish(Reply() as reply):
                        return replace(reply, usage=reply.usage + self._lost)
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
                self._adapt(fault)
            case DropAttachments():
                rewritten = self._conversation.drop_attachments()
                if rewritten is not None:
                    self.say(
                        m.HistoryRewritten(
                            conversation=self._command.conversation, rewrite=rewritten, reason=REFUSED_MEDIA
                        )
                    )
            case ReportRetry(attempt, delay_s, failure):
                note = m.CompletionRetried(request=request, attempt=attempt, delay_s=delay_s, failure=failure)
                self.say(note)
            case ReportCut(limit, retried_with, usage):
                self._cut = usage
                self.say(
                    m.ReplyCut(request=request, limit_tokens=limit, retried_with=retried_with, usage=usage)
                )
            case TakeBackShown():
                self.say(m.TextDelta(request=request, text="", restart=True))
            case ShowAgain(reply):
                self._thoughts = ThoughtSplitter()
                for delta in (Delta(reply.reasoning or "", "reasoning"), Delta(reply.content or "")):
                    if delta.text:
                        self._show(delta)

    def _adapt(self, fault: Fault) -> None:
        """Write the request in the form that the endpoint's refusal asks for, and say what has changed."""
        before, prompt = self._conversation.profile, self._conversation.prompt
        self._endpoint.adapt_to_error(fault, before)
        self._conversation.adopt(self._endpoint.profile)
        now = self._conversation.profile
        known = msgspec.to_builtins(now, order="deterministic")
        changed = {name: known[name] for name in known if getattr(now, name) != getattr(before, name)}
        rewritten = self._conversation.prompt != prompt
        self.say(m.FormAdapted(request=self._command.request, changed=changed, rewritten=rewritten))

    async def _exchange(self, settings: ModelSettings) -> ReplyRead | RequestFailed:
        self._shown = False
        self._thoughts = ThoughtSplitter()
        profile = self._conversation.profile
        self._report_left_out(profile)
        must_stream = self._endpoint.profile.must_stream and not self._waits
        streams = self._endpoint.profile.streams or must_stream
        shown = self._command.stream and streams and not self._waits
        stream = shown or must_stream
        write = functools.partial(self._conversation.body, settings, choice=self._choice, stream=stream)
        long = self._conversation.size >= JOINED_AT_ONCE
        body = await anyio.to_thread.run_sync(write) if long else write()
        # Some gateways stream whatever they are asked for, so each reply may be a stream.
        streamed = Streamed(self._conversation.format.assembler(), self._show if shown else _unshown)
        permit = await self._permit(len(body), settings.max_tokens)
        if isinstance(permit, str):
            return self._refused(permit, profile)
        per_token = self._conversation.bytes_per_token or ContextPolicy().bytes_per_token
        limit = profile.limit(settings)
        self.unreported = (
            self._cut + self._lost + most_usage(len(body), per_token, limit, self._endpoint.price)
        )
        reply = await self._posted(body, streamed, permit)
        if isinstance(reply, Fault) and reply.received:
            # It broke off, or did not end in time. What had come by then is paid for, and nobody counts it.
            tokens = math.ceil(reply.received / per_token)
            self._lost += most_usage(len(body), per_token, tokens, self._endpoint.price)
        self.unreported = self._cut + self._lost
        for part, text in self._thoughts.flush():
            self._say_delta(text, part)
        if isinstance(reply, Reply):
            return ReplyRead(reply, profile, self._shown)
        return RequestFailed(
            fault=reply,
            failure=self._endpoint.describe(reply),
            profile=profile,
            attachments=self._conversation.has_attachments,
            shown=self._shown,
            jitter=self._endpoint.jitter(),
        )

    def _report_left_out(self, profile: WireProfile) -> None:
        endpoint = self._endpoint
        names = left_out(profile, endpoint.settings) - endpoint.left_out
        if names:
            endpoint.left_out |= names
            note = m.SettingsLeftOut(
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

    async def _posted(self, body: bytes, streamed: Streamed | None, permit: Permit | None) -> Reply | Fault:
        """Send the request and read the reply. The permit is settled whatever happens."""
        outcome = RequestOutcome()
        try:
            answer = await self._endpoint.post(body, streamed, self._on_sent, request=self._command.request)
            reply = await self._read(answer)
            if isinstance(reply, Reply):
                reported = answer.cost_usd if isinstance(answer, Answered) else None
                usage = with_cost(reply.usage, reported, self._endpoint.price)
                facts = reply.facts
                if isinstance(answer, Answered) and answer.first_chunk_s is not None:
                    facts = replace(facts, first_chunk_s=answer.first_chunk_s)
                reply = replace(reply, prompt_tokens=reply.usage.input_tokens, usage=usage, facts=facts)
            outcome = request_outcome(answer, reply)
            return reply
        except RequestPostponed:
            outcome = RequestOutcome(sent=False)
            raise
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
            location, asked_s = answer.location, answer.retry_after_s
            return fault_of_status(answer.status, answer.body, location, asked_s, time.time())
        history = self._conversation.history
        # The number is part of the ids that are made up for calls without one, so it must not start again in
        # a later turn.
        request = max(self._command.request, history.replies + 1)
        return self._conversation.read(
            answer.body,
            request=request,
            used_ids=history.call_ids,
            text_tool_calls=self._endpoint.settings.text_tool_calls,
        )

    def _show(self, delta: Delta) -> None:
        if delta.part != "content":
            self._say_delta(delta.text, delta.part)
            return
        for part, text in self._thoughts.feed(delta.text):
            self._say_delta(text, part)

    def _say_delta(self, text: str, part: Part) -> None:
        self._shown = True
        self.say(m.TextDelta(request=self._command.request, text=text, part=part))


def _unshown(_: Delta) -> None:
    """Take a piece of a reply that is streamed because its endpoint does nothing else, asked or not."""
