"""The House: the embedded text adventure, with sixteen rooms and exactly 100 points.

* The first death puts the player back at the gate with everything they carried (`died`, not `done`). The
  second death ends the game (`died` and `done`). Points are never lost.
* INVENTORY, SCORE, HELP, and commands that are refused or not understood take no turn. Every other command
  takes a turn, even an attempt without success, such as going through a shut door, or dropping two things
  that the player sees but does not have.

Each verb has a rule: a function that returns the text to print. A rule that refuses the command raises
`RefusalError`, and no turn passes. In a command for several things, each refusal becomes a part of the text
instead.
"""

from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct, field

from grue.hosts.zork.games.game import Observation
from grue.hosts.zork.games.house_parser import DIRECTION_NAMES, Phrase, Words, parse
from grue.hosts.zork.games.house_world import HOUSE, MAX_SCORE, THINGS, Case, case_for

__all__ = ["HouseGame", "walkthrough"]

PLAYER: Final = "player"
GONE: Final = "gone"
CONTAINERS: Final = tuple(name for name, thing in THINGS.items() if thing.holds)


class State(Struct, kw_only=True):
    """Everything that can change, and the seed."""

    seed: int
    room: str = "gate"
    places: dict[str, str] = field(
        default_factory=lambda: {name: thing.place for name, thing in HOUSE.portable.items()}
    )
    flags: set[str] = field(default_factory=set)  # what has happened, such as `door_open`
    awarded: set[str] = field(default_factory=set)  # only grows, so the score never falls
    moves: int = 0
    dark_turns: int = 0  # in a row
    wrong_numbers: int = 0  # dialled; the third kills
    deaths: int = 0
    asked: str = ""  # the verb of a question that the next command may answer: "Take what?"
    it: str = ""  # the thing that "it" refers to
    last: str = ""  # the command that "again" repeats
    ending: Literal["", "won", "died"] = ""


class RefusalError(Exception):
    """The command cannot be carried out. The text is the answer; `asks`: the verb of its question, if any."""

    def __init__(self, text: str, *, asks: str = "") -> None:
        super().__init__(text)
        self.asks = asks


def _refuse_if(wrong: object, text: str) -> None:
    if wrong:
        raise RefusalError(text)


def score(state: State) -> int:
    return sum(HOUSE.awards[name] for name in state.awarded)


def is_dark(state: State) -> bool:
    lit = "lantern_lit" in state.flags and state.places["lantern"] in (PLAYER, state.room)
    return HOUSE.rooms[state.room].dark and not lit


def _things_at(state: State, place: str) -> list[str]:
    return [name for name in HOUSE.portable if state.places[name] == place]


def _within_reach(state: State) -> list[str]:
    carried = _things_at(state, PLAYER)
    if is_dark(state):
        by_feel = [name for name in ("lantern", "musicbox") if state.places[name] == state.room]
        return [*carried, *by_feel, *(["grue"] if state.room in HOUSE.scenery["grue"].rooms else [])]
    reach = [name for name, thing in HOUSE.scenery.items() if state.room in thing.rooms]
    reach += carried + _things_at(state, state.room)
    # The teapot, which is a container too, may be in the desk: `CONTAINERS` has the desk first.
    for container in CONTAINERS:
        if container in reach and f"{container}_open" in state.flags:
            reach += _things_at(state, container)
    return reach


def the(name: str) -> str:
    """Return "the" and a thing's name; only the name if it is a proper name, such as "Mr Pym"."""
    thing = THINGS[name]
    return f"the {thing.name}" if thing.article or thing.name[0].islower() else thing.name


def _upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def find(state: State, words: Words, *, asks: str = "") -> str:
    """Return the thing in reach that `words` name; raises `RefusalError` if they name none or several."""
    reach = _within_reach(state)
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
    _refuse_if(is_dark(state), "It is far too dark to find any such thing.")
    raise RefusalError(f"You see no {' '.join(words)} here.")


def _a_list(names: list[str]) -> str:
    *others, last = [f"{THINGS[name].article} {THINGS[name].name}".strip() for name in names] or ["nothing"]
    return f"{', '.join(others)} and {last}" if others else last


def inventory(state: State) -> tuple[str, ...]:
    """Return what the player carries, in words for the player, such as "brass lantern (lit)"."""
    return tuple(THINGS[name].name + _aside(state, name) for name in _things_at(state, PLAYER))


