"""Which calls of a batch are made and how the others are answered: the whole table, and whole batches."""

from typing import Any, get_args

from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from turns import failure

from grue.messages import (
    CallTools,
    ServerCall,
    ServerDied,
    Settlement,
    ToolCalled,
    ToolCallResult,
    ToolReturned,
    ToolSkipped,
    ToolTask,
    ToolTimedOut,
)
from grue.protocol.tools.calls import MakeCall, steps_of
from grue.protocol.tools.results import (
    INTERRUPTED,
    NOT_AS_DECIDED,
    SKIPPED_AFTER_DEATH,
    SKIPPED_AFTER_TIMEOUT,
)


def batch_of(count: int, after_timeout: Any = "skip") -> CallTools:
    asked = tuple(ServerCall(call_id=f"c{n}", tool="look", arguments={"n": n}) for n in range(count))
    return CallTools(server="a", batch=1, calls=asked, timeout_s=30.0, after_timeout=after_timeout)


def made(number: int, *, last: bool = True) -> MakeCall:
    call = ServerCall(call_id=f"c{number}", tool="look", arguments={"n": number})
    return MakeCall(
        ToolCalled(server="a", batch=1, call_id=call.call_id, tool="look", arguments=call.arguments),
        call,
        last,
    )


def returned(number: int, batch: int = 1) -> ToolReturned:
    return ToolReturned(batch=batch, call_id=f"c{number}", result=ToolCallResult("ok"))


def timed_out(number: int) -> ToolTimedOut:
    return ToolTimedOut(batch=1, call_id=f"c{number}", timeout_s=30.0)


def died(number: int) -> ServerDied:
    return ServerDied(server="a", batch=1, call_id=f"c{number}", failure=failure())


def unsent(number: int) -> ToolSkipped:
    return ToolSkipped(batch=1, call_id=f"c{number}", reason="no such argument", refused=True)


def outdated(number: int) -> ToolSkipped:
    return ToolSkipped(batch=1, call_id=f"c{number}", reason=NOT_AS_DECIDED, refused=True)


def skipped(number: int, reason: str) -> ToolSkipped:
    return ToolSkipped(batch=1, call_id=f"c{number}", reason=reason)


def after(batch: CallTools, position: int, event: Settlement | None) -> list[Any]:
    """Return the steps after `event` has settled the call at `position`, up to the next call."""
    steps = steps_of(batch)
    for number, make in enumerate(step for step in steps if isinstance(step, MakeCall)):
        make.settlement = returned(number) if number < position else event
        if number == position:
            break
    found: list[Any] = []
    for step in steps:
        found.append(step)
        if isinstance(step, MakeCall):
            break
    return found


TWO, PATIENT = batch_of(2), batch_of(2, "continue")
ROWS: list[tuple[CallTools, int, Settlement, list[Any]]] = [
    (TWO, 0, returned(0), [returned(0), made(1)]),
    (TWO, 1, returned(1), [returned(1)]),
    (TWO, 0, timed_out(0), [timed_out(0), skipped(1, SKIPPED_AFTER_TIMEOUT)]),
    (PATIENT, 0, timed_out(0), [timed_out(0), made(1)]),
    (TWO, 1, timed_out(1), [timed_out(1)]),
    *((batch, 0, died(0), [died(0), skipped(1, SKIPPED_AFTER_DEATH)]) for batch in (TWO, PATIENT)),
    (TWO, 1, died(1), [died(1)]),
    (TWO, 0, unsent(0), [unsent(0), made(1)]),
    (TWO, 1, unsent(1), [unsent(1)]),
    # The tool is not as it was when the call was decided on: the next call has nothing to do with that.
    (TWO, 0, outdated(0), [outdated(0), made(1)]),
    (TWO, 1, outdated(1), [outdated(1)]),
]


def test_the_table_is_complete() -> None:
    pairs = {(position, type(event)) for _, position, event, _ in ROWS}
    assert pairs == {(position, event) for position in (0, 1) for event in get_args(Settlement)}


@each_case("batch, position, event, steps", ROWS)
def test_a_listed_pair_leads_on(batch: CallTools, position: int, event: Settlement, steps: list[Any]) -> None:
    assert after(batch, position, event) == steps


def test_a_batch_begins_with_its_first_call_or_is_skipped_without_a_server() -> None:
    assert list(steps_of(TWO)) == [made(0, last=False)]
    dead = [skipped(0, SKIPPED_AFTER_DEATH), skipped(1, SKIPPED_AFTER_DEATH)]
    assert list(steps_of(TWO, connected=False)) == dead


FATES = st.lists(st.sampled_from([returned, timed_out, died, outdated]), min_size=1, max_size=8)


@given(FATES, st.sampled_from(["skip", "continue"]), st.booleans())
def test_every_call_is_settled_once_in_order_and_one_is_under_way_at_a_time(
    fates: list[Any], after_timeout: str, connected: bool
) -> None:
    batch = batch_of(len(fates), after_timeout)
    settled: list[Any] = []
    calls: list[ToolCalled] = []
    lasts: list[bool] = []
    for step in steps_of(batch, connected=connected):
        match step:
            case MakeCall(called):
                assert len(settled) == len(calls), "a call is made before the one before it is settled"
                step.settlement = fates[len(calls)](len(calls))
                calls.append(called)
                lasts.append(step.last)
            case settlement:
                settled.append(settlement)
    assert lasts == [at + 1 == len(fates) for at in range(len(calls))]
    assert [settlement.call_id for settlement in settled] == [call.call_id for call in batch.calls]
    ending = {died} if after_timeout == "continue" else {died, timed_out}
    stop = next((at + 1 for at, fate in enumerate(fates) if fate in ending), len(fates))
    assert len(calls) == (stop if connected else 0)
    assert [isinstance(each, ToolSkipped) for each in settled] == [
        at >= len(calls) or fates[at] is outdated for at in range(len(fates))
    ]


def test_a_call_that_was_sent_before_is_asked_for_by_its_task_or_may_have_taken_effect() -> None:
    task = ToolTask(task_id="t1")
    asked = batch_of(2)
    first, second = asked.calls
    batch = replace(asked, calls=(first, replace(second, task=task)))
    make = after(batch, 0, returned(0))[-1]
    assert make.called.task == task
    for event in (timed_out(0), died(0)):
        assert [getattr(each, "reason", "") for each in after(batch, 0, event)][1:] == [INTERRUPTED]
