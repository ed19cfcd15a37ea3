"""What a case is, by its name alone: every process that takes part draws the same from the same seed.

A name is `KIND-NUMBER`, such as `stream-70000012`.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

from grue.protocol.chat_wire.formats import FORMATS

KINDS = {
    "reply": 5,
    "stream": 8,
    "models": 1,
    "stdio": 8,
    "http": 4,
    "file": 4,
    "words": 2,
    "game": 1,
    "fleet": 1,
    "approval": 3,
}
"""How often each kind is drawn."""

CANARY = "canary-password-0123456789"
"""A secret of the hostile server: it is in its arguments, and it repeats it where it can."""

WIRES = tuple(FORMATS)
BIG_SHARE = 0.03
"""Of the cases, those that send tens of megabytes: each takes seconds."""


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        attack_at: The first request, or phase, in which it goes wrong; all before are sound.
        again: Every later one goes wrong too.
        big: Sizes near the limits.
    """

    name: str
    kind: str
    wire: str
    stream: bool
    attack_at: int
    again: bool
    big: bool
    limit_s: float
    lifetime: str
    calls: int

    def rng(self, *purpose: object) -> Random:
        """Return a source of chance for one purpose of this case."""
        return Random("/".join(map(str, (self.name, *purpose))))


def case_of(name: str) -> Case:
    """Return the case with this name.

    Raises:
        ValueError: It is not the name of a case.
    """
    kind, dash, number = name.partition("-")
    if kind not in KINDS or not dash or not number.isdecimal():
        raise ValueError(f"{name!r} is not the name of a case, such as stream-70000012.")
    rng = Random(name)
    big = rng.random() < BIG_SHARE
    return Case(
        name=name,
        kind=kind,
        wire=rng.choice(WIRES),
        stream=kind == "stream",
        attack_at=rng.choice((0, 0, 1)),
        again=rng.random() < 0.3,
        big=big,
        limit_s=6.0 if big else rng.choice((1.0, 1.5, 2.0)),
        lifetime=rng.choice(("turn", "turn", "turn", "episode", "ahead", "kept")),
        calls=rng.choice((1, 1, 2, 3)),
    )


def names(seed: int) -> Any:
    """Yield the names of cases for a seed, for ever."""
    rng = Random(seed)
    number = 0
    while True:
        (kind,) = rng.choices(tuple(KINDS), tuple(KINDS.values()))
        yield f"{kind}-{seed * 1_000_000 + number}"
        number += 1


def arguments(case: Case, number: int) -> dict[str, object]:
    """Return what the model really asks for in its reply to that request."""
    rng = case.rng("arguments", number)
    parts = [f"{rng.getrandbits(40):x}" for _ in range(rng.choice((2, 6, 20)))]
    return {
        "path": "/data/" + "/".join(parts),
        "mode": rng.choice(("keep", "delete")),
        "count": rng.randrange(9**6),
    }