def _aside(state: State, name: str) -> str:
    if name == "lantern" and "lantern_lit" in state.flags:
        return " (lit)"
    inside = _things_at(state, name) if f"{name}_open" in state.flags else []
    return f" (holding {_a_list(inside)})" if inside else ""


def describe(state: State, case: Case) -> str:
    room = HOUSE.rooms[state.room]
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
    here = _things_at(state, state.room)
    lines = [THINGS[name].glimpse for name in here if THINGS[name].place == state.room]
    dropped = [name for name in here if THINGS[name].place != state.room]
    if dropped:
        lines.append(f"On the floor: {_a_list(dropped)}.")
    for container in CONTAINERS:
        inside = _things_at(state, container)
        in_room = container in here or state.room in THINGS[container].rooms
        if inside and in_room and f"{container}_open" in state.flags:
            lines.append(f"In {the(container)}: {_a_list(inside)}.")
    return [" ".join(lines)] if lines else []


TOO_DARK: Final = "It is far too dark for that."


class Turn(Struct):
    """One command that is being played; rules change `state` in place."""

    state: State
    case: Case
    phrase: Phrase
    killed_by: str = ""  # a key of `HOUSE.deaths`
    gains: int = 0
    takes_time: bool = True

    def happened(self, flag: str) -> bool:
        return flag in self.state.flags

    def award(self, name: str) -> None:
        """Give the points for an achievement, the first time only."""
        if name not in self.state.awarded:
            self.state.awarded.add(name)
            self.gains += HOUSE.awards[name]

    def kill(self, cause: str) -> str:
        """Let the player die of a cause, and return the text to print."""
        self.killed_by = cause
        return HOUSE.deaths[cause]

    def fill(self, text: str) -> str:
        """Replace the `{...}` in a text by the words that the game's seed has chosen."""
        return text.format_map(self.case.words)


def hazard(turn: Turn, name: str) -> str:
    """Warn of a danger the first time; let the player die of it the second time."""
    if turn.happened(f"{name}_warned"):
        return turn.kill(name)
    turn.state.flags.add(f"{name}_warned")
    return HOUSE.hazards[name]


def _give(turn: Turn, name: str) -> str:
    if turn.phrase.second:
        return _hand_over(turn, name, find(turn.state, turn.phrase.second))
    raise RefusalError(
        f"Feed {the(name)} with what?" if turn.phrase.verb == "feed" else f"Give {the(name)} to whom?"
    )


def gift_and_receiver(state: State, words: Words) -> tuple[str, str] | None:
    """Return thing and receiver for words such as "cat sardines"; `None`: the words do not name both."""
    for cut in range(1, len(words)):
        try:
            return find(state, words[cut:]), find(state, words[:cut])
        except RefusalError:
            continue
    return None


def _hand_over(turn: Turn, name: str, receiver: str) -> str:
    if turn.phrase.preposition == "with" and receiver in HOUSE.portable:
        name, receiver = receiver, name  # "feed the cat with sardines" names the receiver first
    _refuse_if(turn.state.places.get(name) != PLAYER, f"You are not holding {the(name)}.")
    match receiver, name:
        case "cat", "sardines":
            return _feed_cat(turn)
        case "cat", _:
            return turn.fill("The {cat} looks at it, then at you, as one looks at a spelling mistake.")
        case "notary", "deed":
            return _stamp(turn)
        case "notary", _:
            return '"Is it a deed?" says Mr Pym, with his eyes shut. "Then no, but thank you."'
        case "grue", "musicbox":
            return _wind(turn, name)
        case "plant", _:
            return "The plant bows, and declines. It prefers its meals to come of their own accord."
    raise RefusalError(f"{_upper_first(the(receiver))} has no use for it.")


def _feed_cat(turn: Turn) -> str:
    turn.state.places["sardines"] = GONE
    turn.state.flags.add("cat_fed")
    turn.award("cat")
    return turn.fill(
        "The {cat} opens one eye, then the tin; nobody sees how. The sardines go where sardines go. The "
        "{cat} then moves to the range to think about them, and where there was cat, there is a trapdoor."
    )


