"""What the translations of `dialects.py` share: looking into a completion, and sealing reasoning."""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

Owed: TypeAlias = Mapping[str, Sequence[Json]]
"""The reasoning that a request has to repeat, as it was sent, by the id of the call that it led to."""

_SIGNED = "scripted-"
_SEALED = "gAAAA"


def words(text: str) -> frozenset[str]:
    """Return the words of a text, as a set of names."""
    return frozenset(text.split())


def first_choice(completion: Json) -> tuple[Json, str]:
    """Return the assistant's message of a completion, and its finish reason."""
    choice = completion["choices"][0]
    return choice["message"], choice.get("finish_reason") or "stop"


def reasoning_of(message: Json) -> str:
    """Return a message's reasoning, by either of the names that it has; empty: none."""
    return str(message.get("reasoning_content") or message.get("reasoning") or "")


def details(usage: Json, which: str) -> Json:
    """Return the details of a completion's usage, empty where it has none."""
    found: Json = usage.get(f"{which}_tokens_details") or {}
    return found


def given(body: Json, *names: str) -> Json:
    """Return the fields of `body` that have a value, out of these."""
    return {name: body[name] for name in names if body.get(name) is not None}


def one_or_parts(parts: list[Json]) -> str | list[Json]:
    """Return the content of a chat message: a string where a single unmarked text is all there is."""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        return str(parts[0]["text"])
    return parts


def number_of(*said: object) -> str:
    """Return a number for ids: the same for the same contents."""
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:24]


def signature_of(thinking: str) -> str:
    """Return what proves that the model thought so."""
    return _SIGNED + number_of("thinking", thinking)


def sealed(reasoning: str) -> str:
    """Return reasoning in a form that only the server reads, and that shows a change."""
    text = base64.urlsafe_b64encode(reasoning.encode()).decode()
    return f"{_SEALED}{number_of('sealed', reasoning)}.{text}"


def is_sealed(text: str) -> bool:
    """Return whether `sealed` made this text."""
    try:
        return sealed(base64.urlsafe_b64decode(text.partition(".")[2]).decode()) == text
    except (ValueError, binascii.Error):
        return False
