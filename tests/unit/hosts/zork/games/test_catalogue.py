from pathlib import Path

import pytest

from grue.errors import GameError, MissingDependencyError
from grue.hosts.zork.games.catalogue import open_game
from grue.hosts.zork.games.house import HouseGame
from grue.hosts.zork.games.interpreters import dfrotz, fernz, find_interpreter


def test_the_house_by_name() -> None:
    game = open_game("house")
    assert isinstance(game, HouseGame)
    assert game.name == "The House"


@pytest.mark.parametrize("name", ["", "zork", "game.txt", "house.py"])
def test_an_unknown_game_names_both_possibilities(name: str) -> None:
    with pytest.raises(GameError, match=r'"house", or give the path of a story file \(\.z1 to \.z8, \.dat\)'):
        open_game(name)


def test_an_archive_is_not_a_story() -> None:
    with pytest.raises(GameError, match="Blorb archive; extract"):
        open_game("lost.ZBLORB")


@pytest.mark.parametrize("name", ["absent.z3", "absent.Z8", "absent.dat"])
def test_an_absent_story_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(GameError, match=name):
        open_game(str(tmp_path / name))


def test_without_the_interpreter_one_sentence_has_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("grue.hosts.zork.games.interpreters.DEBIAN_GAMES", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=r"apt-get install frotz .*brew install frotz"):
        dfrotz()


def test_the_interpreter_is_found_off_the_path_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "dfrotz"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("grue.hosts.zork.games.interpreters.DEBIAN_GAMES", str(tmp_path))
    assert dfrotz().command == (str(program),)


def test_without_any_interpreter_both_commands_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("grue.hosts.zork.games.interpreters.DEBIAN_GAMES", str(tmp_path))
    monkeypatch.setattr("grue.hosts.zork.games.interpreters.find_spec", lambda _: None)
    with pytest.raises(
        MissingDependencyError, match=r"apt-get install frotz .*pip install 'fernz>=0\.0\.4,<0\.1'"
    ):
        find_interpreter()
    with pytest.raises(MissingDependencyError, match="fernz is not installed"):
        find_interpreter("fernz")


def test_dfrotz_comes_first_and_fernz_stands_in_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("grue.hosts.zork.games.interpreters.find_spec", lambda _: object())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("grue.hosts.zork.games.interpreters.DEBIAN_GAMES", str(tmp_path))
    assert find_interpreter() == fernz()
    program = tmp_path / "dfrotz"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_interpreter().command == (str(program),)
    assert find_interpreter("fernz") == fernz()


def test_an_unknown_interpreter_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(GameError, match="no interpreter 'jzip'; there are dfrotz and fernz"):
        find_interpreter("jzip")