def _stamp(turn: Turn) -> str:
    turn.state.places["deed"] = GONE
    turn.state.ending = "won"
    turn.award("stamp")
    return turn.fill(
        "Mr Pym wakes, reads every word, and brings down the stamp with the joy of a man who has waited "
        'since Tuesday. "Congratulations. The house is yours, with its clocks." In the corner the tall '
        "clock, having made its point, begins to tick. The {cat} comes in to see who is paying, and under "
        "the floor somebody hums."
    )


def _talk(turn: Turn, name: str) -> str:
    if name == "cat":
        return turn.fill("The {cat} opens one eye, to be polite, and closes it, to be honest.")
    if name == "grue":
        whole = turn.happened("grue_content")
        return "Quite softly, the whole tune." if whole else "A pause. It hums to you, and stops short."
    _refuse_if(name != "notary", f"{_upper_first(the(name))} keeps its own counsel.")
    turn.state.flags.add("pym_awake")
    return turn.fill(_advice(turn.state))


def _advice(state: State) -> str:
    if state.places["deed"] == PLAYER:
        return '"Is that a deed?" says Mr Pym, wide awake. "Give it here, do."'
    if "vault_open" in state.flags:
        return '"Then the deed is in the vault," says Mr Pym. "I would fetch it, but I am sitting down."'
    if "letter" in state.awarded:
        return (
            '"Three pictures, she used to say," says Mr Pym. "One here, one in the kitchen, one over the '
            'water. The births are in the Bible. And Edwin could never let a thing alone."'
        )
    if "desk" in state.awarded:
        return '"She wrote a letter, I believe," says Mr Pym. "I would read it, if I were you, and awake."'
    return (
        '"The deed? In the vault, under the house," says Mr Pym. "The way down is under the {cat}, who '
        "takes fish. What she had to say about the number is locked in her desk, and the key is where "
        'nobody looks who wants tea."'
    )


def _wind(turn: Turn, name: str) -> str:
    if name == "clock":
        return "It would rather not. It is making a point."
    _refuse_if(name != "musicbox", "It is not the kind of thing that winds.")
    if turn.state.room not in ("cellar", "passage", "vault"):
        return "The music box plays its tune to the very end. Far below, somebody's humming stops, to listen."
    if turn.happened("grue_content"):
        return "The music box plays. The dark joins in, with harmonies."
    turn.state.flags.add("grue_content")
    turn.award("tune")
    return (
        "You wind the handle. The little tune goes up its stairs, comes to the missing one, and takes it. "
        "In the dark the humming stops. Then somebody large, who has waited thirty years for one bar of "
        "music, blows their nose. You have the feeling that you will not be eaten here any more."
    )


ThingRule = Callable[[Turn, str], str]
PlainRule = Callable[[Turn], str]


def _go(turn: Turn) -> str:
    state, direction = turn.state, turn.phrase.direction
    if not direction:
        raise RefusalError("Which way? A direction would help.", asks="go")
    if (state.room, direction) == ("garden", "d"):
        return hazard(turn, "well")
    room = HOUSE.rooms[state.room]
    target = room.exits.get(direction)
    if target == "balcony":
        return hazard(turn, "balcony")
    if is_dark(state) and not turn.happened("grue_content") and (target is None or HOUSE.rooms[target].dark):
        return turn.kill("grue")
    if target is None:
        ways = " or ".join(DIRECTION_NAMES[way] for way in room.exits if way not in ("in", "out"))
        raise RefusalError(f"{room.refusal} You could go {ways}.")
    barrier = room.barrier
    if barrier is not None and barrier.to == target and not turn.happened(barrier.flag):
        return turn.fill(barrier.text)
    state.room = target
    if target == "hall":
        turn.award("hall")
    return _look(turn)


def _look(turn: Turn) -> str:
    if turn.state.room == "cellar" and not is_dark(turn.state):
        turn.award("cellar")
    return describe(turn.state, turn.case)


def _examine(turn: Turn, name: str) -> str:
    _refuse_if(is_dark(turn.state) and name != "grue", TOO_DARK)
    thing = THINGS[name]
    text = thing.text
    if thing.later is not None and turn.happened(thing.later[0]):
        text = thing.later[1]
    if name == "telescope":
        turn.award("telescope")
    if name == "letter":
        turn.award("letter")
    if turn.happened(f"{name}_open") and _things_at(turn.state, name):
        text += f" In it: {_a_list(_things_at(turn.state, name))}."
    return turn.fill(f"{text}\n{thing.reading}" if thing.reading else text)


