"""Assertions on the tool calls and the answer of a turn. `grue trace to-test` writes tests with them."""

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from grue import messages as m
from grue.engine.answers import as_json
from grue.engine.turn import TurnOutcome
from grue.policies import SettlementKind
from grue.tracing.divergence import Comparison


class Called(Struct, frozen=True):
    """A tool call that a turn is expected to make.

    Attributes:
        name: Canonical name of the tool, `SERVER.TOOL`.
        arguments: The arguments that the model wrote, as a dictionary; as text if they are not a JSON object.
        result: The content of the call's result; not checked if it is left out.
        error: The error message of the call's result; not checked if it is left out.
        settlement: How the call ends, such as `returned` or `timed_out`.
    """

    name: str
    arguments: object
    result: object = UNSET
    error: str | UnsetType = UNSET
    settlement: SettlementKind = "returned"


def assert_calls(outcome: TurnOutcome[Any], *expected: Called) -> None:
    """Check that a turn made the `expected` tool calls, in this order, and no others.

    Raises:
        AssertionError: A call differs, is missing or is one too many; the text names the first such call.
        TypeError: `outcome` is not the outcome of a turn, or one of `expected` is no `Called`.
    """
    _require_outcome("assert_calls", outcome)
    for each in expected:
        if not isinstance(each, Called):
            raise TypeError(
                f"assert_calls(outcome, Called(...), Called(...)): {type(each).__name__} is no Called"
            )
    for number, call in enumerate(outcome.tool_calls, start=1):
        if number > len(expected):
            raise AssertionError(f"call {number} is one too many: {_shown(call)}")
        for what, wanted, found in _compared(expected[number - 1], call):
            why = call.result.error_message if what == "its settlement" else None
            said = f"{found!r} ({why})" if why else repr(found)
            raise AssertionError(f"call {number}, {_shown(call)}: {what} is {said}, not {wanted!r}")
    if len(outcome.tool_calls) < len(expected):
        missing = expected[len(outcome.tool_calls)]
        raise AssertionError(
            f"call {len(outcome.tool_calls) + 1} is missing: {missing.name} {missing.arguments}"
        )


def assert_answer(outcome: TurnOutcome[Any], answer: object, *, fallback: bool = False) -> None:
    """Check that a turn gave this answer.

    `answer` is the answer as a Python value, or as the JSON value that the trace has for it.
    With `fallback`, the host's fallback is expected, because the model gave no acceptable answer.

    Raises:
        AssertionError: The turn gave another answer, or its use of the fallback is not as `fallback` says.
        TypeError: `outcome` is not the outcome of a turn.
    """
    _require_outcome("assert_answer", outcome)
    if fallback and outcome.kind != "fallback":
        raise AssertionError(f"the model gave an answer, {outcome.response!r}, and not the fallback")
    if not fallback and outcome.kind == "fallback":
        raise AssertionError(f"there is no answer of the model: {outcome.reason}")
    if not (_same(answer, outcome.response) or _same(answer, as_json(outcome.response))):
        raise AssertionError(f"the answer is {outcome.response!r}, not {answer!r}")


def _require_outcome(asserting: str, outcome: object) -> None:
    if not hasattr(outcome, "kind"):
        raise TypeError(f"{asserting} wants the TurnOutcome of a turn, not {type(outcome).__name__}")


def arguments_of(call: m.ToolCall | m.ToolCallRecord) -> object:
    """Return a call's arguments as a dictionary (`{}` for an empty text); as text if they are no object."""
    try:
        value: object = msgspec.json.decode(call.arguments or "{}")
    except msgspec.DecodeError:
        return call.arguments
    return value if isinstance(value, dict) else call.arguments


def _compared(wanted: Called, call: m.ToolCallRecord) -> list[tuple[str, object, object]]:
    rows: list[tuple[str, object, object]] = [
        ("the tool", wanted.name, call.name),
        ("its arguments", wanted.arguments, arguments_of(call)),
        ("its settlement", wanted.settlement, call.settlement),
        ("its error", wanted.error, call.result.error_message),
        ("its result", wanted.result, call.result.content),
    ]
    return [row for row in rows if row[1] is not UNSET and not _same(row[1], row[2])]


def _same(wanted: object, found: object) -> bool:
    # `==` lets `unittest.mock.ANY` stand for every value, but it also takes `True` for 1. Such a pair is a
    # difference of the JSON although `==` calls its two values equal.
    differing = Comparison().differences(as_json(wanted), as_json(found))
    return wanted == found and not any(each.left == each.right for each in differing)


def _shown(call: m.ToolCallRecord) -> str:
    return f"{call.name} {call.arguments:.200}"
