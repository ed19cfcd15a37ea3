"""The things in the house, as tables: scenery, and portable things.

There is no code here. A text may contain `{names}`, which are replaced by `Case.words`; that is the only
place where a seed changes the texts. Scenery stays in its rooms. A portable thing starts at `place`, the id
of a room or a container; the state knows where it is later.
"""

from typing import Final

from msgspec import Struct


class Thing(Struct, frozen=True, kw_only=True):
    """A thing that a command can refer to.

    Attributes:
        name: Its name in lists, without an article.
        words: Every word that may refer to it, adjectives and nouns.
        text: The text for "examine".
        later: A flag, and the text for "examine" once that flag is set.
        rooms: The rooms of scenery; empty for portable things.
        place: Where a portable thing starts: the id of a room or a container.
        glimpse: Its line in the room's description until it is moved.
        reading: The text for "read", if it differs from "examine".
        holds: Whether it is a container.
        small: Whether it fits into a teapot.
        article: The article before its name in lists.
    """

    name: str
    words: str
    text: str
    later: tuple[str, str] | None = None
    rooms: tuple[str, ...] = ()
    place: str = ""
    glimpse: str = ""
    reading: str = ""
    holds: bool = False
    small: bool = False
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
        name="ferns",
        words="fern ferns",
        rooms=("conservatory",),
        text="They have the look of bystanders.",
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