def _take(turn: Turn, name: str) -> str:
    state = turn.state
    if name == "cat":
        return turn.fill("The {cat} becomes, without moving, much heavier.")
    _refuse_if(name not in HOUSE.portable, f"There is no taking {the(name)}; the house would miss it.")
    _refuse_if(state.places[name] == PLAYER, "You have that already.")
    state.places[name] = PLAYER
    if name in HOUSE.awards:
        turn.award(name)
    return "Taken."


def _drop(turn: Turn, name: str) -> str:
    state = turn.state
    _refuse_if(state.places.get(name) != PLAYER, "You are not carrying that.")
    if name == "sardines" and state.room == "kitchen" and not turn.happened("cat_fed"):
        return _feed_cat(turn)
    state.places[name] = state.room
    return "Dropped."


def _put(turn: Turn, name: str) -> str:
    _refuse_if(not turn.phrase.second, f"Put {the(name)} where?")
    target = find(turn.state, turn.phrase.second)
    if target == "cat" or target == "notary":
        return _hand_over(turn, name, target)
    _refuse_if(not THINGS[target].holds, f"{_upper_first(the(target))} is no place for it.")
    _refuse_if(turn.state.places.get(name) != PLAYER, "You are not carrying that.")
    _refuse_if(not turn.happened(f"{target}_open"), f"{_upper_first(the(target))} is shut.")
    if name == target or (target == "teapot" and not HOUSE.portable[name].small):
        raise RefusalError("It does not fit, and the teapot has its pride.")
    turn.state.places[name] = target
    return "Done."


def _open(turn: Turn, name: str) -> str:
    state = turn.state
    match name:
        case "desk" if not turn.happened("desk_open"):
            if state.places["key"] == PLAYER:
                return _unlock(turn, name)
            return "The desk is locked. It has a small brass keyhole, and an air of having been asked before."
        case "teapot" if not turn.happened("teapot_open"):
            state.flags.add("teapot_open")
            inside = _things_at(state, "teapot")
            return f"In the teapot: {_a_list(inside)}." if inside else "You take off the lid. Tea, once."
        case "door" if not turn.happened("door_open"):
            state.flags.add("door_open")
            return "You try the handle. The door, which has been waiting for somebody to, swings open."
        case "trapdoor" if not turn.happened("cat_fed"):
            return _enter(turn, name)
        case "trapdoor":
            return "It lifts easily. The dark looks up. You could go DOWN."
        case "vaultdoor" if not turn.happened("vault_open"):
            return "It has no handle, only the three dials. It would have to be a number of three figures."
        case "musicbox":
            return _wind(turn, name)
        case "sardines" | "biscuits" | "deed" | "letter" | "volume" | "bible":
            return _examine(turn, name)
        case "desk" | "teapot" | "door" | "vaultdoor":
            raise RefusalError("It is open.")
        case _:
            raise RefusalError(f"There is nothing about {the(name)} to open.")


def _unlock(turn: Turn, name: str) -> str:
    state = turn.state
    _refuse_if(name == "vaultdoor", "No key will do. It wants three figures on its dials.")
    _refuse_if(name != "desk", "It has no lock, only manners.")
    _refuse_if(turn.happened("desk_open"), "It is open already.")
    _refuse_if(state.places["key"] != PLAYER, "You would need the key to it.")
    _refuse_if(turn.phrase.second and find(state, turn.phrase.second) != "key", "That is not a key.")
    state.flags.add("desk_open")
    turn.award("desk")
    inside = _things_at(state, "desk")
    return f"The key turns and the lid flies up with a noise like applause. In the desk: {_a_list(inside)}."


def _light(turn: Turn, name: str) -> str:
    _refuse_if(name != "lantern", f"{_upper_first(the(name))} would not thank you for that.")
    _refuse_if(turn.happened("lantern_lit"), "It is lit.")
    was_dark = is_dark(turn.state)
    turn.state.flags.add("lantern_lit")
    said = "The lantern catches, and puts on a warm yellow light."
    return f"{said} Something draws in its elbows.\n\n{_look(turn)}" if was_dark else said


