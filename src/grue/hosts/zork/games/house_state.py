"""The state of the house at one moment, and functions that describe it.

`State` is complete plain data, and is what a snapshot contains. The functions here only read it.
"""

from typing import Final, Literal

from msgspec import Struct, field

from grue.hosts.zork.games.house_case import Case
from grue.hosts.zork.games.house_parser import Phrase, Words
from grue.hosts.zork.games.house_things import PORTABLE, SCENERY, THINGS
from grue.hosts.zork.games.house_world import AWARDS, DEATHS, HAZARDS, ROOMS

PLAYER: Final = "player"
GONE: Final = "gone"
CONTAINERS: Final = tuple(name for name, thing in THINGS.items() if thing.holds)
FLAGS: Final = frozenset({
    "door_open", "teapot_open", "desk_open", "cat_fed", "lantern_lit", "vault_open", "grue_content",
    "pym_awake", "biscuit_eaten", "well_warned", "balcony_warned", "plant_warned",
})  # fmt: skip


class State(Struct, kw_only=True):
    """Everything that can change, and the seed.

    Attributes:
        seed: The seed.
        room: The player's room.
        places: Where each portable thing is: a room, a container, `PLAYER` or `GONE`.
        flags: Events that have happened, out of `FLAGS`.
        awarded: Achievements that have given points, out of `AWARDS`. It only grows, so the score never
            falls.
        moves: Turns taken; some commands take none.
        dark_turns: Consecutive turns spent in the dark.
        wrong_numbers: Wrong numbers dialled since the pianola last fell.
        deaths: Deaths so far; the second one ends the game.
        asked: The verb of a question that the next command may answer ("take", after "Take what?").
        it: The thing that "it" refers to.
        last: The command that "again" repeats.
        ending: How the game ended; empty while it goes on.
    """

    seed: int
    room: str = "gate"
    places: dict[str, str] = field(
        default_factory=lambda: {name: thing.place for name, thing in PORTABLE.items()}
    )
    flags: set[str] = field(default_factory=set)
    awarded: set[str] = field(default_factory=set)
    moves: int = 0
    dark_turns: int = 0
    wrong_numbers: int = 0
    deaths: int = 0
    asked: str = ""
    it: str = ""
    last: str = ""
    ending: Literal["", "won", "died"] = ""


class RefusalError(Exception):
    """The command cannot be carried out. The text is the house's answer, and no turn passes.

    Attributes:
        asks: If the text is a question, the verb that its answer completes; otherwise empty.
    """

    def __init__(self, text: str, *, asks: str = "") -> None:
        super().__init__(text)
        self.asks = asks


def fault_of(state: State) -> str | None:
    """Return why a state is impossible, or `None`. A snapshot may be damaged or forged."""
    rooms_and_people = {*ROOMS, *CONTAINERS, PLAYER, GONE}
    if state.room not in ROOMS:
        return f"there is no room {state.room!r}"
    if state.places.keys() != PORTABLE.keys() or not rooms_and_people.issuperset(state.places.values()):
        return "the things are not where things can be"
    if state.places["teapot"] == "teapot":
        return "the teapot is inside itself"
    if not state.flags <= FLAGS or not state.awarded <= AWARDS.keys():
        return "it mentions events that cannot happen"
    if min(state.moves, state.dark_turns, state.wrong_numbers, state.deaths) < 0:
        return "a count is negative"
    return None


def score(state: State) -> int:
    """Return the sum of the points awarded, 0 to 100."""
    return sum(AWARDS[name] for name in state.awarded)


def is_dark(state: State) -> bool:
    """Return whether the player sees nothing: the room is dark and has no lit lantern in it."""
    lit = "lantern_lit" in state.flags and state.places["lantern"] in (PLAYER, state.room)
    return ROOMS[state.room].dark and not lit


def things_at(state: State, place: str) -> list[str]:
    """List the things in a room, in a container (open or not) or with the player, in a fixed order."""
    return [name for name in PORTABLE if state.places[name] == place]


def within_reach(state: State) -> list[str]:
    """List the things that a command may refer to now; in the dark, only those that can be felt."""
    carried = things_at(state, PLAYER)
    if is_dark(state):
        by_feel = [name for name in ("lantern", "musicbox") if state.places[name] == state.room]
        return [*carried, *by_feel, *(["grue"] if state.room in SCENERY["grue"].rooms else [])]
    reach = [name for name, thing in SCENERY.items() if state.room in thing.rooms]
    reach += carried + things_at(state, state.room)
    for container in CONTAINERS:  # the desk comes before the teapot, which may stand in the desk
        if container in reach and f"{container}_open" in state.flags:
            reach += things_at(state, container)
    return reach


