"""The reader of results: the index is never the truth."""

import json
import shutil
from pathlib import Path

import pytest
from made_fleets import ended, make_fleet

from grue.errors import FleetError, TraceError
from grue.fleet import Fleet
from grue.fleet.folder import AttemptEnd, EpisodeFolder
from grue.fleet.results import INDEX, Result, note_result, results
from grue.tracing.marks import Mark, read_marks, write_mark


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    make_fleet(tmp_path, lambda chance, prompt, question: 0.5, questions=3, repetitions=1)
    return tmp_path


def read(fleet: Path) -> list[Result]:
    return list(results(fleet))


def folder_of(fleet: Path, result: Result) -> EpisodeFolder:
    return EpisodeFolder(result.folder(fleet))


def test_a_program_reads_the_results_of_a_fleet_by_its_folder(fleet: Path) -> None:
    """Also while another one plays, and with the scores that were given afterwards."""
    first = read(fleet)[0]
    mark = Mark(scorer="brief", version="1", score=0.5, attempt=1)
    write_mark(folder_of(fleet, first).path, mark)
    found = Fleet(str(fleet)).results()
    assert [each.id for each in found] == [each.id for each in read(fleet)]
    assert found[0].scores == {"score": 0.5, "brief": 0.5, "brief@1": 0.5}
    assert found[0].run(str(fleet)).is_dir()
    with pytest.raises(FleetError, match="There is no fleet in"):
        Fleet(fleet / "mistyped").results()


def test_the_index_gives_what_the_files_give(fleet: Path) -> None:
    first = read(fleet)
    assert (fleet / INDEX).stat().st_mode & 0o777 == 0o600
    lines = (fleet / INDEX).read_bytes()
    assert read(fleet) == first
    assert (fleet / INDEX).read_bytes() == lines
    (fleet / INDEX).unlink()
    assert read(fleet) == first
    assert len(first) == 6
    assert first[0].planned.keys() == {"prompt", "question"}
    assert first[0].settings.keys() == {"prompt", "question", "model", "project"}


@pytest.mark.parametrize("damage", [b"{", b"\xff\xfe\n", b'{"stamp":[1,2,3]}\n', b"\n\n", b"[" * 5000])
def test_what_is_wrong_in_the_index_is_read_from_the_files(fleet: Path, damage: bytes) -> None:
    first = read(fleet)
    index = fleet / INDEX
    index.write_bytes(damage + index.read_bytes()[:-30] + damage)
    assert read(fleet) == first
    assert read(fleet) == first


def test_a_line_of_the_index_without_a_version_is_read_from_the_files_once(fleet: Path) -> None:
    """Such lines were written before results had a version, by which comparisons leave episodes out."""
    first = read(fleet)
    index = fleet / INDEX
    index.write_bytes(index.read_bytes().replace(b'"version":"1","settings"', b'"settings"'))
    assert read(fleet) == first
    lines = index.read_bytes()
    assert read(fleet) == first
    assert index.read_bytes() == lines


def test_a_commit_that_was_changed_or_removed_counts_as_it_is_now(fleet: Path) -> None:
    first, second, *_ = read(fleet)
    (folder_of(fleet, first).path / "commit.json").unlink()
    folder = folder_of(fleet, second)
    folder.set_aside_commit()
    folder.make_commit(folder.path / "attempt-1", ended(0.75), version="2")
    now = {each.id: each for each in read(fleet)}
    assert now[first.id].outcome == "interrupted"
    assert now[second.id].scores == {"score": 0.75}


def test_an_episode_that_is_gone_is_gone(fleet: Path) -> None:
    first, *others = read(fleet)
    shutil.rmtree(first.folder(fleet))
    assert read(fleet) == others


def test_a_mark_is_seen_at_once_and_one_of_another_attempt_is_not(fleet: Path) -> None:
    first, *_ = read(fleet)
    folder = first.folder(fleet)
    write_mark(folder, Mark(scorer="style", version="9", score=0.25, attempt=1))
    write_mark(folder, Mark(scorer="style", version="10", score=1.0, reason="better"))
    write_mark(folder, Mark(scorer="score", score=0.1, attempt=1))
    write_mark(folder, Mark(scorer="old", score=0.1, attempt=2))
    (folder / "scores" / "style@11.json").write_text("{")
    (folder / "scores" / "other@1.json").write_text(json.dumps({"scorer": "style", "score": 5}))
    assert read(fleet)[0].scores == {
        "style@9": 0.25, "style@10": 1.0, "style": 1.0, "score@1": 0.1, "score": 0.5,
    }  # fmt: skip


def test_a_mark_that_would_not_be_read_is_not_written(tmp_path: Path) -> None:
    for number in range(100):
        write_mark(tmp_path, Mark(scorer="style", version=str(number), score=0.5))
    with pytest.raises(TraceError, match="has 100 marks, and no more are read"):
        write_mark(tmp_path, Mark(scorer="tone", score=0.5))
    write_mark(tmp_path, Mark(scorer="style", version="99", score=1.0))
    assert sum(mark.score for mark in read_marks(tmp_path)) == 50.5


def test_the_driver_notes_a_commit_without_reading_the_others(fleet: Path) -> None:
    first, *_ = read(fleet)
    (fleet / INDEX).unlink()
    note_result(fleet, first.folder(fleet))
    assert (fleet / INDEX).read_text().count('"id"') == 1
    note_result(fleet, fleet / "ab" / "none")


def test_the_index_does_not_grow_by_an_episode_whose_line_is_too_long(tmp_path: Path) -> None:
    make_fleet(tmp_path, lambda *_: 0.5, prompts=("x" * 2**20,), questions=1, repetitions=1)
    assert [len(read(tmp_path)), len(read(tmp_path))] == [1, 1]
    assert not (tmp_path / INDEX).exists()


def test_a_version_with_a_digit_that_is_no_number_damages_nothing(fleet: Path) -> None:
    first, *_ = read(fleet)
    place = first.folder(fleet) / "scores"
    place.mkdir()
    (place / "a@\u00b2.json").write_bytes(
        json.dumps({"scorer": "a", "version": "\u00b2", "score": 1}).encode()
    )
    assert read(fleet)[0].scores == {"score": 0.5, "a": 1.0, "a@\u00b2": 1.0}


def test_a_folder_that_cannot_be_written_can_be_read(fleet: Path) -> None:
    (fleet / INDEX).mkdir()
    assert len(read(fleet)) == 6


@pytest.mark.parametrize("outcome", ["infrastructure", "unpaid"])
def test_what_was_not_played_to_its_end_is_told_apart(tmp_path: Path, outcome: str) -> None:
    end = AttemptEnd(outcome=outcome, kind="died", error="why")  # type: ignore[arg-type]
    make_fleet(tmp_path, lambda *_: end, questions=1, repetitions=1)
    assert {(each.outcome, each.error, each.attempt) for each in read(tmp_path)} == {(outcome, "why", 1)}
