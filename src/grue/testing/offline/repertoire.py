"""The offline model's playbooks for The House and Zork I, and how it explores other games (`explore`)."""

import json
import re
import tomllib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue.hosts.zork.games.house import walkthrough
from grue.hosts.zork.games.house_world import NUMBERS, Case, case_for
from grue.testing.offline.chat_request import ChatMessage, ChatRequest, text_of

_HEAD: Final = re.compile(r"^Game: (?P<game>.+)\nTurn: (?P<turn>\d{1,9})$", re.MULTILINE)
_LOCATION: Final = re.compile(r"^Location: (.+)$", re.MULTILINE)
_INVENTORY: Final = re.compile(r"^Inventory: (.+)$", re.MULTILINE)
_RECENT: Final = re.compile(r"^Recent actions and results:\n((?:> .*\n)+)", re.MULTILINE)
_MOVE: Final = re.compile(r"^> (.+?)(?: \([+-]\d+ points\))?:(?: (.*))?$", re.MULTILINE)
_LEADS: Final = re.compile(r"^- '(.+)' leads to .+$", re.MULTILINE)
_KILLED: Final = re.compile(r"^- '(.+)' killed you here$", re.MULTILINE)
_SAID: Final = "\nThe game says:\n"
_REMEMBERED: Final = "\n\nWhat you remember of this place:\n"


class Played(Struct, frozen=True):
    """A command that was played, and the beginning of the game's reply."""

    command: str
    reply: str = ""


class Situation(Struct, frozen=True, kw_only=True):
    """A turn of a game, as the host's message describes it."""

    game: str
    turn: int  # number of the turn, from 1
    location: str | None = None  # `None`: the message does not say; likewise `inventory`
    inventory: str | None = None
    recent: tuple[Played, ...] = ()  # the last commands played, oldest first
    known: frozenset[str] = frozenset()  # commands that, in the host's notes, lead elsewhere
    deadly: frozenset[str] = frozenset()  # commands that have killed the player at this place
    text: str = ""
    rounds: int = 0  # the model's replies since this message
    settled: bool = False  # whether a user message or a failed tool call came since: the answer is due


def read_standing(request: ChatRequest) -> Situation | None:
    """Return the Zork host's last message about a turn, and what followed it; `None`: it has sent none."""
    for index, message in reversed(list(enumerate(request.messages))):
        situation = read_situation(text_of(message.content)) if message.role == "user" else None
        if situation is not None:
            since = request.messages[index + 1 :]
            rounds = sum(each.role == "assistant" for each in since)
            settled = any(
                later.role == "user" or (later.role == "tool" and _failed(later)) for later in since
            )
            return replace(situation, rounds=rounds, settled=settled)
    return None


def read_situation(text: str) -> Situation | None:
    """Parse the message that the Zork host sends for a turn; `None`: the text is not such a message."""
    head = _HEAD.search(text)
    if head is None:
        return None
    told, _, notes = text[head.start() :].partition(_REMEMBERED)
    facts, _, said = told.partition(_SAID)
    recent = _RECENT.search(facts)
    return Situation(
        game=head["game"].strip(),
        turn=int(head["turn"]),
        location=_first(_LOCATION, facts),
        inventory=_first(_INVENTORY, facts),
        recent=tuple(Played(*found) for found in _MOVE.findall(recent[1])) if recent else (),
        known=frozenset(_LEADS.findall(notes)),
        deadly=frozenset(_KILLED.findall(notes)),
        text=said.strip(),
    )


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None


def _failed(message: ChatMessage) -> bool:
    try:
        result = json.loads(text_of(message.content))
    except (ValueError, RecursionError):
        return False
    return isinstance(result, dict) and bool(result.get("error"))


# Commands that do not advance a game. No script contains them.
IDLE: Final = frozenset(["look", "l", "inventory", "i", "score", "wait", "z", "help"])

# The most turns that may have been played outside the script. With more, a match would be chance.
_MOST_LOST: Final = 10


class Thought(Struct, frozen=True, forbid_unknown_fields=True):
    """One step of thinking."""

    text: str
    revises: int | None = None  # number, from 1, of the earlier step in this turn that this step corrects
    branches_from: int | None = None  # number of the earlier step at which a new branch starts


