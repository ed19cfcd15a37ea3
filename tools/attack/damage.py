"""Hostile values and damaged bytes, drawn from a seeded `random.Random`; pure."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

NESTED = 3_000
"""Deeper than Python's recursion limit."""

ODD_TEXTS = (
    "",
    "\x00",
    "\ud800",
    "a\udfffb",
    "\u202egnp.exe",
    "\x1b[2J\x1b]0;owned\x07",
    "\u2028\u2029\x85\x0b\x0c",
    "\ufeff",
    "\uffff\ufffe",
    "e\u0301" * 50,
    "Authorization: Bearer sk-0123456789abcdef",
    "authorization " * 40,
    "{" * 50,
    "```json\n{}\n```",
    "%s%n{0}{x}",
    "../../../etc/passwd",
    "NaN",
    "\r\n\r\ndata: x\n\n",
    "a" * 5_000,
    "\U0001f600" * 300,
)
LITERALS = (
    b"null", b"true", b"false", b"0", b"-1", b"1e400", b"-1e400", b"NaN", b"Infinity", b"0.1e-999", b"[]",
    b"{}", b'""', b"[[]]", b'{"":{}}', b"18446744073709551616", b"-0", b'"\\ud800"', b"1" * 5_000,
    b"9" * 400 + b".5", b'"' + b"x" * 3_000 + b'"',
)  # fmt: skip
"""JSON, or nearly, that a careless reader stumbles over."""


def odd_text(rng: Random) -> str:
    """Return a text that is seldom expected."""
    text = rng.choice(ODD_TEXTS)
    return text * rng.choice((1, 1, 1, 3, 40))


def odd_value(rng: Random, depth: int = 0) -> Any:
    """Return a JSON value of any kind; surrogates and huge integers included."""
    kinds: list[Callable[[], Any]] = [
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.choice((0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**400)),
        lambda: rng.choice((0.0, -0.0, 1e308, 1e-320, float("inf"), float("nan"))),
        lambda: odd_text(rng),
    ]
    if depth < 3:
        kinds += [
            lambda: [odd_value(rng, depth + 1) for _ in range(rng.randrange(4))],
            lambda: {odd_text(rng)[:60]: odd_value(rng, depth + 1) for _ in range(rng.randrange(4))},
        ]
    return rng.choice(kinds)()


def nested(rng: Random, depth: int = NESTED) -> bytes:
    """Return valid JSON that is nested too deeply for a recursive reader."""
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"b":', b"}]")))
    return opening * depth + b"1" + closing * depth


def dumps(value: Any) -> bytes:
    """Return JSON with everything in ASCII, so that lone surrogates survive."""
    return json.dumps(value).encode()


def with_another_member(rng: Random, document: Any) -> bytes:
    """Return the document's JSON with one member, somewhere, replaced, removed, repeated or renamed."""
    places = list(_places(document))
    if not places:
        return rng.choice(LITERALS)
    holder, key = rng.choice(places)
    marker = f"@@{rng.getrandbits(64):x}@@"
    match rng.randrange(6):
        case 0:
            del holder[key]
            return dumps(document)
        case 1 if isinstance(holder, dict):
            holder[odd_text(rng)[:80]] = holder.pop(key)
            return dumps(document)
        case 2 if isinstance(holder, list):
            holder.extend([holder[key]] * rng.choice((1, 5, 200)))
            return dumps(document)
        case 3:
            holder[key] = odd_value(rng)
            return dumps(document)
        case 4:
            holder[key] = marker
            return dumps(document).replace(dumps(marker), nested(rng))
        case _:
            holder[key] = marker
            return dumps(document).replace(dumps(marker), rng.choice(LITERALS))


def _places(value: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    keys: Any = (
        value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        found.append((value, key))
        if depth < 12:
            found += _places(value[key], depth + 1)
    return found


def damaged(rng: Random, data: bytes) -> bytes:
    """Return the bytes with a few flipped, cut out, repeated, inserted or swapped; never the same."""
    out = bytearray(data or b"x")
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        place = rng.randrange(len(out)) if out else 0
        length = rng.choice((1, 1, 2, 7, 60))
        match rng.randrange(5):
            case 0 if out:
                out[place] ^= 1 << rng.randrange(8)
            case 1:
                del out[place : place + length]
            case 2:
                out[place:place] = out[place : place + length] * rng.choice((1, 1, 3))
            case 3:
                out[place:place] = rng.randbytes(length)
            case _:
                other = rng.randrange(len(out)) if out else 0
                part = bytes(out[place : place + length])
                out[place : place + length] = out[other : other + length]
                out[other : other + length] = part
    return bytes(out) if bytes(out) != data else damaged(rng, data)


def reads_as_json(data: bytes) -> bool:
    """Say whether it is JSON in UTF-8, by Python's own reader."""
    try:
        json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return False
    return True
