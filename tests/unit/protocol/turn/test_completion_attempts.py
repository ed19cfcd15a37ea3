"""Which requests one completion takes: the whole table, and whole completions."""

from typing import Any, get_args

import pytest
from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from grue.messages import CompletionRetried, LlmFailure, ReplyCut, TextDelta, Usage
from grue.policies import ContextOverflow, FailureReason
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.profiles import GENERIC, adapt_profile
from grue.protocol.chat_wire.wire_format import Reply
from grue.protocol.retry import RetryPolicy
from grue.protocol.turn.completion_attempts import (
    AdaptProfile,
    AttemptCommand,
    AttemptEvent,
    AttemptState,
    CutReply,
    DropAttachments,
    Ended,
    Finish,
    IllegalAttemptEvent,
    ReplyRead,
    RequestFailed,
    SendRequest,
    Sent,
    ShowAgain,
    attempt_step,
    smaller_limit,
)

ASKED = ModelSettings(model="m")
ENLARGED = replace(ASKED, max_tokens=400)
RETRY = RetryPolicy(max_retries=1, jitter_factor=0.0)
SMALL = replace(GENERIC, default_max_tokens=100)
ONE, TWO = Usage(input_tokens=10, output_tokens=5), Usage(input_tokens=10, output_tokens=20)
WHOLE = Reply(content="look", usage=TWO)
CUT = Reply(content="lo", cut=True, usage=ONE)
BUSY = Fault(kind="unavailable", status=503, message="busy")
LATER = replace(BUSY, retry_after_s=7.0)
GARBLED = Fault(kind="invalid_reply", status=400, message="tool_use_failed")
REFUSED = Fault(kind="refused", status=400, message="no")
TOO_LARGE = Fault(kind="refused", status=413, message="Request Entity Too Large")
MARKERS = Fault(kind="refused", status=400, message="cache_control is not supported")
FIRST = Sent(request=3, settings=ASKED, retry=RETRY)
SECOND = replace(FIRST, attempt=2, failed=("unavailable",))
AGAIN = Sent(request=3, settings=ENLARGED, retry=RETRY, cut=CutReply(CUT, shown=True))
AGAIN_SECOND = replace(AGAIN, attempt=2, failed=("unavailable",))
PATIENT = replace(FIRST, retry=replace(RETRY, max_retries=3))


def failure(fault: Fault, attempts: int = 1) -> LlmFailure:
    return LlmFailure(
        kind=fault.kind,
        endpoint="e",
        model="m",
        status=fault.status,
        message=fault.message,
        attempts=attempts,
        retry_after_s=fault.retry_after_s,
    )


def failed(fault: Fault, **changes: Any) -> RequestFailed:
    return RequestFailed(fault=fault, failure=failure(fault), profile=SMALL, **changes)


def read(reply: Reply, profile: WireProfile = SMALL, *, shown: bool = False) -> ReplyRead:
    return ReplyRead(reply, profile, shown)


def retried(attempt: int, delay_s: float, failure: LlmFailure) -> CompletionRetried:
    return CompletionRetried(request=3, attempt=attempt, delay_s=delay_s, failure=failure)


def cut_note(limit: int | None, larger: int | None, usage: Usage) -> ReplyCut:
    return ReplyCut(request=3, limit_tokens=limit, retried_with=larger, usage=usage)


TAKEN_BACK = TextDelta(request=3, text="", restart=True)
CLEARING = replace(FIRST, clears=True)
OVERFLOW = failed(REFUSED, attachments=True)
OVERFLOW = replace(OVERFLOW, failure=replace(OVERFLOW.failure, overflow=ContextOverflow(window_tokens=9)))
FITS = replace(
    failed(REFUSED),
    failure=replace(failure(REFUSED), overflow=ContextOverflow(window_tokens=90, prompt_tokens=50)),
)
LOWER = replace(ASKED, max_tokens=40)
LARGE = failed(TOO_LARGE, attachments=True)
LARGE = replace(LARGE, failure=replace(LARGE.failure, overflow=ContextOverflow()))

