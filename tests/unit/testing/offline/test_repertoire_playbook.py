"""Finding the place in a script from the turn's number and the last commands."""

import pytest
from case_tables import each_case
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.hosts.zork.games.house import walkthrough
from grue.testing.offline.repertoire import IDLE, Playbook, Played, Situation, Step, position

SCRIPT = walkthrough(7)


@each_case("place", range(len(SCRIPT) + 1))
def test_undisturbed_the_turn_says_it(place):
    assert position(SCRIPT, place + 1, SCRIPT[max(0, place - 6) : place]) == place


@settings(max_examples=examples(200))
@given(st.data())
def test_idle_turns_do_not_lose_the_place(data):
    """Whatever idle turns came between, as long as the window still shows four commands of the script."""
    place = data.draw(st.integers(4, len(SCRIPT)))
    idle = data.draw(st.lists(st.sampled_from(sorted(IDLE)), max_size=2))
    window = list(SCRIPT[place - 4 : place])
    for command in idle:
        window.insert(data.draw(st.integers(0, len(window))), command)

    assert position(SCRIPT, place + len(idle) + 1, window) == place


@pytest.mark.parametrize(
    ("turn", "recent", "expected"),
    [
        (1, (), 0),
        (5, (), 4),
        (2, ("look",), 0),
        (3, ("look", "look"), 0),
        (3, ("look", "north"), 1),
        (4, ("north", "look", "North"), 2),
        (9, ("look",) * 6, None),
        (3, ("dance", "sing"), None),
        (7, ("north", "north", "open door", "north", "north", "dance"), None),
        (99, SCRIPT[-6:], None),
    ],
)
def test_where_play_stands(turn, recent, expected):
    assert position(SCRIPT, turn, recent) == expected


def test_a_script_ends_and_is_for_its_game_only():
    book = Playbook("^the lake$", (Step(command="swim", why="It is wet."),))
    first = Situation(game="The Lake", turn=1)

    assert book.step_for(first) == book.steps[0]
    assert book.step_for(Situation(game="The Lake", turn=2, recent=(Played("swim"),))) is None
    assert book.step_for(Situation(game="The Sea", turn=1)) is None
