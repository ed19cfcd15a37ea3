"""The house as tables, and the parts of it that depend on the seed: the vault's number, clues, small talk."""

import hashlib
from itertools import permutations
from typing import Final

from msgspec import Struct


class Room(Struct, frozen=True):
    """A room; `text` is the part of its description that never changes."""

    name: str
    text: str
    exits: dict[str, str]
    feature: tuple[str, str, str] | None = None  # a flag, a sentence until it is set, one from then on
    dark: bool = False  # without the lit lantern


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
    "hall": 5, "lantern": 5, "key": 5, "desk": 10, "letter": 5, "cat": 10,
    "cellar": 5, "telescope": 5, "vault": 20, "deed": 5, "tune": 10, "stamp": 15,
}  # fmt: skip
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

# Blocked exits between two rooms: the flag that opens the exit, and the text until then.
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
# Dangerous actions: the flag and the warning of the first attempt. The second attempt kills.
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
# What the player reads in the first, second and third consecutive turn in the dark. The fourth kills.
STEPS_IN_THE_DARK: Final = (
    "",
    "The quiet takes a step towards you.",
    "The quiet is now quite close, and smells faintly of buttons. It would be wise to have light, or to "
    "have left.",
)


class Thing(Struct, frozen=True, kw_only=True):
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


