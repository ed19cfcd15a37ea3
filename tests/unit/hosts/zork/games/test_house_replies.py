"""What the house says to what people type."""

import pytest
from case_tables import each_case
from house_play import INTO_KITCHEN, WITH_LANTERN, play, text_after

from grue.hosts.zork.games.house import HouseGame, walkthrough
from grue.hosts.zork.games.house_world import HOUSE, case_for


def test_the_notary_gives_the_next_hint_at_each_stage() -> None:
    route = walkthrough(7)

    def hint(after: str, *way: str) -> str:
        return text_after(*route[: route.index(after) + 1], *way, "talk to pym")

    assert "under the Bishop" in hint("open door", "n")
    assert "She wrote a letter" in hint("unlock desk with key", "w", "d")
    assert "Three pictures" in hint("read letter", "w", "d")
    assert "the deed is in the vault" in hint(f"dial {case_for(7).answer}", "w", "u", "s")
    assert "Give it here" in hint("take deed", "s", "w", "u", "s")


def test_the_cat_takes_its_fish_in_any_wording() -> None:
    for command in (
        "give the sardines to the cat",
        "give cat sardines",
        "feed cat with sardines",
        "feed sardines to bishop",
        "drop sardines",
        "put sardines on cat",
        "use sardines on cat",
        "offer the tin of sardines to the marmalade cat",
    ):
        assert "thinks about" not in text_after(*INTO_KITCHEN, "e", "take sardines", "w", command)
        assert play(*INTO_KITCHEN, "e", "take sardines", "w", command)[1].score == 15, command


@each_case(
    "commands, reply",
    [
        ((), "sixteen rooms"),
        (("",), "I beg your pardon?"),
        (("frobnicate",), "not a word that the house knows"),
        (("house",), "Try a verb"),
        (("take",), "Take what?"),
        (("take unicorn",), "You see no unicorn here."),
        (("take house",), "would miss it"),
        (("drop lantern",), "You see no lantern here."),
        (("drop house",), "not carrying"),
        (("drop all",), "nothing here"),
        (("take all",), "nothing here"),
        (("x house and gate",), "One thing at a time"),
        (("x it",), "not clear"),
        (("s",), "put off"),
        (("n", "w"), "You could go south or north."),
        (("go",), "Which way?"),
        (("help",), "Short sentences"),
        (("knock",), "nobody answers but you"),
        (("sing",), "window is closed"),
        (("jump",), "not to have seen"),
        (("z",), "Time passes"),
        (("listen",), "interested way"),
        (("dial 123",), "nothing here to dial"),
        (("enter gate",), "The roses won"),
        (("n", "enter house"), "umbrella"),
        (("n", "take roses"), "would miss"),
        (("n", "climb well"), "think better of it"),
        (("n", "climb roses"), "not a chamois"),
        (("n", "climb"), "You could go"),
        (("n", "n", "open door", "open door"), "It is open."),
        (("n", "n", "close door"), "a little air"),
        (("n", "n", "unlock door"), "only manners"),
        (("n", "n", "open mat"), "nothing about the doormat to open"),
        (("n", "n", "enter mat"), "not a thing to get into"),
        (("n", "n", "open door", "enter door", "enter door"), "umbrella"),
        (("attack house",), "brought up"),
        (("touch house",), "as one would expect"),
        (("smell house",), "smells of itself"),
        (("eat house",), "Not even with jam"),
        (("light house",), "would not thank you"),
        (("light",), "no lantern"),
        (("talk to house",), "keeps its own counsel"),
        (("use house",), "A plainer verb"),
        (("wind house",), "not the kind of thing"),
        (("douse house",), "not lit"),
        (("give house",), "to whom"),
        (("feed house",), "with what"),
        (("give house to gate",), "not holding"),
        (("put house",), "where?"),
        (("put house in gate",), "no place for it"),
        (("g",), "I beg your pardon?"),
    ],
)
def test_replies(commands: tuple[str, ...], reply: str) -> None:
    game = HouseGame()
    seen = game.reset(7)
    for command in commands:
        seen = game.step(command)
    assert reply in seen.text


