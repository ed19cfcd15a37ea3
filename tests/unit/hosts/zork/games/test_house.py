"""The house: it can be won, it plays fair, it is deterministic, and nothing that is typed can break it."""

import re

import pytest
from case_tables import each_case
from example_counts import examples
from house_play import INTO_KITCHEN, TO_TRAPDOOR, WITH_LANTERN, play, text_after
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.hosts.zork.games.house import HouseGame, walkthrough
from grue.hosts.zork.games.house_parser import DIRECTIONS, VERBS
from grue.hosts.zork.games.house_world import HOUSE, MAX_SCORE, NUMBERS, THINGS, case_for


@each_case("seed", [*range(300), -1, 2**63])
@pytest.mark.slow
def test_the_walkthrough_wins_with_every_point(seed: int) -> None:
    game = HouseGame()
    game.reset(seed)
    commands = walkthrough(seed)
    seen = [game.step(command) for command in commands]

    assert 30 <= len(commands) <= 45
    assert (seen[-1].score, seen[-1].max_score, seen[-1].moves) == (100, 100, len(commands))
    assert seen[-1].won
    assert seen[-1].done
    assert not any(before.done or before.won for before in seen[:-1])
    assert not any(each.died for each in seen)


def test_the_awards_add_up_to_100() -> None:
    assert MAX_SCORE == sum(HOUSE.awards.values()) == 100


def test_every_room_is_visited_or_a_step_from_the_walkthrough() -> None:
    reached, frontier = {"gate"}, ["gate"]
    while frontier:
        for target in HOUSE.rooms[frontier.pop()].exits.values():
            if target in HOUSE.rooms and target not in reached:
                reached.add(target)
                frontier.append(target)
    assert reached == HOUSE.rooms.keys()
    assert 12 <= len(HOUSE.rooms) <= 16

    game = HouseGame()
    headings = {game.reset(3).location} | {game.step(command).location for command in walkthrough(3)}
    assert {room.name for room in HOUSE.rooms.values()} - headings == {"Library", "Conservatory"}


def test_every_exit_leads_back() -> None:
    opposite = {"n": "s", "s": "n", "e": "w", "w": "e", "u": "d", "d": "u"}
    for name, room in HOUSE.rooms.items():
        for way, target in room.exits.items():
            if way in opposite and target in HOUSE.rooms:
                assert HOUSE.rooms[target].exits[opposite[way]] == name


def clues(seed: int) -> dict[str, str]:
    """Walk about and read, as a player would; the number must follow from these texts alone."""
    game = HouseGame()
    game.reset(seed)
    return {command: game.step(command).text for command in walkthrough(seed)}


def solve(said: dict[str, str]) -> str:
    """Reason from the texts: what is shown, what Edwin added, who is older, and from which end to dial."""
    shown = {
        "sailor": re.search(r"hang (\w+) gulls", said["examine painting"]),
        "baker": re.search(r"lie (\w+) loaves", said["examine sampler"]),
        "widow": re.search(r"burn (\w+) candles", said["look through telescope"]),
    }
    figures = {person: NUMBERS.index(found[1]) for person, found in shown.items() if found}
    forged = re.search(r"extra (gull|loaf|candle)", said["read postcard"])
    assert forged
    figures[{"gull": "sailor", "loaf": "baker", "candle": "widow"}[forged[1]]] -= 1
    who = {"Jory": "sailor", "Marget": "baker", "Tamsin": "widow"}
    ages = re.findall("Jory|Marget|Tamsin", said["read bible"])
    middle, youngest, eldest, middle_again = ages
    assert middle == middle_again
    order = [who[youngest], who[middle], who[eldest]]
    if "eldest first" in said["read letter"]:
        order.reverse()
    return "".join(str(figures[person]) for person in order)


@each_case("seed", range(60))
@pytest.mark.slow
def test_the_number_follows_from_the_texts_and_only_from_all_of_them(seed: int) -> None:
    said = clues(seed)
    answer = case_for(seed).answer
    assert solve(said) == answer
    told_early = [text for command, text in said.items() if not command.startswith("dial")]
    assert not any(answer in text for text in told_early)


