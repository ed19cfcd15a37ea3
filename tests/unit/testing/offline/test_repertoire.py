"""The scripts, played: the house to a win, Zork I to 55 points; what they think, and how."""

import json

import pytest
from case_tables import each_case
from offline_play import play

from grue.errors import MissingDependencyError
from grue.hosts.zork.games.commands import sanitise_command
from grue.hosts.zork.games.house import HouseGame
from grue.hosts.zork.games.house_world import case_for
from grue.hosts.zork.games.zmachine import ZMachineGame
from grue.testing.offline import playbook_for
from grue.testing.offline.repertoire import house_playbook, zork1_playbook


def thoughts(rounds):
    return [json.loads(call.arguments) for said in rounds for call in said.calls]


def shape(rounds):
    """How many calls each reply of a turn makes."""
    return [len(said.calls) for said in rounds]


@pytest.fixture
def zork(zork1):
    try:
        game = ZMachineGame(zork1)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    yield game
    game.close()


@pytest.mark.parametrize("seed", range(21))
def test_the_house_is_won_with_all_points(seed):
    played = play(HouseGame(), seed, 44, playbook_for("The House", seed))

    assert (played.seen.won, played.seen.score, played.deaths) == (True, 100, 0)


def test_the_house_is_won_without_tools_too():
    played = play(HouseGame(), 7, 44, house_playbook(7), tools=False)

    assert (played.seen.score, any(played.thinking)) == (100, False)


@pytest.mark.parametrize("fallbacks", [{1}, {2, 3}, {5, 10, 11, 20, 34, 35, 40}, set(range(4, 44, 5))])
def test_the_script_survives_turns_that_fell_back(fallbacks):
    played = play(HouseGame(), 7, 60, house_playbook(7), fallbacks=fallbacks)

    assert (played.seen.won, played.seen.score) == (True, 100)
    assert len(played.moves) == 44 + len(fallbacks)


@pytest.mark.slow
def test_zork_scores_55_and_the_same_commands_twice(zork):
    first = play(zork, 7, 24, playbook_for(zork.name, 7))
    second = play(zork, 7, 24, playbook_for(zork.name, 7))

    assert first.seen.score is not None
    assert first.seen.score >= 55
    assert any(first.thinking)
    assert (first.moves, first.seen) == (second.moves, second.seen)


@pytest.mark.slow
def test_zork_keeps_its_points_while_it_explores_afterwards(zork):
    played = play(zork, 7, 100, playbook_for(zork.name, 7))

    assert (played.seen.score, played.deaths) == (55, 0)
    assert len({move.location for move in played.moves[24:]}) > 5


@pytest.mark.parametrize("book", [house_playbook(7), zork1_playbook()])
def test_thinking_comes_in_several_iterations_in_pairs_and_mostly_not_at_all(book):
    shapes = [tuple(map(len, step.rounds)) for step in book.steps]

    assert (1, 1, 1) in shapes
    assert (2,) in shapes
    assert shapes.count(()) > len(shapes) * 0.8
    assert any(each.revises for step in book.steps for round_ in step.rounds for each in round_)
    assert any(each.branches_from for step in book.steps for round_ in step.rounds for each in round_)


def test_three_iterations_before_the_vault_and_two_calls_in_one_reply_at_the_teapot():
    played = play(HouseGame(), 7, 44, house_playbook(7))
    by_command = {
        move.command: rounds for move, rounds in zip(played.moves, played.thinking, strict=True) if rounds
    }

    vault = by_command[f"dial {case_for(7).answer}"]
    assert shape(vault) == [1, 1, 1]
    assert [each["nextThoughtNeeded"] for each in thoughts(vault)] == [True, True, False]
    assert thoughts(vault)[2]["revisesThought"] == 2
    assert shape(by_command["open teapot"]) == [2]
    assert thoughts(by_command["light lantern"])[1]["branchFromThought"] == 1


@each_case("seed", range(21))
def test_the_reasoning_at_the_vault_is_about_the_seeds_own_clues(seed):
    case = case_for(seed)
    dial = next(step for step in house_playbook(seed).steps if step.command.startswith("dial"))
    order, pictures, edwin = (thought.text for round_ in dial.rounds for thought in round_)

    assert dial.command == f"dial {case.answer}"
    assert case.words["order"] in order
    assert all(case.words[things] in pictures for things in ("gulls", "loaves", "candles"))
    assert case.words["meddling"] in edwin
    shown = pictures.rstrip(".")[-3:]
    wrong = [(seen, true) for seen, true in zip(shown, case.answer, strict=True) if seen != true]
    assert [int(seen) - int(true) for seen, true in wrong] == [1]
    assert case.answer in edwin


@pytest.mark.parametrize("book", [house_playbook(3), zork1_playbook()])
def test_commands_are_playable_as_they_stand(book):
    commands = [step.command for step in book.steps]

    assert [sanitise_command(command) for command in commands] == commands
    assert all(step.why for step in book.steps)
    assert any(step.objective for step in book.steps)


@pytest.mark.parametrize(
    ("title", "found"),
    [
        ("The House", True),
        ("house", True),
        ("zork1", True),
        ("ZORK I", True),
        ("zork1-r119", True),
        ("Zork II", False),
        ("zork10", False),
        ("The House of Usher", False),
        ("", False),
    ],
)
def test_a_script_is_found_by_the_games_title(title, found):
    assert (playbook_for(title, 7) is not None) is found
