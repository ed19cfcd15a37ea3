"""`assert_calls` and `assert_answer` compare as JSON: `true` is not 1."""

from dataclasses import dataclass
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest

from grue import TurnOutcome
from grue.messages import CallId, ToolCallRecord, ToolCallResult, Usage
from grue.testing.decisions import Called, assert_answer, assert_calls


@dataclass
class Lamp:
    on: int


CALL = ToolCallRecord(
    call_id=CallId("1"),
    name="box.press",
    arguments='{"times": 1, "kinds": [1, false]}',
    iteration=1,
    settlement="returned",
    result=ToolCallResult({"on": True}),
)
OUTCOME: TurnOutcome[Any] = TurnOutcome(
    turn=1,
    kind="answered",
    response=Lamp(1),
    reason="",
    raw_response='{"on": 1}',
    tool_calls=(CALL,),
    iterations=1,
    requests=2,
    usage=Usage(),
    duration_s=0.1,
)


@pytest.mark.parametrize(
    "wrong",
    [
        Called("box.press", {"times": True, "kinds": [1, False]}),
        Called("box.press", {"times": 1, "kinds": [1, 0]}),
        Called("box.press", {"times": 1, "kinds": [1, False]}, result={"on": 1}),
    ],
)
def test_true_is_not_1_in_a_call(wrong: Called) -> None:
    assert_calls(OUTCOME, Called("box.press", {"times": 1.0, "kinds": [1, False]}, result={"on": True}))
    with pytest.raises(AssertionError, match=r"call 1, box\.press"):
        assert_calls(OUTCOME, wrong)


def test_true_is_not_1_in_an_answer() -> None:
    for answer in (Lamp(1), {"on": 1}):
        assert_answer(OUTCOME, answer)
    for wrong in (Lamp(True), {"on": True}):
        with pytest.raises(AssertionError, match="the answer is"):
            assert_answer(OUTCOME, wrong)


def test_a_value_that_equals_only_in_python_is_expected() -> None:
    assert_calls(OUTCOME, Called("box.press", {"times": pytest.approx(1), "kinds": ANY}, result=ANY))
    assert_calls(OUTCOME, Called("box.press", ANY))
    assert_answer(OUTCOME, ANY)
    assert_answer(msgspec.structs.replace(OUTCOME, response=0.1 + 0.2), pytest.approx(0.3))
    with pytest.raises(AssertionError, match="its arguments"):
        assert_calls(OUTCOME, Called("box.press", {"times": True, "kinds": ANY}))
