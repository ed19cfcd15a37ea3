"""Decide which requests one completion takes (retries, adaptations, a larger limit): a pure state machine.

The LLM actor sends the first request, which begins the state `Sent`, and then carries out the commands of
`attempt_step`, in order; the outcome of a request is the next event. The rules:

- A refusal that shows what the endpoint does not accept changes the profile (`chat_wire/profiles.py`). After
  any other refusal, if images or files may have caused it, the newest are replaced by a line of text. In both
  cases the request is sent again at once, and no retry is used up.
- If a prompt fits into the context window, but not together with the reply's token limit, the request is sent
  again once, with the limit that fits, if this is at least a fourth of the limit before.
- If any other request is too long for the window and the agent can clear the history, the failure is reported
  at once. But if the status is 413 (the body is too large), the newest images and files are left out first.
- Any other failure is retried as `RetryPolicy` says. Each kind of failure is counted by itself for its own
  limit and backoff; `max_retries` limits all retries together.
- A reply that was cut at the default token limit is requested once more with a larger limit, with retries of
  its own. If that fails, the cut reply is the outcome, and it is streamed again if it was streamed before.
- If a try used up its whole time limit, or its stream stalled halfway, the second such try is the last: each
  is billed, and another one seldom ends better. Other timeouts are retried as any failure.
- If some text of a try was streamed, and another try follows or the cut reply is used after all, readers of
  the stream are first told to discard that text.

`LlmSettings.then` names the models that are asked if the first model fails. The rules of such a chain:

- The next model is asked if all retries have failed and the endpoint cannot be reached, is overloaded (429,
  most 5xx and the like), does not answer in time, or sends a reply that breaks off or is damaged. After a
  refusal or an invalid reply no other model is asked: its answer would hide the fault.
- A model that has failed in such a way is paused (a circuit breaker): for 30 s, doubled with each failure in
  a row up to 15 minutes, or for longer (at most a day) if its endpoint asks for it. After the pause it is
  tried again, but without retries until it has answered.
- A turn begins with the first model that is not paused, and stays with the model that has answered. For each
  request, each model is tried at most once, and paused ones last. A request with tools goes only to models
  that take tools; if none does, to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.policies import ContextOverflow, FailureKind
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.profiles import MAY_BLAME_ATTACHMENTS, adapt_profile
from grue.protocol.chat_wire.wire_format import Reply
from grue.protocol.retry import RetryPolicy, next_delay

_OTHER_CAUSES = frozenset({"key", "credit", "region", "reply"})  # reasons that no attachment causes
_MOST_ENDLESS = 2  # billed timeouts of one completion: the last of them is not retried
_LEAST_OF_LIMIT = 4  # a token limit is lowered to a fourth at the least: many answers would be cut


class CutReply(Struct, frozen=True):
    """A reply that was cut at its length limit; `shown`: some of its text was streamed."""

    reply: Reply
    shown: bool


class Sent(Struct, frozen=True, kw_only=True, gc=False):
    """Waits for the outcome of attempt number `attempt`; `clears`: the agent can shorten the history."""

    request: int  # the number of the completion in its turn
    settings: ModelSettings
    retry: RetryPolicy
    clears: bool = False
    attempt: int = 1
    failed: tuple[FailureKind, ...] = ()  # the failures that used up a retry
    endless: int = 0  # how many of them were timeouts that are billed
    cut: CutReply | None = None  # the cut reply that a longer one is to replace
    lowered: bool = False  # the reply's token limit has been lowered


class Ended(Struct, frozen=True):
    """The model has answered, or it has failed and is not asked again for this completion."""


AttemptState: TypeAlias = Sent | Ended


class ReplyRead(Struct, frozen=True):
    """The request was answered with a completion; `shown`: some of its text was streamed."""

    reply: Reply
    profile: WireProfile
    shown: bool = False


class RequestFailed(Struct, frozen=True, kw_only=True):
    """The request gave no completion; `failure` describes `fault`. `attachments`: some can be left out."""

    fault: Fault
    failure: m.LlmFailure
    profile: WireProfile
    attachments: bool = False
    shown: bool = False
    jitter: float = 0.0


AttemptEvent: TypeAlias = ReplyRead | RequestFailed


class SendRequest(Struct, frozen=True, gc=False):
    """Send the request with these settings, after a wait of `delay_s` seconds."""

    settings: ModelSettings
    delay_s: float = 0.0


class AdaptProfile(Struct, frozen=True):
    """Adapt the endpoint's profile to the refusal `fault`, and encode the conversation anew."""

    fault: Fault


