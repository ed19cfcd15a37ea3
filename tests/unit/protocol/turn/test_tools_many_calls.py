"""Turns with very many calls."""

import time

from msgspec.structs import replace
from turns import Walk, call, opened, returned, run

from grue.messages import CompletionReceived, RequestCompletion
from grue.policies import ContextPolicy, TurnLimits
from grue.protocol.chat_wire.wire_format import MAX_CALLS


def test_their_results_are_fitted_into_the_window_without_a_standstill() -> None:
    numbers = range(1, MAX_CALLS + 1)
    reply = CompletionReceived(request=1, tool_calls=tuple(map(call, numbers)))
    policy = ContextPolicy(window_tokens=10_000_000)
    walk = Walk(replace(run("a", limits=TurnLimits()), context=policy), opened("a", "think"), reply)
    for number in numbers[:-1]:
        walk.send(returned(number))
    started = time.process_time()
    walk.send(returned(MAX_CALLS))
    assert time.process_time() - started < 0.5, "a search of all results for each of them takes a second"
    assert isinstance(walk.last[-1], RequestCompletion)


def test_the_most_calls_of_one_reply_are_settled_one_by_one_without_a_standstill() -> None:
    numbers = range(1, MAX_CALLS + 1)
    reply = CompletionReceived(request=1, tool_calls=tuple(map(call, numbers)))
    walk = Walk(run("a", limits=TurnLimits()), opened("a", "think"), reply)
    started = time.process_time()
    for number in numbers:
        walk.send(returned(number))
    assert time.process_time() - started < 0.001 * MAX_CALLS, "a millisecond for each of them"
    assert [item.call_id for item in walk.last[-1].new] == [f"c{number}" for number in numbers]
