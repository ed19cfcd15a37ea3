"""`find_tools` over the listings of 22 real servers: a hundred questions, the tokens, and odd input."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from grue import messages as m
from grue.messages import OfferTools, ServerName, SystemText, ToolDefinition, UserText
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.profiles import GENERIC
from grue.protocol.tools.built_in import CALL_TOOL, find_tools
from grue.tool_sessions.tool_search import ToolIndex, ToolSearcher

LISTINGS = Path(__file__).parents[2] / "recorded" / "listings"


class Question(NamedTuple):
    """What a model might ask for, and the tools that do it."""

    text: str
    fitting: frozenset[str]


def recorded_tools() -> tuple[ToolDefinition, ...]:
    lines = (json.loads(line) for line in (LISTINGS / "tools.jsonl").read_text().splitlines())
    return tuple(
        ToolDefinition(
            server=ServerName(line["server"]),
            tool=line["tool"],
            description=line["description"],
            input_schema={"type": "object", "properties": {name: {} for name in line["arguments"]}},
        )
        for line in lines
    )


def questions() -> list[Question]:
    lines = (line.split("\t") for line in (LISTINGS / "questions.tsv").read_text().splitlines())
    return [Question(text, frozenset(fitting.split())) for text, fitting in lines]


TOOLS = recorded_tools()
INDEX = ToolIndex(TOOLS)


@pytest.mark.slow
def test_of_a_hundred_questions_at_least_ninety_find_a_fitting_tool_among_the_first_five() -> None:
    asked = questions()
    assert len(asked) == 100
    assert {name for each in asked for name in each.fitting} <= {tool.name for tool in TOOLS}
    missed = [
        each.text for each in asked if each.fitting.isdisjoint(tool.name for tool in INDEX.find(each.text, 5))
    ]
    assert len(missed) <= 10, missed


@pytest.mark.slow
def test_the_tools_name_themselves_among_the_first_five() -> None:
    missed = [tool.name for tool in TOOLS if tool not in INDEX.find(tool.tool, 5)]
    assert len(missed) <= len(TOOLS) // 20, missed


def test_a_request_with_181_tools_has_three_percent_of_its_size_with_search() -> None:
    servers = tuple(dict.fromkeys(tool.server for tool in TOOLS))
    sizes = []
    for offered in (TOOLS[:181], (find_tools(servers), CALL_TOOL)):
        conversation = EncodedConversation(GENERIC)
        conversation.ask((SystemText("Be brief."), UserText("What time is it?")), OfferTools(offered))
        sizes.append(sum(map(len, conversation.prompt)))
    assert sizes[1] <= 0.03 * sizes[0], sizes


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("delete entity", "memory.delete_entities"),
        ("removing ENTITIES!", "memory.delete_entities"),
        ("repo commits log", "git.git_log"),
        ("gitCommit", "git.git_commit"),
        ("git_commit", "git.git_commit"),
        ("youtube", "fetch-server.fetch_youtube_transcript"),
    ],
)
def test_words_are_found_in_other_forms(query: str, found: str) -> None:
    assert found in [tool.name for tool in INDEX.find(query, 5)]


@pytest.mark.parametrize("query", ["", "the of a", "zzzz", "\x00\ud800", "!" * 10_000, "x" * 1_000_000])
def test_a_query_without_a_word_of_any_tool_finds_nothing(query: str) -> None:
    assert INDEX.find(query, 5) == []


@pytest.mark.slow
def test_the_same_tools_are_found_whatever_order_they_come_in() -> None:
    other = ToolIndex(reversed(TOOLS))
    for each in questions():
        assert other.find(each.text, 5) == INDEX.find(each.text, 5)


def test_tools_with_odd_definitions_can_be_found_and_none_is_a_list_too() -> None:
    odd = ToolDefinition(
        server=ServerName("s"),
        tool="odd",
        description="An oddity " * 100_000,
        input_schema={"properties": [1]},
    )
    assert ToolIndex([odd]).find("oddities", 5) == [odd]
    assert ToolIndex([]).find("anything", 5) == []
    assert ToolIndex([CALL_TOOL]).find("call", 5) == []


def test_the_index_is_made_again_only_when_the_tools_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    init = ToolIndex.__init__
    monkeypatch.setattr(ToolIndex, "__init__", lambda self, tools: (made.append(1), init(self, tools))[1])
    tools = [TOOLS]
    searcher = ToolSearcher(lambda: tools[0], 3)
    for _ in range(3):
        assert searcher.find_tools({"query": "branch"}) == searcher.find_tools({"query": "branch"})
    tools[0] = TOOLS[1:]
    searcher.find_tools({"query": "branch"})
    assert len(made) == 2


def test_at_most_so_many_are_told_with_all_that_a_call_needs() -> None:
    result = ToolSearcher(lambda: TOOLS, 3).find_tools({"query": "create a branch"})
    assert isinstance(result, m.ToolCallResult)
    told = result.content["tools"]  # type: ignore[index,call-overload]
    assert len(told) == 3
    assert told[0]["name"] == "git.git_create_branch"
    assert told[0].keys() == {"name", "description", "input_schema"}
