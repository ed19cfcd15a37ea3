"""Every argument of every public class, with values of every wrong kind.

Each value is taken, or refused where it is given by an error that names the argument. What was taken is used
in a turn, which must not crash.
"""

import inspect
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import grue
from grue import LlmSettings, MCPError, RetryPolicy, Runner, TurnRequest
from grue.errors import ActorCrashed, TraceError
from grue.hosting import read_episode
from grue.testing.offline import MODEL, OFFLINE_URL, offline_endpoint, reply_in_chat

HOSTILE: list[Any] = [
    None, 1, 0, -1, 10**400, 10**5000, -(10**5000), [10**5000],
    -0.5, math.nan, math.inf, True, "", "a", b"a", [], ["a"], [None], {}, {"a": 1},
    {1: 2}, {"a"}, object(), int, Exception("a"), [{"a": 1}], [object()], [["a"]], {"a": object()},
    Decimal(2),
]  # fmt: skip

NEEDED: dict[str, dict[str, Any]] = {
    "AnswerSpec": {"parse": str},
    "ApprovalDecision": dict.fromkeys(("call_id", "name", "arguments_digest", "definition_digest"), "a")
    | {"verdict": "approve"},
    "ApprovalQuestion": dict.fromkeys(("call_id", "name", "arguments_digest", "definition_digest"), "a")
    | {"arguments": {}},
    "Batching": {"folder": "batches"},
    "FunctionTools": {"functions": []},
    "HttpServer": {"url": "http://127.0.0.1:9/"},
    "LlmSettings": {"base_url": "http://127.0.0.1:9/v1", "model": "m"},
    "Price": {"input": 1.0, "output": 5.0},
    "Runner": {"llm": LlmSettings(base_url="http://127.0.0.1:9/v1", model="m")},
    "ShellTool": {"folder": "/", "commands": []},
    "StdioServer": {"command": "python"},
    "ToolClient": {"servers": {}},
    "ToolMessage": {"call_id": "a", "content": "a"},
    "TraceWriter": {"path": "trace.jsonl", "episode": "a"},
    "TurnRequest": {"user": "How many?"},
    "UserText": {"text": "a"},
}

MADE_BY_GRUE = {
    "BatchItem", "Conversation", "TextDelta", "ToolContext", "TurnHandle", "TurnOutcome", "TurnProgress",
}  # fmt: skip

NO_NAME = {
    # The text names the value itself, or what is wrong with it.
    ("HttpServer", "url"): "its URL",
    ("LlmSettings", "base_url"): "The base URL",
    ("Runner", "servers"): "name of a tool server",
    ("ToolClient", "servers"): "name of a tool server",
    ("ShellTool", "commands"): "the program 'a'",
    ("TraceWriter", "path"): "Cannot write the trace file .",
}


def constructors() -> Iterator[tuple[str, Any]]:
    for name in grue.__all__:
        found = getattr(grue, name)
        if inspect.isclass(found) and not issubclass(found, BaseException) and name not in MADE_BY_GRUE:
            yield name, found


@pytest.mark.parametrize(("name", "made"), list(constructors()))
def test_an_argument_of_a_wrong_kind_is_refused_by_its_name(
    name: str, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    needed = NEEDED.get(name, {})
    made(**needed)
    for argument in inspect.signature(made).parameters:
        for number, value in enumerate(HOSTILE):
            if name == "TraceWriter":
                needed = {"path": f"{argument}-{number}.jsonl", "episode": "a"}
            said = refusal(made, {**needed, argument: value})
            own = NO_NAME.get((name, argument), argument)
            assert said is None or argument in said or own in said, (argument, value, said)


def refusal(made: Any, arguments: dict[str, Any]) -> str | None:
    """Return what the error says; `None`: the arguments were taken."""
    try:
        made(**arguments)
    except (TypeError, ValueError, MCPError) as error:
        return str(error)
    return None


def turns(**arguments: Any) -> Runner:
    return Runner(llm=offline_endpoint(reply_in_chat, arguments.pop("llm", None)), **arguments)


USED = {
    "limits": grue.TurnLimits,
    "policy": grue.FailurePolicy,
    "context": grue.ContextPolicy,
    "tool_search": grue.ToolSearch,
    "budget": grue.Budget,
    "process_limits": grue.ProcessLimits,
    "tool_policy": grue.ToolPolicy,
}


def used() -> Iterator[Any]:
    for argument, kind in USED.items():
        for field in kind.__struct_fields__:
            yield pytest.param(argument, kind, field, id=f"{argument}-{field}")
    for field in grue.ToolRule.__struct_fields__:
        yield pytest.param("tool_policy", lambda **row: grue.ToolPolicy(rules=(grue.ToolRule(**row),)), field)
    for field in (each for each in TurnRequest.__struct_fields__ if each != "conversation"):
        yield pytest.param("request", lambda **given: TurnRequest(**{"user": "clock.now {}", **given}), field)


def now() -> str:
    """Say what time it is."""
    return "noon"


@pytest.mark.parametrize(("argument", "kind", "field"), list(used()))
def test_a_value_that_was_taken_crashes_no_turn(argument: str, kind: Any, field: str) -> None:
    for value in HOSTILE:
        try:
            made = kind(**{field: value})
            request = made if argument == "request" else TurnRequest(user="clock.now {}")
            arguments = {} if argument == "request" else {argument: made}
            with turns(servers={"clock": grue.FunctionTools([now])}, **arguments) as runner:
                runner.run_turn(request)
        except ActorCrashed as crash:
            if value is not int:  # a function of the program's: the crash says that its own code raised it
                raise AssertionError((field, value)) from crash
        except MCPError:
            pass


def test_a_trace_with_a_limit_that_is_none_is_refused_by_file_and_line(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with turns(trace=trace) as runner:
        runner.run_turn("Hello.")
    trace.write_text(trace.read_text().replace('"tool_call_timeout_s":30.0', '"tool_call_timeout_s":-1.0'))
    with pytest.raises(TraceError, match=r"trace\.jsonl, line \d+: .*tool_call_timeout_s is -1\.0"):
        list(read_episode(trace))


def test_a_number_of_another_library_is_a_number_like_any_other() -> None:
    class Float64(float):
        """As numpy has one."""

    for number in (Float64(0.5), Decimal("0.5")):
        settings = LlmSettings(base_url=OFFLINE_URL, model=MODEL, temperature=number)  # type: ignore[arg-type]
        assert (type(settings.temperature), settings.temperature) == (float, 0.5)


def test_a_text_of_another_library_is_a_text_like_any_other() -> None:
    class Str(str):
        """As numpy has one."""

    assert type(LlmSettings(base_url=Str(OFFLINE_URL), model=Str(MODEL)).model) is str
    with turns() as runner:
        assert runner.run_turn(TurnRequest(Str("Hello."), system=Str("Answer."))).response


def test_a_number_with_more_digits_than_python_prints_is_shown_by_its_length() -> None:
    with pytest.raises(
        MCPError, match="turn= wants a number, 0 or more, or None, not an integer of 16,610 bits"
    ):
        TurnRequest("Hello.", turn=10**5000)
    with pytest.raises(MCPError, match=r"max_retries is an integer of 16,610 bits; it must be"):
        RetryPolicy(max_retries=10**5000)


def test_a_path_may_stand_where_a_text_is_wanted() -> None:
    assert grue.Batching(folder=Path("runs", "tickets")).folder == "runs/tickets"  # type: ignore[arg-type]
