"""Finding a work, and what may be a score."""

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

import grue.hosts
from grue.errors import FleetError
from grue.fleet.work import Episode, as_scores, find_work, name_of, work
from grue.hosts import BUNDLED


def plain(case: dict[str, object], episode: Episode) -> float:
    return 1.0


@work(version="7", files=("story",), scores=("wins",))
def declared(case: dict[str, object], episode: Episode) -> dict[str, float]:
    return {"wins": 1.0}


def test_a_function_is_found_by_its_name() -> None:
    found = find_work(f"{__name__}:declared")
    assert (found.version, found.files, found.scores) == ("7", ("story",), ("wins",))
    assert find_work(name_of(plain)).function is plain
    assert find_work("zork").name == "grue.fleet.zork_work:play"


def test_every_bundled_host_has_a_row_with_its_work_and_its_facts() -> None:
    folders = {each.parent for each in Path(grue.hosts.__file__).parent.glob("*/__init__.py")}
    assert {each.name for each in folders} - {"servers"} == set(BUNDLED)  # servers: what hosts start
    for folder in folders:
        host = BUNDLED.get(folder.name)
        if host is not None:
            assert not host.work or callable(find_work(folder.name).function)
            named = f"grue.hosts.{folder.name}.facts"
            assert host.facts == (named if (folder / "facts.py").exists() else "")


def test_a_function_of_a_script_is_found_by_its_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def play(case, episode):\n    return 5\n")
    assert find_work(f"{script}:play").function({}, Episode(id="x", folder=tmp_path)) == 5


def test_scripts_of_one_name_in_two_folders_are_told_apart(tmp_path: Path) -> None:
    for number in (1, 2):
        script = tmp_path / str(number) / "script.py"
        script.parent.mkdir()
        script.write_text(f"def play(case, episode):\n    return {number}\n")
        assert find_work(f"{script}:play").function({}, Episode(id="x", folder=tmp_path)) == number


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("chess", "names no function: write module:function, or one of zork"),
        (
            "no_such_module:play",
            "Cannot import the work 'no_such_module:play': No module named 'no_such_module'."
            f" Modules are looked for in the working directory, {Path.cwd()}.",
        ),
        ("grue.errors:play", "grue.errors has no function 'play'"),
        ("/no/such.py:play", "There is no file /no/such.py"),
    ],
)
def test_a_work_that_cannot_be_found_is_said(name: str, words: str) -> None:
    with pytest.raises(FleetError, match=words):
        find_work(name)


async def waits(case: dict[str, object], episode: Episode) -> float:
    return 1.0


def test_an_async_function_is_refused_before_anything_is_played() -> None:
    with pytest.raises(FleetError, match="waits is an async function: write `def`"):
        find_work(f"{__name__}:waits")


def test_a_function_within_a_function_cannot_be_a_work() -> None:
    with pytest.raises(FleetError, match="define the work at the top of a module"):
        name_of(lambda case, episode: 0.0)


class Tensor:
    """A tensor of two numbers, as PyTorch converts it."""

    def __float__(self) -> float:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")


def test_scores_are_finite_numbers_by_the_declared_names() -> None:
    assert as_scores(3, ()) == {"score": 3.0}
    assert as_scores({"wins": True}, ("wins",)) == {"wins": 1.0}
    assert as_scores(Fraction(1, 2), ()) == {"score": 0.5}, "and so is numpy's int64"
    assert as_scores(Decimal("0.5"), ()) == {"score": 0.5}, "and so is numpy's bool"
    for returned, names in (
        (None, ()),
        (float("nan"), ()),
        (10**400, ()),
        (Tensor(), ()),
        ({"a": "b"}, ()),
        ({"a": 1}, ("b",)),
    ):
        with pytest.raises(ValueError, match="the work returned"):
            as_scores(returned, names)
