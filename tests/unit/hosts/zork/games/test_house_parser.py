"""The house's parser, as tables of what people type."""

import pytest
from case_tables import each_case

from grue.hosts.zork.games.house_parser import VERBS, Phrase, parse


@each_case(
    "line, direction",
    [
        ("n", "n"),
        ("North", "n"),
        ("go west", "w"),
        ("walk to the east", "e"),
        ("u", "u"),
        ("go upstairs", "u"),
        ("climb down", "d"),
        ("head s", "s"),
        ("in", "in"),
        ("go outside", "out"),
        ("leave", "out"),
        ("get out", "out"),
    ],
)
def test_directions(line: str, direction: str) -> None:
    phrase = parse(line)
    assert (phrase.verb, phrase.direction) == ("go", direction)


@each_case(
    "line, verb, nouns, preposition, second",
    [
        ("x lamp", "examine", (("lamp",),), "", ()),
        ("look at the brass lantern", "examine", (("brass", "lantern"),), "", ()),
        ("look through telescope", "examine", (("telescope",),), "", ()),
        ("l", "look", (), "", ()),
        ("get lamp", "take", (("lamp",),), "", ()),
        ("pick up the tin of sardines", "take", (("tin", "sardines"),), "", ()),
        ("pick the teapot up", "take", (("teapot",),), "", ()),
        ("take everything", "take", (("all",),), "", ()),
        ("take all the things", "take", (("all",),), "", ()),
        ("take key and letter, postcard", "take", (("key",), ("letter",), ("postcard",)), "", ()),
        ("take key from the teapot", "take", (("key",),), "from", ("teapot",)),
        ("put down lantern", "drop", (("lantern",),), "", ()),
        ("put key in desk", "put", (("key",),), "in", ("desk",)),
        ("insert the key into the old desk", "put", (("key",),), "into", ("old", "desk")),
        ("turn on the lamp", "light", (("lamp",),), "", ()),
        ("turn lamp on", "light", (("lamp",),), "", ()),
        ("switch the lamp off", "douse", (("lamp",),), "", ()),
        ("unlock desk with small brass key", "unlock", (("desk",),), "with", ("small", "brass", "key")),
        ("give fish to cat", "give", (("fish",),), "to", ("cat",)),
        ("give the cat the fish", "give", (("cat", "fish"),), "", ()),
        ("talk to Mr. Pym", "talk", (("pym",),), "", ()),
        ("ask pym about the vault", "talk", (("pym",),), "about", ("vault",)),
        ("WIND THE MUSIC BOX!", "wind", (("music", "box"),), "", ()),
        ("please open the roll-top desk now", "open", (("roll-top", "desk"),), "", ()),
        ("frob the knob", "", (("knob",),), "", ()),
        ("and", "", (), "", ()),
        ("", "", (), "", ()),
        ("the", "", (), "", ()),
    ],
)
def test_phrases(
    line: str, verb: str, nouns: tuple[tuple[str, ...], ...], preposition: str, second: tuple[str, ...]
) -> None:
    phrase = parse(line)
    assert (phrase.verb, phrase.nouns) == (verb, nouns)
    assert (phrase.preposition, phrase.second) == (preposition, second)


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("dial 472", "472"),
        ("set the dials to 4, 7, 2", "472"),
        ("turn dials to 4-7-2", "472"),
        ("enter four seven two", "472"),
        ("dial four-seven-two on the vault door", "472"),
        ("dial", ""),
        ("take 3", ""),
    ],
)
def test_numbers(line: str, number: str) -> None:
    assert parse(line).number == number


def test_every_phrase_for_a_verb_means_that_verb() -> None:
    for words, verb in VERBS.items():
        if words not in (("leave",), ("climb", "up"), ("climb", "down")):  # alone they are ways to go
            assert parse(" ".join(words)).verb == verb, words
            assert parse(f"{' '.join(words)} teapot") == Phrase(
                verb=verb, said=" ".join(words), nouns=(("teapot",),)
            )
