"""Whether an interpreter prints bold and underlined words, tried with scripts that stand for it."""

from pathlib import Path

import pytest

from grue.hosts.zork.games.interpreters import prints_styled_words, styled_story
from grue.hosts.zork.games.zmachine import open_story


def program(folder: Path, script: str) -> Path:
    path = folder / "dfrotz"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("script", "prints"),
    [
        ("printf 'bold\\nunderlined\\n'", True),
        ("printf '\\n\\n'", False),
        ("printf 'bold\\n\\n'", False),
        ("echo cannot open it >&2; exit 1", False),
    ],
)
def test_what_the_program_prints_decides(tmp_path: Path, script: str, prints: bool) -> None:
    assert prints_styled_words(str(program(tmp_path, script))) is prints


def test_a_program_that_cannot_be_started_prints_nothing(tmp_path: Path) -> None:
    assert not prints_styled_words(str(tmp_path / "absent"))
    unusable = tmp_path / "dfrotz"
    unusable.write_text("")
    assert not prints_styled_words(str(unusable))


def test_the_story_that_it_plays_is_a_story(tmp_path: Path) -> None:
    path = tmp_path / "styles.z5"
    path.write_bytes(styled_story())
    assert open_story(path).version == 5
