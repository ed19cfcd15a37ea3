"""Find the JSON object in a model's final answer, which may be plain, in a code fence or inside prose.

`has_shape` judges whether a reply has the shape of the schema that its request was sent with. Some endpoints
accept a schema and ignore it, so the model never sees the wanted shape. If the first reply has another shape,
later requests state the schema as text. `has_shape` only looks for the names of required members. Whether the
text is accepted as the answer is decided later, by the host's own check.
"""

import json
import re
from collections.abc import Iterator
from itertools import islice

from grue import messages as m
from grue.protocol.json_text import is_deep

SCHEMA_IN_WORDS = (
    "Your answer has to be one JSON object and nothing else. It has to match this JSON Schema:\n{schema}"
)
"""States the schema of an answer to the model, where an endpoint does not enforce the schema on the model."""

SCHEMA_BESIDE_TOOLS = (
    "Call tools as long as you need them. Your final answer has to be one JSON object and nothing else."
    " It has to match this JSON Schema:\n{schema}"
)
"""States the schema of an answer in a request that offers tools."""

_FENCE = re.compile(r"```[a-zA-Z0-9_-]*[ \t]*\r?\n(.*?)```", re.DOTALL)
_OPENING = re.compile(r"\{(?=\s*[\"}])")
_MOST_CANDIDATES = 50
_UNKNOWN_COST = 10_000

MAX_CHARS = 2 * 2**20
"""Longest text that is searched for an answer. Of a longer text, only the end is searched."""


def json_objects(text: str) -> Iterator[dict[str, object]]:
    """Yield the JSON objects that could be the answer in `text`, the likeliest first.

    The order is: the whole text; each fenced block; each object in the prose, the last one first, because a
    model that thinks aloud answers at the end. Objects inside other objects and objects nested too deeply are
    left out. Only the last `MAX_CHARS` characters are read, in time linear in their number.

    Source: R15.1
    """
    text = text[-MAX_CHARS:]
    seen: list[dict[str, object]] = []
    fenced = (match.group(1) for match in islice(_FENCE.finditer(text), _MOST_CANDIDATES))
    for candidate in (text, *fenced):
        value = _parse(candidate)
        if value is not None and value not in seen:
            seen.append(value)
            yield value
    for value in reversed(_embedded(text)[-_MOST_CANDIDATES:]):
        if value not in seen:
            seen.append(value)
            yield value


def _parse(text: str) -> dict[str, object] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not is_deep(value) else None


def _embedded(text: str) -> list[dict[str, object]]:
    decoder = json.JSONDecoder()
    found: list[dict[str, object]] = []
    budget = 10 * len(text) + _UNKNOWN_COST
    start = _OPENING.search(text)
    while start is not None and budget > 0:
        try:
            value, end = decoder.raw_decode(text, start.start())
        except json.JSONDecodeError as error:
            # Subtract what this attempt has cost. The decoder has parsed the characters from the brace to the
            # error. For its message, which names a line, it has also counted the newlines from the beginning
            # of the text. Counting is about 100 times as fast as parsing.
            budget -= error.pos - start.start() + error.pos // 100
            end = start.end()
        except (ValueError, RecursionError):
            budget -= _UNKNOWN_COST
            end = start.end()
        else:
            if not is_deep(value):
                found.append(value)
        start = _OPENING.search(text, end)
    return found


_MOST_JUDGED = 100_000
_MOST_OBJECTS = 5


def has_shape(schema: m.JsonObject, content: str) -> bool:
    """Return whether a text contains a JSON object with all members that the schema requires.

    If the schema requires no member, the object must have at least one of the schema's `properties`. If there
    are no `properties` either, any object will do.

    Args:
        schema: The schema of the answer. If it does not have `"type": "object"`, the result is `True`.
        content: The text of the reply. If it is very long, it is not searched: the result is `True`.
    """
    if schema.get("type") != "object" or len(content) > _MOST_JUDGED:
        return True
    properties, required = schema.get("properties"), schema.get("required")
    wanted = set(required) if isinstance(required, list) else set()
    known = set(properties) if isinstance(properties, dict) else set()
    return any(
        wanted <= found.keys() and (bool(wanted) or not known or not known.isdisjoint(found))
        for found in islice(json_objects(content), _MOST_OBJECTS)
    )
