"""Exploring without a script: sensible, safe, never stuck on one command."""

from itertools import pairwise

import pytest
from case_tables import each_case
from offline_play import play

from grue.hosts.zork.games.commands import sanitise_command
from grue.hosts.zork.games.house import HouseGame
from grue.testing.offline.repertoire import Played, Situation, explore


def command(text, **fields):
    return explore(Situation(game="lake", turn=fields.pop("turn", 1), text=text, **fields)).command


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.slow
def test_the_house_is_seen_without_dying_or_standing_still(seed):
    played = play(HouseGame(), seed, 120, None)
    commands = [move.command for move in played.moves]

    assert played.deaths == 0
    assert len({move.location for move in played.moves}) >= 10
    assert played.seen.score >= 10
    placed = [(move.location, move.command) for move in played.moves]
    assert all(one != other for one, other in pairwise(placed))
    assert commands.count("look") < len(commands) / 4
    assert any(played.thinking)
    assert sum(map(bool, played.thinking)) <= len(commands) / 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A small mailbox is here. A path leads north.", "open mailbox"),
        ("A leaflet lies here. North is a wall.", "take leaflet"),
        ("The path goes west. A cliff is to the east.", "west"),
        ("Stairs lead downwards.", "down"),
        ("She looks down on you.", "look"),
    ],
)
def test_it_does_what_the_text_suggests(text, expected):
    assert command(text) == expected


def test_nothing_is_repeated_in_vain_or_to_death():
    tried = tuple(Played(each, "No.") for each in ("open mailbox", "look"))
    assert command("A small mailbox.", recent=tried) not in ("open mailbox", "look")
    assert command("Ways lead north and south.", deadly=frozenset({"north"})) == "south"
    everything = frozenset(["look", "north", "east", "south", "west"])
    assert command("Nothing.", deadly=everything) == "wait"


def test_a_place_full_of_things_does_not_hold_it_up_for_ever():
    tried = tuple(Played(f"examine {thing}", "Nice.") for thing in ("clock", "desk", "statue", "machine"))

    assert command("A telescope, a sampler, a way north.", recent=tried[:3]) == "examine telescope"
    assert command("A telescope, a sampler, a way north.", recent=tried) == "north"


def test_new_ways_come_first_and_the_way_back_last():
    came = (Played("north", "Hall\nA hall with doors east, west and south."),)
    fields = {"location": "Hall", "recent": came}

    assert command("Hall", known=frozenset({"west", "south"}), **fields) == "east"
    assert {command("Hall", turn=turn, **fields) for turn in range(1, 30)} == {"east", "west"}
    assert command("Hall", turn=1, deadly=frozenset({"east", "west"}), **fields) == "south"


def test_a_place_is_looked_at_again_before_it_is_left_the_way_one_came():
    came = (Played("north", "Attic"),)

    assert command("Attic", location="Attic", recent=came, known=frozenset({"south"})) == "look"


@pytest.mark.parametrize(
    ("inventory", "recent", "expected"),
    [
        (None, (), "turn on lamp"),
        ("brass lantern", (), "turn on lantern"),
        ("egg", ("east", "north"), "south"),
        (None, ("west", "turn on lamp"), "east"),
        ("nothing", ("wait",), "look"),
    ],
)
def test_the_dark_is_lit_or_left(inventory, recent, expected):
    moves = tuple(Played(each, "Dark.") for each in recent)

    assert command("It is pitch black.", inventory=inventory, recent=moves) == expected


@each_case("turn", range(1, 40))
def test_its_commands_are_playable(turn):
    chosen = command("Doors lead north and south. A book and a clock are here.", turn=turn)

    assert sanitise_command(chosen) == chosen


def test_a_blank_command_in_the_history_does_not_stop_it():
    assert command("A door leads north.", recent=(Played(" ", "What?"),)) == "north"