@each_case(
    "command, reply",
    [
        ("listen", "with a sound like"),
        ("wind clock", "making a point"),
        ("touch pym", "The deed?"),
        ("wake mr pym", "The deed?"),
        ("give teapot to pym", "Then no"),
        ("give teapot to clock", "has no use for it"),
        ("x pym", "since Tuesday"),
        ("put lantern in teapot", "is shut"),
        ("open teapot and lantern", "One thing at a time"),
        ("put biscuits in clock", "no place for it"),
        ("take the teapot", "have that already"),
        ("use lantern", "warm yellow light"),
        ("light", "warm yellow light"),
        ("open biscuits", "always left"),
        ("eat sardines", "persuaded already"),
        ("eat biscuit", "feel braver"),
        ("drop all", "teapot: Dropped."),
        ("drop lantern, teapot", "lantern: Dropped."),
        ("unlock clock with lantern", "only manners"),
        ("use teapot on clock", "has no use"),
    ],
)
def test_replies_in_the_hall_with_full_hands(command: str, reply: str) -> None:
    assert reply in text_after(*INTO_KITCHEN, "e", "take all", "w", "s", command)


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        ("unlock vault with teapot", "three figures"),
        ("open vault", "no handle"),
        ("turn dials", "To what?"),
        ("touch dials", "To what?"),
        ("use dials", "To what?"),
        ("dial 12", "three figures"),
        ("x grue", "impression of patience"),
        ("talk to grue", "stops short"),
        ("enter vault", "means it"),
        ("light lantern", "It is lit"),
        ("drop teapot", "Dropped."),
    ],
)
def test_replies_at_the_vault(command: str, reply: str) -> None:
    assert reply in text_after(*WITH_LANTERN, "d", "e", command)


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        ("take cat", "much heavier"),
        ("stroke cat", "permits it"),
        ("talk to cat", "opens one eye"),
        ("give biscuits to cat", "spelling mistake"),
        ("give the cat the unicorn", "You see no cat unicorn here"),
        ("put range in teapot", "not carrying"),
        ("put lantern in teapot", "has its pride"),
        ("turn sampler", "not the kind of thing"),
        ("eat biscuit", "from habit"),
        ("take lantern and biscuits", "biscuit tin: You have that already."),
        ("take sardines and cat", "tin of sardines: You have that already."),
    ],
)
def test_replies_in_the_kitchen(command: str, reply: str) -> None:
    prepared = (*INTO_KITCHEN, "e", "take all", "open teapot", "eat biscuit", "w")
    assert reply in text_after(*prepared, command)


def test_the_plant_and_the_grue_have_views_on_gifts() -> None:
    assert "declines" in text_after(*WITH_LANTERN, "s", "e", "n", "give teapot to plant")
    assert HOUSE.deaths["plant"] in text_after(*INTO_KITCHEN[:4], "e", "n", "hit plant", "kill plant")
    route = walkthrough(7)
    to_passage = route[: route.index("wind music box")]
    assert play(*to_passage, "give music box to grue")[1].score == 85
    assert play(*to_passage, "open music box")[1].score == 85
    assert "retired" in text_after(*to_passage, "dial 123")


def test_a_question_is_answered_by_the_next_command_only_if_it_is_none_itself() -> None:
    game, asked = play(*INTO_KITCHEN, "e", "take tin")
    assert "Which do you mean, the tin of sardines or the biscuit tin?" in asked.text
    assert game.step("the biscuit one").inventory == ()  # "one" is in no thing's name
    game.step("take tin")
    assert game.step("biscuit").inventory == ("biscuit tin",)
    game.step("take tin")
    assert game.step("west").location == "Kitchen"
    assert "Try a verb" in game.step("biscuit").text  # the question has lapsed
    game.step("go")
    assert game.step("to the east").location == "Pantry"


def test_again_repeats_the_last_command() -> None:
    game, _ = play("n", "n")
    game.step("s")
    assert game.step("g").location == "Garden Gate"


def test_free_commands_take_no_turn() -> None:
    game, before = play("n", "n")
    for command in ("score", "inventory", "help", "blorp", "take unicorn", "", "e"):
        assert game.step(command).moves == before.moves
    assert game.step("look").moves == (before.moves or 0) + 1
    assert "after 3 turns" in game.step("score").text
    assert "after 1 turn." in text_after("n", "score")