def test_the_number_differs_by_seed() -> None:
    answers = {case_for(seed).answer for seed in range(200)}
    assert len(answers) > 100
    assert all(len(answer) == 3 and len(set(answer)) == 3 for answer in answers)


def test_the_same_seed_and_commands_give_the_same_game() -> None:
    first = [play(*walkthrough(11)[:n], seed=11)[1] for n in range(0, 44, 5)]
    again = [play(*walkthrough(11)[:n], seed=11)[1] for n in range(0, 44, 5)]
    assert first == again
    assert play(seed=1)[1].text != play(seed=4)[1].text
    assert len({HouseGame().fingerprint for _ in range(2)}) == 1


@pytest.mark.parametrize(
    ("cause", "commands", "warning"),
    [
        ("grue", (*TO_TRAPDOOR, "d", "e"), "the last thing you did"),
        ("grue", (*TO_TRAPDOOR, "d", "n"), "the last thing you did"),
        ("lingering", (*TO_TRAPDOOR, "d", "z", "z", "z"), "quite close"),
        ("well", ("n", "x sign", "enter well", "d"), "AS DEEP AS IT LOOKS"),
        ("balcony", (*INTO_KITCHEN[:4], "u", "u", "e", "open doors"), "been told"),
        ("plant", (*INTO_KITCHEN[:4], "e", "n", "touch plant", "smell plant"), "rash"),
        ("plant", (*INTO_KITCHEN[:4], "e", "n", "eat plant", "take plant"), "rash"),
        ("pianola", (*WITH_LANTERN, "d", "e", "x plate", "dial 111", "dial 112", "dial 113"), "do not guess"),
    ],
)
def test_each_death_is_announced_beforehand_and_comes_once(
    cause: str, commands: tuple[str, ...], warning: str
) -> None:
    game = HouseGame()
    game.reset(7)
    seen = [game.step(command) for command in commands]
    assert any(warning in each.text for each in seen[:-1])
    assert [each.died for each in seen] == [False] * (len(seen) - 1) + [True]
    assert HOUSE.deaths[cause] in seen[-1].text
    assert not seen[-1].done
    assert seen[-1].location == "Garden Gate"
    assert seen[-1].inventory == seen[-2].inventory
    assert seen[-1].score == seen[-2].score


def test_the_second_death_ends_the_game() -> None:
    game, first = play("n", "enter well", "enter well")
    assert first.died
    assert not first.done
    game.step("n")
    second = game.step("climb down well")
    assert second.died
    assert second.done
    assert not second.won
    after = game.step("n")
    assert after.done
    assert not after.died
    assert after.moves == second.moves


def test_light_keeps_the_grue_away_and_darkness_may_be_left() -> None:
    assert "Something large is keeping quiet" in text_after(*TO_TRAPDOOR, "d")
    seen = play(*TO_TRAPDOOR, "d", "u", "d", "z", "z", "u")[1]
    assert seen.location == "Kitchen"
    assert not seen.died
    lit = play(*WITH_LANTERN, "d", *["z"] * 6, "e", "w")[1]
    assert lit.location == "Cellar"
    assert not lit.died
    assert "So does everything else" in text_after(*WITH_LANTERN, "d", "turn off lantern")
    assert "draws in its elbows" in text_after(*WITH_LANTERN, "d", "douse lantern", "light lantern")
    assert "too dark" in text_after(*WITH_LANTERN, "d", "douse lantern", "x racks")
    assert "too dark" in text_after(*WITH_LANTERN, "d", "douse lantern", "x teapot")
    assert (
        play(*WITH_LANTERN, "d", "drop lantern", "douse lantern", "take lantern", "light it")[1].score == 25
    )


def test_the_tune_makes_the_dark_harmless() -> None:
    to_the_box = walkthrough(7)[: walkthrough(7).index("take music box") + 1]
    game, _ = play(*to_the_box, "south", "douse lantern")
    assert "too dark" in game.step("dial 123").text
    assert game.step("wind music box").score == 85
    assert "humming, in full" in game.step("look").text
    assert "harmonies" in game.step("play music box").text
    assert "whole tune" in game.step("listen").text
    seen = [game.step(command) for command in ("z", "z", "z", "z", "e", "w", "z", "u")]
    assert not any(each.died for each in seen)
    assert seen[-1].location == "Kitchen"
    assert "to the very end" in game.step("wind music box").text