ROWS: list[tuple[str, AttemptState, AttemptEvent, AttemptState, tuple[AttemptCommand, ...]]] = [
    ("a reply", FIRST, read(WHOLE, shown=True), Ended(), (Finish(WHOLE),)),
    (
        "a busy endpoint",
        FIRST,
        failed(BUSY),
        SECOND,
        (retried(1, 1.0, failure(BUSY)), SendRequest(ASKED, 1.0)),
    ),
    (
        "a wait that the endpoint asks for",
        FIRST,
        failed(LATER, shown=True),
        SECOND,
        (retried(1, 7.0, failure(LATER)), TAKEN_BACK, SendRequest(ASKED, 7.0)),
    ),
    ("no retry left", SECOND, failed(BUSY), Ended(), (Finish(failure(BUSY, 2)),)),
    ("a refusal", FIRST, failed(REFUSED, shown=True), Ended(), (Finish(failure(REFUSED)),)),
    (
        "a refusal that teaches",
        SECOND,
        failed(MARKERS, attachments=True),
        replace(SECOND, attempt=3),
        (AdaptProfile(MARKERS), retried(2, 0.0, failure(MARKERS, 2)), SendRequest(ASKED)),
    ),
    (
        "a lesson uses up no retry",
        replace(FIRST, attempt=2),
        failed(BUSY),
        replace(SECOND, attempt=3),
        (retried(2, 1.0, failure(BUSY, 2)), SendRequest(ASKED, 1.0)),
    ),
    (
        "a refusal that may be due to attachments",
        FIRST,
        failed(REFUSED, attachments=True),
        replace(FIRST, attempt=2),
        (DropAttachments(), retried(1, 0.0, failure(REFUSED)), SendRequest(ASKED)),
    ),
    (
        "a cut reply",
        SECOND,
        read(CUT, shown=True),
        AGAIN,
        (cut_note(100, 400, ONE), TAKEN_BACK, SendRequest(ENLARGED)),
    ),
    (
        "a cut reply without a larger limit",
        FIRST,
        read(CUT, GENERIC),
        Ended(),
        (cut_note(None, None, ONE), Finish(CUT)),
    ),
    ("the larger reply", AGAIN, read(WHOLE), Ended(), (Finish(replace(WHOLE, usage=ONE + TWO)),)),
    (
        "a reply that is cut again",
        AGAIN,
        read(CUT),
        Ended(),
        (cut_note(400, None, ONE), Finish(replace(CUT, usage=ONE + ONE))),
    ),
    (
        "a retry after a cut reply",
        AGAIN,
        failed(BUSY),
        AGAIN_SECOND,
        (retried(1, 1.0, failure(BUSY)), SendRequest(ENLARGED, 1.0)),
    ),
    ("an overflow is reported at once", CLEARING, OVERFLOW, Ended(), (Finish(OVERFLOW.failure),)),
    (
        "a prompt that fits without the limit of the reply",
        CLEARING,
        FITS,
        replace(CLEARING, settings=LOWER, attempt=2, lowered=True),
        (retried(1, 0.0, FITS.failure), SendRequest(LOWER)),
    ),
    (
        "a limit that is lowered after a part of the reply was shown",
        CLEARING,
        replace(FITS, shown=True),
        replace(CLEARING, settings=LOWER, attempt=2, lowered=True),
        (retried(1, 0.0, FITS.failure), TAKEN_BACK, SendRequest(LOWER)),
    ),
    (
        "a lowered limit that is refused too",
        replace(FIRST, settings=LOWER, attempt=2, lowered=True),
        FITS,
        Ended(),
        (Finish(replace(FITS.failure, attempts=2)),),
    ),
    (
        "an overflow without a policy is a refusal like any other",
        FIRST,
        OVERFLOW,
        replace(FIRST, attempt=2),
        (DropAttachments(), retried(1, 0.0, OVERFLOW.failure), SendRequest(ASKED)),
    ),
    (
        "a kind that is tried only once more, after failures of another kind",
        replace(PATIENT, attempt=3, failed=("unavailable", "unavailable")),
        failed(GARBLED),
        replace(PATIENT, attempt=4, failed=("unavailable", "unavailable", "invalid_reply")),
        (retried(3, 1.0, failure(GARBLED, 3)), SendRequest(ASKED, 1.0)),
    ),
    (
        "the same kind a second time",
        replace(PATIENT, attempt=3, failed=("invalid_reply", "unavailable")),
        failed(GARBLED),
        Ended(),
        (Finish(failure(GARBLED, 3)),),
    ),
    (
        "all kinds together use up the retries",
        replace(PATIENT, attempt=4, failed=("unavailable", "unavailable", "timed_out")),
        failed(GARBLED),
        Ended(),
        (Finish(failure(GARBLED, 4)),),
    ),
    (
        "a body that is too large, maybe by its images, also with a policy",
        CLEARING,
        LARGE,
        replace(CLEARING, attempt=2),
        (DropAttachments(), retried(1, 0.0, LARGE.failure), SendRequest(ASKED)),
    ),
    (
        "the cut reply of a turn with a policy",
        CLEARING,
        read(CUT),
        replace(AGAIN, clears=True, cut=CutReply(CUT, shown=False)),
        (cut_note(100, 400, ONE), SendRequest(ENLARGED)),
    ),
    (
        "the cut reply stands",
        AGAIN_SECOND,
        failed(BUSY, shown=True),
        Ended(),
        (TAKEN_BACK, ShowAgain(CUT), Finish(CUT)),
    ),
    (
        "the cut reply stands, and was never shown",
        replace(AGAIN_SECOND, cut=CutReply(CUT, shown=False)),
        failed(BUSY),
        Ended(),
        (Finish(CUT),),
    ),
]
USED_UP = Fault(kind="timed_out", message="no complete reply", used_up=True)
STALLED = Fault(kind="timed_out", message="the stream stalled", received=9)
SILENT = Fault(kind="timed_out", message="the endpoint stayed silent")