SCENERY: Final[dict[str, Thing]] = {
    "house": Thing(
        name="house",
        words="house home building",
        rooms=("gate", "garden", "porch"),
        text="Tall, crooked and friendly, like an uncle. There is a dome on it for no reason the street can "
        "see.",
    ),
    "hedge": Thing(
        name="gate",
        words="gate iron hedge",
        rooms=("gate",),
        text="It has not closed since somebody's wedding.",
    ),
    "roses": Thing(
        name="roses",
        words="rose roses nettles flowers path",
        rooms=("garden",),
        text="They have thorns and know it, and have decided to like you.",
    ),
    "well": Thing(
        name="well",
        words="well old shaft",
        rooms=("garden",),
        text="You drop a pebble and listen. You are still listening when it stops being interesting.",
    ),
    "sign": Thing(
        name="sign",
        words="sign board",
        rooms=("garden",),
        text='The sign says: "THIS WELL IS EXACTLY AS DEEP AS IT LOOKS. VISITORS ARE ASKED TO TAKE THAT ON '
        'TRUST."',
    ),
    "door": Thing(
        name="front door",
        words="door front knocker",
        rooms=("porch", "hall"),
        text="Oak, with a knocker in the shape of a hand that would rather shake yours.",
    ),
    "mat": Thing(
        name="doormat",
        words="mat doormat",
        rooms=("porch",),
        text="OH, IT'S YOU, it says. There is nothing under it. She would have been ashamed to be so "
        "obvious.",
    ),
    "clock": Thing(
        name="tall clock",
        words="clock tall grandfather longcase hands",
        rooms=("hall",),
        text="It stopped on the day she died, to make a point, and has been too proud to start again.",
    ),
    "notary": Thing(
        name="Mr Pym",
        words="pym mr mister notary man lawyer",
        rooms=("hall",),
        article="",
        text="A small, tidy notary with a large rubber stamp. He cannot go home before he has stamped a "
        "deed, and he has been here since Tuesday.",
    ),
    "painting": Thing(
        name="painting",
        words="painting picture portrait sailor gull gulls canvas",
        rooms=("parlour",),
        text='A brass label says "The Sailor". He stands at the rail looking pleased. Over the mast hang '
        "{gulls} gulls, looking hungry.",
    ),
    "armchairs": Thing(
        name="armchairs",
        words="armchair armchairs chair chairs mantelpiece",
        rooms=("parlour",),
        text="You sit in each in turn. One of them is just right, but you have a deed to find.",
    ),
    "shelves": Thing(
        name="bookshelves",
        words="shelf shelves bookshelf bookshelves",
        rooms=("library",),
        text="Nearly all of it is about clocks. One slim volume has been pulled out a little, the way one "
        "leaves a book for a guest.",
    ),
    "plant": Thing(
        name="large plant",
        words="plant large napkin leaf leaves flower mouth",
        rooms=("conservatory",),
        text='It is label-side out: "Dentaria. Do not touch. It does not bite the hand that feeds it; it '
        'does not stop there." It leans a little closer, to hear you read.',
    ),
    "ferns": Thing(
        name="ferns", words="fern ferns", rooms=("conservatory",), text="They have the look of bystanders."
    ),
    "sampler": Thing(
        name="sampler",
        words="sampler picture wool baker loaf loaves",
        rooms=("kitchen",),
        text='Stitched along the top: "The Baker". She is bending to her oven, and on her tray lie {loaves} '
        "loaves, each with an expression of its own.",
    ),
    "cat": Thing(
        name="cat",
        words="cat admiral bishop colonel duchess marmalade",
        rooms=("kitchen",),
        text="A marmalade cat the shape of a cushion and the weight of a decision. The tag says {cat}.",
        later=(
            "cat_fed",
            "The {cat} has eaten, and regards the matter of the trapdoor as closed, or rather, open.",
        ),
    ),
    "trapdoor": Thing(
        name="trapdoor",
        words="trapdoor trap hatch",
        rooms=("kitchen",),
        text="What shows of it, round the edges of the cat, is square and has a ring.",
        later=(
            "cat_fed",
            "A square of old boards with a ring in it. Steps go down, and at the bottom of the steps there "
            "is no light at all.",
        ),
    ),
    "range": Thing(
        name="range",
        words="range stove table oven",
        rooms=("kitchen",),
        text="Cold, blacked and immaculate. Whoever cooked here did it as if an inspector were coming.",
    ),
    "jam": Thing(
        name="jam",
        words="jam jars jar cordial shelves shelf",
        rooms=("pantry",),
        text="Labelled by year, and one, in a shakier hand, by mood.",
    ),
    "bed": Thing(
        name="bed",
        words="bed quilt bedside table glass water pillow",
        rooms=("bedroom",),
        text="Made, with corners. There is nothing under the pillow but a sense of having been expected to "
        "look.",
    ),
    "desk": Thing(
        name="roll-top desk",
        words="desk rolltop roll-top roll top drawer lock keyhole lid",
        rooms=("study",),
        holds=True,
        text="Oak, as wide as a cart, with a small brass keyhole. It is locked.",
        later=("desk_open", "Oak, as wide as a cart, and open."),
    ),
    "telescope": Thing(
        name="telescope",
        words="telescope brass bay window widow candle candles",
        rooms=("observatory",),
        text="Across the bay, in a brass circle, there is a house. A line engraved on the mount says "
        '"The Widow\'s Window". In it, in a row, burn {candles} candles, for somebody who is still not late.',
    ),
    "balcony": Thing(
        name="balcony doors",
        words="balcony door doors card dome",
        rooms=("observatory",),
        article="",
        text='The card on the doors says: "Balcony to follow. - The Builder." The date on it is older than '
        "you are.",
    ),
    "racks": Thing(
        name="wine racks",
        words="rack racks wine corners archway",
        rooms=("cellar",),
        article="",
        text="Every bottle is gone, and in each hole somebody has put, quite carefully, a single button.",
    ),
    "grue": Thing(
        name="grue",
        words="grue creature monster thing darkness dark humming",
        rooms=("cellar", "passage"),
        text="Wherever the light is, it is not. You get an impression of patience, and of elbows. It hums "
        "the same little tune over and over, and each time stops before the last bar, as one stops at a "
        "missing stair.",
        later=(
            "grue_content",
            "You still cannot see it. But it is humming the whole tune now, and it nods to you.",
        ),
    ),
    "vaultdoor": Thing(
        name="vault door",
        words="vault door steel",
        rooms=("passage",),
        text="Steel, a hand thick, with three dials that each go from 0 to 9. One could DIAL a number of "
        "three figures.",
        later=("vault_open", "Steel, a hand thick, and open."),
    ),
    "dials": Thing(
        name="dials",
        words="dial dials combination",
        rooms=("passage",),
        article="",
        text="Three, from 0 to 9 each. One could DIAL a number of three figures, if one had a number of "
        "three figures.",
    ),
    "plate": Thing(
        name="brass plate",
        words="plate brass notice",
        rooms=("passage",),
        text='"THE PIANOLA BURGLAR ARRANGEMENT (PATENT APPLIED FOR). First wrong number: it wakes. Second: '
        'it leans. Third: it falls. Kindly do not guess." You look up. There is indeed a good deal of '
        "mahogany up there.",
    ),
}

