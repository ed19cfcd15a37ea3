"""`answer=` takes types: how each is requested, read, recorded, and what is refused."""

import datetime as dt
import enum
import json
import socket
import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from case_tables import each_case
from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

from grue import AnswerSpec, FunctionTools, LlmSettings, Runner, TurnRequest
from grue.engine.answers import as_json
from grue.engine.turn import error_for
from grue.errors import AnswerError, AnswerStopped, LLMError, MCPConfigError
from grue.messages import NoAnswer, TurnFailed
from grue.testing.llm_server import (
    ScriptedLlmServer,
    completion,
    error_reply,
    text_reply,
    tool_calls_reply,
)


class Model(BaseModel):
    a: int
    b: str | None = None


class Record(msgspec.Struct):
    a: int


class Seats(msgspec.Struct):
    taken: dict[int, str]


class Tree(msgspec.Struct):
    inner: "list[Tree]"


class Branch(BaseModel):
    size: int = 1
    inner: "list[Branch]"


class Forest(RootModel["list[Forest]"]):
    pass


BRANCH = Branch(inner=[Branch(inner=[])])


@dataclass
class Data:
    a: int


class Typed(TypedDict):
    a: int


Small = Annotated[int, msgspec.Meta(ge=1, le=9)]


@dataclass
class Bounded:
    a: "list[Small]"
    next: "Bounded | None" = None


class BoundedTyped(TypedDict):
    a: Annotated[list[int], msgspec.Meta(max_length=1)]


@dataclass
class Mixed:
    a: Small
    model: Model


class Colour(enum.Enum):
    RED = "red"


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    colour: Colour
    day: dt.date
    steps: tuple[int, ...]


def test_an_answer_that_holds_itself_twice_is_recorded_as_a_text() -> None:
    """The host's check may return anything."""
    knot: list[object] = []
    knot += [knot, knot]
    for answer in (knot, {"path": knot}):
        assert as_json(answer) == "[holds itself, or the same parts too often]"


STRICT = Strict(colour=Colour.RED, day=dt.date(2026, 2, 1), steps=(1, 2))


@each_case(
    "type_, text, answer, recorded",
    [
        (Model, 'Here: {"a": 1, "b": null}', Model(a=1), {"a": 1, "b": None}),
        (Record, '```json\n{"a": 1}\n```', Record(1), {"a": 1}),
        (Seats, '{"taken": {"7": "Ann"}}', Seats({7: "Ann"}), {"taken": {"7": "Ann"}}),
        (Strict, STRICT.model_dump_json(), STRICT, json.loads(STRICT.model_dump_json())),
        (Annotated[dt.date, Field(strict=True)], "2026-02-01", STRICT.day, "2026-02-01"),
        (Tree, '{"inner": [{"inner": []}]}', Tree([Tree([])]), {"inner": [{"inner": []}]}),
        (Branch, '{"inner": [{"inner": []}]}', BRANCH, BRANCH.model_dump()),
        (Branch, '{"size": 1, "inner": [{"size": null, "inner": []}]}', BRANCH, BRANCH.model_dump()),
        (Forest, '{"value": [[], []]}', Forest([Forest([]), Forest([])]), [[], []]),
        (Data, '{"a": 1}', Data(1), {"a": 1}),
        (Typed, '{"a": 1}', {"a": 1}, {"a": 1}),
        (Colour, '{"value": "red"}', Colour.RED, "red"),
        (Colour, "red", Colour.RED, "red"),
        (Literal["a", "b"], "b", "b", "b"),
        (list[int], '{"value": [1, 2]}', [1, 2], [1, 2]),
        (list[int], "[1, 2]", [1, 2], [1, 2]),
        (list[int], "They are:\n```json\n[1, 2]\n```", [1, 2], [1, 2]),
        (list[int], "First:\n```json\n[1]\n```\nBetter:\n```json\n[2]\n```", [2], [2]),
        (list[Record], '{"value": [{"a": 1}]}', [Record(1)], [{"a": 1}]),
        (list[Model], '{"value": [{"a": 1}]}', [Model(a=1)], [{"a": 1, "b": None}]),
        (int, '{"value": 7}', 7, 7),
        (bool, "true", True, True),
        (Annotated[int, {"unit": "euros"}], "7", 7, 7),
    ],
)
def test_each_type_is_requested_as_an_object_read_and_recorded(
    type_: Any, text: str, answer: object, recorded: object
) -> None:
    spec = AnswerSpec.of(type_)
    assert spec.schema.schema["type"] == "object"
    assert spec.parse(text) == answer
    assert as_json(answer) == recorded
    with pytest.raises(ValueError, match=r"."):
        spec.parse("no such thing")