@pytest.mark.parametrize(
    ("faults", "retries"),
    [
        ((USED_UP, STALLED), 1),
        ((SILENT, USED_UP, USED_UP), 2),
        ((USED_UP, SILENT, SILENT, STALLED), 3),
        ((STALLED, BUSY, USED_UP), 2),
        ((SILENT, SILENT, SILENT, SILENT, SILENT, SILENT), 5),
    ],
)
def test_only_timeouts_that_are_billed_count_towards_their_limit(
    faults: tuple[Fault, ...], retries: int
) -> None:
    state: AttemptState = replace(FIRST, retry=RetryPolicy(max_retries=5))
    for number, fault in enumerate(faults):
        state, commands = attempt_step(state, failed(fault))
        assert isinstance(commands[-1], Finish) == (number == retries)


def test_the_longer_reply_in_place_of_a_cut_one_has_two_billed_timeouts_of_its_own() -> None:
    state, _ = attempt_step(replace(PATIENT, endless=1, attempt=2, failed=("timed_out",)), read(CUT))
    for last in (False, True):
        state, commands = attempt_step(state, failed(USED_UP))
        assert isinstance(commands[-1], Finish) == last


ILLEGAL: list[tuple[AttemptState, AttemptEvent]] = [
    *((Ended(), event) for event in (read(WHOLE), failed(BUSY))),
]


def test_the_table_is_complete() -> None:
    pairs = {(type(row[1]), type(row[2])) for row in ROWS} | {(type(a), type(b)) for a, b in ILLEGAL}
    assert pairs == {(a, b) for a in get_args(AttemptState) for b in get_args(AttemptEvent)}


@each_case("state, event, following, commands", [row[1:] for row in ROWS])
def test_a_listed_pair_leads_on(
    state: AttemptState,
    event: AttemptEvent,
    following: AttemptState,
    commands: tuple[AttemptCommand, ...],
) -> None:
    assert attempt_step(state, event) == (following, commands)


@pytest.mark.parametrize(("state", "event"), ILLEGAL)
def test_every_other_pair_is_illegal_and_names_both(state: AttemptState, event: AttemptEvent) -> None:
    with pytest.raises(IllegalAttemptEvent) as error:
        attempt_step(state, event)
    assert type(state).__name__ in str(error.value)
    assert type(event).__name__ in str(error.value)


LIMIT = Fault(kind="refused", status=400, message="max_tokens: at most 256")
FAULTS = st.sampled_from([BUSY, REFUSED, MARKERS, LIMIT, replace(BUSY, kind="invalid_reply")])
OUTCOMES = st.tuples(st.sampled_from([WHOLE, CUT]) | FAULTS, st.booleans())


