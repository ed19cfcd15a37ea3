"""`Fleet`: what a program gives it is checked before anything is played or written."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_fleets import make_fleet

from grue.errors import FleetError, MCPError
from grue.fleet import Fleet, FleetBudget, FleetOptions, Rate, ServerCap
from grue.fleet.folder import FleetFolder, Manifest

WORK = "grue.fleet.zork_work:play"
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


class Share(float):
    """A number of another library, such as numpy's float64."""


@pytest.mark.parametrize(
    ("cases", "says"),
    [
        ([{"a": 1}, "b"], "Case 2: it is of type str, and not a dictionary of settings"),
        ([("a", 1)], "Case 1: it is of type tuple"),
        ({"a": 1}, "The cases are a list of dictionaries, and not of type dict"),
        (7, "The cases are a list of dictionaries, and not of type int"),
        ([{"a": {1, 2}}], "Case 1: its setting 'a' is a set, which has no order: write sorted"),
        ([{"a": [{"b": {1}}]}], "Case 1: its setting 'a' is a dictionary, and its setting 'b' is a set"),
        ([{1: "a"}], "Case 1: its setting 1 has a name that is not a text"),
        ([{"a": Path("b")}], "its setting 'a' is a path: write str"),
        ([{"a": dt.date(2026, 1, 1)}], "its setting 'a' is of type date: give a text, a number"),
        ([{"a": float("nan")}], "its setting 'a' is nan, which JSON does not have"),
        ([{"a": Share(0.5)}], r"Case 1: its setting 'a' is of type Share: write float\(...\)"),
        ([{"a": "\ud800"}], "Case 1: it cannot be written as JSON: .*surrogates not allowed"),
        ([{"a": ENDLESS}], "Case 1: it cannot be written as JSON: maximum recursion depth"),
        ([{"a": 1, "b": [2]}, {"c": 1}, {"b": [2], "a": 1}], "Case 3 is the same as case 1.* repetitions=2"),
    ],
)
def test_a_case_that_cannot_be_played_is_named(tmp_path: Path, cases: Any, says: str) -> None:
    with pytest.raises(FleetError, match=says):
        Fleet(tmp_path / "fleet").map(WORK, cases)
    assert not (tmp_path / "fleet").exists()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda place: Fleet(place, workers="2"), "workers is '2'"),
        (lambda place: Fleet(place, workers=-1), "workers is -1"),
        (lambda place: Fleet(3), r"Fleet\('runs/sums'\), not 3"),
        (lambda place: Fleet(place, engine="dask"), "no engine 'dask'"),
        (
            lambda place: Fleet(place, options=FleetOptions(ray="auto")),
            "named, but not used: say --engine ray",
        ),
        (
            lambda place: Fleet(place.with_name("n" * 300)).map(WORK, [{}]),
            "Cannot write .*: File name too long",
        ),
        (lambda place: Fleet(place, budget=5), r"budget= wants FleetBudget\(...\), not int"),
        (lambda place: Fleet(place, rate=5), r"rate= wants Rate\(...\), not int"),
        (lambda place: Fleet(place, options={}), r"options= wants FleetOptions\(...\), not dict"),
        (lambda place: FleetOptions(keep="some"), "keep is one of all, failed, results, not 'some'"),
        (lambda place: FleetOptions(episode_timeout_s=0), "episode_timeout_s is 0; it must be"),
        (lambda place: FleetBudget(requests="3"), "FleetBudget: requests: Expected"),
        (lambda place: Rate(concurrency="3"), "Rate: concurrency: Expected"),
        (lambda place: ServerCap(at_once="3"), "ServerCap: at_once: Expected"),
        (lambda place: Fleet(place).map(WORK, [{}], repetitions=0), "repetitions is 0"),
        (lambda place: Fleet(place).map(WORK, [{}], repetitions="2"), "repetitions is '2'"),
        (lambda place: Fleet(place).map(WORK, [{}], version=2), "version is 2: give a text"),
        (
            lambda place: Fleet(place).sweep("a.toml"),
            r"plays a Sweep, such as read_sweep\('sweep.toml'\), not",
        ),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(
    tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    with pytest.raises(MCPError, match=says):
        make(tmp_path / "fleet")
    assert not (tmp_path / "fleet").exists()


def test_a_folder_is_for_one_work(tmp_path: Path) -> None:
    FleetFolder(tmp_path).write_manifest(Manifest(work="sums:ask"))
    with pytest.raises(
        FleetError, match=r"of another work, sums:ask, and this one is grue\.fleet\.zork_work"
    ):
        Fleet(tmp_path).map(WORK, [{"offline": True}])


@pytest.mark.slow
def test_a_program_compares_two_cells_and_prints_what_was_found(tmp_path: Path) -> None:
    make_fleet(
        tmp_path, lambda chance, prompt, _: float(chance.random() < (0.9 if prompt == "long" else 0.3))
    )
    found = Fleet(tmp_path).compare({"prompt": "short"}, {"prompt": "long"}, margin=0.05)
    said = str(found).splitlines()
    assert said[:2] == [
        f"A: {tmp_path}:prompt=short: 150 episodes",
        f"B: {tmp_path}:prompt=long: 150 episodes",
    ]
    assert said[2:4] == ["prompt: short in A, long in B", "30 cases were played on both sides."]
    verdict = next(at for at, line in enumerate(said) if line.startswith(f"B is {found.verdict} by 0."))
    assert said[verdict + 1] == ""
    assert said[verdict + 2].endswith("equal.")
    cases = [line for line in said if " -> " in line]
    assert len(cases) == 5 + sum(each.difference < 0 for each in found.changes), "bounded"
    gained = sum(each.difference > 0 for each in found.changes)
    assert said[-1] == f"  ... and {gained - 5} more: see this comparison's `changes`."
    assert "grue fleet show" not in str(found)
    with pytest.raises(FleetError, match=r"no setting 'promt'\. Did you mean 'prompt'"):
        Fleet(tmp_path).compare({"promt": "short"}, {"prompt": "long"})
    with pytest.raises(FleetError, match="a= wants settings by name"):
        Fleet(tmp_path).compare("short", {"prompt": "long"})  # type: ignore[arg-type]  # the mistake
    with pytest.raises(FleetError, match=r"b= .*: its setting 'prompt' is a path: write str"):
        Fleet(tmp_path).compare({"prompt": "short"}, {"prompt": Path("long")})
    with pytest.raises(FleetError, match=r"a= .*: its setting 1 has a name that is not a text"):
        Fleet(tmp_path).compare({1: "short"}, {"prompt": "long"})  # type: ignore[dict-item]  # the mistake
