"""Turns with very many calls."""

import pytest
from growth import assert_linear
from msgspec.structs import replace
from turns import Walk, call, opened, returned, run

from grue.messages import CompletionReceived, RequestCompletion
from grue.policies import ContextPolicy, TurnLimits
from grue.protocol.chat_wire.wire_format import MAX_CALLS
from grue.protocol.tool_loop import step


def waiting(calls: int, settled: int = 0) -> Walk:
    """Return a turn whose reply has this many calls, the first `settled` of them with a result."""
    reply = CompletionReceived(request=1, tool_calls=tuple(map(call, range(1, calls + 1))))
    begun = replace(run("a", limits=TurnLimits()), context=ContextPolicy(window_tokens=10_000_000))
    return Walk(begun, opened("a", "think"), reply, *map(returned, range(1, settled + 1)))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.slow
def test_one_more_result_takes_time_in_proportion_to_the_calls(last: bool) -> None:
    """The last result takes longest: then all results are fitted into the window."""
    states = {calls: waiting(calls, calls - 1 if last else 0).state for calls in (MAX_CALLS // 4, MAX_CALLS)}
    assert_linear(lambda calls: step(states[calls], returned(calls)), MAX_CALLS)


@pytest.mark.slow
def test_results_of_the_most_calls_are_sent_in_the_order_of_the_calls() -> None:
    request = waiting(MAX_CALLS, MAX_CALLS).last[-1]
    assert isinstance(request, RequestCompletion)
    assert [item.call_id for item in request.new] == [f"c{number}" for number in range(1, MAX_CALLS + 1)]
