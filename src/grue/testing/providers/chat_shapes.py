"""Functions that the translations of `dialects.py` share: reading completions, and sealing reasoning.

Providers return some reasoning encrypted or signed, and check it when it comes back. `sealed` and
`signature_of` imitate that with digests, so that a change is detected.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

Owed: TypeAlias = Mapping[str, Sequence[Json]]
"""The reasoning that a request must repeat unchanged, by the id of the tool call that followed it."""

_SIGNED = "scripted-"
_SEALED = "gAAAA"


def words(text: str) -> frozenset[str]:
    """Split a text into a set of names."""
    return frozenset(text.split())


def first_choice(completion: Json) -> tuple[Json, str]:
    """Return the assistant's message of a completion, and its finish reason."""
    choice = completion["choices"][0]
    return choice["message"], choice.get("finish_reason") or "stop"


def reasoning_of(message: Json) -> str:
    """Return a message's reasoning, from either of the fields that providers use; empty: none."""
    return str(message.get("reasoning_content") or message.get("reasoning") or "")


def details(usage: Json, which: str) -> Json:
    """Return `prompt_tokens_details` or `completion_tokens_details` of a usage object; empty if missing."""
    found: Json = usage.get(f"{which}_tokens_details") or {}
    return found


def given(body: Json, *names: str) -> Json:
    """Return those of the named fields of `body` that are present and not null."""
    return {name: body[name] for name in names if body.get(name) is not None}


def one_or_parts(parts: list[Json]) -> str | list[Json]:
    """Return the content of a chat message: a string if it is a single text without a cache marker."""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        return str(parts[0]["text"])
    return parts


def number_of(*said: object) -> str:
    """Return a digest of contents, to make ids of: equal contents get equal ids."""
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:24]


def signature_of(thinking: str) -> str:
    """Return the signature of a thinking block, as Anthropic's endpoint would sign it."""
    return _SIGNED + number_of("thinking", thinking)


def sealed(reasoning: str) -> str:
    """Return reasoning in the form of encrypted content, in which a change is detected."""
    text = base64.urlsafe_b64encode(reasoning.encode()).decode()
    return f"{_SEALED}{number_of('sealed', reasoning)}.{text}"


def is_sealed(text: str) -> bool:
    """Return whether `sealed` made this text."""
    try:
        return sealed(base64.urlsafe_b64decode(text.partition(".")[2]).decode()) == text
    except (ValueError, binascii.Error):
        return False
