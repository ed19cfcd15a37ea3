import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.messages import JsonObject, ServerName, ToolDefinition
from grue.policies import NoticeKind
from grue.transports.mcp.listing import as_listed, read_pages, read_tools

SERVER = ServerName("think")
GOOD: dict[str, Any] = {"name": "a.b", "inputSchema": {"type": "object"}}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
schemas = json_values | st.fixed_dictionaries({"type": st.just("object") | json_values})
tools = json_values | st.fixed_dictionaries(
    {},
    optional={
        "name": st.text() | json_values,
        "description": st.text() | json_values,
        "inputSchema": schemas,
        "outputSchema": schemas,
    },
)


def read(listed: object) -> tuple[list[ToolDefinition], list[str]]:
    faults: list[str] = []

    def notify(kind: NoticeKind, text: str) -> None:
        assert kind == "bad_tool"
        faults.append(text)

    return list(read_tools({"tools": listed}, SERVER, notify)), faults


def test_a_tool_is_read_with_all_its_parts() -> None:
    output = {"type": "object", "properties": {}}
    listed = [{**GOOD, "description": "d", "outputSchema": output, "annotations": {}, "x": 1}]
    assert read(listed)[0] == [
        ToolDefinition(
            server=SERVER, tool="a.b", description="d", input_schema={"type": "object"}, output_schema=output
        )
    ]


def test_a_keyword_of_a_schema_that_is_null_is_left_out() -> None:
    """A provider refuses a whole request for one of them."""
    empty = {"type": "object", "properties": None, "required": None}
    ((tool,), faults) = read([{**GOOD, "inputSchema": empty, "outputSchema": empty}])
    assert (tool.input_schema, tool.output_schema, faults) == ({"type": "object"}, {"type": "object"}, [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": ""}, "no name"),
        ({"name": 7}, "no name"),
        ({"description": 7}, "description"),
        ({"inputSchema": None}, "inputSchema"),
        ({"inputSchema": {"type": "array"}}, "inputSchema"),
        ({"outputSchema": "text"}, "outputSchema"),
    ],
)
def test_p37_a_malformed_tool_is_left_out_with_the_reason(change: dict[str, Any], reason: str) -> None:
    found, faults = read([{**GOOD, **change}, GOOD])
    assert [tool.tool for tool in found] == ["a.b"]
    assert len(faults) == 1
    assert reason in faults[0]


def test_a_page_without_tools_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a list"):
        list(read_tools({}, SERVER, lambda kind, text: None))


@given(st.lists(tools | st.just(GOOD)))
def test_p37_each_listed_tool_gives_one_definition_or_one_notice(listed: list[Any]) -> None:
    found, faults = read(listed)
    assert len(found) + len(faults) == len(listed)
    assert len(found) >= listed.count(GOOD)
    assert all(tool.tool and isinstance(tool.description, str) for tool in found)


def test_schemas_are_json_values_whatever_the_server_wrote() -> None:
    odd: dict[str, Any] = {"type": "object", "default": math.nan, "title": "a\ud800"}
    ((tool,), faults) = read([{**GOOD, "inputSchema": odd, "outputSchema": odd}])
    assert tool.input_schema == tool.output_schema
    assert tool.input_schema == {"type": "object", "title": "a\ufffd"}
    assert read([as_listed(tool)]) == ([tool], []), "a stored listing reads back the same"
    assert faults == []


@pytest.mark.parametrize(
    ("pages", "ttl_s", "private"),
    [
        ([{"ttlMs": 5000, "cacheScope": "private"}], 5.0, True),
        ([{"ttlMs": 5000}, {"ttlMs": 2000, "cacheScope": "private"}, {"ttlMs": 0}], 2.0, True),
        ([{"ttlMs": 1500.5, "cacheScope": "public"}], 1.5005, False),
        ([{"ttlMs": 10**400}], 10 * 365 * 86_400, False),
        *(
            ([{"ttlMs": odd, "cacheScope": "private"}], None, False)
            for odd in (0, -1, True, "5000", None, [], float("nan"), float("inf"))
        ),
        ([{}], None, False),
    ],
)
def test_how_long_a_listing_holds_is_the_shortest_time_that_a_page_states(
    pages: list[JsonObject], ttl_s: float | None, private: bool
) -> None:
    left = [
        {"tools": [], **page, **({} if page is pages[-1] else {"nextCursor": f"c{n}"})}
        for n, page in enumerate(pages)
    ]

    async def ask(_params: JsonObject) -> JsonObject:
        return left.pop(0)

    listed = asyncio.run(read_pages(ask, SERVER, 10, lambda _kind, _text: None))
    assert (listed.ttl_s, listed.private) == (ttl_s, private)


@pytest.mark.parametrize("other", [False, True])
def test_a_server_that_repeats_its_only_page_lists_its_tools_once_and_without_a_notice(other: bool) -> None:
    """As servers do that write an empty cursor on their last page."""
    pages = [{"tools": [GOOD], "nextCursor": ""}] * 2
    if other:
        pages[1] = {"tools": [GOOD | {"description": "other"}], "nextCursor": ""}
    faults: list[str] = []

    async def ask(params: JsonObject) -> JsonObject:
        return pages[len(params)]

    listed = asyncio.run(read_pages(ask, SERVER, 10, lambda _kind, text: faults.append(text)))
    assert [tool.tool for tool in listed.tools] == ["a.b"]
    assert faults == (["a.b: listed twice, the first one counts"] if other else [])


def test_no_further_page_is_read_of_a_listing_that_is_too_long() -> None:
    asked: list[JsonObject] = []
    faults: list[str] = []

    async def ask(params: JsonObject) -> JsonObject:
        asked.append(params)
        page = [{**GOOD, "name": f"{len(asked)}-{n}", "description": "d" * 200_000} for n in range(30)]
        return {"tools": page, "nextCursor": str(len(asked))}

    listed = asyncio.run(read_pages(ask, SERVER, 10, lambda _kind, text: faults.append(text)))
    assert (len(asked), len(listed.tools)) == (2, 60)
    assert faults == ["the listing is longer than 8388608 bytes, the rest is left"]


def test_other_tasks_run_while_a_long_page_is_read() -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"enum": [1, 2, 3, 4, 5]} for n in range(30)}}
    page = {"tools": [{"name": f"t{n}", "inputSchema": schema} for n in range(1000)]}

    async def ask(_params: JsonObject) -> JsonObject:
        return page

    async def ticks_while_read() -> int:
        reading = asyncio.create_task(read_pages(ask, SERVER, 1, lambda _kind, _text: None))
        ticks = 0
        while not reading.done():
            ticks += 1
            await asyncio.sleep(0)
        return ticks

    assert asyncio.run(ticks_while_read()) > 5
