"""The interpreter from pip: it gives the answers that dfrotz gives, and it is held to the same limits."""

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from commands import grue
from promises import within

from grue.cli.doctor import _interpreters
from grue.errors import GameError, MissingDependencyError
from grue.hosts.zork.games.game import Observation
from grue.hosts.zork.games.interpreters import (
    Choice,
    fernz,
    find_interpreter,
    prints_styled_words,
    styled_story,
)
from grue.hosts.zork.games.zmachine import ZMachineGame

pytest.importorskip("fernz", reason="story files without dfrotz need the extra: pip install 'grue[fernz]'")

STORIES = Path(__file__).resolve().parents[1] / "recorded" / "stories"

CELLAR = [
    *("look", "up", "up", "roll", "roll", "down", "down", "take lamp", "take lamp", "take bell", "", "score"),
    *(
        "press",
        "x",
        "press",
        "",
        "roll",
        "xyzzy",
        "look ?",
        "up",
        "roll",
        "h\u00e9llo",
        "up",
        "roll",
        "ring",
        "look",
    ),
]

OPENING = [
    *("n", "n", "up", "take egg", "down", "south", "east", "open window", "west", "west", "take lamp"),
    *(
        "open case",
        "put egg in case",
        "move rug",
        "open trap door",
        "turn on lamp",
        "down",
        "south",
    ),
    *("east", "take painting", "north", "up", "west", "put painting in case"),
]
ANYTHING = [
    *(
        "n",
        "s",
        "e",
        "w",
        "ne",
        "nw",
        "se",
        "sw",
        "u",
        "d",
        "in",
        "out",
        "look",
        "i",
        "take all",
        "drop all",
        "wait",
    ),
    *(
        "open trap door",
        "turn on lamp",
        "kill troll with sword",
        "kill thief with sword",
        "again",
        "diagnose",
    ),
    *(
        "examine lamp",
        "verbose",
        "brief",
        "pray",
        "jump",
        "echo",
        "put all in case",
        "take lamp",
        "take sword",
    ),
    *(
        "what is a grue?",
        "look?",
        "take leaflet, lamp and sword",
        "open sack then look",
        "oops",
        "restart",
        "n",
    ),
    *(
        "xyzzy",
        "say hello",
        "hello sailor",
        "give egg to thief",
        "climb tree",
        "move rug",
        "quit",
        "n",
        "score",
    ),
]


def both(story: Path, seed: int) -> Iterator[ZMachineGame]:
    for name in ("dfrotz", "fernz"):
        try:
            game = ZMachineGame(story, interpreter=name)
        except MissingDependencyError as absent:
            pytest.skip(str(absent))
        game.reset(seed)
        yield game


def assert_alike(story: Path, seed: int, commands: Sequence[str]) -> Observation:
    """Play the commands in both interpreters, and compare each observation."""
    one, other = both(story, seed)
    try:
        seen = one.step("look")
        assert other.step("look") == seen
        for number, command in enumerate(commands, start=1):
            seen = one.step(command)
            assert other.step(command) == seen, f"command {number} of seed {seed}: {command!r}"
    finally:
        one.close()
        other.close()
    return seen


@pytest.mark.parametrize("version", [3, 5, 8])
@pytest.mark.slow
def test_a_small_story_goes_alike_in_both(version: int) -> None:
    """Rooms, chance, single keys, questions, an end; and after the end nothing."""
    seen = assert_alike(STORIES / f"cellar.z{version}", 7, CELLAR)
    assert seen.done


@pytest.mark.slow
def test_the_opening_of_zork_goes_alike_in_both(zork1: Path) -> None:
    seen = assert_alike(zork1, 7, OPENING)
    assert (seen.score, seen.location) == (55, "Living Room")


@pytest.mark.slow
def test_a_long_game_of_zork_goes_alike_in_both(zork1: Path) -> None:
    """Fights, the thief and other chances included: the interpreters make the same random numbers."""
    assert_alike(zork1, 3, [*OPENING, *random.Random(3).choices(ANYTHING, k=120)])