def the(name: str) -> str:
    """Return a thing's name with its article, for the middle of a sentence."""
    thing = THINGS[name]
    return f"the {thing.name}" if thing.article or thing.name[0].islower() else thing.name


def upper_first(text: str) -> str:
    """Return a text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def find(state: State, words: Words, *, asks: str = "") -> str:
    """Return the one thing that a noun phrase, without articles, refers to.

    Raises:
        RefusalError: There is no such thing here, or more than one. If the error asks which one is meant,
            `asks` is the verb that the player's answer completes.
    """
    reach = within_reach(state)
    if words in (("it",), ("them",), ("him",), ("her",)):
        if state.it in reach:
            return state.it
        raise RefusalError("It is not clear what you mean by that. Name it, if you would.")
    found = [name for name in reach if set(words) <= set(THINGS[name].words.split())]
    exact = [name for name in found if words == tuple(THINGS[name].name.lower().split())]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if found:
        raise RefusalError(f"Which do you mean, {' or '.join(map(the, found))}?", asks=asks)
    if is_dark(state):
        raise RefusalError("It is far too dark to find any such thing.")
    raise RefusalError(f"You see no {' '.join(words)} here.")


def a_list(names: list[str]) -> str:
    """Return a list of things as text: "a teapot, a key and a postcard"."""
    *others, last = [f"{THINGS[name].article} {THINGS[name].name}".strip() for name in names] or ["nothing"]
    return f"{', '.join(others)} and {last}" if others else last


def inventory(state: State) -> tuple[str, ...]:
    """Return the names of the things that the player carries, with their visible state."""
    return tuple(THINGS[name].name + _aside(state, name) for name in things_at(state, PLAYER))


def _aside(state: State, name: str) -> str:
    if name == "lantern" and "lantern_lit" in state.flags:
        return " (lit)"
    inside = things_at(state, name) if f"{name}_open" in state.flags else []
    return f" (holding {a_list(inside)})" if inside else ""


def describe(state: State, case: Case) -> str:
    """Return the description of the room: its name, its text, its changing feature, and the things in it."""
    room = ROOMS[state.room]
    if is_dark(state):
        if "grue_content" in state.flags:
            return f"{room.name}, in the dark\nPitch dark, and companionable. Somebody is humming, in full."
        return (
            f"{room.name}, in the dark\nDarkness, the complete edition. Something large is keeping quiet in "
            "it. To wander about in here without a light would be the last thing you did; the way that you "
            "came is still behind you."
        )
    text = room.text
    if room.feature is not None:
        flag, before, after = room.feature
        text += f" {after if flag in state.flags else before}"
    lines = [room.name, text, *_lying_about(state)]
    return "\n".join(lines).format_map(case.words)


def _lying_about(state: State) -> list[str]:
    here = things_at(state, state.room)
    lines = [THINGS[name].glimpse for name in here if THINGS[name].place == state.room]
    dropped = [name for name in here if THINGS[name].place != state.room]
    if dropped:
        lines.append(f"On the floor: {a_list(dropped)}.")
    for container in CONTAINERS:
        inside = things_at(state, container)
        in_room = container in here or state.room in THINGS[container].rooms
        if inside and in_room and f"{container}_open" in state.flags:
            lines.append(f"In {the(container)}: {a_list(inside)}.")
    return [" ".join(lines)] if lines else []


TOO_DARK: Final = "It is far too dark for that."


class Turn:
    """One command that is being played.

    Attributes:
        state: The state of the house; rules change it in place.
        case: The seed's variation.
        phrase: The command.
        killed_by: The cause of the player's death in this turn, a key of `DEATHS`; empty if they live.
        gains: The points of this turn.
        takes_time: Whether the command takes a turn.
    """

    def __init__(self, state: State, case: Case, phrase: Phrase) -> None:
        self.state = state
        self.case = case
        self.phrase = phrase
        self.killed_by = ""
        self.gains = 0
        self.takes_time = True

    def happened(self, flag: str) -> bool:
        """Return whether a flag of the state is set."""
        return flag in self.state.flags

    def award(self, name: str) -> None:
        """Give the points for an achievement, the first time only."""
        if name not in self.state.awarded:
            self.state.awarded.add(name)
            self.gains += AWARDS[name]

    def kill(self, cause: str) -> str:
        """Let the player die, and return the text about the death."""
        self.killed_by = cause
        return DEATHS[cause]

    def fill(self, text: str) -> str:
        """Insert the seed's words into a text."""
        return text.format_map(self.case.words)


def hazard(turn: Turn, name: str) -> str:
    """Give a warning the first time, and let the player die the second time."""
    flag, warning = HAZARDS[name]
    if turn.happened(flag):
        return turn.kill(name)
    turn.state.flags.add(flag)
    return warning
