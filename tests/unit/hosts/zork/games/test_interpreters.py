"""Which interpreter plays a story, and what is said about it."""

import importlib.util
from pathlib import Path

import pytest

from grue.errors import GameError
from grue.hosts.zork.games.interpreters import choose_interpreter, fernz

LOSES = "printf '\\n'"
PRINTS = "printf 'bold\\nunderlined\\n'"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder that is the whole PATH; fernz counts as installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("grue.hosts.zork.games.interpreters.DEBIAN_GAMES", str(tmp_path))
    monkeypatch.setattr(
        "grue.hosts.zork.games.interpreters.find_spec", lambda _: importlib.util.find_spec("json")
    )
    return tmp_path


def install_dfrotz(folder: Path, script: str) -> str:
    program = folder / "dfrotz"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_story_without_styles_is_played_by_the_first(installed: Path, version: int) -> None:
    dfrotz = install_dfrotz(installed, LOSES)
    chosen = choose_interpreter(version)
    assert (chosen.interpreter.command, chosen.reason) == ((dfrotz,), "")


@pytest.mark.parametrize("version", [4, 5, 8])
def test_a_story_whose_words_would_be_lost_is_played_by_the_other(installed: Path, version: int) -> None:
    dfrotz = install_dfrotz(installed, LOSES)
    chosen = choose_interpreter(version)
    assert chosen.interpreter == fernz()
    assert chosen.reason.startswith(f"{dfrotz} does not print bold and underlined words")
    assert chosen.reason.endswith("fernz does, and is slower.")


def test_a_dfrotz_that_prints_all_words_is_used(installed: Path) -> None:
    install_dfrotz(installed, PRINTS)
    chosen = choose_interpreter(5)
    assert (chosen.interpreter.name, chosen.reason) == ("dfrotz", "")


def test_without_fernz_what_is_lost_is_named_with_the_remedy(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_dfrotz(installed, LOSES)
    monkeypatch.setattr("grue.hosts.zork.games.interpreters.find_spec", lambda _: None)
    chosen = choose_interpreter(5)
    assert chosen.interpreter.name == "dfrotz"
    assert chosen.reason.endswith("fernz does: pip install 'fernz>=0.0.4,<0.1'")


def test_a_version_that_fernz_does_not_play_stays_with_dfrotz(installed: Path) -> None:
    install_dfrotz(installed, LOSES)
    chosen = choose_interpreter(6)
    assert chosen.interpreter.name == "dfrotz"
    assert chosen.reason.endswith("fernz plays only versions 3, 4, 5, 8.")


def test_a_named_interpreter_is_used_and_what_it_loses_is_said(installed: Path) -> None:
    install_dfrotz(installed, LOSES)
    named = choose_interpreter(5, "dfrotz")
    assert named.interpreter.name == "dfrotz"
    assert named.reason.endswith("room names are in most stories from version 4 on.")
    assert choose_interpreter(5, "fernz").reason == ""


@pytest.mark.parametrize(("version", "name"), [(1, None), (6, None), (7, "fernz")])
def test_an_interpreter_that_does_not_play_the_version_is_not_started(
    installed: Path, version: int, name: str | None
) -> None:
    del installed
    text = f"of version {version}, and fernz plays only versions 3, 4, 5, 8. dfrotz plays every version"
    with pytest.raises(GameError, match=text):
        choose_interpreter(version, name)


def test_without_dfrotz_there_is_nothing_to_explain(installed: Path) -> None:
    chosen = choose_interpreter(5)
    assert (chosen.interpreter, chosen.reason) == (fernz(), "")