def _douse(turn: Turn, name: str) -> str:
    _refuse_if(name != "lantern" or not turn.happened("lantern_lit"), "It is not lit.")
    turn.state.flags.discard("lantern_lit")
    return "The lantern goes out." + (" So does everything else." if is_dark(turn.state) else "")


def _dial(turn: Turn) -> str:
    state = turn.state
    _refuse_if(state.room != "passage", "There is nothing here to dial.")
    _refuse_if(is_dark(state), TOO_DARK)
    _refuse_if(turn.happened("vault_open"), "The vault is open. The dials have retired.")
    if len(turn.phrase.number) != len(turn.case.answer):
        raise RefusalError("There are three dials, so it takes a number of three figures, such as DIAL 123.")
    if turn.phrase.number == turn.case.answer:
        state.flags.add("vault_open")
        turn.award("vault")
        return "Click, click, click. The door sighs like someone let off early, and swings open to the north."
    state.wrong_numbers += 1
    if state.wrong_numbers > len(HOUSE.wrong_numbers):
        state.wrong_numbers = 0
        return turn.kill("pianola")
    return HOUSE.wrong_numbers[state.wrong_numbers - 1]


def _turn(turn: Turn, name: str) -> str:
    _refuse_if(name in ("dials", "vaultdoor"), "To what? DIAL and a number of three figures would do it.")
    return _wind(turn, name)


def _enter(turn: Turn, name: str) -> str:
    ways = {"house": "n", "door": "in", "trapdoor": "d", "vaultdoor": "n", "hedge": "n"}
    _refuse_if(name not in ways, f"{_upper_first(the(name))} is not a thing to get into.")
    way = ways[name]
    if way not in HOUSE.rooms[turn.state.room].exits:
        way = "out"
    turn.phrase = Phrase(verb="go", direction=way)
    return _go(turn)


def _touch(turn: Turn, name: str) -> str:
    if name == "cat":
        return turn.fill("The {cat} permits it.")
    if name == "dials":
        return _turn(turn, name)
    if name == "notary":
        return _talk(turn, name)
    return f"{_upper_first(the(name))} feels much as one would expect."


def _eat(turn: Turn, name: str) -> str:
    if name == "sardines":
        return "They are for persuasion, and you are persuaded already."
    _refuse_if(name != "biscuits", "Not even with jam.")
    if turn.happened("biscuit_eaten"):
        return "The tin is empty. It still rattles a little, from habit."
    turn.state.flags.add("biscuit_eaten")
    return "You eat the biscuit that is always left. It was left for a reason, but you feel braver."


def _use(turn: Turn, name: str) -> str:
    if name == "key" and not turn.phrase.second:
        return _unlock(turn, find(turn.state, ("desk",)))
    if turn.phrase.second and name in HOUSE.portable:
        target = find(turn.state, turn.phrase.second)
        if name == "key":
            turn.phrase = Phrase(verb="unlock")
            return _unlock(turn, target)
        return _hand_over(turn, name, target)
    rules = {"lantern": _light, "telescope": _examine, "musicbox": _wind, "dials": _turn}
    _refuse_if(name not in rules, f"Use {the(name)} how? A plainer verb would help.")
    return rules[name](turn, name)


def _listen(turn: Turn) -> str:
    if turn.state.room in ("cellar", "passage"):
        return _talk(turn, "grue")
    if turn.state.room == "hall" and not turn.happened("pym_awake"):
        return turn.fill("You listen. Mr Pym sleeps on, with a sound like {snore}.")
    return "You listen. The house creaks in an interested way."


def _inventory(turn: Turn) -> str:
    turn.takes_time = False
    held = inventory(turn.state)
    return "\n  ".join(("You are carrying:", *held)) if held else "You are empty-handed."


def _score(turn: Turn) -> str:
    turn.takes_time = False
    points, moves = score(turn.state), turn.state.moves
    rank = next(rank for least, rank in HOUSE.ranks if points >= least)
    turns = "1 turn" if moves == 1 else f"{moves} turns"
    return f"You have {points} out of {MAX_SCORE} points, after {turns}. That makes you {rank}."


def _help(turn: Turn) -> str:
    turn.takes_time = False
    return HOUSE.help


def _saying(text: str) -> Callable[..., str]:
    return lambda *_: text


def _refusing(text: str) -> ThingRule:
    def refuse(_turn: Turn, _name: str) -> str:
        raise RefusalError(text)

    return refuse


