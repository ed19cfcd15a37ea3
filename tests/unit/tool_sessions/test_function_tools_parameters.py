"""Schemas and converted arguments of parameters that msgspec or pydantic reads."""

import dataclasses
import datetime as dt
import enum
import functools
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pytest
from annotated_types import Ge, MinLen
from pydantic import BaseModel, ConfigDict, Field, field_validator

from grue.errors import MCPConfigError
from grue.tool_sessions.function_tools import Parameters, ToolContext
from grue.tool_sessions.host_tools import InvalidArgumentsError


class Leg(BaseModel):
    to: str = Field(description="Where it ends.")
    km: float = Field(gt=0)


class Route(BaseModel):
    """Several legs."""

    legs: list[Leg]
    note: str | None = None


@dataclasses.dataclass
class Circle:
    radius: float


@dataclasses.dataclass
class Square:
    side: float


@dataclasses.dataclass
class Bounded:
    share: Annotated[float, Field(ge=0, le=1)]


class Options(TypedDict, total=False):
    loud: bool


class Pair(msgspec.Struct):
    a: int


class Unreadable:
    pass


class Odd(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    thing: Unreadable


def parameters(function: Callable[..., Any], **descriptions: str) -> Parameters:
    return Parameters("tool", function, descriptions)


def properties(function: Callable[..., Any], **descriptions: str) -> Any:
    return parameters(function, **descriptions).schema["properties"]


def test_a_pydantic_model_is_a_parameter_like_any_other() -> None:
    def go(route: Route, times: int = 1) -> None: ...

    read = parameters(go, route="Where to go.")
    schema: Any = read.schema
    assert schema["required"] == ["route"]
    assert schema["properties"]["route"]["description"] == "Where to go."
    assert schema["properties"]["times"] == {"type": "integer", "default": 1}
    assert schema["$defs"]["Leg"]["properties"]["to"] == {"type": "string", "description": "Where it ends."}
    assert properties(go)["route"]["description"] == "Several legs."
    given = read.convert({"route": {"legs": [{"to": "hall", "km": 2}]}})
    assert given == {"route": Route(legs=[Leg(to="hall", km=2)]), "times": 1}


def test_field_describes_and_bounds_a_parameter_wherever_it_stands() -> None:
    def go(
        steps: Annotated[int, Field(ge=1, description="How many.")],
        way: str = Field("north", description="Where to."),
        bag: list[str] = Field(default_factory=list),  # noqa: B008
    ) -> None: ...

    read = parameters(go, steps="from the docstring")
    schema: Any = read.schema
    assert schema["properties"]["steps"] == {"type": "integer", "minimum": 1, "description": "How many."}
    assert schema["properties"]["way"]["description"] == "Where to."
    assert schema["properties"]["way"]["default"] == "north"
    assert schema["required"] == ["steps"]
    first = read.convert({"steps": 1})
    assert first == {"steps": 1, "way": "north", "bag": []}
    first["bag"].append("lamp")
    assert read.convert({"steps": 1})["bag"] == [], "each call has its own default"
    with pytest.raises(InvalidArgumentsError, match=r"greater than or equal to 1 - at `\$\.steps`"):
        read.convert({"steps": 0})


def test_a_text_in_the_annotation_outranks_the_docstring() -> None:
    def go(
        way: Annotated[str, "Where to."], far: bool, fast: Annotated[int, msgspec.Meta(ge=0)] = 0
    ) -> None: ...

    assert properties(go, way="no", far="How far.", fast="How fast.") == {
        "way": {"type": "string", "description": "Where to."},
        "far": {"type": "boolean", "description": "How far."},
        "fast": {"type": "integer", "minimum": 0, "default": 0, "description": "How fast."},
    }


@pytest.mark.parametrize(
    ("kind", "given", "converted"),
    [
        (int | str, "x", "x"),
        (int | None, None, None),
        (Circle | Square, {"side": 2}, Square(2)),
        (list[Circle | Square], [{"radius": 1}], [Circle(1)]),
        (Leg | str, {"to": "hall", "km": 1}, Leg(to="hall", km=1)),
        (dict[str, Leg], {"a": {"to": "hall", "km": 1}}, {"a": Leg(to="hall", km=1)}),
        (dict[int, dict[dt.date, str]], {"1": {"2024-02-29": "x"}}, {1: {dt.date(2024, 2, 29): "x"}}),
        (Options, {"loud": True}, {"loud": True}),
        (Pair, {"a": 1}, Pair(1)),
        (Literal["a", 1], 1, 1),
        (Bounded, {"share": 1}, Bounded(1)),
    ],
    ids=str,
)
def test_types_of_all_kinds_are_converted(kind: Any, given: object, converted: object) -> None:
    def go(value) -> None: ...  # type: ignore[no-untyped-def]

    go.__annotations__["value"] = kind
    read = parameters(go)
    assert read.convert({"value": given}) == {"value": converted}


def test_one_function_may_mix_msgspec_and_pydantic() -> None:
    def go(pair: Pair, leg: Leg, context: ToolContext | None = None) -> None: ...

    read = parameters(go)
    assert read.context == "context"
    assert set(read.schema["properties"]) == {"pair", "leg"}  # type: ignore[call-overload]
    assert read.convert({"pair": {"a": 1}, "leg": {"to": "x", "km": 1}}) == {
        "pair": Pair(1),
        "leg": Leg(to="x", km=1),
    }


def test_definitions_of_one_name_are_kept_apart() -> None:
    other = type("Leg", (msgspec.Struct,), {"__annotations__": {"table": str}})

    def go(mine: other, yours: list[Leg]) -> None: ...  # type: ignore[valid-type]

    schema: Any = parameters(go).schema
    assert schema["properties"]["mine"] == {"$ref": "#/$defs/Leg"}
    assert schema["properties"]["yours"]["items"] == {"$ref": "#/$defs/yours.Leg"}
    assert set(schema["$defs"]) == {"Leg", "yours.Leg"}


@pytest.mark.parametrize("bound", [Ge(3), Field(ge=3)], ids=["annotated_types", "pydantic"])
def test_a_bound_inside_another_type_holds(bound: Any) -> None:
    def go(numbers) -> None: ...  # type: ignore[no-untyped-def]

    go.__annotations__["numbers"] = Annotated[list[Annotated[int, bound]], MinLen(1)]
    read = parameters(go)
    assert read.convert({"numbers": [3]}) == {"numbers": [3]}
    for bad in ([2], []):
        with pytest.raises(InvalidArgumentsError):
            read.convert({"numbers": bad})


def test_faults_are_named_with_their_places_and_there_are_few() -> None:
    def go(route: Route) -> None: ...

    read = parameters(go)
    with pytest.raises(InvalidArgumentsError, match=r"greater than 0 - at `\$\.route\.legs\[1\]\.km`"):
        read.convert({"route": {"legs": [{"to": "a", "km": 1}, {"to": "b", "km": -1}]}})
    with pytest.raises(InvalidArgumentsError, match=r"; and 95 more$") as caught:
        read.convert({"route": {"legs": [7] * 100}})
    assert str(caught.value).count(";") == 5
    with pytest.raises(InvalidArgumentsError, match="missing required field `route`"):
        read.convert({})


def test_a_default_that_json_cannot_show_is_used_all_the_same() -> None:
    def go(leg: Leg | None = None, other: Any = Leg(to="x", km=1), odd: Leg | int = Unreadable()) -> None: ...  # type: ignore[assignment]  # noqa: B008

    read = parameters(go)
    schema: Any = read.schema
    assert schema["properties"]["leg"]["default"] is None
    assert "default" not in schema["properties"]["odd"]
    assert isinstance(read.convert({})["odd"], Unreadable)


@pytest.mark.parametrize("kind", [int, list[str], Leg, Annotated[int, Field(ge=0)], Route])
def test_null_is_accepted_where_it_is_the_default(kind: Any) -> None:
    """Models send it often."""

    def go(way: kind = None, far: int = Field(None), why: str = "") -> None: ...  # type: ignore[valid-type]

    read = parameters(go)
    assert read.convert({"way": None, "far": None}) == {"way": None, "far": None, "why": ""}
    with pytest.raises(InvalidArgumentsError, match="why"):
        read.convert({"way": None, "why": None})


@pytest.mark.parametrize("kind", [float, Annotated[float, Field(ge=0)]])
def test_an_infinite_default_is_used_and_not_shown_as_null(kind: Any) -> None:
    def dig(depth: kind = math.inf) -> None: ...  # type: ignore[valid-type]

    read = parameters(dig)
    schema: Any = read.schema
    assert "default" not in schema["properties"]["depth"]
    assert read.convert({}) == {"depth": math.inf}


class Tone(enum.Enum):
    LOW = "low"


class StrictNote(BaseModel):
    model_config = ConfigDict(strict=True)
    day: dt.date
    tone: Tone
    beats: tuple[int, ...]


def test_a_strict_model_is_given_dates_enums_and_tuples_as_json_has_them() -> None:
    def play(note: StrictNote) -> None: ...

    read = parameters(play)
    given = {"day": "2026-02-01", "tone": "low", "beats": [1, 2]}
    played = StrictNote(day=dt.date(2026, 2, 1), tone=Tone.LOW, beats=(1, 2))
    assert read.convert({"note": given}) == {"note": played}
    with pytest.raises(InvalidArgumentsError, match="integer"):
        read.convert({"note": given | {"beats": ["1"]}})


@pytest.mark.parametrize(
    "kind",
    [
        ToolContext,
        ToolContext | None,
        Annotated[ToolContext, "For progress."],
        Annotated[ToolContext | None, "For progress."],
        Annotated[ToolContext, "For progress."] | None,
    ],
)
def test_a_context_is_no_argument_however_it_is_annotated(kind: Any) -> None:
    def dig(depth: int, context: kind) -> None: ...

    read = parameters(dig)
    assert read.context == "context"
    assert list(read.schema["properties"]) == ["depth"]  # type: ignore[call-overload]


def several_contexts(contexts: list[ToolContext]) -> None: ...


def two_contexts(a: ToolContext, b: ToolContext) -> None: ...


def positional_context(context: ToolContext, /) -> None: ...


def unreadable(thing: Unreadable) -> None: ...


def odd(thing: Odd) -> None: ...


def mixed(things: list[Pair | Leg]) -> None: ...


@pytest.mark.parametrize(
    "function", [several_contexts, two_contexts, positional_context, unreadable, odd, mixed]
)
def test_what_cannot_be_offered_is_refused_and_named(function: Callable[..., Any]) -> None:
    with pytest.raises(MCPConfigError, match="'tool'"):
        parameters(function)


@dataclasses.dataclass
class Picky:
    key: str

    def __post_init__(self) -> None:
        raise KeyError(self.key)


class PickyModel(BaseModel):
    key: str

    @field_validator("key")
    @classmethod
    def _known(cls, key: str) -> str:
        raise KeyError(key)


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def unspeakable() -> int:
    raise UnspeakableError


def test_an_exception_of_a_validator_or_a_default_factory_refuses_the_call() -> None:
    def plain(thing: Picky) -> None: ...
    def model(thing: PickyModel) -> None: ...
    def default(thing: int = Field(default_factory=unspeakable)) -> None: ...

    for function in (plain, model):
        with pytest.raises(InvalidArgumentsError, match=r"^KeyError: 'hall'$"):
            parameters(function).convert({"thing": {"key": "hall"}})
    with pytest.raises(InvalidArgumentsError, match=r"^UnspeakableError$"):
        parameters(default).convert({})


@pytest.mark.parametrize("made", [Circle(1.0), {1}, ([1], 2)])
def test_each_call_gets_its_own_copy_of_a_mutable_default(made: Any) -> None:
    def plain(into: type(made) = made) -> None: ...  # type: ignore[valid-type]
    def bounded(into: Annotated[type(made), Field()] = made) -> None: ...  # type: ignore[valid-type]

    for function in (plain, bounded):
        first, second = (parameters(function).convert({})["into"] for _ in range(2))
        assert first == second == made
        assert first is not second
        assert first is not made


def test_a_mutable_struct_may_be_a_default() -> None:
    def go(pair: Pair = Pair(1)) -> None: ...  # noqa: B008 - what the test is about

    first, second = (parameters(go).convert({})["pair"] for _ in range(2))
    assert first == second == Pair(1)
    assert first is not second


@pytest.mark.parametrize("made", [object(), threading.Lock()])
def test_a_sentinel_stays_the_same_object(made: Any) -> None:
    def plain(count: int = made) -> None: ...
    def bounded(count: Annotated[int, Field(ge=1)] = made) -> None: ...

    assert parameters(plain).convert({})["count"] is made
    assert parameters(bounded).convert({})["count"] is made


@pytest.mark.slow
@pytest.mark.parametrize("locks", [[threading.Lock()], {"one": threading.Lock()}])
def test_a_default_that_cannot_be_copied_is_shared(locks: Any) -> None:
    def function(a: int, guards: Any = locks) -> None: ...

    assert Parameters("t", function, {}).convert({"a": 1})["guards"] is locks


def in_quotes(
    many: list["Circle"],
    maybe: Optional["Square"] = None,
    *,
    context: Optional["ToolContext"] = None,
    more: "dict[str, list['Circle']]" = {},  # noqa: B006
) -> None: ...


class Drawing:
    def __call__(self, many: list["Circle"]) -> None: ...


@pytest.mark.parametrize(
    "function",
    [in_quotes, functools.partial(in_quotes, maybe=None), functools.wraps(in_quotes)(lambda **given: None)],
)
def test_names_in_quotes_inside_annotations_are_read(function: Callable[..., Any]) -> None:
    parameters = Parameters("t", function, {})
    circle = {"radius": 1.5}
    given = parameters.convert({"many": [circle], "maybe": {"side": 2.0}, "more": {"a": [circle]}})
    assert given == {"many": [Circle(1.5)], "maybe": Square(2.0), "more": {"a": [Circle(1.5)]}}
    assert parameters.context == "context"


@pytest.mark.parametrize("function", [Drawing(), Drawing().__call__])
def test_names_in_quotes_are_read_of_methods(function: Callable[..., Any]) -> None:
    assert Parameters("t", function, {}).convert({"many": [{"radius": 1.5}]}) == {"many": [Circle(1.5)]}


def test_a_class_of_no_module_may_be_a_tool() -> None:
    nowhere: Any = dataclasses.make_dataclass("Nowhere", [("a", int)], namespace={"__module__": "run_once"})
    assert Parameters("t", nowhere, {}).convert({"a": 1}) == {"a": 1}


def test_pydantic_is_imported_only_for_functions_that_use_it() -> None:
    script = """
import dataclasses, sys
from grue import FunctionTools, tool, ToolContext

@dataclasses.dataclass
class Place:
    name: str

@tool
def look(place: Place, far: int | None = None, *, context: ToolContext) -> str:
    '''Look.'''

FunctionTools([look])
assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