class DropAttachments(Struct, frozen=True):
    """Replace each attachment in the newest history entry that has any by a line of text."""


class ShowAgain(Struct, frozen=True):
    """Stream the cut reply to the host again, because the request for a longer reply has failed."""

    reply: Reply


class Finish(Struct, frozen=True):
    """Report the outcome. This model gets no further request for this completion."""

    outcome: Reply | m.LlmFailure


AttemptCommand: TypeAlias = (  # a note (`CompletionRetried`, `ReplyCut`, `TextDelta`) is to be recorded
    SendRequest
    | AdaptProfile
    | DropAttachments
    | m.CompletionRetried
    | m.ReplyCut
    | m.TextDelta
    | ShowAgain
    | Finish
)
AttemptTransition: TypeAlias = tuple[AttemptState, tuple[AttemptCommand, ...]]


class IllegalAttemptEvent(Exception):  # noqa: N818 - a bug in the caller, and no error to handle
    """The event cannot happen in this state."""


def attempt_step(state: AttemptState, event: AttemptEvent) -> AttemptTransition:
    """Return the next state and the commands, of which the last is `SendRequest` or `Finish`."""
    match state, event:
        case Sent(cut=None), ReplyRead(Reply(cut=True)):
            return _after_cut(state, event)
        case Sent(cut=None), ReplyRead(reply):
            return Ended(), (Finish(reply),)
        case Sent(cut=CutReply(replaced)), ReplyRead(reply):
            whole = replace(reply, usage=replaced.usage + reply.usage)
            return Ended(), (_cut_note(state, event), Finish(whole)) if reply.cut else (Finish(whole),)
        case Sent(), RequestFailed():
            return _after_failure(state, event)
        case _:
            raise IllegalAttemptEvent(f"{type(event).__name__} in state {type(state).__name__}")


def larger_limit(settings: ModelSettings, profile: WireProfile, retry: RetryPolicy) -> int | None:
    """Return a token limit for a second try after a cut reply; `None`: no larger one is known or allowed."""
    limit = profile.limit(settings)
    if limit is None or settings.max_tokens is not None or _is_fixed(settings):
        return None
    larger = int(limit * retry.length_retry_factor)
    larger = min(larger, profile.max_output_tokens or larger)
    return larger if larger > limit else None


def smaller_limit(
    settings: ModelSettings, profile: WireProfile, overflow: ContextOverflow | None
) -> int | None:
    """Return a token limit with which a too long request fits; `None`: no such limit is known or allowed."""
    limit = profile.limit(settings)
    if overflow is None or limit is None or _is_fixed(settings):
        return None
    room = (overflow.window_tokens or 0) - (overflow.prompt_tokens or 0)
    fits = overflow.prompt_tokens is not None and limit // _LEAST_OF_LIMIT <= room < limit
    return room if fits and room > 0 else None


def _is_fixed(settings: ModelSettings) -> bool:
    # Look for the fields of all wire formats: after an error, another format may be used.
    return any(each.limit_fields & settings.extra_body.keys() for each in FORMATS.values())


def _after_cut(state: Sent, event: ReplyRead) -> AttemptTransition:
    larger = larger_limit(state.settings, event.profile, state.retry)
    note = _cut_note(state, event, larger)
    if larger is None:
        return Ended(), (note, Finish(event.reply))
    settings = replace(state.settings, max_tokens=larger)
    cut = CutReply(event.reply, event.shown)
    following = replace(state, settings=settings, attempt=1, failed=(), endless=0, cut=cut, lowered=False)
    return following, (note, *_taken_back(state, event), SendRequest(settings))


def _cut_note(state: Sent, event: ReplyRead, retried_with: int | None = None) -> m.ReplyCut:
    limit, usage = event.profile.limit(state.settings), event.reply.usage
    return m.ReplyCut(request=state.request, limit_tokens=limit, retried_with=retried_with, usage=usage)