@each_case(
    "type_, good, answer, bad",
    [
        (Small, "9", 9, "10"),
        (list[Small], "[1]", [1], "[0]"),
        (Annotated[str, msgspec.Meta(pattern="^a")], "ab", "ab", "ba"),
        (Annotated[int, Field(ge=1)], "1", 1, "0"),
        (Bounded, '{"a": ["3"], "more": 1}', Bounded([3]), '{"a": [0]}'),
        (BoundedTyped, '{"a": [3]}', {"a": [3]}, '{"a": [3, 4]}'),
    ],
)
def test_constraints_of_msgspec_and_of_pydantic_hold(type_: Any, good: str, answer: object, bad: str) -> None:
    spec = AnswerSpec.of(type_)
    assert spec.parse(good) == answer
    with pytest.raises(ValueError, match=r"."):
        spec.parse(bad)


def test_a_constraint_of_msgspec_beside_a_part_of_pydantic_is_refused() -> None:
    with pytest.raises(MCPConfigError, match="Write the constraint with pydantic's Field instead"):
        AnswerSpec.of(Mixed)


class AllOptional(BaseModel):
    a: int = 0
    b: int | None = None


class Unwrapping(AllOptional):
    @model_validator(mode="before")
    @classmethod
    def _unwrap(cls, found: Any) -> Any:
        return found.get("answer", found)


@pytest.mark.parametrize("type_", [AllOptional, AllOptional | None, list[int] | AllOptional])
@pytest.mark.parametrize("text", ['{"answer": {"a": 1}}', '{"c": null}', '{"value": {"c": 1}}'])
def test_an_object_without_a_member_of_the_type_is_refused(type_: Any, text: str) -> None:
    spec = AnswerSpec.of(type_)
    with pytest.raises(ValueError, match=r"^it has none of these members: a, b$"):
        spec.parse(text)
    assert spec.parse("{}") == AllOptional()
    assert spec.parse('{"a": 0}') == AllOptional()


@dataclass
class Stamped:
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    score: int = 0


@dataclass(eq=False)
class Unequal:
    score: int = 0


class Incomparable(BaseModel):
    score: int = 0

    def __eq__(self, other: object) -> bool:
        raise TypeError


@pytest.mark.parametrize("type_", [Stamped, Unequal])
def test_an_object_without_a_member_is_refused_also_if_values_of_the_type_are_never_equal(type_: Any) -> None:
    """It was the answer, with the defaults of all members."""
    spec = AnswerSpec.of(type_)
    with pytest.raises(ValueError, match=r"^it has none of these members: (id, )?score$"):
        spec.parse('{"error": "I cannot tell"}')
    assert spec.parse('{"score": 3}').score == 3
    assert spec.parse("{}").score == 0


def test_an_eq_of_an_answers_type_that_raises_does_not_end_the_turn() -> None:
    assert AnswerSpec.of(Incomparable).parse('{"error": "I cannot tell"}').score == 0


def test_an_object_with_other_members_is_read_if_the_type_reads_them() -> None:
    assert AnswerSpec.of(Unwrapping).parse('{"answer": {"a": 1}}') == Unwrapping(a=1)
    looked = 'I read {"a": 1} and then {"path": "x"}.'
    assert AnswerSpec.of(AllOptional).parse(looked) == AllOptional(a=1)


def test_a_check_may_refuse_and_change() -> None:
    def halved(number: int) -> int:
        if number % 2:
            raise ValueError("it is odd")
        return number // 2

    spec = AnswerSpec.of(int, check=halved, fallback=0)
    assert spec.parse("4") == 2
    assert spec.fallback == 0
    with pytest.raises(ValueError, match="odd"):
        spec.parse("3")


