"""Python functions as a tool server: schemas from annotations, checked arguments, time limits."""

import asyncio
import dataclasses
import datetime as dt
import enum
import functools
import numbers
import threading
from collections import ChainMap, UserString, deque
from collections.abc import AsyncIterator, Callable, Iterator
from fractions import Fraction
from typing import Annotated, Any, Literal

import anyio
import msgspec
import pydantic
import pytest

from grue.errors import ApprovalPending, LLMError, MCPConfigError
from grue.messages import ToolCallResult, ToolDefinition
from grue.tool_sessions.connection import ConnectionStatus
from grue.tool_sessions.failures import ToolRefusedError, ToolTimedOutError
from grue.tool_sessions.function_tools import FunctionTools, tool

pytestmark = pytest.mark.anyio

TEST_LIMIT_S = 60.0


class Direction(enum.Enum):
    NORTH = "north"
    SOUTH = "south"


@dataclasses.dataclass
class Place:
    name: str
    exits: list[Direction] = dataclasses.field(default_factory=list)


class Share(float):
    """Such as `numpy.float64`."""


class Count(int):
    """A number of a type of its own."""


@numbers.Integral.register
class Two:
    """Such as `numpy.int64`, which is no `int`."""

    def __int__(self) -> int:
        return 2


class Markup(str):
    """Such as `markupsafe.Markup`."""


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    And nothing else.
    """
    return a + b


async def listing(function: Callable[..., Any]) -> ToolDefinition:
    async with FunctionTools({"tool": function}).connect("mine") as connection:
        (tool,) = (await connection.open(60)).tools
    return tool


async def call(
    function: Callable[..., Any], timeout_s: float = TEST_LIMIT_S, /, **arguments: Any
) -> ToolCallResult:
    async with FunctionTools({"tool": function}).connect("mine") as connection:
        await connection.open(60)
        return await connection.call("tool", arguments, timeout_s)


# --- Schemas ---


async def test_a_function_becomes_a_definition() -> None:
    assert await listing(add) == ToolDefinition(
        server="mine",
        tool="tool",
        description="Add two numbers.",
        input_schema={
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}},
            "required": ["a"],
            "additionalProperties": False,
        },
    )


async def test_annotations_of_all_kinds_become_json_schema() -> None:
    def go(
        way: Direction,
        *,
        place: Place | None = None,
        mood: Literal["calm", "mad"] = "calm",
        steps: Annotated[int, msgspec.Meta(ge=1, description="How far.")] = 1,
        anything=None,  # type: ignore[no-untyped-def]
    ) -> None:
        pass

    schema: Any = (await listing(go)).input_schema
    assert schema["required"] == ["way"]
    properties = schema["properties"]
    assert properties["way"] == {"$ref": "#/$defs/Direction"}
    assert schema["$defs"]["Direction"]["enum"] == ["north", "south"]
    assert schema["$defs"]["Place"]["required"] == ["name"]
    assert properties["mood"]["enum"] == ["calm", "mad"]
    assert properties["steps"] == {"type": "integer", "minimum": 1, "description": "How far.", "default": 1}
    assert properties["anything"] == {"default": None}


async def test_annotations_given_as_text_are_read() -> None:
    def later(number: "int") -> "int":
        return number

    assert (await listing(later)).input_schema["properties"] == {"number": {"type": "integer"}}


async def test_tools_are_listed_in_order_and_their_names_are_free() -> None:
    tools = FunctionTools({"b/c": add, "a.b": add, "ü": add})
    async with tools.connect("mine") as connection:
        found = await connection.open(60)
        assert [tool.name for tool in found.tools] == ["mine.b/c", "mine.a.b", "mine.ü"]
        assert (await connection.call("b/c", {"a": 1}, 60)).content == 3
    assert connection.status == ConnectionStatus()


class Opaque:
    pass


def star(*numbers: int) -> None:
    pass


def stars(**numbers: int) -> None:
    pass


def positional(number: int, /) -> None:
    pass


def hidden(__number: int) -> None:  # noqa: PYI063 - what the test is about
    pass


def opaque(thing: Opaque) -> None:
    pass


def unknown(thing: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
    pass


@pytest.mark.parametrize("function", [star, stars, positional, hidden, opaque, unknown, dict.__init__])
def test_what_cannot_be_offered_to_a_model_is_refused_at_once_and_named(function: Callable[..., Any]) -> None:
    with pytest.raises(MCPConfigError, match="'odd'"):
        FunctionTools({"odd": function})


def test_a_parameter_that_cannot_be_offered_is_named_with_the_type_only() -> None:
    with pytest.raises(MCPConfigError) as refused:
        FunctionTools([opaque])
    assert str(refused.value) == (
        f"The tool 'opaque' has the parameter 'thing', which cannot be offered to a model: type {Opaque}"
        " is not supported. Annotate it with a type that JSON can express."
    )


def test_a_constraint_that_pydantic_cannot_use_is_named_with_the_parameter() -> None:
    def find(word: Annotated[str, pydantic.Field(pattern="^(?!a)")]) -> None: ...

    with pytest.raises(MCPConfigError, match=r"parameter 'word', .* look-around, .* is not supported"):
        FunctionTools([find])


def test_a_type_that_refuses_without_words_is_refused_like_any_other() -> None:
    class Silent:
        @classmethod
        def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
            raise TypeError

    def odd(thing: Annotated[Silent, pydantic.Field()]) -> None:
        pass

    with pytest.raises(MCPConfigError, match="has the parameter 'thing', which cannot be offered"):
        FunctionTools([odd])


def yields() -> Iterator[int]:
    yield 1


async def yields_later() -> AsyncIterator[int]:
    yield 1


class Yields:
    def __call__(self) -> Iterator[int]:
        yield 1


class YieldsLater:
    async def __call__(self) -> AsyncIterator[int]:
        yield 1


@pytest.mark.parametrize(
    "function",
    [yields, yields_later, functools.partial(yields), Yields(), YieldsLater(), functools.partial(Yields())],
)
def test_a_generator_function_is_refused_because_its_values_would_be_lost(function: Any) -> None:
    with pytest.raises(MCPConfigError, match="odd is a generator function"):
        FunctionTools({"odd": function})


class Dispatching:
    @functools.singledispatchmethod
    def go(self, way: str) -> None: ...


@pytest.mark.parametrize("function", [functools.singledispatch(add), Dispatching().go])
def test_a_singledispatch_function_is_refused_because_calls_pass_arguments_by_name(function: Any) -> None:
    with pytest.raises(MCPConfigError, match=r"odd is a singledispatch .* Pass a plain function that calls"):
        FunctionTools({"odd": function})


@pytest.mark.parametrize("name", [1, None, ""])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(MCPConfigError, match="a tool's name is a text, not "):
        FunctionTools({name: add})


# --- Calls ---


@pytest.mark.parametrize(("arguments", "sum_"), [({"a": 1}, 3), ({"a": 1, "b": 5}, 6)])
async def test_a_call_passes_its_arguments_by_name(arguments: dict[str, int], sum_: int) -> None:
    assert await call(add, **arguments) == ToolCallResult(sum_)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "missing required field `a`"),
        ({"a": "1"}, "Expected `int`, got `str` - at `$.a`"),
        ({"a": 1, "c": 2}, "unknown field `c`"),
        ({"a": 1.5}, "Expected `int`"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_in_words_for_the_model(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ToolRefusedError, match=r"^invalid arguments: ") as error:
        await call(add, **arguments)
    assert words in str(error.value)
    assert error.value.code == -32602


async def test_arguments_arrive_as_what_they_are_annotated() -> None:
    def where(place: Place, since: dt.date) -> str:
        return f"{type(place).__name__} {place.exits[0].name} {since.year}"

    place = {"name": "hall", "exits": ["north"]}
    assert (await call(where, place=place, since="2024-02-29")).content == "Place NORTH 2024"


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, None),
        ("text", "text"),
        ({"a": [1]}, {"a": [1]}),
        (Place("hall", [Direction.NORTH]), {"name": "hall", "exits": ["north"]}),
        (dt.date(2024, 2, 29), "2024-02-29"),
        (float("nan"), None),
        ("\ud800", "\ufffd"),
        (b"hi", "aGk="),
        ({"a": Share(0.5), "b": Count(3)}, {"a": 0.5, "b": 3}),
        ([Markup("text"), UserString("text")], ["text", "text"]),
        ({"a": Two(), "b": Fraction(1, 2)}, {"a": 2, "b": 0.5}),
        (ChainMap({"a": deque([Place("hall", [])])}), {"a": [{"name": "hall", "exits": []}]}),
        ([range(2), {"a": 1}.keys(), {"a": 1}.values()], [[0, 1], ["a"], [1]]),
    ],
)
async def test_what_a_function_returns_becomes_json(value: Any, content: object) -> None:
    assert await call(lambda: value) == ToolCallResult(content)
    given = ToolCallResult(value, True, "no", blocks=({"type": "text", "text": value},))
    written = ToolCallResult(content, True, "no", blocks=({"type": "text", "text": content},))
    assert await call(lambda: given) == written


async def test_what_a_plain_function_returns_becomes_json_outside_the_event_loop() -> None:
    """A `__str__` may block, and some libraries, such as Django, refuse to be called in an event loop."""

    class Lazy:
        def __str__(self) -> str:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            return "a row of the database"

    assert await call(lambda: [Lazy()]) == ToolCallResult(["a row of the database"])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"is_error": "yes"}, "Expected `bool`, got `str` - at `$.is_error`"),
        ({"is_error": True, "error_message": 3}, "Expected `str | null`, got `int` - at `$.error_message`"),
        ({"blocks": ("text",)}, "Expected `object`, got `str` - at `$.blocks[0]`"),
    ],
)
async def test_a_result_with_a_field_of_a_wrong_type_is_an_error(fields: Any, why: str) -> None:
    """A trace with such a field could not be read."""
    result = await call(lambda: ToolCallResult("fine", **fields))
    assert result.error_message == f"Tool call failed: ValidationError: {why}"


@pytest.mark.parametrize("value", [(n for n in (1, 2)), {"rows": map(str, (1, 2))}])
async def test_an_iterator_that_a_function_returns_is_an_error(value: object) -> None:
    """Nobody would read what it yields, and its text says nothing."""
    result = await call(lambda: value)
    assert result.error_message is not None
    assert "should return a list" in result.error_message


async def test_an_error_that_a_function_returns_becomes_its_text() -> None:
    parked = ApprovalPending("Turn 2 waits for an approval.", turn=2)
    assert await call(lambda: parked) == ToolCallResult("Turn 2 waits for an approval.")
    refused = LLMError("The key was refused.", kind="refused", status=401)
    assert await call(lambda: [{"error": refused}]) == ToolCallResult([{"error": "The key was refused."}])


async def test_a_result_that_cannot_be_written_is_an_error_result() -> None:
    circle: list[Any] = []
    circle.append(circle)
    result = await call(lambda: circle)
    assert result.is_error
    assert "RecursionError" in str(result.error_message)


@pytest.mark.parametrize("raised", [ValueError("no"), TimeoutError("no"), KeyError("no"), SystemExit(3)])
async def test_what_a_function_raises_is_its_result(raised: BaseException) -> None:
    def fail() -> None:
        raise raised

    async def fail_later() -> None:
        raise raised

    expected = f"Tool call failed: {type(raised).__name__}: {raised}"
    assert (await call(fail)).error_message == expected
    assert (await call(fail_later)).error_message == expected


async def test_a_function_that_runs_in_a_thread_may_raise_stop_iteration() -> None:
    def fail() -> None:
        raise StopIteration("no more")

    assert (await call(fail)).error_message == "Tool call failed: StopIteration: no more"


async def test_an_exception_without_words_is_a_result_too() -> None:
    class UnspeakableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    async def fail_later() -> None:
        raise UnspeakableError

    assert (await call(fail_later)).error_message == "Tool call failed: UnspeakableError"


async def test_a_plain_function_runs_in_a_thread_of_its_own() -> None:
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert (await call(where)).content is False


async def test_a_coroutine_function_runs_in_the_loop_however_it_is_wrapped() -> None:
    async def where(word: str = "") -> str:
        await anyio.lowlevel.checkpoint()
        return f"{word}{threading.current_thread() is threading.main_thread()}"

    class Caller:
        async def __call__(self) -> str:
            return await where()

    assert (await call(where)).content == "True"
    assert (await call(functools.partial(where, word="so: "))).content == "so: True"
    assert (await call(lambda: where())).content == "True"
    assert (await call(Caller())).content == "True"


async def test_a_plain_function_that_takes_too_long_is_left_to_itself() -> None:
    release, ended = threading.Event(), threading.Event()

    def slow() -> None:
        release.wait(TEST_LIMIT_S)
        ended.set()

    with pytest.raises(ToolTimedOutError, match=r"timed out after 0\.3s"):
        await call(slow, 0.3)
    assert not ended.is_set()
    release.set()
    assert await anyio.to_thread.run_sync(ended.wait, TEST_LIMIT_S)


async def test_a_coroutine_function_that_takes_too_long_is_cancelled() -> None:
    log: list[str] = []

    async def slow() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("cancelled")

    with pytest.raises(ToolTimedOutError):
        await call(slow, 0.02)
    assert log == ["cancelled"]


async def test_a_function_that_changes_its_mutable_default_finds_it_fresh_each_time() -> None:
    def collect(word: str, into: list[str] = ["first"]) -> list[str]:  # noqa: B006 - what the test is about
        into.append(word)
        return into

    async with FunctionTools({"tool": collect}).connect("mine") as connection:
        for _ in range(2):
            assert (await connection.call("tool", {"word": "x"}, 60)).content == ["first", "x"]
    assert collect.__defaults__ == (["first"],)


# --- In an episode ---


async def test_what_has_to_be_waited_for_is_over_before_a_batch_is_called() -> None:
    log: list[str] = []

    async def wait_closed() -> None:
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        log.append("wait_closed")

    async with FunctionTools({"tool": lambda: log.append("called")}).connect(
        "mine", before_calls=wait_closed
    ) as connection:
        await connection.open(60)
        assert log == [], "opening is no reason to wait"
        for _ in range(2):
            assert await connection.refresh_tools(1.0) is None
            await connection.call("tool", {}, TEST_LIMIT_S)
    assert log == ["wait_closed", "called"] * 2


@pytest.mark.parametrize("wrap", [lambda value: value, ToolCallResult])
async def test_a_result_that_holds_the_same_parts_again_and_again_is_an_error_at_once(wrap: Any) -> None:
    knot: list[Any] = []
    for _ in range(60):
        knot = [knot, {"again": knot}]
    result = await call(lambda: wrap(knot))
    assert result.error_message.startswith("Tool call failed: the result holds itself, or the same parts")
    assert not (await call(lambda: wrap([["wall"] * 100] * 1000))).is_error


@dataclasses.dataclass
class Room:
    exits: Any


class StructRoom(msgspec.Struct):
    exits: Any


class ModelRoom(pydantic.BaseModel):
    exits: Any


@pytest.mark.parametrize("kind", [Room, StructRoom, ModelRoom, lambda exits: deque([exits])])
async def test_an_object_that_holds_the_same_parts_again_and_again_is_an_error_at_once(
    kind: Callable[[Any], Any],
) -> None:
    knot: Any = []
    for _ in range(20):
        knot = kind(exits=[knot, knot])
    result = await call(lambda: {"map": knot})
    assert result.error_message.startswith("Tool call failed: the result holds itself, or the same parts")
    assert not (await call(lambda: kind(exits=[kind(exits="wall")] * 1000))).is_error


# --- Decorated functions, names, catch-all ---


@tool
def look(way: str, far: bool = False) -> str:
    """Look around.

    Does not move.

    Args:
        way: Where to look.
        far: Whether to use the telescope.
    """
    return f"{way} {far}"


@tool(name="go-to", description="Walk.", timeout_s=0.05)
async def go_to(way: str) -> None:
    """Not shown."""
    await anyio.sleep_forever()


class Camera:
    def __init__(self, name: str) -> None:
        self.name = name

    @tool
    def shoot(self, times: int = 1) -> str:
        """Take pictures."""
        return f"{self.name} {times}"


async def test_a_decorated_function_is_a_tool_and_still_a_function() -> None:
    assert look("north") == "north False"
    async with FunctionTools([look, go_to, Camera("leica").shoot, add]).connect("mine") as connection:
        tools = {each.tool: each for each in (await connection.open(60)).tools}
        assert (await connection.call("shoot", {"times": 2}, TEST_LIMIT_S)).content == "leica 2"
    assert list(tools) == ["look", "go-to", "shoot", "add"]
    assert tools["look"].description == "Look around.\n\nDoes not move."
    assert tools["look"].input_schema["properties"] == {
        "way": {"type": "string", "description": "Where to look."},
        "far": {"type": "boolean", "default": False, "description": "Whether to use the telescope."},
    }
    assert tools["go-to"].description == "Walk."
    assert tools["add"].description == "Add two numbers.", "of a plain function the first paragraph"


async def test_a_partial_has_the_docstring_of_its_function() -> None:
    assert (await listing(functools.partial(add, b=3))).description == "Add two numbers."
    with_its_own = functools.partial(add, b=3)
    with_its_own.__doc__ = "Add three."
    assert (await listing(with_its_own)).description == "Add three."


@pytest.mark.parametrize("marked", [Place("hall").__repr__, len])
def test_what_keeps_no_settings_cannot_be_decorated(marked: Callable[..., Any]) -> None:
    with pytest.raises(MCPConfigError, match="Mark the method in its class"):
        tool(marked)


async def test_a_name_in_the_dictionary_outranks_the_decorators() -> None:
    async with FunctionTools({"walk": go_to}).connect("mine") as connection:
        assert [each.tool for each in (await connection.open(60)).tools] == ["walk"]


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        ([lambda: 1], "no name"),
        ([functools.partial(add, 1)], "no name"),
        ([add, tool(name="add")(star)], "Two"),
    ],
)
def test_functions_without_a_name_of_their_own_are_refused(functions: Any, words: str) -> None:
    with pytest.raises(MCPConfigError, match=words):
        FunctionTools(functions)


async def test_a_function_s_own_limit_holds_if_it_is_the_smaller_one() -> None:
    async with FunctionTools([go_to]).connect("mine") as connection:
        with pytest.raises(ToolTimedOutError, match=r"after 0\.05s"):
            await connection.call("go-to", {"way": "north"}, TEST_LIMIT_S)
        with pytest.raises(ToolTimedOutError, match=r"after 0\.01s"):
            await connection.call("go-to", {"way": "north"}, 0.01)


async def test_a_catch_all_serves_names_that_were_never_listed() -> None:
    def invoke(name: str, arguments: dict[str, object]) -> object:
        return [name, arguments]

    async def invoke_later(name: str, arguments: dict[str, object]) -> object:
        return invoke(name, arguments)

    for catch_all in (invoke, invoke_later):
        async with FunctionTools([add], catch_all=catch_all).connect("mine") as connection:
            assert (await connection.open(60)).serves_unlisted
            assert (await connection.call("any", {"x": 1}, TEST_LIMIT_S)).content == ["any", {"x": 1}]
            assert (await connection.call("add", {"a": 1}, TEST_LIMIT_S)).content == 3


@pytest.mark.parametrize("kept", [False, True])
async def test_a_function_that_alters_its_arguments_alters_only_a_copy(kept: bool) -> None:
    def drop(name: str, arguments: dict[str, Any]) -> None:
        arguments["way"]["steps"].clear()

    def walk(way, rooms: list[Any]) -> None:  # type: ignore[no-untyped-def]  # the case under test
        way["steps"].clear()
        rooms[0].clear()

    arguments: dict[str, Any] = {"way": {"steps": [1]}, "rooms": [{"a": 1}]}
    async with FunctionTools([walk], catch_all=drop).connect("mine") as connection:
        for name in ("walk", "other"):
            if kept:
                assert await connection.refusal(name, arguments) is None
            assert (await connection.call(name, arguments, TEST_LIMIT_S)).content is None
    assert arguments == {"way": {"steps": [1]}, "rooms": [{"a": 1}]}


async def test_a_pydantic_model_may_be_returned() -> None:
    class Answer(pydantic.BaseModel):
        when: dt.date
        parts: tuple[int, ...] = (1,)

    day = dt.date(2024, 2, 29)
    shown = {"when": "2024-02-29", "parts": [1]}
    assert (await call(lambda: Answer(when=day))).content == shown
    assert (await call(lambda: {"all": [Answer(when=day)]})).content == {"all": [shown]}
