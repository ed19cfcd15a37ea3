"""What the agent is shown of a turn."""

from grue.hosts.zork.games.game import Observation
from grue.hosts.zork.orchestrator import RECENT, Move, context_text, stuck_warning


def move(
    command: str, reply: str = "Nothing happens.", location: str = "Hall", gained: int | None = 0
) -> Move:
    return Move(command, reply, location, gained)


def test_everything_known_is_shown() -> None:
    seen = Observation(
        text="A hall.\n", location="Hall", score=5, max_score=100, inventory=("lamp", "key"), moves=3
    )
    text = context_text("House", 4, seen, [move("take key", "Taken.", gained=5)], ["Find the safe"])
    assert text.splitlines() == [
        "Game: House",
        "Turn: 4",
        "Location: Hall",
        "Inventory: lamp, key",
        "Score: 5 of 100",
        "",
        "Objectives:",
        "- Find the safe",
        "",
        "Recent actions and results:",
        "> take key (+5 points): Taken.",
        "",
        "The game says:",
        "A hall.",
    ]


def test_unknown_values_are_left_out_rather_than_guessed() -> None:
    text = context_text("Zork", 1, Observation(text="West of House"), [], [])
    assert text == "Game: Zork\nTurn: 1\n\nThe game says:\nWest of House"


def test_an_empty_inventory_is_not_an_unknown_one() -> None:
    text = context_text("Zork", 1, Observation(text="x", inventory=()), [], [])
    assert "Inventory: nothing" in text


def test_only_the_recent_moves_are_shown_each_on_one_short_line() -> None:
    moves = [move(f"go {number}", "long\n" * 200) for number in range(RECENT + 3)]
    text = context_text("Zork", 9, Observation(text="x"), moves, [])
    shown = [line for line in text.splitlines() if line.startswith("> ")]
    assert len(shown) == RECENT
    assert shown[0].startswith("> go 3: long long")
    assert all(len(line) < 200 for line in shown)


def test_the_same_command_three_times_running_is_stuck() -> None:
    assert "three times" in stuck_warning([move("push wall")] * 3)
    assert stuck_warning([move("push wall")] * 2) == ""


def test_many_moves_in_one_place_without_anything_new_are_stuck() -> None:
    moves = [move(f"push {number}") for number in range(RECENT)]
    assert "getting nowhere" in stuck_warning(moves)
    assert stuck_warning(moves[1:]) == ""


def test_points_new_places_or_new_replies_are_progress() -> None:
    dull = [move(f"push {number}") for number in range(RECENT - 1)]
    assert stuck_warning([*dull, move("take egg", gained=5)]) == ""
    assert stuck_warning([*dull, move("north", location="Attic")]) == ""
    fresh = [move(f"read {number}", f"page {number}") for number in range(RECENT)]
    assert stuck_warning(fresh) == ""


def test_a_warning_reaches_the_agent() -> None:
    text = context_text("Zork", 9, Observation(text="x"), [move("push wall")] * 3, [])
    assert "You have tried 'push wall' three times running." in text
