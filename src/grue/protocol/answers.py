"""Find the JSON in a final answer: alone, fenced, or within prose."""

import json
import re
from collections.abc import Iterator
from itertools import islice

from grue.protocol.tool_results import is_deep

_FENCE = re.compile(r"```[a-zA-Z0-9_-]*[ \t]*\r?\n(.*?)```", re.DOTALL)
_OPENING = re.compile(r"\{(?=\s*[\"}])")
_MOST_CANDIDATES = 50
_UNKNOWN_COST = 10_000

MAX_CHARS = 2 * 2**20
"""Longest text that is looked through for an answer."""


def json_objects(text: str) -> Iterator[dict[str, object]]:
    """Yield the JSON objects that `text` may mean, the likeliest first (R15.1).

    The whole text, then each fenced block, then each object that begins at a brace in the prose, the last one
    first: a model that thinks aloud answers at the end. Objects within objects are not candidates, nor
    are those that are nested deeper than other JSON values may be. The time it takes is linear in the length
    of the text, of which the last `MAX_CHARS` characters are read.
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
            # What the decoder read before it gave up, and the lines that it counted for its message.
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