_LEFT_AS_IT_IS: Final = _refusing("You leave it as it is. The house likes a little air.")


# The rules of the verbs that act on one thing; "take" and "drop" accept several things.
THING_RULES: Final[dict[str, ThingRule]] = {
    "take": _take,
    "drop": _drop,
    "examine": _examine,
    "read": _examine,
    "put": _put,
    "open": _open,
    "close": _LEFT_AS_IT_IS,
    "unlock": _unlock,
    "lock": _LEFT_AS_IT_IS,
    "light": _light,
    "douse": _douse,
    "give": _give,
    "feed": _give,
    "talk": _talk,
    "wind": _wind,
    "turn": _turn,
    "enter": _enter,
    "climb": _refusing("You are an heir, not a chamois."),
    "touch": _touch,
    "attack": _saying("You were better brought up than that, and so was the house."),
    "eat": _eat,
    "smell": lambda _turn, name: f"{_upper_first(the(name))} smells of itself, and of wax.",
    "use": _use,
}
# The dangerous things, each with the verbs that are dangerous for the player.
DANGERS: Final = {
    "plant": ("take", "touch", "attack", "eat", "smell"),
    "well": ("enter", "climb"),
    "balcony": ("open", "enter"),
}
# The rules of the verbs that do not act on a thing.
PLAIN_RULES: Final[dict[str, PlainRule]] = {
    "go": _go,
    "look": _look,
    "dial": _dial,
    "listen": _listen,
    "inventory": _inventory,
    "score": _score,
    "help": _help,
    "wait": _saying("Time passes. The clock in the hall declines to say how much."),
    "jump": _saying("You jump. The house is kind enough not to have seen."),
    "knock": _saying("You knock. It is, in a manner of speaking, your own house: nobody answers but you."),
    "sing": _saying("You sing a little. Somewhere a window is closed, gently."),
}
# What a verb acts on if the player names nothing ("talk" means "talk to pym").
IMPLIED: Final[dict[str, Words]] = {
    "talk": ("pym",),
    "light": ("lantern",),
    "douse": ("lantern",),
    "wind": ("music",),
}


def play_verb(turn: Turn) -> str:
    """Apply the rule for the phrase's verb, to the things that the phrase names; return the text to print."""
    phrase = turn.phrase
    if phrase.verb in PLAIN_RULES:
        return PLAIN_RULES[phrase.verb](turn)
    if phrase.verb not in THING_RULES:
        raise RefusalError(_not_a_verb(turn))
    nouns = phrase.nouns or ((IMPLIED[phrase.verb],) if phrase.verb in IMPLIED else ())
    if not nouns:
        if phrase.verb == "climb":
            turn.phrase = Phrase(verb="go", direction="u")
            return _go(turn)
        raise RefusalError(f"{phrase.said.capitalize()} what?", asks=phrase.said)
    if phrase.verb in ("take", "drop"):
        return _several(turn, nouns)
    _refuse_if(nouns == (("all",),) or len(nouns) > 1, "One thing at a time, please.")
    if phrase.verb in ("give", "feed") and not phrase.second:
        pair = gift_and_receiver(turn.state, nouns[0])
        if pair is not None:
            return _hand_over(turn, *pair)
    return _act_on(turn, _meant(turn, nouns[0]))


def _not_a_verb(turn: Turn) -> str:
    if not turn.phrase.said:
        return "I beg your pardon?"
    words = (turn.phrase.said, *(word for noun in turn.phrase.nouns for word in noun))
    if any(set(words) <= set(thing.words.split()) for thing in THINGS.values()):
        return f"Something about the {' '.join(words)}, no doubt; but what? Try a verb."
    return (
        f'"{turn.phrase.said.capitalize()}" is not a word that the house knows as a verb. (HELP lists some.)'
    )


def _meant(turn: Turn, words: Words) -> str:
    name = find(turn.state, words, asks=turn.phrase.said)
    turn.state.it = name
    return name


def _several(turn: Turn, nouns: tuple[Words, ...]) -> str:
    if nouns == (("all",),):
        names = _things_at(turn.state, PLAYER)
        if turn.phrase.verb == "take":
            names = [
                name for name in _within_reach(turn.state) if name in HOUSE.portable and name not in names
            ]
        _refuse_if(not names, "There is nothing here to do that with.")
    else:
        names = [_meant(turn, words) for words in nouns]
    if len(names) == 1:
        return _act_on(turn, names[0])
    return "\n".join(f"{THINGS[name].name}: {_attempt(turn, name)}" for name in names)