def _after_failure(state: Sent, event: RequestFailed) -> AttemptTransition:
    failure = replace(event.failure, attempts=state.attempt)
    smaller = smaller_limit(state.settings, event.profile, failure.overflow)
    if smaller is not None and not state.lowered:
        settings = replace(state.settings, max_tokens=smaller)
        following = replace(state, settings=settings, attempt=state.attempt + 1, lowered=True)
        return following, (*_retried(state, event), SendRequest(settings))
    adaptation = _adaptation(event)
    too_large = adaptation and event.fault.status == 413
    if state.clears and failure.overflow is not None and not too_large:
        return _give_up(state, event, failure)
    delay_s: float | None = 0.0
    failed = state.failed
    if not adaptation:
        failed = (*failed, failure.kind)
        of_kind = failed.count(failure.kind)
        delay_s = next_delay(state.retry, len(failed), failure, of_kind=of_kind, jitter=event.jitter)
    paid_for = event.fault.used_up or event.fault.received > 0
    endless = state.endless + (failure.kind == "timed_out" and paid_for)
    if delay_s is None or state.endless < endless >= _MOST_ENDLESS:
        return _give_up(state, event, failure)
    following = replace(state, attempt=state.attempt + 1, failed=failed, endless=endless)
    send = SendRequest(state.settings, delay_s)
    return following, (*adaptation, *_retried(state, event, delay_s), send)


def _retried(state: Sent, event: RequestFailed, delay_s: float = 0.0) -> tuple[AttemptCommand, ...]:
    failure = replace(event.failure, attempts=state.attempt)
    note = m.CompletionRetried(request=state.request, attempt=state.attempt, delay_s=delay_s, failure=failure)
    return note, *_taken_back(state, event)


def _adaptation(event: RequestFailed) -> tuple[AdaptProfile | DropAttachments, ...]:
    overflow = event.failure.overflow
    if overflow is None and adapt_profile(event.profile, event.fault.status, event.fault.message) is not None:
        return (AdaptProfile(event.fault),)
    blamed = event.fault.status in MAY_BLAME_ATTACHMENTS and event.failure.reason not in _OTHER_CAUSES
    if event.attachments and blamed:
        return (DropAttachments(),)
    return ()


def _give_up(state: Sent, event: RequestFailed, failure: m.LlmFailure) -> AttemptTransition:
    if state.cut is None:
        return Ended(), (Finish(failure),)
    again = (ShowAgain(state.cut.reply),) if state.cut.shown else ()
    return Ended(), (*_taken_back(state, event), *again, Finish(state.cut.reply))


def _taken_back(state: Sent, event: AttemptEvent) -> tuple[m.TextDelta, ...]:
    return (m.TextDelta(request=state.request, text="", restart=True),) if event.shown else ()


PAUSE_S, LONGEST_PAUSE_S = 30.0, 900.0
"""How long a model is paused after one failure, and at most after many, unless its endpoint asks for more."""
_LONGEST_ASKED_S = 86_400.0  # the longest wait that an endpoint can ask for: some ask for years, by mistake
_CANNOT_BE_ASKED = frozenset({"unreachable", "unavailable", "timed_out", "damaged"})
_SHOWN = 300  # characters of an earlier failure's message that `after_all` repeats


class Breaker(Struct, frozen=True):
    """A model's failures in a row, and the end of its pause (`until_s`, on the event loop's clock)."""

    failures: int = 0
    until_s: float = 0.0

    def failed(self, failure: m.LlmFailure, now_s: float) -> Breaker:
        """Return the breaker after `failure`. The pause doubles, to a limit; an endpoint may ask for more."""
        pause = min(PAUSE_S * 2.0 ** min(self.failures, 10), LONGEST_PAUSE_S)
        asked = min(failure.retry_after_s or 0.0, _LONGEST_ASKED_S)
        return Breaker(self.failures + 1, now_s + max(pause, asked))

    def is_open(self, now_s: float) -> bool:
        """Return whether the model is paused now: others are asked before it."""
        return now_s < self.until_s


def moves_on(failure: m.LlmFailure) -> bool:
    """Return whether to ask another model after `failure`: not after a refusal or an invalid reply."""
    return failure.kind in _CANNOT_BE_ASKED


def after_all(failures: Sequence[m.LlmFailure]) -> m.LlmFailure:
    """Return the last model's failure. Its message also names the other models and their failures."""
    *before, last = failures
    if not before:
        return last
    others = "; ".join(f"{each.model} at {each.endpoint}: {each.message[:_SHOWN]}" for each in before)
    return replace(last, message=f"{last.message} (before that {others})")
