"""Rules for the characters of the house: giving them things, talking to them, and playing music."""

from grue.hosts.zork.games.house_parser import Words
from grue.hosts.zork.games.house_state import GONE, PLAYER, RefusalError, State, find, the, upper_first
from grue.hosts.zork.games.house_things import PORTABLE
from grue.hosts.zork.games.house_turn import Turn


def give(turn: Turn, name: str) -> str:
    """Give a carried thing to the character named after "to"."""
    if turn.phrase.second:
        return hand_over(turn, name, find(turn.state, turn.phrase.second))
    raise RefusalError(
        f"Feed {the(name)} with what?" if turn.phrase.verb == "feed" else f"Give {the(name)} to whom?"
    )


def gift_and_receiver(state: State, words: Words) -> tuple[str, str] | None:
    """Separate receiver and thing in "give the cat sardines", without a preposition; `None`: impossible."""
    for cut in range(1, len(words)):
        try:
            return find(state, words[cut:]), find(state, words[:cut])
        except RefusalError:
            continue
    return None


def hand_over(turn: Turn, name: str, receiver: str) -> str:
    """Give one thing to one character."""
    if turn.phrase.preposition == "with" and receiver in PORTABLE:
        name, receiver = receiver, name  # "feed the cat with sardines"
    if turn.state.places.get(name) != PLAYER:
        raise RefusalError(f"You are not holding {the(name)}.")
    match receiver, name:
        case "cat", "sardines":
            return feed_cat(turn)
        case "cat", _:
            return turn.fill("The {cat} looks at it, then at you, as one looks at a spelling mistake.")
        case "notary", "deed":
            return _stamp(turn)
        case "notary", _:
            return '"Is it a deed?" says Mr Pym, with his eyes shut. "Then no, but thank you."'
        case "grue", "musicbox":
            return wind(turn, name)
        case "plant", _:
            return "The plant bows, and declines. It prefers its meals to come of their own accord."
    raise RefusalError(f"{upper_first(the(receiver))} has no use for it.")


def feed_cat(turn: Turn) -> str:
    """Give the sardines to the cat."""
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


def talk(turn: Turn, name: str) -> str:
    """Talk to a character; Mr Pym answers with a hint for the next step."""
    if name == "cat":
        return turn.fill("The {cat} opens one eye, to be polite, and closes it, to be honest.")
    if name == "grue":
        whole = turn.happened("grue_content")
        return "Quite softly, the whole tune." if whole else "A pause. It hums to you, and stops short."
    if name != "notary":
        raise RefusalError(f"{upper_first(the(name))} keeps its own counsel.")
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


def wind(turn: Turn, name: str) -> str:
    """Play the music box, or try to wind something else."""
    if name == "clock":
        return "It would rather not. It is making a point."
    if name != "musicbox":
        raise RefusalError("It is not the kind of thing that winds.")
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