def test_things_must_be_earned() -> None:
    assert "shut" in text_after("n", "n", "n")
    assert "asleep" in text_after(*INTO_KITCHEN, "d")
    assert "asleep" in text_after(*INTO_KITCHEN, "open trapdoor")
    assert "You could go DOWN" in text_after(*TO_TRAPDOOR, "open trapdoor")
    assert play(*TO_TRAPDOOR, "enter trapdoor")[1].location == "Cellar"
    assert "means it" in text_after(*WITH_LANTERN, "d", "e", "n")
    to_study = (*INTO_KITCHEN[:4], "u", "e")
    assert "locked" in text_after(*to_study, "open desk")
    assert "need the key" in text_after(*to_study, "unlock desk")
    assert "no letter" in text_after(*to_study, "read letter")


def test_the_desk_takes_only_its_key() -> None:
    with_key = (*WITH_LANTERN, "e", "open teapot", "take key", "w", "s", "u", "e")
    assert "not a key" in text_after(*with_key, "unlock desk with teapot")
    assert "lid flies up" in text_after(*with_key, "open desk")
    assert "lid flies up" in text_after(*with_key, "use key")
    assert "lid flies up" in text_after(*with_key, "use key on desk")
    assert "open already" in text_after(*with_key, "open desk", "unlock desk with key")
    assert "In the roll-top desk: a letter" in text_after(*with_key, "open desk", "look")
    holding = text_after(*with_key, "open desk", "put key in desk", "x desk")
    assert "In it: a small brass key and a letter" in holding


def test_a_dropped_thing_lies_where_it_was_dropped() -> None:
    game, seen = play(*INTO_KITCHEN, "e", "take lantern", "w", "drop it")
    assert seen.inventory == ()
    assert "On the floor: a brass lantern." in game.step("look").text
    assert "brass lantern: Taken." not in game.step("take all").text
    assert game.step("inventory").inventory == ("brass lantern",)
    game.step("e")
    assert "brass lantern hangs" not in game.step("look").text


def test_a_letter_examined_is_a_letter_read() -> None:
    commands = [*walkthrough(7)]
    commands[commands.index("read letter")] = "examine letter"
    assert play(*commands)[1].score == 100


_WORDS = sorted({*DIRECTIONS, *(" ".join(verb) for verb in VERBS)})
_NOUNS = sorted(
    {word for thing in THINGS.values() for word in thing.words.split()} | {"all", "it", "111", "and"}
)
_LINES = st.one_of(
    st.sampled_from(_WORDS),
    st.sampled_from(sorted(DIRECTIONS)),
    st.builds("{} {}".format, st.sampled_from(_WORDS), st.sampled_from(_NOUNS)),
    st.builds(
        "{} {} {} {}".format,
        st.sampled_from(_WORDS),
        st.sampled_from(_NOUNS),
        st.sampled_from(["to", "in", "with", "on", "and", "the"]),
        st.sampled_from(_NOUNS),
    ),
    st.text(max_size=20),
)


@settings(max_examples=examples(200))
@given(
    seed=st.integers(-5, 2**40),
    start=st.integers(0, 44),
    more=st.lists(_LINES, max_size=30),
)
@pytest.mark.slow
def test_any_commands_keep_the_rules_and_lead_to_the_same_end_again(
    seed: int, start: int, more: list[str]
) -> None:
    game, again = HouseGame(), HouseGame()
    assert game.reset(seed) == again.reset(seed)
    points, moves, deaths = 0, 0, 0
    for command in [*walkthrough(seed)[:start], *more]:
        seen = game.step(command)
        assert again.step(command) == seen
        assert seen.score is not None
        assert points <= seen.score <= 100
        assert seen.moves is not None
        assert moves <= seen.moves <= moves + 1
        assert seen.text
        assert seen.location
        assert seen.inventory is not None
        points, moves, deaths = seen.score, seen.moves, deaths + seen.died
        assert deaths <= 2
        assert seen.done == (seen.won or deaths == 2)
    game.close()
    game.close()