def _attempt(turn: Turn, name: str) -> str:
    try:
        return _act_on(turn, name)
    except RefusalError as refusal:
        return str(refusal)


def _act_on(turn: Turn, name: str) -> str:
    verb = turn.phrase.verb
    return hazard(turn, name) if verb in DANGERS.get(name, ()) else THING_RULES[verb](turn, name)


_OVER: Final = "The story is over. It was a good one."


class HouseGame:
    """The House as a `Game`. It sets every field of its observations."""

    name: Final = "The House"
    fingerprint: Final = "house 1"

    def __init__(self) -> None:
        self.reset()

    def reset(self, seed: int = 0) -> Observation:
        """Start a new game in the seed's variation of the house."""
        self._state, self._case = State(seed=seed), case_for(seed)
        return self._observe(f"{HOUSE.opening}\n\n{describe(self._state, self._case)}")

    def step(self, command: str) -> Observation:
        """Play one command. After the end of the game, commands have no effect."""
        if self._state.ending:
            return self._observe(_OVER)
        turn = Turn(self._state, self._case, self._understand(command))
        try:
            said = [play_verb(turn)]
        except RefusalError as refusal:
            self._state.asked = refusal.asks
            return self._observe(str(refusal))
        if turn.takes_time:
            self._state.moves += 1
            said += _dark_falls(turn)
        if turn.gains:
            said.append(f"(Your score has gone up by {turn.gains} points.)")
        if turn.killed_by:
            said += self._die()
        if turn.state.ending == "won":
            points = f"{score(turn.state)} out of {MAX_SCORE} points"
            said.append(f"*** You have won ***\nYou have {points}.")
        return self._observe("\n\n".join(said), died=bool(turn.killed_by))

    def _understand(self, command: str) -> Phrase:
        state, asked = self._state, self._state.asked
        state.asked = ""
        phrase = parse(command)
        if phrase.verb == "again":
            return parse(state.last)
        if asked and not phrase.verb:
            # The command answers the game's last question: "Take what?", "The key."
            command = f"{asked} {command}"
            phrase = parse(command)
        state.last = command
        return phrase

    def _die(self) -> list[str]:
        state = self._state
        state.deaths += 1
        state.dark_turns = 0
        if state.deaths > 1:
            state.ending = "died"
            return ["*** You have died ***", HOUSE.no_life_left]
        state.room = "gate"
        return ["*** You have died ***", HOUSE.spare_life, describe(state, self._case)]

    def _observe(self, text: str, *, died: bool = False) -> Observation:
        state = self._state
        return Observation(
            text=text,
            location=HOUSE.rooms[state.room].name,
            score=score(state),
            max_score=MAX_SCORE,
            moves=state.moves,
            inventory=inventory(state),
            died=died,
            won=state.ending == "won",
            done=bool(state.ending),
        )

    def close(self) -> None:
        """Do nothing."""


def _dark_falls(turn: Turn) -> list[str]:
    """Count turns in the dark; return the warning. The fourth in a row kills, unless the grue is content."""
    state = turn.state
    if turn.killed_by or not is_dark(state) or turn.happened("grue_content"):
        state.dark_turns = 0
        return []
    state.dark_turns += 1
    if state.dark_turns > len(HOUSE.steps_in_the_dark):
        return [turn.kill("lingering")]
    step = HOUSE.steps_in_the_dark[state.dark_turns - 1]
    return [step] if step else []


def walkthrough(seed: int) -> tuple[str, ...]:
    """Return the commands that win the game with this seed, with all 100 points."""
    route = (
        "north. north. open door. north. north. examine sampler. east. take lantern. take sardines. open "
        "teapot. take key. west. give sardines to cat. south. west. examine painting. east. up. west. read "
        "bible. east. east. read postcard. unlock desk with key. read letter. west. up. look through "
        "telescope. down. down. north. "
        f"light lantern. down. east. dial {case_for(seed).answer}. north. take deed. take music box. south. "
        "wind music box. west. up. south. give deed to pym"
    )
    return tuple(route.split(". "))
