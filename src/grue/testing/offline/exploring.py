"""Simple exploring, for games without a script: try the things that a new place names, then take an exit.

The next command depends on the current turn alone. The rules avoid commands that were just tried, commands
that are remembered to have killed the player, exits named next to a danger, and dark places.
"""

import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from grue.testing.offline.playbook import Step, Thought
from grue.testing.offline.situation import Situation

_OPPOSITE: Final = {
    "north": "south", "south": "north", "east": "west", "west": "east",
    "northeast": "southwest", "southwest": "northeast", "northwest": "southeast", "southeast": "northwest",
    "up": "down", "down": "up",
}  # fmt: skip
_COMPASS: Final = ("north", "east", "south", "west")
_WAY: Final = re.compile(
    r"\b(north(?:east|west)?|south(?:east|west)?|east|west|up|down)(?:wards?)?\b", re.IGNORECASE
)
_CLIMB: Final = re.compile(r"\b(?:stair|step|ladder|lead|path|passage|go|goes|climb|ramp)", re.IGNORECASE)
_DANGER: Final = re.compile(
    r"\b(?:cliff|chasm|pit|abyss|precipice|edge|well|balcony|elegant|lava|troll|thief|blood)\b", re.IGNORECASE
)
_DARK: Final = re.compile(r"\bpitch (?:black|dark)\b|\btoo dark to\b|, in the dark\b", re.IGNORECASE)
_LAMP: Final = re.compile(r"\b(lantern|lamp|torch)\b", re.IGNORECASE)
_NOUNS: Final = {
    verb: re.compile(rf"\b({nouns})\b", re.IGNORECASE)
    for verb, nouns in {
        "take": "lantern|lamp|torch|keys?|leaflet|letter|map|rope|sword|sardines",
        "open": "mailbox|front door|window|chest|trunk|sack|teapot|drawer|trap ?door",
        "read": "sign|leaflet|letter|note|book|bible|volume|postcard|plate|notice|inscription|scroll",
        "examine": "painting|clock|desk|statue|machine|telescope|sampler|portrait",
    }.items()
}
_ENOUGH_THINGS: Final = 4
_THINK_EVERY: Final = 5
_TRY_EVERY: Final = 3


def explore(situation: Situation) -> Step:
    """Return the next step of exploring. The same situation always gives the same step."""
    command, why = _choose(situation)
    place = situation.location or "wherever this is"
    thought = Thought(f"I am in {place}, without a script. {why} So I try this: {command}.")
    return Step(
        command=command,
        why=f"I have no script for this. {why}",
        objective="See every place, read every word, and come back." if situation.turn == 1 else None,
        rounds=((thought,),) if situation.turn % _THINK_EVERY == 0 else (),
    )


def _choose(situation: Situation) -> tuple[str, str]:
    vain = {played.command for played in situation.recent[_arrival(situation) + 1 :]} | situation.deadly
    sensible = (choice for choice in _choices(situation) if choice[0] not in vain)
    return next(sensible, ("wait", "Everything here has been tried, so I give time a chance."))


def _arrival(situation: Situation) -> int:
    """Return the index of the recent move that led here; -1 if none did, or if it is unknown."""
    if situation.location is not None:
        for index, played in reversed(list(enumerate(situation.recent))):
            if played.command in _OPPOSITE and played.reply.startswith(situation.location):
                return index
    return -1


def _choices(situation: Situation) -> Iterator[tuple[str, str]]:
    """Yield commands with their reasons, the best one first."""
    if _DARK.search(situation.text):
        yield from _out_of_the_dark(situation)
    if not situation.known:
        yield from _things(situation)
    named = list(_named_ways(situation))
    if not named:
        # Games describe a place in full only once, so look again before going back.
        yield "look", "Nothing that I was told last names a way out of here."
    if situation.known.issuperset(named) and (not named or situation.turn % _TRY_EVERY == 0):
        yield from _unnamed_ways(situation)
    yield from _ways(situation, named)
    yield from _unnamed_ways(situation)


def _out_of_the_dark(situation: Situation) -> Iterator[tuple[str, str]]:
    # If the host does not say what the player carries, assume a lamp.
    lamp = _LAMP.search("lamp" if situation.inventory is None else situation.inventory)
    if lamp:
        yield f"turn on {lamp[1].lower()}", "It is dark, and things live in the dark."
    for played in reversed(situation.recent):
        if played.command in _OPPOSITE:
            yield _OPPOSITE[played.command], "It is dark, and the way that I came was not."


def _things(situation: Situation) -> Iterator[tuple[str, str]]:
    here = [played.command.split()[0] for played in situation.recent[_arrival(situation) + 1 :]]
    if sum(verb in _NOUNS for verb in here) >= _ENOUGH_THINGS:
        return
    for verb, pattern in _NOUNS.items():
        for noun in dict.fromkeys(found.lower() for found in pattern.findall(situation.text)):
            yield f"{verb} {noun}", f"There is a {noun}, and I suppose that it is there for a reason."


def _ways(situation: Situation, named: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the exits that are named or remembered: new ones first, the one back last."""
    back = _way_back(situation)
    ways = _shuffled({*named, *(situation.known & _OPPOSITE.keys())}, situation.turn)
    for way in sorted(ways, key=lambda way: (way == back, way in situation.known)):
        yield way, f"There is something {way} of here."


def _unnamed_ways(situation: Situation) -> Iterator[tuple[str, str]]:
    for way in _shuffled({*_COMPASS} - situation.known - {_way_back(situation)}, situation.turn):
        yield way, f"Nobody has said that there is nothing {way} of here."


def _way_back(situation: Situation) -> str | None:
    arrival = _arrival(situation)
    return _OPPOSITE[situation.recent[arrival].command] if arrival >= 0 else None


def _shuffled(ways: Iterable[str], turn: int) -> list[str]:
    """Return the exits in an order that depends on the turn, so that the player does not go in circles."""
    return sorted(ways, key=lambda way: zlib.crc32(f"{turn} {way}".encode()))


def _named_ways(situation: Situation) -> Iterator[str]:
    """Yield the exits that the game has named since the player came here."""
    arrival = _arrival(situation)
    heard = [played.reply for played in situation.recent[arrival:]] if arrival >= 0 else []
    for sentence in re.split(r"[.;\n]", "\n".join([situation.text, *heard])):
        if not _DANGER.search(sentence):
            ways = [way.lower() for way in _WAY.findall(sentence)]
            yield from (way for way in ways if way not in ("up", "down") or _CLIMB.search(sentence))