PORTABLE: Final[dict[str, Thing]] = {
    "lantern": Thing(
        name="brass lantern",
        words="lantern lamp brass light torch",
        place="pantry",
        glimpse="A brass lantern hangs on a hook, filled and trimmed.",
        text="A storm lantern with a good wick. It could be LIT, and it would outlast you.",
    ),
    "sardines": Thing(
        name="tin of sardines",
        words="tin sardine sardines fish can",
        place="pantry",
        glimpse="On the shelf for bribes (the label says so) stands a tin of sardines.",
        text='"In oil. For persuasion." There is a small paw-print by way of a trade mark.',
    ),
    "biscuits": Thing(
        name="biscuit tin",
        words="tin biscuit biscuits box",
        place="pantry",
        glimpse="There is a biscuit tin, too.",
        text="It rattles with a single biscuit, the kind that is always left.",
    ),
    "teapot": Thing(
        name="teapot",
        words="teapot pot tea lid",
        place="pantry",
        glimpse="A teapot sits on the top shelf, where nobody who wanted tea would keep it.",
        holds=True,
        text="Blue, chipped, beloved. When you tilt it, something inside goes clink, which tea does not.",
        later=("teapot_open", "Blue, chipped, beloved, and without its lid."),
    ),
    "key": Thing(
        name="small brass key",
        words="key small brass",
        place="teapot",
        small=True,
        text="Small, bright and pleased to be of use again.",
    ),
    "volume": Thing(
        name="slim volume",
        words="volume book slim fauna",
        place="library",
        glimpse="A slim volume has been left sticking out of a shelf.",
        text='"Fauna of the Unlit House", by H. It is much annotated.',
        reading='You read: "The grue is a shy animal of regular habits. It cannot bear light and does not '
        "bear company, and anyone who stumbles about in its dark is eaten, I think mostly from "
        "embarrassment. Ours came with a tune, but it never learned the end of it. One pities it. Mother "
        'locked the music box away with the deed, because of the noise."',
    ),
    "bible": Thing(
        name="family Bible",
        words="bible family book",
        place="bedroom",
        glimpse="The family Bible lies on the bedside table.",
        text="Black, heavy, and soft at the page where the births are.",
        reading="Under Births somebody has written, without a single date:\n"
        '"{middle}, was sent running for the midwife on the night that {youngest}, was born."\n'
        '"{eldest}, held {middle}, at the font, and did not drop them."',
    ),
    "postcard": Thing(
        name="postcard",
        words="postcard card post",
        place="study",
        glimpse="A postcard is pinned above the desk.",
        small=True,
        text="A view of a pier, coloured by someone who had been told about the sea. There is writing on "
        "the back.",
        reading='The back says: "Dear Aunt, I own up. It was I who {meddling}. Only the one, and nobody has '
        'noticed in nine years. Yours in remorse and sea air, Edwin."',
    ),
    "letter": Thing(
        name="letter",
        words="letter note paper",
        place="desk",
        small=True,
        text="Violet ink on cream paper, addressed to whoever took the trouble.",
        reading='"My dear, the vault takes three figures, and they hang where I could look at them: the '
        "Sailor's gulls, the Baker's loaves, the Widow's candles. Dial them {order} - the people, not the "
        "birds. And go by what I hung there, not by what Edwin has since improved. Be kind to whoever lives "
        'downstairs; it only wants the end of the tune. Your loving aunt, Hesper."',
    ),
    "deed": Thing(
        name="deed",
        words="deed parchment document paper",
        place="vault",
        glimpse="The deed to the house lies on the shelf, tied in red ribbon.",
        small=True,
        text='"...the House, its Clocks, its Cat and its Grue, to whosoever shall have paid Attention." '
        "There is a space for a notary's stamp.",
    ),
    "musicbox": Thing(
        name="music box",
        words="box music musical handle",
        place="vault",
        glimpse="Beside it stands a music box with a little handle.",
        text="Rosewood, with a handle to WIND. On the lid a child has scratched: ALL of it, please.",
    ),
}

THINGS: Final[dict[str, Thing]] = {**SCENERY, **PORTABLE}

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