@pytest.fixture
def cellar() -> Iterator[ZMachineGame]:
    game = ZMachineGame(STORIES / "cellar.z5", interpreter="fernz")
    game.reset(3)
    yield game
    game.close()


@pytest.mark.slow
def test_a_game_is_saved_and_restored_in_memory(cellar: ZMachineGame) -> None:
    assert cellar.step("restore").text == "Failed."
    cellar.step("up")
    assert cellar.step("save").text == "Ok."
    cellar.step("up")
    assert cellar.step("look").text.startswith("Tower")
    cellar.step("restore")
    assert cellar.step("look").text.startswith("Winding Stair")


@pytest.mark.slow
def test_a_story_that_never_stops_costs_the_deadline_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grue.hosts.zork.games.interpreters._ANSWER_WITHIN_S", 3.0)
    game = ZMachineGame(STORIES / "cellar.z5", interpreter="fernz")
    game.reset()
    with within(10), pytest.raises(GameError, match=r"interpreter fernz did not answer within 3 s"):
        game.step("loop")


@pytest.mark.slow
def test_a_damaged_story_is_an_error_with_what_fernz_says(tmp_path: Path) -> None:
    holed = tmp_path / "holed.z3"
    story = (STORIES / "cellar.z3").read_bytes()
    holed.write_bytes(story[:64] + bytes(len(story) - 64))
    game = ZMachineGame(holed, interpreter="fernz")
    with pytest.raises(
        GameError, match=r"(?s)interpreter fernz ended with exit status 1\. Its last output: \w+"
    ):
        game.reset()
    assert find_interpreter("fernz").command[1] == "-P", "a module in the working directory is not imported"


@pytest.mark.slow
def test_a_story_keeps_its_bold_and_underlined_words() -> None:
    """Room names, a title, a quotation and the status line."""
    game = ZMachineGame(STORIES / "styled.z5", interpreter="fernz")
    opening = game.reset()
    library = game.step("east")
    wall = game.step("read")
    game.close()
    assert (opening.location, opening.score, opening.moves) == ("Great Hall", 0, 0)
    assert library.text == "Old Library\nBooks everywhere. One is called Notes on Grues."
    assert (library.location, library.score, library.moves) == ("Old Library", 2, 1)
    assert [line.strip() for line in wall.text.splitlines()] == [
        "It is pitch black < >",
        "-- a grue",
        "",
        "You read the wall.",
    ]


@pytest.mark.slow
def test_the_story_that_tries_interpreters_plays_in_fernz(tmp_path: Path) -> None:
    path = tmp_path / "styles.z5"
    path.write_bytes(styled_story())
    game = ZMachineGame(path, interpreter="fernz")
    seen = game.reset()
    assert (seen.text, seen.done) == ("bold\nunderlined", True)


@pytest.mark.slow
def test_a_story_that_dfrotz_would_cut_goes_to_fernz_and_play_says_so(tmp_path: Path) -> None:
    if not dfrotz_loses_words():
        pytest.skip("no dfrotz that leaves bold and underlined words out: apt-get install frotz (2.54 does)")
    shutil.copy(STORIES / "styled.z5", tmp_path)
    played = grue("play", "--offline", "--turns", "1", "--no-mcp", "--game", "styled.z5", cwd=tmp_path)
    assert played.returncode == 0, played.stderr
    assert "does not print bold and underlined words" in played.stderr
    assert "fernz does, and is slower." in played.stderr
    found = grue("doctor", "--no-network", cwd=tmp_path)
    assert "dfrotz for story files of versions 1 to 3: " in found.stdout
    assert "fernz for story files from version 4 on:" in found.stdout


def test_the_doctor_names_the_only_versions_that_fernz_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grue.cli.doctor.choose_interpreter", lambda _: Choice(fernz()))
    (found,) = _interpreters()
    assert found.text.startswith("fernz for story files of versions 3, 4, 5, 8: ")


def dfrotz_loses_words() -> bool:
    try:
        return not prints_styled_words(find_interpreter("dfrotz").command[0])
    except MissingDependencyError:
        return False
