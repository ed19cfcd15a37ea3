"""The parts of the house that depend on the seed: digits of the vault, clues to them, small talk."""

import hashlib
from itertools import permutations
from typing import Final

from msgspec import Struct

NUMBERS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PEOPLE: Final = ("sailor", "baker", "widow")

_BIRTHS: Final = {
    "sailor": "Jory, that went to sea",
    "baker": "Marget, that baked",
    "widow": "Tamsin, that was widowed",
}
_MEDDLING: Final = {
    "sailor": "painted one extra gull above the Sailor",
    "baker": "stitched one extra loaf onto the Baker's tray",
    "widow": "drew one extra candle on the glass of the telescope, for the Widow",
}
_WEATHERS: Final = (
    "The drizzle is of the patient sort.",
    "A wind is going through the hedge as though it had lost something.",
    "The evening sun does what it can for the paintwork.",
    "Fog has come up from the bay to see who it is.",
)
_CATS: Final = ("Admiral", "Bishop", "Colonel", "Duchess")
_SNORES: Final = ("a kettle", "a small harbour", "a cello being moved", "distant applause")


class Case(Struct, frozen=True):
    """One seed's variation of the house: the vault's number, and the words for names such as `{gulls}`."""

    answer: str
    words: dict[str, str]


def case_for(seed: int) -> Case:
    """Return the variation of the house for a seed, by a digest: `random` may differ by Python version."""
    dice = hashlib.sha256(f"house {seed}".encode()).digest()
    figures = dict(zip(PEOPLE, list(permutations(range(2, 9), 3))[dice[0] % 210], strict=True))
    youngest, middle, eldest = list(permutations(PEOPLE))[dice[1] % 6]
    forged = PEOPLE[dice[2] % 3]
    from_youngest = dice[3] % 2 == 0
    order = (youngest, middle, eldest) if from_youngest else (eldest, middle, youngest)
    shown = {person: NUMBERS[figures[person] + (person == forged)] for person in PEOPLE}
    words = {
        "gulls": shown["sailor"],
        "loaves": shown["baker"],
        "candles": shown["widow"],
        "youngest": _BIRTHS[youngest],
        "middle": _BIRTHS[middle],
        "eldest": _BIRTHS[eldest],
        "order": "youngest first" if from_youngest else "eldest first",
        "meddling": _MEDDLING[forged],
        "weather": _WEATHERS[dice[4] % len(_WEATHERS)],
        "cat": _CATS[dice[5] % len(_CATS)],
        "snore": _SNORES[dice[6] % len(_SNORES)],
    }
    return Case(answer="".join(str(figures[person]) for person in order), words=words)
