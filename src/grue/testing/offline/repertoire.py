"""The playbooks of the offline model: for the house with any seed, and for Zork I."""

from typing import Final

import msgspec

from grue.hosts.zork.games.house import walkthrough
from grue.hosts.zork.games.house_case import NUMBERS, Case, case_for
from grue.testing.offline.playbook import Playbook, Step, Thought

_HOUSE_REASONS: Final = {
    "open door": "It does not look locked; it looks as if nobody had asked. I ask.",
    "examine sampler": "A picture that somebody took the trouble to stitch is worth a trouble of mine.",
    "take lantern": "Wherever this house keeps its cellar, I shall want to see it.",
    "take sardines": "A shelf for bribes, and the only thing on it smells of diplomacy.",
    "open teapot": "A teapot where nobody who wanted tea would keep it was not put there for tea.",
    "take key": "It went clink, and it is mine now.",
    "give sardines to cat": "The cat is on the trapdoor, the fish is in the tin, and I am between the two.",
    "examine painting": "The second picture. Gulls can be counted, if one is quick.",
    "read bible": "Births without dates: an odd thing to write down, unless the order is the point.",
    "read postcard": "It is an open secret, being pinned up, so I may read it.",
    "unlock desk with key": "A small brass keyhole, and in my hand a small brass key.",
    "read letter": "Addressed to whoever took the trouble. That would be me.",
    "look through telescope": "The third picture must be the view: it does not point up.",
    "light lantern": "There is a cellar below, and I have read about cellars.",
    "take deed": "The deed. Mr Pym has waited for it since Tuesday.",
    "take music box": "Somebody down here wants the end of a tune, and here is a tune with an end.",
    "wind music box": "All of it, please, says the lid. With pleasure.",
    "give deed to pym": "One deed, one stamp, one house.",
}
_HOUSE_OBJECTIVES: Final = {
    "open door": "Find the deed of the house and bring it to the notary.",
    "unlock desk with key": "Find out the three figures of the vault.",
    "light lantern": "Open the vault under the house, without waking the pianola.",
    "take music box": "Play the whole tune to whoever hums in the cellar, then bring Mr Pym the deed.",
}
_HOUSE_ROUNDS: Final = {
    # Two calls in one reply.
    "open teapot": (
        (
            Thought(
                "Everything in this pantry stands where one wants it, except the teapot on the top shelf."
            ),
            Thought(
                "Who hides a teapot hides what is in it. Small, then, and worth a climb: off with the lid."
            ),
        ),
    ),
    "give sardines to cat": (
        (
            Thought(
                "The cat sleeps on something square with a ring in it, and does not get up for people. I "
                "have sardines, for persuasion, with a paw-print on the tin. This is not a hard case."
            ),
        ),
    ),
    # A branch.
    "light lantern": (
        (Thought("The trapdoor is free. I could go down now; it is dark there, but I know the way back."),),
        (
            Thought(
                "Or I light the lantern first and give whatever keeps its elbows in the dark no reason to be "
                "embarrassed. I prefer this branch: it has fewer teeth.",
                branches_from=1,
            ),
        ),
    ),
}
_PICTURES: Final = {
    "Jory": ("sailor", "gulls"),
    "Marget": ("baker", "loaves"),
    "Tamsin": ("widow", "candles"),
}
"""The people in the house's Bible, and the things to count in their pictures."""

