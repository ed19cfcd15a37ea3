"""Real story files in the real interpreter; skipped, saying why, where one of the two is absent."""

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from promises import within

from grue.errors import GameError, MissingDependencyError
from grue.hosts.zork.games.catalogue import open_game
from grue.hosts.zork.games.game import Observation
from grue.hosts.zork.games.interpreters import Choice, Interpreter, dfrotz
from grue.hosts.zork.games.zmachine import ZMachineGame

OPENING = [
    "n",
    "n",
    "up",
    "take egg",
    "down",
    "south",
    "east",
    "open window",
    "west",
    "west",
    "take lamp",
    "open case",
    "put egg in case",
    "move rug",
    "open trap door",
    "turn on lamp",
    "down",
    "south",
    "east",
    "take painting",
    "north",
    "up",
    "west",
    "put painting in case",
]
INTO_THE_DARK = ("n", "e", "open window", "w", "w", "move rug", "open trap door", "d")


@pytest.fixture(autouse=True)
def interpreter() -> Interpreter:
    try:
        return dfrotz()
    except MissingDependencyError as absent:
        pytest.skip(str(absent))


@pytest.fixture
def game(zork1: Path) -> Iterator[ZMachineGame]:
    game = ZMachineGame(zork1)
    game.reset(7)
    yield game
    game.close()


def play(game: ZMachineGame, *commands: str) -> Observation:
    seen = game.step("look")
    for command in commands:
        seen = game.step(command)
    return seen


def interpreters() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.name() == "dfrotz"]


def test_the_opening_says_where_one_is(game: ZMachineGame, zork1: Path) -> None:
    seen = game.reset(7)
    assert game.name == "zork1"
    assert game.fingerprint == hashlib.sha256(zork1.read_bytes()).hexdigest()
    assert seen.text.startswith("ZORK I")
    assert seen.text.endswith("There is a small mailbox here.")
    assert (seen.location, seen.score, seen.max_score, seen.moves) == ("West of House", 0, 350, 0)
    assert seen.inventory is None
    assert (seen.died, seen.won, seen.done) == (False, False, False)


@pytest.mark.parametrize("seed", [0, 1, 7, -1, 2**40])
def test_24_commands_score_55(game: ZMachineGame, seed: int) -> None:
    game.reset(seed)
    seen = [game.step(command) for command in OPENING]
    assert (seen[-1].score, seen[-1].moves, seen[-1].location) == (55, 24, "Living Room")
    assert [each.moves for each in seen] == list(range(1, 25))
    rooms = [each.location for each in seen]
    assert rooms[:4] == ["North of House", "Forest Path", "Up a Tree", "Up a Tree"]
    assert rooms[16:21] == ["Cellar", "East of Chasm", "Gallery", "Gallery", "Studio"]


def test_the_same_seed_and_commands_give_the_same_observations(game: ZMachineGame) -> None:
    runs = []
    for _ in range(2):
        game.reset(5)
        runs.append([game.step(command) for command in (*OPENING, "north", "kill troll with sword")])
    assert runs[0] == runs[1]


def test_death_is_seen_and_is_not_the_end(game: ZMachineGame) -> None:
    dark = play(game, *INTO_THE_DARK)
    assert dark.location is None
    assert "pitch black" in dark.text
    dead = dark
    for _ in range(20):
        dead = game.step("east")
        if dead.died:
            break
    assert dead.died
    assert not dead.done
    assert dead.location == "Forest"
    assert dead.score is not None
    assert not game.step("look").died


def test_questions_are_observations_and_never_hang(game: ZMachineGame) -> None:
    assert game.step("quit").text.endswith("Do you wish to leave the game? (Y is affirmative):")
    assert game.step("n").text == "Ok."
    game.step("north")
    assert "Do you wish to restart?" in game.step("restart").text
    assert game.step("y").location == "West of House"
    assert game.step("take").text == "What do you want to take?"
    assert "Taken" in game.step("mailbox").text or "anchored" in game.step("take mailbox").text
    assert "filename" in game.step("save").text
    assert game.step("here").text == "Ok."
    assert not game.step("look").done


def test_leaving_is_the_end(game: ZMachineGame) -> None:
    game.step("quit")
    over = game.step("y")
    assert over.done
    assert over.text
    assert not over.died
    assert not over.won
    after = game.step("look")
    assert after.done
    assert "ended" in after.text


def test_the_third_death_is_the_end(game: ZMachineGame) -> None:
    seen = [
        game.step(command) for command in ("s", "e", "e", "e", "jump", *("e", "s", "e", "e", "e", "jump") * 2)
    ]
    assert [each.died for each in seen].count(True) == 3
    assert [each.done for each in seen] == [False] * (len(seen) - 1) + [True]
    assert not seen[-1].won
    assert seen[-1].score is not None
    assert seen[-1].score < 0


def test_again_and_oops_mean_what_the_player_did_last(game: ZMachineGame) -> None:
    game.step("n")
    assert game.step("n").location == "Forest Path"
    assert game.step("g").location == "Clearing"
    game.step("blorp")
    assert game.step("oops look").text.startswith("Clearing")


def test_nothing_that_is_typed_reaches_the_interpreter_as_an_escape(game: ZMachineGame) -> None:
    for line in (
        "\\help",
        "say \\X",
        "\\s",
        "north\nnorth",
        "\x1b[2J",
        "\u00e9" * 500,
        "x" * 5000,
        "",
    ):
        seen = game.step(line)
        assert "DUMB-FROTZ" not in seen.text
        assert not seen.done
    assert game.step("look").text.startswith("South of House")  # one of the lines came down to "s"


def test_a_killed_interpreter_is_an_error_with_its_last_words(game: ZMachineGame) -> None:
    game.step("open mailbox")
    [child] = interpreters()
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(GameError, match=r"(?s)killed by SIGKILL\. Its last output: .*score"):
        game.step("read leaflet")
    with pytest.raises(GameError, match=r"not running; start it with reset"):
        game.step("look")
    assert game.reset(1).location == "West of House"


def test_a_stopped_interpreter_costs_the_deadline_and_no_more(
    zork1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Choice(replace(dfrotz(), answer_within_s=0.3))
    monkeypatch.setattr("grue.hosts.zork.games.zmachine.choose_interpreter", lambda *_: chosen)
    game = ZMachineGame(zork1)
    game.reset()
    [child] = interpreters()
    os.kill(child.pid, signal.SIGSTOP)
    with within(3), pytest.raises(GameError, match=r"did not answer within 0\.3 s"):
        game.step("look")
    assert interpreters() == []


def test_close_leaves_no_process_and_no_folder(
    zork1: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    game = ZMachineGame(zork1)
    game.close()
    game.reset(1)
    game.reset(2)
    assert len(interpreters()) == 1
    assert len(list(tmp_path.iterdir())) == 1
    game.close()
    game.close()
    assert interpreters() == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(GameError, match="not running"):
        game.step("look")


def test_a_damaged_story_is_an_error(zork1: Path, tmp_path: Path) -> None:
    story = zork1.read_bytes()
    short = tmp_path / "short.z3"
    short.write_bytes(story[:3000])
    with pytest.raises(GameError, match="cut short"):
        open_game(str(short))
    # The header is whole, so only the interpreter can find out.
    holed = tmp_path / "holed.z3"
    holed.write_bytes(story[:64] + bytes(len(story) - 64))
    game = open_game(str(holed))
    try:
        with pytest.raises(GameError, match=r"(?s)interpreter dfrotz .* Its last output: "):
            game.reset()
    finally:
        game.close()
    assert interpreters() == []
