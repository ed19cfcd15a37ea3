"""What a `ZMachineGame` learns, from a shell script that speaks as interpreter and story in one."""

from pathlib import Path

import pytest

from grue.errors import GameError
from grue.hosts.zork.games.zmachine import ZMachineGame


def game_that_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: str, opening: str = "Welcome."
) -> ZMachineGame:
    """Make a game whose interpreter answers by the arms of a shell `case`, and counts SCORE in a file."""
    program = tmp_path / "dfrotz"
    program.write_text(rf"""#!/bin/sh
printf '{opening}\n\n>'
while read -r line; do
    case "$line" in
    \\sf*) printf 'Speed Factor %s\n>' "${{line#???}}" ;;
    {answers}
    score) echo asked >> "{tmp_path}/asked"; printf 'What score?\n\n>' ;;
    *) printf 'Fine: %s.\n\n>' "$line" ;;
    esac
done
""")
    program.chmod(0o755)
    story = tmp_path / "story.z5"
    story.write_bytes(b"\x05" + bytes(200))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return ZMachineGame(story, interpreter="dfrotz")


def test_a_status_line_is_believed_and_score_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = r" Kitchen             Score: 5      Moves: 3\n"
    game = game_that_says(tmp_path, monkeypatch, "", opening=status + "Welcome.")
    seen = game.reset()
    game.step("look")
    game.close()
    assert (seen.text, seen.location, seen.score, seen.moves) == ("Welcome.", "Kitchen", 5, 3)
    assert seen.max_score is None
    assert not (tmp_path / "asked").exists()


def test_a_story_without_score_is_asked_once_and_nothing_is_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = game_that_says(tmp_path, monkeypatch, "")
    for command in ("look", "north"):
        game.reset()
        seen = game.step(command)
    game.close()
    assert (seen.location, seen.score, seen.max_score, seen.moves, seen.inventory) == (None,) * 5
    assert (tmp_path / "asked").read_text() == "asked\n" * 2  # once for each reset


def test_again_as_the_first_command_does_not_repeat_the_hosts_own_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = r"Your score is 0 (total of 10 points), in 0 moves.\n\n>"
    answers = rf"""score|again) printf '{told}' ;;
    "") printf 'I beg your pardon?\n\n>' ;;"""
    game = game_that_says(tmp_path, monkeypatch, answers)
    game.reset()
    seen = game.step("again")
    game.close()
    assert seen.text == "I beg your pardon?"


def test_a_full_score_at_the_end_is_a_win_and_a_death_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = r"Your score is 10 (total of 10 points), in 4 moves.\nRESTART, RESTORE or QUIT?\n\n>"
    answers = rf"""win) printf '{over}' ;;
    die) printf '*** You have died ***\n{over}' ;;"""
    game = game_that_says(tmp_path, monkeypatch, answers)
    game.reset()
    won = game.step("win")
    game.reset()
    died = game.step("die")
    game.close()
    assert (won.won, won.died, won.done, won.score, won.max_score, won.moves) == (
        True,
        False,
        True,
        10,
        10,
        4,
    )
    assert (died.won, died.died, died.done) == (False, True, True)


def test_a_failure_leaves_a_game_that_is_not_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    game = game_that_says(tmp_path, monkeypatch, "bang) exit 4 ;;")
    game.reset()
    with pytest.raises(GameError, match="exit status 4"):
        game.step("bang")
    with pytest.raises(GameError, match="not running"):
        game.step("look")