class Completion:
    """A completion whose requests go as `outcomes` says, and are refused once there are no more of them."""

    def __init__(self, retry: RetryPolicy, attachments: int, outcomes: list[tuple[Any, bool]]) -> None:
        self.profile, self.attachments = SMALL, attachments
        self.sent: list[ModelSettings] = []
        self.showing = False
        state: AttemptState = Sent(request=3, settings=ASKED, retry=retry)
        commands: tuple[AttemptCommand, ...] = (SendRequest(ASKED),)
        while not self._ends(commands):
            outcome, shown = outcomes.pop(0) if outcomes else (REFUSED, False)
            assert not self.showing, "text of a failed reply is still shown"
            self.showing = shown
            event: AttemptEvent = read(outcome, self.profile, shown=shown)
            if isinstance(outcome, Fault):
                carries = {"attachments": self.attachments > 0, "shown": shown}
                event = replace(failed(outcome, **carries), profile=self.profile)
            state, commands = attempt_step(state, event)
        assert state == Ended()

    def _ends(self, commands: tuple[AttemptCommand, ...]) -> bool:
        for command in commands:
            match command:
                case AdaptProfile(fault):
                    adapted = adapt_profile(self.profile, fault.status, fault.message)
                    assert adapted is not None
                    self.profile = adapted
                case DropAttachments():
                    self.attachments -= 1
                case TextDelta(restart=True):
                    self.showing = False
                case ShowAgain():
                    self.showing = True
                case SendRequest(settings):
                    self.sent.append(settings)
                case Finish(outcome):
                    self.outcome = outcome
        assert isinstance(commands[-1], SendRequest | Finish)
        assert not any(isinstance(command, SendRequest | Finish) for command in commands[:-1])
        return isinstance(commands[-1], Finish)


POLICIES = st.builds(
    RetryPolicy, max_retries=st.integers(0, 3), length_retry_factor=st.sampled_from([1.0, 4])
)


@given(POLICIES, st.integers(0, 2), st.lists(OUTCOMES, max_size=20))
def test_a_completion_ends_after_a_bounded_number_of_requests(
    retry: RetryPolicy, attachments: int, outcomes: list[tuple[Any, bool]]
) -> None:
    completion = Completion(retry, attachments, list(outcomes))
    rounds = 2 if retry.length_retry_factor > 1 else 1
    lessons = 2  # of the cache markers and of the limit, each once
    assert len(completion.sent) <= rounds * (retry.max_retries + 1) + lessons + attachments
    assert completion.sent == sorted(completion.sent, key=lambda settings: settings.max_tokens or 0)


@given(POLICIES, st.lists(OUTCOMES, max_size=20))
def test_a_cut_reply_is_never_lost(retry: RetryPolicy, outcomes: list[tuple[Any, bool]]) -> None:
    """The last completion that an endpoint gave is the outcome; a failure only if there was none."""
    completion = Completion(retry, 0, list(outcomes))
    given_back = [outcome for outcome, _ in outcomes[: len(completion.sent)] if isinstance(outcome, Reply)]
    if given_back:
        assert completion.outcome == replace(
            given_back[-1], usage=sum((reply.usage for reply in given_back[1:]), given_back[0].usage)
        )
    else:
        assert isinstance(completion.outcome, LlmFailure)
        assert completion.outcome.attempts == len(completion.sent)


@given(POLICIES, st.lists(OUTCOMES, max_size=20))
def test_a_streamed_outcome_is_shown_at_the_end(retry: RetryPolicy, outcomes: list[tuple[Any, bool]]) -> None:
    completion = Completion(retry, 0, [(outcome, True) for outcome, _ in outcomes])
    assert completion.showing or isinstance(completion.outcome, LlmFailure)


@pytest.mark.parametrize(
    ("window", "prompt", "limit"),
    [
        (90, 50, 40),
        (150, 50, None),
        (149, 50, 99),
        (75, 50, 25),
        (74, 50, None),
        (50, 90, None),
        (90, None, None),
        (None, 50, None),
    ],
)
def test_a_limit_is_lowered_to_what_the_window_has_room_for(
    window: int | None, prompt: int | None, limit: int | None
) -> None:
    overflow = ContextOverflow(window_tokens=window, prompt_tokens=prompt)
    assert smaller_limit(ASKED, SMALL, overflow) == limit


@pytest.mark.parametrize(
    ("fault", "reason", "command"),
    [
        (REFUSED, "key", Finish),
        (REFUSED, "credit", Finish),
        (REFUSED, "region", Finish),
        (GARBLED, "reply", CompletionRetried),
        (REFUSED, "request", DropAttachments),
        (REFUSED, None, DropAttachments),
    ],
)
def test_attachments_are_kept_if_the_refusal_has_another_reason(
    fault: Fault, reason: FailureReason | None, command: type
) -> None:
    event = failed(fault, attachments=True)
    event = replace(event, failure=replace(event.failure, reason=reason))
    _, commands = attempt_step(FIRST, event)
    assert isinstance(commands[0], command)


def test_a_limit_in_extra_body_is_not_lowered() -> None:
    overflow = ContextOverflow(window_tokens=90, prompt_tokens=50)
    assert smaller_limit(replace(ASKED, extra_body={"max_tokens": 100}), SMALL, overflow) is None
