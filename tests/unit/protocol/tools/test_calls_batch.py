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
from grue.protocol.tools.calls import (
    BatchCommand,
    BatchState,
    Calling,
    MakeCall,
    ReadChangedTools,
    batch_step,
    begin_batch,
    not_as_decided,
)
from grue.protocol.tools.results import INTERRUPTED, SKIPPED_AFTER_DEATH, SKIPPED_AFTER_TIMEOUT


def batch_of(count: int, after_timeout: Any = "skip") -> CallTools:
    asked = tuple(ServerCall(call_id=f"c{n}", tool="look", arguments={"n": n}) for n in range(count))
    return CallTools(server="a", batch=1, calls=asked, timeout_s=30.0, after_timeout=after_timeout)


def made(number: int) -> MakeCall:
    call = ServerCall(call_id=f"c{number}", tool="look", arguments={"n": number})
    return MakeCall(
        ToolCalled(server="a", batch=1, call_id=call.call_id, tool="look", arguments=call.arguments), call
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
    return not_as_decided(made(number).called)


def skipped(number: int, reason: str) -> ToolSkipped:
    return ToolSkipped(batch=1, call_id=f"c{number}", reason=reason)


READ = ReadChangedTools()
TWO, PATIENT = batch_of(2), batch_of(2, "continue")
ROWS: list[tuple[BatchState, Settlement, BatchState, tuple[BatchCommand, ...]]] = [
    (Calling(TWO, 0), returned(0), Calling(TWO, 1), (returned(0), READ, made(1))),
    (Calling(TWO, 1), returned(1), None, (READ, returned(1))),
    (
        Calling(TWO, 0),
        timed_out(0),
        None,
        (timed_out(0), skipped(1, SKIPPED_AFTER_TIMEOUT)),
    ),
    (Calling(PATIENT, 0), timed_out(0), Calling(PATIENT, 1), (timed_out(0), READ, made(1))),
    (Calling(TWO, 1), timed_out(1), None, (READ, timed_out(1))),
    *(
        (Calling(batch, 0), died(0), None, (died(0), skipped(1, SKIPPED_AFTER_DEATH)))
        for batch in (TWO, PATIENT)
    ),
    (Calling(TWO, 0), unsent(0), Calling(TWO, 1), (unsent(0), READ, made(1))),
    (Calling(TWO, 1), unsent(1), None, (READ, unsent(1))),
    # The tool is not as it was when the call was decided on: the next call has nothing to do with that.
    (Calling(TWO, 0), outdated(0), Calling(TWO, 1), (outdated(0), READ, made(1))),
    (Calling(TWO, 1), outdated(1), None, (READ, outdated(1))),
    # Late answers.
    (Calling(TWO, 1), returned(0), Calling(TWO, 1), ()),
    (Calling(TWO, 0), returned(0, batch=2), Calling(TWO, 0), ()),
    *((None, late, None, ()) for late in (returned(0), timed_out(0), died(0), unsent(0), outdated(0))),
]


def test_the_table_is_complete() -> None:
    pairs = {(type(state), type(event)) for state, event, *_ in ROWS}
    assert pairs == {(state, event) for state in get_args(BatchState) for event in get_args(Settlement)}


@each_case("state, event, following, commands", ROWS)
def test_a_listed_pair_leads_on(
    state: BatchState, event: Settlement, following: BatchState, commands: tuple[BatchCommand, ...]
) -> None:
    assert batch_step(state, event) == (following, commands)


def test_a_batch_begins_with_its_first_call_or_is_skipped_without_a_server() -> None:
    assert begin_batch(TWO) == (Calling(TWO, 0), (READ, made(0)))
    dead = (skipped(0, SKIPPED_AFTER_DEATH), skipped(1, SKIPPED_AFTER_DEATH))
    assert begin_batch(TWO, connected=False) == (None, dead)


FATES = st.lists(st.sampled_from([returned, timed_out, died, outdated]), min_size=1, max_size=8)
LATE = st.lists(st.integers(0, 8), max_size=3)


@given(FATES, LATE, st.sampled_from(["skip", "continue"]), st.booleans())
def test_every_call_is_settled_once_in_order_and_one_is_under_way_at_a_time(
    fates: list[Any], late: list[int], after_timeout: str, connected: bool
) -> None:
    batch = batch_of(len(fates), after_timeout)
    state, commands = begin_batch(batch, connected=connected)
    settled: list[Any] = []
    calls: list[ToolCalled] = []
    while commands:
        reported = [command for command in commands if isinstance(command, Settlement)]
        settled += reported
        makes_one = isinstance(commands[-1], MakeCall)
        assert commands.count(READ) == (connected and (makes_one or len(calls) == len(fates)))
        if not isinstance(commands[-1], MakeCall):
            break
        calls.append(commands[-1].called)
        assert len(settled) == len(calls) - 1, "a call is made before the one before it is settled"
        outcome: Settlement = fates[len(calls) - 1](len(calls) - 1)
        for number in late:
            if number < len(calls) - 1:
                assert batch_step(state, returned(number)) == (state, ())
        assert batch_step(state, replace(outcome, batch=7)) == (state, ())
        state, commands = batch_step(state, outcome)
    assert state is None
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
    state, _ = begin_batch(batch)
    _, commands = batch_step(state, returned(0))
    (make,) = (each for each in commands if isinstance(each, MakeCall))
    assert make.called.task == task
    for event in (timed_out(0), died(0)):
        _, commands = batch_step(state, event)
        skipped = [each for each in commands if isinstance(each, Settlement)]
        assert [getattr(each, "reason", "") for each in skipped][1:] == [INTERRUPTED]
