"""Parse a command in English into a `Phrase`. The parser does not know which things exist."""

import itertools
import re
from typing import Final

from msgspec import Struct

from grue.hosts.zork.games.house_world import HOUSE

Words = tuple[str, ...]

DIRECTIONS: Final[dict[str, str]] = {
    "n": "n", "north": "n", "s": "s", "south": "s", "e": "e", "east": "e", "w": "w", "west": "w",
    "u": "u", "up": "u", "upstairs": "u", "d": "d", "down": "d", "downstairs": "d",
    "in": "in", "inside": "in", "out": "out", "outside": "out", "exit": "out", "leave": "out",
}  # fmt: skip
DIRECTION_NAMES: Final = {
    "n": "north", "s": "south", "e": "east", "w": "west", "u": "up", "d": "down", "in": "in", "out": "out",
}  # fmt: skip

VERBS: Final[dict[Words, str]] = {
    tuple(phrase.split()): verb for verb, phrases in HOUSE.verbs.items() for phrase in phrases.split("|")
}
_LONGEST: Final = max(map(len, VERBS))
_PREPOSITIONS: Final = frozenset({
    "with", "using", "to", "in", "into", "inside", "on", "onto", "upon", "from", "off", "about", "at",
    "under", "through", "behind", "for",
})  # fmt: skip
_IDLE_WORDS: Final = frozenset({
    "the", "a", "an", "my", "your", "his", "its", "some", "this", "that", "these", "those", "of", "please",
    "now", "mr", "mister",
})  # fmt: skip
_PARTICLES: Final = frozenset({"on", "off", "up", "down", "out", "away"})
_DIALLING: Final = frozenset({
    "dial", "set", "turn", "rotate", "spin", "enter", "type", "input", "use", "put", "try",
})  # fmt: skip
_FIGURES: Final = {
    "zero": "0", "one": "1", "two": "2", "three": "3", "four": "4",
    "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
}  # fmt: skip


class Phrase(Struct, frozen=True, kw_only=True):
    """A parsed command. `verb` is a key of `HOUSE.verbs` or "", and `said` the player's words for it."""

    verb: str
    said: str = ""
    nouns: tuple[Words, ...] = ()  # after the verb; `("all",)` stands for everything
    preposition: str = ""
    second: Words = ()  # the noun phrase after the preposition
    direction: str = ""
    number: str = ""


def parse(line: str) -> Phrase:
    """Parse a command. This never fails."""
    spoken = re.findall(r"[a-z0-9]+(?:['-][a-z0-9]+)*|,", line.lower())
    words = [word for word in spoken if word not in _IDLE_WORDS]
    if not words:
        return Phrase(verb="")
    number = _number(words)
    if number:
        return Phrase(verb="dial", said=words[0], number=number)
    if words[-1] in DIRECTIONS and (len(words) == 1 or words[:-1] == ["climb"] or words == ["get", "out"]):
        return Phrase(verb="go", said=words[0], direction=DIRECTIONS[words[-1]])
    verb, said, rest = _verb(words)
    ways = [DIRECTIONS[word] for word in rest if word in DIRECTIONS]
    if verb == "go" and ways:
        return Phrase(verb="go", said=said, direction=ways[0])
    return _nouns(verb, said, rest)


def _number(words: list[str]) -> str:
    if words[0] not in _DIALLING:
        return ""
    figures = [_FIGURES.get(part, part) for word in words[1:] for part in word.split("-")]
    return "".join(part for part in figures if part.isascii() and part.isdigit())


def _verb(words: list[str]) -> tuple[str, str, list[str]]:
    particle = (words[0], words[-1])
    if len(words) > 2 and words[-1] in _PARTICLES and particle in VERBS:
        return VERBS[particle], " ".join(particle), words[1:-1]
    for length in range(min(_LONGEST, len(words)), 0, -1):
        head = tuple(words[:length])
        if head in VERBS:
            return VERBS[head], " ".join(head), words[length:]
    return "", words[0], words[1:]


def _nouns(verb: str, said: str, rest: list[str]) -> Phrase:
    while rest and rest[0] in _PREPOSITIONS:
        rest = rest[1:]
    cut = next((place for place, word in enumerate(rest) if word in _PREPOSITIONS), len(rest))
    parts = itertools.groupby(rest[:cut], lambda word: word in ("and", ","))
    nouns = [tuple(words) for separates, words in parts if not separates]
    return Phrase(
        verb=verb,
        said=said,
        nouns=tuple(("all",) if noun[0] in ("all", "everything") else noun for noun in nouns),
        preposition=rest[cut] if cut < len(rest) else "",
        second=tuple(word for word in rest[cut + 1 :] if word not in _PREPOSITIONS and word != ","),
    )