@pytest.mark.parametrize("type_", [lambda: 1, "Ticket", object()])
def test_what_json_cannot_express_is_refused_with_what_to_use(type_: Any) -> None:
    with pytest.raises(
        MCPConfigError, match=r"cannot be expressed in JSON( \(pydantic: .*\))?. Use a pydantic model"
    ):
        AnswerSpec.of(type_)


def test_a_type_with_a_part_that_is_no_json_names_the_part() -> None:
    @dataclass
    class Order:
        number: int
        at: socket.socket

    with pytest.raises(MCPConfigError, match=r"in JSON \(pydantic: Unable to generate .*socket\.socket'>\)"):
        AnswerSpec.of(Order)


def test_a_constraint_that_pydantic_cannot_use_is_refused_with_the_reason() -> None:
    with pytest.raises(MCPConfigError, match=r"cannot be used: .* look-around, .* is not supported"):
        AnswerSpec.of(list[Annotated[str, Field(pattern="^(?!a)")]])


def test_a_type_with_a_name_that_is_not_defined_is_refused_with_where_to_define_it() -> None:
    @dataclass
    class Outer:
        inner: "Inner"  # type: ignore[name-defined]  # noqa: F821 - that is the mistake

    with pytest.raises(MCPConfigError, match=r"'Inner' is not defined\. Define that name at the top"):
        AnswerSpec.of(Outer)


def test_a_turn_takes_a_type_and_returns_an_instance() -> None:
    replies = [text_reply("I do not know."), text_reply('{"a": 5}')]
    with ScriptedLlmServer(replies) as llm:
        runner = Runner(llm=LlmSettings(base_url=llm.base_url, model="m"))
        outcome = runner.run_turn(TurnRequest(system="s", user="u", answer=Record))
        assert outcome.response == Record(5)
        assert len(llm.requests) == 2, "the first answer was refused"


@each_case(
    "kind, ending",
    [
        (AnswerError, ("nothing", "nothing")),
        (AnswerStopped, (completion({"content": "well"}, finish_reason="content_filter"),) * 2),
        (LLMError, (error_reply(401, "no"),)),
    ],
)
def test_an_error_of_a_turn_has_the_calls_that_were_made(kind: type[Any], ending: tuple[Any, ...]) -> None:
    with ScriptedLlmServer([tool_calls_reply(("bank.pay", {})), *ending]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m", api_key="k")
        runner = Runner(llm=settings, servers={"bank": FunctionTools({"pay": lambda: "paid"})})
        with pytest.raises(kind) as raised:
            runner.run_turn(TurnRequest(user="u", answer=Record))
    (call,) = raised.value.tool_calls
    assert (call.name, call.settlement, call.result.content) == ("bank.pay", "returned", "paid")


@pytest.mark.parametrize("raw", ["well", "", None])
def test_an_error_points_to_the_last_reply_if_there_is_one(raw: str | None) -> None:
    error = error_for(TurnFailed(turn=1, failure=NoAnswer(reason="it is not JSON", raw=raw)))
    assert ("in `raw`" in str(error)) == bool(raw)
    assert str(error).endswith("AnswerSpec.of(..., fallback=...) gives a value instead.")


class Nothing(enum.Enum):
    FOUND = None


@pytest.mark.parametrize("fallback", [float("nan"), Nothing.FOUND])
def test_a_fallback_that_json_writes_as_null_is_one(fallback: Any) -> None:
    answer = AnswerSpec.of(type(fallback), fallback=fallback)
    with ScriptedLlmServer(["much", "more"]) as server, Runner(llm=server.settings) as runner:
        outcome = runner.run_turn(TurnRequest(user="How much?", answer=answer))
    assert outcome.kind == "fallback"
    assert outcome.response is fallback


@pytest.mark.parametrize("told", [False, True])
def test_the_schema_is_told_in_words_unless_the_hosts_texts_tell_it(told: bool) -> None:
    with ScriptedLlmServer([json.dumps({"value": 3})]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m", api_key="k")
        runner = Runner(llm=settings, servers={"bank": FunctionTools({"pay": lambda: "paid"})})
        outcome = runner.run_turn(TurnRequest(user="u", answer=AnswerSpec.of(int, told=told)))
    said = llm.requests[0].messages[-1]["content"]
    assert (outcome.response, said == "u", "JSON" in said) == (3, told, not told)
