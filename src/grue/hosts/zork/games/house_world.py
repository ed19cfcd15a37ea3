"""The house: its rooms, things and texts from `house.toml`, and the parts of it that depend on the seed."""

import hashlib
import tomllib
from itertools import permutations
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct


class Barrier(Struct, frozen=True, forbid_unknown_fields=True):
    """Blocks the exit to the room `to` until `flag` is set. A player who tries the exit reads `text`."""

    to: str
    flag: str
    text: str


class Room(Struct, frozen=True, forbid_unknown_fields=True):
    """A room; `text` is the part of its description that never changes."""

    name: str
    text: str
    exits: dict[str, str]
    feature: tuple[str, str, str] | None = None  # a flag, a sentence until it is set, one from then on
    barrier: Barrier | None = None
    refusal: str = "There is no going there."  # the answer to a direction without an exit
    dark: bool = False  # unless the lit lantern is there


class Thing(Struct, frozen=True, forbid_unknown_fields=True):
    """A thing that a command can refer to."""

    name: str
    words: str  # every adjective and noun that may refer to it
    text: str
    later: tuple[str, str] | None = None  # a flag, and the text once it is set
    rooms: tuple[str, ...] = ()  # where it is, if it cannot be carried
    place: str = ""  # the room or container where it is at first, if it can be carried
    glimpse: str = ""  # its line in the description of that room
    reading: str = ""  # the writing on it, which follows the text
    holds: bool = False  # whether it is a container
    small: bool = False  # whether it fits into a teapot
    article: str = "a"


class House(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `house.toml`, which says what the fields are."""

    opening: str
    help: str
    ranks: tuple[tuple[int, str], ...]
    spare_life: str
    no_life_left: str
    wrong_numbers: tuple[str, ...]
    steps_in_the_dark: tuple[str, ...]
    weathers: tuple[str, ...]
    cats: tuple[str, ...]
    snores: tuple[str, ...]
    awards: dict[str, int]
    verbs: dict[str, str]
    births: dict[str, str]
    meddling: dict[str, str]
    hazards: dict[str, str]
    deaths: dict[str, str]
    rooms: dict[str, Room]
    scenery: dict[str, Thing]
    portable: dict[str, Thing]


HOUSE: Final = msgspec.convert(
    tomllib.loads(Path(__file__).with_name("house.toml").read_text(encoding="utf-8")), House
)
THINGS: Final = HOUSE.scenery | HOUSE.portable
MAX_SCORE: Final = sum(HOUSE.awards.values())
NUMBERS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PEOPLE: Final = ("sailor", "baker", "widow")


class Case(Struct, frozen=True):
    """One seed's variation of the house: the vault's number, and the words for names such as `{gulls}`."""

    answer: str
    words: dict[str, str]


def case_for(seed: int) -> Case:
    """Return the variation that a digest of `seed` selects; `random` may differ between Python versions."""
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
        "youngest": HOUSE.births[youngest],
        "middle": HOUSE.births[middle],
        "eldest": HOUSE.births[eldest],
        "order": "youngest first" if from_youngest else "eldest first",
        "meddling": HOUSE.meddling[forged],
        "weather": HOUSE.weathers[dice[4] % len(HOUSE.weathers)],
        "cat": HOUSE.cats[dice[5] % len(HOUSE.cats)],
        "snore": HOUSE.snores[dice[6] % len(HOUSE.snores)],
    }
    return Case(answer="".join(str(figures[person]) for person in order), words=words)