_ZORK_REASONS: Final = {
    "take egg": "Jewelled eggs seldom grow on trees, so this one will be missed by nobody but a bird.",
    "open window": "The front door is boarded up. A window that is ajar is a door with less pride.",
    "take lamp": "A brass lantern, before any place that is dark.",
    "open case": "A trophy case with no trophies: an invitation if ever I saw one.",
    "put egg in case": "The first trophy.",
    "move rug": "A rug in the middle of the room is there to be walked round, or under.",
    "open trap door": "A trap door. It would be rude to leave it shut.",
    "turn on lamp": "It is pitch dark down there, and grues eat those who save oil.",
    "take painting": "Vandals have left one painting, which shows taste. I show the same.",
    "put painting in case": "The second trophy. The case begins to look inhabited.",
}
_ZORK_OBJECTIVES: Final = {
    "take egg": "Get into the white house.",
    "open case": "Fill the trophy case with treasures.",
    "turn on lamp": "Find a treasure under the house, and a way back up.",
}
_ZORK_ROUNDS: Final = {
    # Two calls in one reply.
    "open window": (
        (
            Thought(
                "The doors of the white house are boarded up, which leaves whatever the carpenter forgot."
            ),
            Thought(
                "Behind the house one window is slightly ajar. It is small, but so is my luggage: an egg."
            ),
        ),
    ),
    # Three iterations, the last of them a revision.
    "move rug": (
        (
            Thought(
                "The living room has a door to the west that is nailed shut, a case, a lamp and a large rug."
            ),
        ),
        (
            Thought(
                "The lamp must be for some dark place. The only way on seems to be the nailed door, then."
            ),
        ),
        (
            Thought(
                "Not so: one does not light a lamp for a door that is nailed shut. A dark place belongs "
                "below, and what lies over it is the rug. Move that, and look for a trap door.",
                revises=2,
            ),
        ),
    ),
    # A branch.
    "turn on lamp": (
        (Thought("A rickety staircase leads down into darkness. I could feel my way."),),
        (
            Thought(
                "Or I could turn on the lamp before I go, which no grue has ever had anything to say to.",
                branches_from=1,
            ),
        ),
    ),
}
_ZORK_COMMANDS: Final = (
    "north. north. up. take egg. down. south. east. open window. west. west. take lamp. open case. put egg "
    "in case. move rug. open trap door. turn on lamp. down. south. east. take painting. north. up. west. put "
    "painting in case"
)


def playbook_for(game_title: str, seed: int) -> Playbook | None:
    """Return the playbook for a game; `None` if there is none, so that the model explores.

    Args:
        game_title: As `Game.name` has it: "The House", "zork1".
        seed: What the game is reset with; it decides the house's vault.
    """
    candidates = (house_playbook(seed), zork1_playbook())
    return next((playbook for playbook in candidates if playbook.is_for(game_title)), None)


def house_playbook(seed: int) -> Playbook:
    """Return the playbook that wins the house of this seed with all points."""
    steps = tuple(
        Step(
            command=command,
            why=_HOUSE_REASONS.get(command) or _onward(command),
            objective=_HOUSE_OBJECTIVES.get(command),
            rounds=_HOUSE_ROUNDS.get(command, ()),
        )
        for command in walkthrough(seed)
    )
    case = case_for(seed)
    return Playbook(
        r"^(?:the )?house$",
        tuple(_with_sum(step, case) if step.command.startswith("dial ") else step for step in steps),
    )


def zork1_playbook() -> Playbook:
    """Return the playbook that scores 55 of the 350 points of Zork I, with any seed."""
    steps = tuple(
        Step(
            command=command,
            why=_ZORK_REASONS.get(command) or _onward(command),
            objective=_ZORK_OBJECTIVES.get(command),
            rounds=_ZORK_ROUNDS.get(command, ()),
        )
        for command in _ZORK_COMMANDS.split(". ")
    )
    return Playbook(r"\bzork[ _-]*(?:1|i)(?![0-9i])", steps)


def _onward(command: str) -> str:
    return f"On, {command}: what I want next is that way."


def _with_sum(step: Step, case: Case) -> Step:
    """Return the step at the vault, with the reasoning that leads to its figures in three rounds."""
    words = case.words
    names = [words[who].split(",")[0] for who in ("eldest", "middle", "youngest")]
    counted = names if words["order"] == "eldest first" else names[::-1]
    pictures = [_PICTURES[name] for name in counted]
    as_hung = ", ".join(f"the {person}'s {things} {words[things]}" for person, things in pictures)
    figures = "".join(str(NUMBERS.index(words[things])) for _, things in pictures)
    answer = case.answer
    return msgspec.structs.replace(
        step,
        why=f"The pictures, {words['order']}, less Edwin's improvement: {answer}. Nobody need guess.",
        rounds=(
            (
                Thought(
                    f"The Bible says who came when: {names[1]} ran for the midwife when {names[2]} was born, "
                    f"and {names[0]} held {names[1]} at the font. Aunt Hesper wants them {words['order']}: "
                    f"{', '.join(counted)}."
                ),
            ),
            (Thought(f"The pictures, in that order: {as_hung}. That would make {figures}."),),
            (
                Thought(
                    f"Not so fast: Edwin owns up that it was he who {words['meddling']}. Without that it is "
                    f"{answer}. There is a pianola overhead, so I had rather be right than quick.",
                    revises=2,
                ),
            ),
        ),
    )
