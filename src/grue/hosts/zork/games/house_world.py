"""The house as tables: its rooms, the points, and the texts that belong to no thing.

There is no code here. A text may contain `{names}`, which are replaced by `Case.words`.
"""

from typing import Final

from msgspec import Struct


class Room(Struct, frozen=True):
    """A room.

    Attributes:
        name: The heading of its description.
        text: The part of its description that never changes.
        exits: The room in each direction.
        feature: A flag, and the sentences for the description before and after it is set.
        dark: Whether the player sees nothing here without the lit lantern.
    """

    name: str
    text: str
    exits: dict[str, str]
    feature: tuple[str, str, str] | None = None
    dark: bool = False


ROOMS: Final[dict[str, Room]] = {
    "gate": Room(
        "Garden Gate",
        "An iron gate, open just far enough to make turning back embarrassing. {weather} A garden lies to "
        "the north, and beyond it the house that your great-aunt Hesper has left you, provided that you can "
        "find the deed. Her notary has gone ahead to wait for it.",
        {"n": "garden", "in": "garden"},
    ),
    "garden": Room(
        "Overgrown Garden",
        "The roses won some years ago and have been gracious about it since. A path runs from the gate, "
        "south, to the porch, north. In the nettles stands an old well, and beside the well a sign.",
        {"s": "gate", "n": "porch", "out": "gate"},
    ),
    "porch": Room(
        "Porch",
        "A porch deep enough for one umbrella. The front door is to the north; the garden, such as it is, "
        "to the south. The doormat says OH, IT'S YOU.",
        {"s": "garden", "n": "hall", "in": "hall", "out": "garden"},
        ("door_open", "The door is shut.", "The door stands open."),
    ),
    "hall": Room(
        "Hall",
        "A hall that smells of wax and of other people's Sundays. A tall clock stands with its hands "
        "folded. Doors lead west to the parlour, east to the library and north to the kitchen; the stairs "
        "go up, and the porch is south.",
        {"s": "porch", "w": "parlour", "e": "library", "n": "kitchen", "u": "landing", "out": "porch"},
        (
            "pym_awake",
            "In a chair by the clock a small man with a large rubber stamp is asleep, with a sound like "
            "{snore}.",
            "In the chair by the clock Mr Pym is awake, more or less, with his stamp at the ready.",
        ),
    ),
    "parlour": Room(
        "Parlour",
        "Four armchairs face each other like a committee that has lost its agenda. Over the mantelpiece "
        "hangs a large painting of a sailor. The hall is east.",
        {"e": "hall", "out": "hall"},
    ),
    "library": Room(
        "Library",
        "Books to the ceiling, arranged by the colour of their reputations. The hall is west; a glass door "
        "leads north, into a green and rather watchful light.",
        {"w": "hall", "n": "conservatory", "out": "hall"},
    ),
    "conservatory": Room(
        "Conservatory",
        "Warm, wet and overgrown. Most of it is ferns. In the middle of the ferns stands one large plant "
        "with a napkin tucked under its lowest leaf. The library is south, and has never looked so dry.",
        {"s": "library", "out": "library"},
    ),
    "kitchen": Room(
        "Kitchen",
        "A kitchen with a black range, a scrubbed table and, on the wall, a sampler in red wool showing a "
        "baker at work. The pantry is east and the hall is south.",
        {"s": "hall", "e": "pantry", "d": "cellar", "out": "hall"},
        (
            "cat_fed",
            "In the very middle of the floor, on something square with a ring in it, sleeps a marmalade cat.",
            "The {cat} is on the range, washing one ear. In the middle of the floor is a trapdoor.",
        ),
    ),
    "pantry": Room(
        "Pantry",
        "Cool, narrow and alphabetical: jam, jam, jam, lime cordial, misc. The kitchen is west.",
        {"w": "kitchen", "out": "kitchen"},
    ),
    "landing": Room(
        "Landing",
        "The carpet here was patterned once, and then people had opinions and feet. A bedroom is west, a "
        "study is east; stairs go down to the hall, and a ladder goes up.",
        {"d": "hall", "w": "bedroom", "e": "study", "u": "observatory"},
    ),
    "bedroom": Room(
        "Bedroom",
        "A high bed under a quilt the size of a parish. On the bedside table there is room for one book and "
        "one glass of water. The landing is east.",
        {"e": "landing", "out": "landing"},
    ),
    "study": Room(
        "Study",
        "Green lamp, green leather, brown silence. A roll-top desk takes up the wall in the manner of a "
        "bank. The landing is west.",
        {"w": "landing", "out": "landing"},
        ("desk_open", "The desk is shut.", "The desk is open."),
    ),
    "observatory": Room(
        "Observatory",
        "A glass dome with a brass telescope that points, not up, but out across the bay. To the east a "
        "pair of elegant doors bears a card. The ladder goes down.",
        {"d": "landing", "e": "balcony", "out": "balcony"},
    ),
    "cellar": Room(
        "Cellar",
        "A cellar of good stone and doubtful corners. Empty racks remember wine. Steps lead up to the "
        "kitchen; an archway opens to the east.",
        {"u": "kitchen", "e": "passage", "out": "kitchen"},
        (
            "grue_content",
            "Somebody, always just past the edge of the light, is humming.",
            "From beyond the light comes a tune, the whole of it, and now and then a flourish.",
        ),
        dark=True,
    ),
    "passage": Room(
        "Low Passage",
        "A passage cut by someone shorter. It comes from the cellar, west, and ends north at the steel door "
        "of a vault. In the door are three dials, and beside it a brass plate.",
        {"w": "cellar", "n": "vault", "in": "vault", "out": "cellar"},
        ("vault_open", "The vault is shut.", "The vault stands open."),
        dark=True,
    ),
    "vault": Room(
        "Vault",
        "A room for one shelf, and a shelf for the few things that were worth a door like that. The passage "
        "is south.",
        {"s": "passage", "out": "passage"},
        dark=True,
    ),
}

