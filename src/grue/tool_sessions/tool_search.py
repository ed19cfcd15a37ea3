"""`find_tools`: finds the tools that fit a few words, by an index of the tools' names and texts. No I/O.

The index is BM25 over the stems of each tool's words. A word that begins with another (`repository`, `repo`)
or has a similar meaning (`delete`, `remove`) counts less than the word itself.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from grue import messages as m
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.names import is_built_in

_K1 = 1.2
_B = 0.6
_NAME, _SERVER, _TEXT, _ARGUMENT = 3.0, 1.5, 1.0, 0.7
_ALIKE = 0.4
_SHORTEST_PREFIX = 4
_MOST_WORDS = 40
_MOST_TEXT = 4000
_MOST_NAMED = 60
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]+")
_SAYS_NOTHING = (
    "a an and any are as at be by can do for from get give has have how i if in into is it its let me my of"
    " on one or our please s so some that the their them there these this those to tool tools use used using"
    " want we what when where which who will with would you your"
)
_EMPTY = frozenset(re.findall(r"\w+", _SAYS_NOTHING))
_VERBS = (
    "create make new add generate; delete remove drop erase; list show enumerate;"
    "search find query lookup grep; read fetch load open view see retrieve;"
    "update edit change modify set replace; write save store; send post submit;"
    "run execute start launch; stop kill terminate end close quit; move rename; copy duplicate;"
    "directory folder; picture image screenshot photo; chart graph plot diagram;"
    "page website web site url; compare diff difference; say echo repeat;"
    "remember memory store; press key keyboard; cause mistake problem error issue"
)


class ToolIndex:
    """An index of the words in tools' names, descriptions and parameters. Built-in tools are left out."""

    def __init__(self, tools: Iterable[m.ToolDefinition]) -> None:
        self._tools = sorted((tool for tool in tools if not is_built_in(tool)), key=lambda tool: tool.name)
        self._counts = [_words_of(tool) for tool in self._tools]
        self._lengths = [sum(counts.values()) for counts in self._counts]
        self._mean = sum(self._lengths) / len(self._lengths) if self._lengths else 1.0
        self._among: Counter[str] = Counter(word for counts in self._counts for word in counts)

    def find(self, query: str, most: int) -> list[m.ToolDefinition]:
        """Return at most `most` tools that fit a query, the best one first; none if no word fits any tool."""
        wanted = self._wanted(query)
        scored = [
            (self._score(counts, length, wanted), tool)
            for counts, length, tool in zip(self._counts, self._lengths, self._tools, strict=True)
        ]
        fitting = [each for each in scored if each[0] > 0]
        return [tool for _, tool in sorted(fitting, key=lambda each: (-each[0], each[1].name))[:most]]

    def _wanted(self, query: str) -> dict[str, list[tuple[str, float]]]:
        """Return for each word of a query the words of the index that match it, with their weights."""
        wanted: dict[str, list[tuple[str, float]]] = {}
        for word in _words(query[:_MOST_TEXT])[:_MOST_WORDS]:
            found = [(word, 1.0)] if word in self._among else []
            alike = (each for group in _GROUPS if word in group for each in group if each != word)
            found += [(each, _ALIKE) for each in alike if each in self._among]
            found += [(each, _ALIKE) for each in self._among if each != word and _begins(word, each)]
            wanted[word] = found
        return wanted

    def _score(
        self, counts: Mapping[str, float], length: float, wanted: Mapping[str, list[tuple[str, float]]]
    ) -> float:
        norm = _K1 * (1 - _B + _B * length / self._mean)
        total = 0.0

        def rarity(among: int) -> float:
            return math.log(1 + (len(self._tools) - among + 0.5) / (among + 0.5))

        for found in wanted.values():
            # Several words of the index may stand for one word of the query. Only the highest score counts.
            total += max(
                (
                    weight * rarity(self._among[each]) * counts[each] * (_K1 + 1) / (counts[each] + norm)
                    for each, weight in found
                    if each in counts
                ),
                default=0.0,
            )
        return total


class ToolSearcher(Struct):
    """Answers calls of `find_tools`, with at most `most` of `tools()`, and faulty calls of `call_tool`."""

    tools: Callable[[], Sequence[m.ToolDefinition]]
    most: int
    _indexed: tuple[Sequence[m.ToolDefinition], ToolIndex] | None = None

    def find_tools(self, arguments: m.JsonObject) -> m.ToolCallResult:
        """Answer a call of `find_tools` with the tools that fit its query."""
        query = arguments.get("query")
        if not isinstance(query, str) or not query.strip():
            return tool_results.call_failed(
                "find_tools wants a query: what the tool should do, in a few words"
            )
        index = self._index()
        found = index.find(query, self.most)
        if not found:
            return tool_results.success({"tools": [], "hint": f"No tool fits. {self._names()}"})
        told = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
            for tool in found
        ]
        return tool_results.success({"tools": told})

    def call_tool(self, arguments: m.JsonObject) -> m.ToolCallResult:
        """Answer a `call_tool` that cannot be carried out: it is malformed, or names no known tool."""
        name = arguments.get("name")
        if not isinstance(name, str) or not name or ("arguments" not in arguments and len(arguments) > 1):
            return tool_results.call_failed('call_tool wants {"name": "...", "arguments": {...}}')
        near = ", ".join(tool.name for tool in self._index().find(name, 3))
        meant = f" Did you mean one of these: {near}?" if near else ""
        return tool_results.call_failed(f"there is no tool {name[:100]!r}.{meant} Search with find_tools")

    def _index(self) -> ToolIndex:
        tools = self.tools()
        if self._indexed is None or self._indexed[0] is not tools:
            self._indexed = (tools, ToolIndex(tools))
        return self._indexed[1]

    def _names(self) -> str:
        names = [tool.name for tool in self.tools() if not is_built_in(tool)]
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        return f"There are: {', '.join(names[:_MOST_NAMED])}{more}."


def _words_of(tool: m.ToolDefinition) -> dict[str, float]:
    counts: dict[str, float] = {}
    properties = tool.input_schema.get("properties")
    arguments = " ".join(map(str, properties)) if isinstance(properties, dict) else ""
    for text, weight in (
        (tool.tool, _NAME),
        (str(tool.server), _SERVER),
        (tool.description[:_MOST_TEXT], _TEXT),
        (arguments[:_MOST_TEXT], _ARGUMENT),
    ):
        for word in _words(text):
            counts[word] = counts.get(word, 0.0) + weight
    return counts


def _words(text: str) -> list[str]:
    words = (word.lower() for word in _WORD.findall(text))
    return [_stem(word) for word in words if word not in _EMPTY]


def _stem(word: str) -> str:
    """Return a word without its English plural or verb ending, so that `files` and `file` are equal."""
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("es", ""), ("s", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: -len(ending)] + instead
            break
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


_GROUPS = [[_stem(word) for word in group.split()] for group in _VERBS.split(";")]


def _begins(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return len(short) >= _SHORTEST_PREFIX and long.startswith(short)
