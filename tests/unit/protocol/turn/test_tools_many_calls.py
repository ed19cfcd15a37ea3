"""Turns with very many calls."""

import time

from turns import Walk, call, opened, returned, run

from grue.messages import CompletionReceived
from grue.policies import TurnLimits
from grue.protocol.chat_wire.wire_format import MAX_CALLS


def test_the_most_calls_of_one_reply_are_settled_one_by_one_without_a_standstill() -> None:
    numbers = range(1, MAX_CALLS + 1)
    reply = CompletionReceived(request=1, tool_calls=tuple(map(call, numbers)))
    walk = Walk(run("a", limits=TurnLimits()), opened("a", "think"), reply)
    started = time.process_time()
    for number in numbers:
        walk.send(returned(number))
    assert time.process_time() - started < 0.001 * MAX_CALLS, "a millisecond for each of them"
    assert [item.call_id for item in walk.last[-1].new] == [f"c{number}" for number in numbers]
