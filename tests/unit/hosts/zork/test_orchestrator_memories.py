"""What the host remembers of each place."""

from grue.hosts.zork.games.game import Observation
from grue.hosts.zork.orchestrator import MOST_PER_PLACE, Memories, Move


def test_points_deaths_and_ways_are_remembered_of_the_place_where_they_happened() -> None:
    memories = Memories()
    memories.learn(Move("take egg", "Taken.", "Nest", 5), Observation(text="", location="Nest"))
    memories.learn(Move("jump", "Ouch.", "Nest", 0), Observation(text="", location="Gate", died=True))
    memories.learn(Move("down", "Forest", "Nest", 0), Observation(text="", location="Forest"))
    assert memories.text("Forest") is None
    assert memories.text("Nest") == (
        "What you remember of this place:\n"
        "- 'take egg' brought 5 points\n- 'jump' killed you here\n- 'down' leads to Forest"
    )


def test_nothing_is_remembered_of_an_unknown_place_or_a_dull_move() -> None:
    memories = Memories()
    assert memories.learn(Move("wait", "Time passes.", None, 0), Observation(text="")) is None
    assert (
        memories.learn(Move("wait", "Time passes.", "Hall", 0), Observation(text="", location="Hall")) is None
    )
    assert memories.learn(Move("wait", "Time passes.", "Hall", None), Observation(text="")) is None


def test_a_memory_is_kept_once_and_the_oldest_goes_first() -> None:
    memories = Memories()
    for number in range(MOST_PER_PLACE + 2):
        seen = Observation(text="", location=f"Room {number}")
        assert memories.learn(Move(f"go {number}", "", "Hall", 0), seen) is not None
        assert memories.learn(Move(f"go {number}", "", "Hall", 0), seen) is None
    heading, *kept = (memories.text("Hall") or "").splitlines()
    assert heading == "What you remember of this place:"
    assert len(kept) == MOST_PER_PLACE
    assert kept[-1] == f"- 'go {MOST_PER_PLACE + 1}' leads to Room {MOST_PER_PLACE + 1}"