# The points for each achievement, given once. They add up to 100.
AWARDS: Final[dict[str, int]] = {
    "hall": 5,
    "lantern": 5,
    "key": 5,
    "desk": 10,
    "letter": 5,
    "cat": 10,
    "cellar": 5,
    "telescope": 5,
    "vault": 20,
    "deed": 5,
    "tune": 10,
    "stamp": 15,
}
MAX_SCORE: Final = sum(AWARDS.values())

RANKS: Final = (
    (100, "the heir, and family"),
    (80, "practically one of the household"),
    (50, "a guest who helps with the washing-up"),
    (25, "a caller who may sit down"),
    (5, "a person in the hall"),
    (0, "a person at the gate"),
)

OPENING: Final = (
    "THE HOUSE\nA small inheritance, in sixteen rooms\n\n"
    "You have come to claim a house. Find the deed and bring it to the notary. (HELP is free.)"
)
HELP: Final = (
    "Short sentences do best: GO NORTH (or N), LOOK (L), EXAMINE THE CLOCK (X CLOCK), TAKE, DROP, OPEN, "
    "UNLOCK THE DESK WITH THE KEY, READ, GIVE THE JAM TO THE CAT, LIGHT THE LANTERN, DIAL 123, WIND, TALK "
    "TO PYM, WAIT (Z), INVENTORY (I), SCORE. The house plays fair: whatever can hurt you says so first, and "
    "every answer is written down somewhere."
)
REFUSED_EXITS: Final = {
    "gate": "The road leads back to everything that you came here to put off.",
    "conservatory": "That way there are only ferns, and the ferns are with the plant.",
}
DEATHS: Final = {
    "grue": "You step where you cannot see. There is a rustle, a smell of buttons, and a large, shy, "
    "apologetic bite. You have been eaten by a grue.",
    "lingering": "You stand very still and hope that it cannot count. It can count. You have been eaten by "
    "a grue, who waited as long as it decently could.",
    "well": "You climb in. The sign was right about the depth, to the inch, and for the rest of your life "
    "you have leisure to admire its accuracy.",
    "balcony": "You stride through the elegant doors and take the air. There is a great deal of it, and "
    "then there is the rockery.",
    "plant": "You touch it again. The plant, which had asked nicely once, puts on its napkin.",
    "pianola": 'The third wrong number. Overhead a voice of wood and wire says "very well", and nine '
    "octaves of mahogany come down on you, resolving, at the last, into C major.",
}
SPARE_LIFE: Final = (
    "It goes dark, then bureaucratic. A clerk leafs through a file. \"Hesper's heir? She left one spare "
    'life on account. Sign here." You sign, and find yourself at the gate with everything you had, a little '
    "damp."
)
NO_LIFE_LEFT: Final = (
    'The clerk leafs through the file. "No further lives on account. I am so sorry. Mind the step."'
)

# Blocked exits, by the rooms on both sides: the flag that opens the exit, and the text until then.
BARRIERS: Final = {
    ("porch", "hall"): (
        "door_open",
        "The front door is shut. It does not look locked; it looks as if nobody had asked.",
    ),
    ("kitchen", "cellar"): (
        "cat_fed",
        "There is a trapdoor, and on the trapdoor is the {cat}, asleep. The {cat} does not get up for "
        "people. For fish, possibly.",
    ),
    ("passage", "vault"): (
        "vault_open",
        "The vault is shut, and means it. It wants three figures on its dials.",
    ),
}
# Actions that kill the player at the second attempt: the flag that the first attempt sets, and the warning
# that it gives.
HAZARDS: Final = {
    "well": (
        "well_warned",
        "You put one leg over the edge, read the sign again, and think better of it. For now.",
    ),
    "balcony": (
        "balcony_warned",
        "You open the elegant doors. Where the balcony should be there is weather, and three floors down a "
        "rockery. You close the doors. Nobody could say that you had not been told.",
    ),
    "plant": (
        "plant_warned",
        "It nips you: a small nip, with its lips closed, in the way of a person clearing their throat. You "
        "keep the finger. It would be rash to try that again.",
    ),
}
WRONG_NUMBERS: Final = (
    "Wrong. Somewhere above you a very large thing wakes up and finds its place in the music.",
    "Wrong. Above you, mahogany leans out over the edge and waits for one more reason.",
)
# The texts for consecutive turns in the dark. The turn after the last of them kills the player.
STEPS_IN_THE_DARK: Final = (
    "",
    "The quiet takes a step towards you.",
    "The quiet is now quite close, and smells faintly of buttons. It would be wise to have light, or to "
    "have left.",
)