class Step(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn of a script."""

    command: str = ""  # in `playbooks.toml`, the name of the step's table
    why: str  # for the field `thinking` of the JSON answer
    objective: str | None = None  # a new goal for several turns
    rounds: tuple[tuple[Thought, ...], ...] = ()  # the thoughts of each reply before the answer


class Playbook(Struct, frozen=True):
    """A script for one game."""

    title: str  # regular expression, searched for in a game's title, ignoring case
    steps: tuple[Step, ...]

    def is_for(self, game: str) -> bool:
        """Return whether this is the script for a game with this title."""
        return re.search(self.title, game, re.IGNORECASE) is not None

    def step_for(self, situation: Situation) -> Step | None:
        """Return the next step; `None`: the script has ended, or does not fit the game or `recent`."""
        if not self.is_for(situation.game):
            return None
        commands = [step.command for step in self.steps]
        place = position(commands, situation.turn, [played.command for played in situation.recent])
        return self.steps[place] if place is not None and place < len(commands) else None


def position(commands: Sequence[str], turn: int, recent: Sequence[str]) -> int | None:
    """Return how many of `commands` were played before `turn` (from 1); `None`: `recent` does not tell."""
    # A host plays an idle command such as `look` in a turn that has failed. So if `recent` is not what the
    # script has just before this turn, search the script backwards for `recent` without its idle commands.
    # If `recent` is empty, assume that the script was played in every turn so far.
    due = turn - 1
    played = [command.casefold() for command in recent]
    if played == list(commands[max(0, due - len(played)) : due]):
        return due
    told = [command for command in played if command not in IDLE]
    if not told:
        return 0 if len(played) == due else None
    due -= len(played) - len(told)
    latest = min(len(commands), due)
    places = range(latest, max(len(told), due - _MOST_LOST) - 1, -1)
    return next((place for place in places if list(commands[place - len(told) : place]) == told), None)


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
    """Choose the player's next command if no script fits. The choice depends only on the situation."""
    vain = {played.command for played in situation.recent[_arrival(situation) + 1 :]} | situation.deadly
    sensible = (choice for choice in _choices(situation) if choice[0] not in vain)
    tried = "Everything here has been tried, so I give time a chance."
    command, why = next(sensible, ("wait", tried))
    place = situation.location or "wherever this is"
    thought = Thought(f"I am in {place}, without a script. {why} So I try this: {command}.")
    return Step(
        command=command,
        why=f"I have no script for this. {why}",
        objective="See every place, read every word, and come back." if situation.turn == 1 else None,
        rounds=((thought,),) if situation.turn % _THINK_EVERY == 0 else (),
    )


def _arrival(situation: Situation) -> int:
    """Return the index in `situation.recent` of the move that led to this place; -1 if it is not known."""
    if situation.location is not None:
        for index, played in reversed(list(enumerate(situation.recent))):
            if played.command in _OPPOSITE and played.reply.startswith(situation.location):
                return index
    return -1


def _choices(situation: Situation) -> Iterator[tuple[str, str]]:
    if _DARK.search(situation.text):
        # If the host does not say what the player carries, assume a lamp.
        lamp = _LAMP.search("lamp" if situation.inventory is None else situation.inventory)
        if lamp:
            yield f"turn on {lamp[1].lower()}", "It is dark, and things live in the dark."
        ways = (_OPPOSITE.get(played.command) for played in reversed(situation.recent))
        yield from ((way, "It is dark, and the way that I came was not.") for way in ways if way)
    if not situation.known:
        yield from _things(situation)
    named = list(_named_ways(situation))
    if not named:
        # At a later visit, many games print only a place's name. `look` prints the exits again.
        yield "look", "Nothing that I was told last names a way out of here."
    if situation.known.issuperset(named) and (not named or situation.turn % _TRY_EVERY == 0):
        yield from _unnamed_ways(situation)
    yield from _ways(situation, named)
    yield from _unnamed_ways(situation)


def _things(situation: Situation) -> Iterator[tuple[str, str]]:
    here = [played.command.partition(" ")[0] for played in situation.recent[_arrival(situation) + 1 :]]
    if sum(verb in _NOUNS for verb in here) >= _ENOUGH_THINGS:
        return
    for verb, pattern in _NOUNS.items():
        for noun in dict.fromkeys(found.lower() for found in pattern.findall(situation.text)):
            yield f"{verb} {noun}", f"There is a {noun}, and I suppose that it is there for a reason."


def _ways(situation: Situation, named: list[str]) -> Iterator[tuple[str, str]]:
    # First the exits that only the game's text names, then those in the host's notes, last the way back.
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
    # The order depends on the turn, so that the player does not walk in circles.
    return sorted(ways, key=lambda way: zlib.crc32(f"{turn} {way}".encode()))


def _named_ways(situation: Situation) -> Iterator[str]:
    arrival = _arrival(situation)
    heard = [played.reply for played in situation.recent[arrival:]] if arrival >= 0 else []
    for sentence in re.split(r"[.;\n]", "\n".join([situation.text, *heard])):
        if not _DANGER.search(sentence):
            ways = [way.lower() for way in _WAY.findall(sentence)]
            yield from (way for way in ways if way not in ("up", "down") or _CLIMB.search(sentence))


_THOUGHTS: Final = msgspec.convert(
    tomllib.loads(Path(__file__).with_name("playbooks.toml").read_text(encoding="utf-8")),
    dict[str, dict[str, Step]],
)
# For each name in the Bible of The House: who that is, and what to count in that person's picture.
_PICTURES: Final = {
    "Jory": ("sailor", "gulls"),
    "Marget": ("baker", "loaves"),
    "Tamsin": ("widow", "candles"),
}
_ZORK_COMMANDS: Final = (
    "north. north. up. take egg. down. south. east. open window. west. west. take lamp. open case. put egg "
    "in case. move rug. open trap door. turn on lamp. down. south. east. take painting. north. up. west. put "
    "painting in case"
)


def playbook_for(game_title: str, seed: int) -> Playbook | None:
    """Return the playbook for a game, which has this `seed`; `None`: the offline model explores the game."""
    candidates = (house_playbook(seed), zork1_playbook())
    return next((playbook for playbook in candidates if playbook.is_for(game_title)), None)


def house_playbook(seed: int) -> Playbook:
    """Return the playbook that wins The House with all points, if the game has this seed."""
    steps = _steps(walkthrough(seed), _THOUGHTS["house"])
    case = case_for(seed)
    return Playbook(
        r"^(?:the )?house$",
        tuple(_with_sum(step, case) if step.command.startswith("dial ") else step for step in steps),
    )


def zork1_playbook() -> Playbook:
    """Return the playbook that scores 55 of the 350 points of Zork I, with any seed."""
    steps = _steps(_ZORK_COMMANDS.split(". "), _THOUGHTS["zork1"])
    return Playbook(r"\bzork[ _-]*(?:1|i)(?![0-9i])", tuple(steps))


def _steps(commands: Iterable[str], told: Mapping[str, Step]) -> Iterator[Step]:
    for command in commands:
        step = told.get(command) or Step(why=f"On, {command}: what I want next is that way.")
        yield replace(step, command=command)


def _with_sum(step: Step, case: Case) -> Step:
    # With a tool for thinking, three replies before this step's command deduce the vault's combination.
    words = case.words
    names = [words[who].split(",")[0] for who in ("eldest", "middle", "youngest")]
    counted = names if words["order"] == "eldest first" else names[::-1]
    pictures = [_PICTURES[name] for name in counted]
    as_hung = ", ".join(f"the {person}'s {things} {words[things]}" for person, things in pictures)
    figures = "".join(str(NUMBERS.index(words[things])) for _, things in pictures)
    answer = case.answer
    thoughts = (
        Thought(
            f"The Bible says who came when: {names[1]} ran for the midwife when {names[2]} was born, "
            f"and {names[0]} held {names[1]} at the font. Aunt Hesper wants them {words['order']}: "
            f"{', '.join(counted)}."
        ),
        Thought(f"The pictures, in that order: {as_hung}. That would make {figures}."),
        Thought(
            f"Not so fast: Edwin owns up that it was he who {words['meddling']}. Without that it is "
            f"{answer}. There is a pianola overhead, so I had rather be right than quick.",
            revises=2,
        ),
    )
    return replace(
        step,
        why=f"The pictures, {words['order']}, less Edwin's improvement: {answer}. Nobody need guess.",
        rounds=tuple((thought,) for thought in thoughts),
    )
