"""Find the JSON object in a model's final answer, which may be plain, in a code fence or inside prose.

Source: R15.1
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice

from grue import messages as m
from grue.protocol.json_text import is_deep

SCHEMA_IN_WORDS = (  # for repair requests, and for requests without tools if `WireProfile.states_schema`
    "Your answer has to be one JSON object and nothing else. It has to match this JSON Schema:\n{schema}"
)
SCHEMA_BESIDE_TOOLS = (
    "Call tools as long as you need them. Your final answer has to be one JSON object and nothing else."
    " It has to match this JSON Schema:\n{schema}"
)

_FENCE = re.compile(r"```[a-zA-Z0-9_-]*[ \t]*\r?\n(.*?)```", re.DOTALL)
_OPENING = re.compile(r"\{(?=\s*[\"}])")
_MOST_CANDIDATES = 50
_UNKNOWN_COST = 10_000  # the cost, in characters, of a parse that fails without a position in the text
MAX_CHARS = 2 * 2**20  # only the last `MAX_CHARS` characters of a text are searched for an answer


def json_objects(text: str) -> Iterator[dict[str, object]]:
    """Yield JSON objects that may be the answer: the whole text; those in fences; others, the last first."""
    text = text[-MAX_CHARS:]
    seen: list[dict[str, object]] = []
    for candidate in (text, *fenced_blocks(text)):
        value = _parse(candidate)
        if value is not None and value not in seen:
            seen.append(value)
            yield value
    for value in reversed(_embedded(text)[-_MOST_CANDIDATES:]):
        if value not in seen:
            seen.append(value)
            yield value


def fenced_blocks(text: str) -> Iterator[str]:
    """Yield the contents of the first 50 code fences in the last `MAX_CHARS` characters of a text."""
    return (match.group(1) for match in islice(_FENCE.finditer(text[-MAX_CHARS:]), _MOST_CANDIDATES))


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
        end = start.end()
        try:
            value, end = decoder.raw_decode(text, start.start())
        except json.JSONDecodeError as error:
            # Subtract what this attempt has cost: 1 for each character parsed, and 1/100 for each character
            # before the error, where the decoder counts the newlines to name the error's line.
            budget -= error.pos - start.start() + error.pos // 100
        except (ValueError, RecursionError):
            budget -= _UNKNOWN_COST
        else:
            if not is_deep(value):
                found.append(value)
        start = _OPENING.search(text, end)
    return found


_MOST_JUDGED = 100_000
_MOST_OBJECTS = 5


def has_shape(schema: m.JsonObject, content: str) -> bool:
    """Return whether one of the first objects in a text has all members that the schema requires.

    If the schema requires no member, but names some, the object must have one of these. `True` also if the
    text is too long to be searched, or if the schema's `type` is not `object`.
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
