"""What is found in a story's words, and what is not."""

import time

import pytest

from grue.hosts.zork.games.game import Observation as Seen
from grue.hosts.zork.games.story_text import (
    SAYS_DARK,
    SAYS_DIED,
    SAYS_OVER,
    SAYS_WON,
    TOOK_NO_TIME,
    WIDTH,
    asks_something,
    heading,
    take_status_line,
    tidy,
    told_score,
)

NAMES = frozenset({"Kitchen", "West of House", "Frigid River", "leaflet", "brass lantern"})


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        ("\n\nTaken.\n\n>", "Taken."),
        ("Sure? >", "Sure?"),
        ("\n\nA\n\n\n\nB\n>", "A\n\nB"),
        ("He wrote > and left.\n\n>", "He wrote > and left."),
        ("  indented\n  list\n\n>", "  indented\n  list"),
        ("", ""),
        (">", ""),
    ],
)
def test_tidy(printed: str, text: str) -> None:
    assert tidy(printed) == text


def test_tidy_joins_only_what_the_interpreter_broke() -> None:
    full = "x" * (WIDTH - 3)
    assert tidy(f"{full}\nlonger word\n\n>") == f"{full} longer word"
    assert tidy(f"{full}\nas\n\n>") == f"{full}\nas"  # it would have fitted: the game's own line break
    assert tidy(f"{full[:-1]}-\nhanded\n\n>") == f"{full[:-1]}-handed"
    assert tidy(f"{full}\n\nNew paragraph.\n\n>") == f"{full}\n\nNew paragraph."
    filled = "x" * WIDTH
    assert tidy(f"{filled}\nas\n\n>") == f"{filled} as"  # nothing fits behind a full line
    assert tidy(f"{full}\nlonger word\n\n>", broken_lines=False) == f"{full}\nlonger word"
    twice = f"{full}\n{full}\nlonger word"
    assert tidy(f"{twice}\n\n>") == f"{full} {full} longer word"


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (
            "Your score is 55 (total of 350 points), in 33 moves.\nThis gives you the rank of Novice.",
            Seen(score=55, max_score=350, moves=33),
        ),
        (
            "Your score would be -10 (total of 350 points), in 1 move.",
            Seen(score=-10, max_score=350, moves=1),
        ),
        (
            "You have so far scored 5 out of a possible 30, in 20 turns.",
            Seen(score=5, max_score=30, moves=20),
        ),
        ("You have scored 5 points out of a maximum of 30.", Seen(score=5, max_score=30)),
        ("Your score is 7.", Seen(score=7)),
        ('I don\'t know the word "score".', None),
        ("There is no score in this story.", None),
        ("A score of men stand here.", None),
        ("You are out of 3 matches.", None),
    ],
)
def test_told_score(reply: str, told: Seen | None) -> None:
    assert told_score(reply) == told


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (
            " West of House          Score: 0        Moves: 1",
            Seen(score=0, moves=1, location="West of House"),
        ),
        (
            " Kitchen                Score: -5   Turns: 12  ",
            Seen(score=-5, moves=12, location="Kitchen"),
        ),
        (
            "Kitchen                                    10/25",
            Seen(score=10, moves=25, location="Kitchen"),
        ),
        (
            "Kitchen (on the stool)      10 / 25 ",
            Seen(score=10, moves=25, location="Kitchen (on the stool)"),
        ),
    ],
)
def test_a_status_line_is_read_and_taken_out(line: str, status: Seen) -> None:
    assert take_status_line(f"{line}\n\nTaken.") == ("Taken.", status)


@pytest.mark.parametrize("text", ["Taken.", "The odds are 10/25", "Kitchen\nScore: 5", "10:30 am"])
def test_what_is_no_status_line_stays(text: str) -> None:
    assert take_status_line(text) == (text, None)


@pytest.mark.parametrize(
    ("text", "room"),
    [
        ("Kitchen\nYou are in the kitchen.", "Kitchen"),
        ("Title\nby Kitchen\n\nWest of House\nAn open field.", "West of House"),
        ("You climb.\n\nKitchen", "Kitchen"),
        ("Frigid River, in the magic boat\nIt flows.", "Frigid River"),
        ("Kitchen (on the stool)\nIt wobbles.", "Kitchen"),
        ("You are in the Kitchen.", None),
        ("leaflet", None),
        ("  Kitchen", None),
        ("Attic\nNot an object of this story.", None),
        ("", None),
    ],
)
def test_heading(text: str, room: str | None) -> None:
    assert heading(text, NAMES) == room


def test_who_died_who_won_and_what_is_over() -> None:
    assert SAYS_DIED.search("Thud.\n\n   ****  You have died  ****\n\nNow, let's see.")
    assert SAYS_DIED.search("*** You have died ***")
    assert SAYS_DIED.search("You are dead.")
    assert not SAYS_DIED.search("The troll, who thinks you have died, shrugs.")
    assert SAYS_WON.search("    *** You have won ***")
    assert SAYS_WON.search("*** You've won, at last! ***")
    assert not SAYS_WON.search("You have won her heart.")
    assert not SAYS_WON.search("*** You have died ***")
    assert SAYS_OVER.search("Would you like to RESTART, RESTORE a saved game or QUIT?")
    assert SAYS_OVER.search(
        "Would you like to restart the game from the beginning, restore a saved game position, or end this "
        "session of the game?\n(Type RESTART, RESTORE, or QUIT):"
    )
    assert not SAYS_OVER.search("Do you wish to restart? (Y is affirmative):")


def test_when_nothing_may_be_asked_in_between() -> None:
    assert not asks_something("Taken.", ">")
    assert asks_something("What do you want to take?", ">")
    assert asks_something("Do you wish to leave the game?", "Do you wish to leave the game? >")
    assert TOOK_NO_TIME.search('I don\'t know the word "blorp".')
    assert not TOOK_NO_TIME.search("Taken.")
    assert SAYS_DARK.search("It is pitch black. You are likely to be eaten by a grue.")
    assert not SAYS_DARK.search("A pitcher, black with age.")


def test_no_text_takes_long_to_search() -> None:
    begun = time.monotonic()
    for part in ("a" + " " * 7, "restart ", "*\n", " \n", "Score: ", "you won *"):
        text = part[:-1] + part[-1] * 20_000 if part.startswith("a ") else part * 20_000
        take_status_line(text)
        told_score(text)
        assert not any(pattern.search(text) for pattern in (SAYS_OVER, SAYS_DIED, SAYS_WON))
    assert time.monotonic() - begun < 10
