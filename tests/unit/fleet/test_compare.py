"""Comparing two cells: what is paired, what counts, and what is said of it."""

import itertools
import math
import random
import re
import sys
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from made_fleets import add_episode, ended, make_fleet

from grue.errors import FleetError, MCPError, MissingDependencyError
from grue.fleet import Fleet
from grue.fleet.compare import Cell, Comparison, Options, cell_axes, compare, in_columns
from grue.fleet.folder import AttemptEnd, FleetFolder, Manifest
from grue.messages import JsonObject

FAILED = AttemptEnd(outcome="failed", kind="ValueError", error="ValueError: no")
LOST = AttemptEnd(outcome="infrastructure", kind="died", error="the worker died")


def by_prompt(place: Path, options: Options = Options()) -> Comparison:  # noqa: B008 - a frozen Struct
    a = Cell.of(f"{place}:prompt=short")
    return compare(a, Cell.of(":prompt=long", a), options)


def planted(difference: float, *, base: float = 0.5):  # type: ignore[no-untyped-def]
    """Return scores of 0 or 1, of which the long prompt passes so many more."""

    def score(chance: random.Random, prompt: str, question: int) -> float:
        return float(chance.random() < base + difference * (prompt == "long"))

    return score


@pytest.mark.slow
def test_a_planted_difference_is_found_with_its_cases(tmp_path: Path) -> None:
    make_fleet(tmp_path, planted(0.3))
    found = by_prompt(tmp_path)
    assert found.verdict == "better"
    assert found.compared == {"prompt": ("short", "long")}
    assert (found.cases, found.a.episodes, found.b.episodes) == (30, 150, 150)
    score = found.measures[0]
    assert score.difference.low < 0.3 < score.difference.high
    assert [each.name for each in found.measures] == [
        "score", "pass@5", "pass^5", "money_usd", "tokens", "requests", "seconds", "turns", "tool_calls",
    ]  # fmt: skip
    worst = found.changes[0]
    assert set(worst.case) == {"question"}
    assert len(worst.a_ids) == len(worst.b_ids) == 5
    assert found.is_worse(0.05) is False


@pytest.mark.slow
def test_what_cannot_be_told_says_what_could_be_and_what_it_takes(tmp_path: Path) -> None:
    make_fleet(tmp_path, planted(0.0), repetitions=1)
    found = by_prompt(tmp_path, Options(margin=0.05))
    assert found.verdict == "cannot be told"
    assert 0.2 < found.detectable < 0.6
    assert found.more_cases is not None and found.more_cases > 300  # noqa: PT018
    assert found.more_episodes == 2 * found.more_cases
    assert found.is_worse(0.05) is None


@pytest.mark.slow
def test_a_loss_is_worse_and_turns_round_where_less_is_better(tmp_path: Path) -> None:
    make_fleet(tmp_path, planted(-0.4, base=0.9))
    assert by_prompt(tmp_path).verdict == "worse"
    assert by_prompt(tmp_path).is_worse(0.05) is True
    turned = by_prompt(tmp_path, Options(lower_is_better=True))
    assert turned.verdict == "better"
    assert turned.is_worse(0.05) is False
    counts = re.compile(r"(\d+) cases? lost, (\d+) gained")
    ((lost, gained),) = counts.findall(str(by_prompt(tmp_path)))
    assert lost != gained
    assert counts.findall(str(turned)) == [(gained, lost)]


@pytest.mark.slow
def test_where_less_is_better_a_failed_episode_has_no_score_of_its_own(tmp_path: Path) -> None:
    """0, the score of other failed episodes, would be the best one."""
    make_fleet(tmp_path, lambda _, prompt, question: FAILED if prompt == "long" and question < 10 else 0.5)
    with pytest.raises(FleetError, match=r"50 episodes have failed\. .* say with --failed-as"):
        by_prompt(tmp_path, Options(lower_is_better=True))
    found = by_prompt(tmp_path, Options(lower_is_better=True, failed_as=1.0, passing=0.5))
    assert found.verdict == "worse"
    (one_of_five,) = (each for each in found.measures if each.name == "pass@5")
    assert (one_of_five.a, one_of_five.b) == (1.0, pytest.approx(2 / 3))


@pytest.mark.slow
def test_two_fleets_are_paired_by_what_the_sweep_planned(tmp_path: Path) -> None:
    """The work's own settings (`model`, `project`) differ too, and name no case."""
    make_fleet(tmp_path / "a", planted(0), prompts=["short"], repetitions=2, seed=1)
    make_fleet(tmp_path / "b", planted(0.4), prompts=["long"], repetitions=3, seed=2)
    found = compare(Cell.of(str(tmp_path / "a")), Cell.of(str(tmp_path / "b")), Options())
    assert (found.cases, found.a.episodes, found.b.episodes) == (30, 60, 90)
    assert found.verdict == "better"
    assert found.measures[1].name == "pass@2"


@pytest.mark.slow
def test_a_failed_episode_is_a_zero_and_a_missing_one_is_shown(tmp_path: Path) -> None:
    def score(chance: random.Random, prompt: str, question: int) -> float | AttemptEnd:
        if prompt == "long" and question < 10:
            return FAILED
        return LOST if prompt == "short" and chance.random() < 0.1 else 1.0

    make_fleet(tmp_path, score)
    found = by_prompt(tmp_path)
    assert found.measures[0].difference.mean == pytest.approx(-1 / 3)
    assert found.b.failed == 50
    assert found.a.missing["infrastructure"] == 150 - found.a.episodes > 0
    calls = found.measures[-1]  # an episode that failed before it began a trace has made none
    assert (calls.name, calls.a, calls.b) == ("tool_calls", 1.0, pytest.approx(2 / 3))
    kind = by_prompt(tmp_path, Options(failed_as=1.0)).measures[0].difference
    assert kind.mean == 0


@pytest.mark.slow
def test_cases_that_are_all_equal_are_not_called_equal(tmp_path: Path) -> None:
    """Of 30 cases none differs: up to a tenth of all cases might."""
    make_fleet(tmp_path, planted(0, base=2.0))
    found = by_prompt(tmp_path)
    assert found.verdict == "cannot be told"
    for measure in found.measures[:3]:
        assert measure.difference.high == pytest.approx(0.1), "and so for pass@5 and pass^5"
    assert found.is_worse(0.05) is None
    assert found.is_worse(0.2) is False


@pytest.mark.slow
def test_scores_that_are_always_5_are_not_called_equal(tmp_path: Path) -> None:
    make_fleet(tmp_path, lambda *_: 5.0)
    found = by_prompt(tmp_path, Options(margin=0.05))
    assert (found.measures[0].difference.low, found.measures[0].difference.high) == (-0.5, 0.5)
    assert found.is_worse(0.05) is None
    assert "Four times as many cases find a quarter of that." in str(by_prompt(tmp_path))


@pytest.mark.parametrize("long", [[0.3, 0.2, 0.1], [0.0, 0.2, 0.4]])
@pytest.mark.slow
def test_equal_means_are_no_difference_although_their_sums_are_rounded(
    tmp_path: Path, long: list[float]
) -> None:
    scores = {"short": itertools.cycle([0.1, 0.2, 0.3]), "long": itertools.cycle(long)}
    make_fleet(tmp_path, lambda _, prompt, question: next(scores[prompt]), repetitions=3)
    found = by_prompt(tmp_path)
    assert (found.verdict, found.measures[0].difference.mean) == ("cannot be told", 0.0)
    assert "No case has another mean score" in str(found)


@pytest.mark.slow
def test_a_difference_that_all_cases_have_is_not_that_of_all_further_cases(tmp_path: Path) -> None:
    """If B passes in 95 % of all cases, it passes in all of 20 cases in a third of the sweeps."""
    make_fleet(tmp_path, lambda _, prompt, question: float(prompt == "long"), questions=20)
    found = by_prompt(tmp_path)
    difference = found.measures[0].difference
    assert (found.verdict, difference.mean) == ("better", 1.0)
    assert (difference.low, difference.high) == pytest.approx((1 - 2 * 3 / 20, 1.0))


@pytest.mark.parametrize("questions", [5, 30])
@pytest.mark.slow
def test_scores_are_compared_however_large_they_are(tmp_path: Path, questions: int) -> None:
    most = sys.float_info.max
    make_fleet(
        tmp_path,
        lambda _, prompt, question: most if prompt == "long" else -float(question),
        questions=questions,
    )
    found = by_prompt(tmp_path)
    assert (found.verdict, found.measures[0].b) == ("better" if questions > 5 else "cannot be told", most)


@pytest.mark.slow
def test_of_fewer_than_15_cases_the_sign_test_decides_however_often_they_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)  # it is not needed
    make_fleet(tmp_path, planted(0.5), questions=14, repetitions=20)
    found = by_prompt(tmp_path)
    assert (found.verdict, found.better, found.worse) == ("better", 14, 0)
    assert found.chance == pytest.approx(2 / 2**14)
    assert math.isnan(found.measures[0].difference.low)
    said = str(found)
    assert "An interval needs 15 cases." in said
    assert "nan" not in said
    assert "interval" not in said.split("An interval")[0]
    assert found.is_worse(0.1) is None
    assert by_prompt(tmp_path, Options(lower_is_better=True)).verdict == "worse"
    asked = by_prompt(tmp_path, Options(margin=0.1))
    assert "An interval needs 15 cases." in asked.why, "too few is said first, and that needs no scipy"


@pytest.mark.slow
def test_five_better_cases_of_five_may_be_chance_and_six_are_seldom(tmp_path: Path) -> None:
    for questions, verdict in ((5, "cannot be told"), (6, "better")):
        make_fleet(tmp_path / verdict, lambda chance, prompt, _: float(prompt == "long"), questions=questions)
        assert by_prompt(tmp_path / verdict).verdict == verdict


@pytest.mark.slow
def test_without_numpy_and_scipy_the_sign_test_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fleet(tmp_path, planted(0.5))
    monkeypatch.setitem(sys.modules, "numpy", None)
    found = by_prompt(tmp_path)
    assert (found.verdict, found.better) == ("better", 28)
    assert "\nIntervals need numpy and scipy: pip install 'numpy>=1.26' 'scipy>=1.13'\n" in str(found)
    with pytest.raises(MissingDependencyError, match="pip install"):
        by_prompt(tmp_path, Options(margin=0.1))


def again(fleet: FleetFolder, *, url: str, right: float = 1.0, **more: object) -> list[str]:
    """Play 16 questions with two prompts at an endpoint; return the ids."""
    ids = []
    for number in range(32):
        prompt, question = ("short", "long")[number % 2], f"Question {number // 2}"
        id_ = f"{zlib.crc32(url.encode()):08x}{number:016x}"
        planned = {"prompt": prompt, "question": question, "base_url": url, **more}
        add_episode(fleet.episode(id_), planned, 0, ended(right if prompt == "long" else 0.0))
        ids.append(id_)
    return ids


@pytest.mark.slow
def test_cases_that_differ_only_in_the_endpoints_address_are_one_case(tmp_path: Path) -> None:
    """A scripted server that was started again has another port."""
    fleet = make_fleet(tmp_path, planted(0), questions=0)
    again(fleet, url="http://127.0.0.1:1/v1")
    again(fleet, url="http://127.0.0.1:2/v1")
    found = by_prompt(tmp_path)
    assert (found.cases, found.a.episodes, found.b.episodes) == (16, 32, 32)
    assert set(found.changes[0].case) == {"question"}
    a = Cell.of(f"{tmp_path}:base_url=http://127.0.0.1:1/v1")
    other = compare(a, Cell.of(":base_url=http://127.0.0.1:2/v1", a), Options())
    assert (other.cases, list(other.compared)) == (32, ["base_url"])


@pytest.mark.slow
def test_episodes_that_the_latest_sweep_has_not_are_left_out_and_counted(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, planted(0), questions=0)
    again(fleet, url="http://a", model="old", right=0.0)
    ids = again(fleet, url="http://b", model="new")
    fleet.write_latest(ids)
    found = by_prompt(tmp_path)
    assert (found.cases, found.a.missing, found.b.missing) == (16, {"earlier": 16}, {"earlier": 16})
    assert "16 episodes, 16 not in the latest sweep and left out" in str(found)
    assert Fleet(tmp_path).compare({"prompt": "short"}, {"prompt": "long"}).a.missing == {"earlier": 16}
    old = Cell.of(f"{tmp_path}:model=old")
    asked_for = compare(old, Cell.of(":model=new", old), Options())
    assert (asked_for.cases, asked_for.a.missing) == (32, {}), "what is asked for by name counts"
    fleet.write_latest(None)
    assert by_prompt(tmp_path).cases == 32


def test_a_version_of_the_work_before_the_latest_is_left_out_and_counted(tmp_path: Path) -> None:
    """The score was computed wrong, and `Fleet.map` was called again with `version="2"`."""
    fleet = make_fleet(tmp_path, planted(0), questions=2, repetitions=1)
    for number, prompt in enumerate(("short", "long")):
        case = {"prompt": prompt, "question": "Question 0"}
        add_episode(fleet.episode(f"{number:024x}"), case, 0, ended(5.0), version="2")
    fleet.write_manifest(Manifest(work="m:ask", version="2"))
    found = by_prompt(tmp_path)
    assert (found.cases, found.measures[0].a, found.a.missing) == (1, 5.0, {"earlier": 2})


def test_an_episode_that_was_played_again_because_a_file_has_changed_is_left_out(tmp_path: Path) -> None:
    """The content of a file that a case names is in the episode's id, and not in its settings."""
    fleet = make_fleet(tmp_path, planted(0), questions=0)
    for number, (prompt, score) in enumerate((("short", 2.0), ("long", 1.0), ("long", 5.0), ("long", 3.0))):
        folder = fleet.episode(f"{number:024x}")
        add_episode(folder, {"prompt": prompt, "question": "Question 0"}, 0, ended(score))
    fleet.write_named([f"{number:024x}" for number in (0, 1, 3, 2)])
    found = by_prompt(tmp_path)
    assert (found.a.episodes, found.b.episodes, found.b.missing) == (1, 1, {"earlier": 2})
    assert found.measures[0].b == 5.0


@pytest.mark.slow
def test_groups_of_cases_widen_the_interval_and_are_counted(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, planted(0), questions=0)
    chance = random.Random(1)
    goods = [chance.random() for _ in range(20)]
    for document, good in enumerate(goods):
        for question in range(6):
            for number, prompt in enumerate(("short", "long")):
                settings = {"prompt": prompt, "document": document, "question": question}
                folder = fleet.episode(f"{document:08x}{question:08x}{number:08x}")
                add_episode(folder, settings, 0, ended(good if prompt == "long" else 0.5))
    plain, grouped = by_prompt(tmp_path), by_prompt(tmp_path, Options(cluster=("document",)))
    assert (plain.groups, grouped.groups) == (120, 20)
    better = sum(good > 0.5 for good in goods)
    assert (plain.better, plain.worse) == (6 * better, 6 * (20 - better))
    assert (grouped.better, grouped.worse) == (better, 20 - better)
    one, other = plain.measures[0].difference, grouped.measures[0].difference
    assert other.high - other.low > 1.5 * (one.high - one.low)
    with pytest.raises(FleetError, match="no setting 'page'; they have document, question"):
        by_prompt(tmp_path, Options(cluster=("page",)))


def test_columns_are_aligned_in_any_script() -> None:
    assert list(in_columns([["日本", "1"], ["ab", "2"]])) == ["日本  1", "ab    2"]


@pytest.mark.slow
def test_what_cannot_be_compared_is_said_with_what_there_is(tmp_path: Path) -> None:
    make_fleet(tmp_path / "a", planted(0))
    with pytest.raises(FleetError, match=r"no fleet in .*nowhere"):
        Cell.of(str(tmp_path / "nowhere"))
    a = Cell.of(f"{tmp_path / 'a'}:prompt=short")
    with pytest.raises(FleetError, match=r"The values of prompt are 'short', 'long'"):
        compare(a, Cell.of(":prompt=lnog", a), Options())
    with pytest.raises(FleetError, match=r"no setting 'promt'\. Did you mean 'prompt'\? They have prompt, q"):
        compare(a, Cell.of(":promt=null", a), Options())
    with pytest.raises(FleetError, match=r"the score 'style'\. The scores are score\."):
        compare(a, Cell.of(":prompt=long", a), Options(score="style"))
    make_fleet(tmp_path / "b", planted(0), prompts=["long", "longer"])
    other = Cell.of(f"{tmp_path / 'b'}:question=Question 1")
    with pytest.raises(FleetError, match=r"no case in common|Only"):
        compare(a, other, Options())


@pytest.mark.slow
def test_a_value_may_hold_commas_and_equals_signs(tmp_path: Path) -> None:
    make_fleet(tmp_path, planted(0.0), prompts=["Be short, please", "x=1, y"])
    a = Cell.of(f"{tmp_path}:prompt=Be short, please")
    assert compare(a, Cell.of(":prompt=x=1, y", a), Options()).cases == 30


def test_a_value_may_hold_what_looks_like_a_further_setting(tmp_path: Path) -> None:
    make_fleet(tmp_path, planted(0.0), prompts=["a,b=c", '"Hi",x=1'], questions=2, repetitions=1)
    a = Cell.of(f'{tmp_path}:prompt="a,b=c",question=Question 1')
    assert compare(a, Cell.of(r':prompt="\"Hi\",x=1"', a), Options()).cases == 1
    assert Cell.of(a.label) == a == Cell(tmp_path, {"prompt": "a,b=c", "question": "Question 1"})
    with pytest.raises(FleetError, match=r'The values of prompt are "\\"Hi\\",x=1", "a,b=c"\.'):
        compare(Cell.of(f'{tmp_path}:prompt="b,c=a"'), a, Options())


def test_a_text_is_another_value_than_what_its_words_mean(tmp_path: Path) -> None:
    FleetFolder(tmp_path).write_manifest(Manifest())
    for number, (think, n) in enumerate(product([True, "true"], [1, 2])):
        add_episode(
            FleetFolder(tmp_path).episode(f"{number:024x}"), {"prompt": "p", "think": think, "n": n}, 0, 1.0
        )
    a = Cell.of(f"{tmp_path}:think=true")
    found = compare(a, Cell.of(':think="true"', a), Options())
    assert (found.compared, found.cases) == ({"think": (True, "true")}, 2)
    assert found.a.episodes == found.b.episodes == 2
    assert str(Fleet(tmp_path).compare({"think": True}, {"think": "true"})) == str(found)
    # A text that no other value resembles needs no quotes.
    make_fleet(tmp_path / "b", planted(0.0), prompts=["1", "2"], questions=2, repetitions=1)
    one = Cell.of(f"{tmp_path / 'b'}:prompt=1")
    assert compare(one, Cell.of(":prompt=2", one), Options()).cases == 2


def test_episodes_with_a_setting_and_without_it_are_in_two_cells() -> None:
    settings = [{"question": number % 2, **({"hint": "h"} if number > 1 else {})} for number in range(4)]
    assert cell_axes(settings, 24) == ["question", "hint"]


def test_a_setting_may_have_a_name_in_any_script(tmp_path: Path) -> None:
    FleetFolder(tmp_path).write_manifest(Manifest())
    assert Cell.of(f"{tmp_path}:\u00e4rger=1,\u00f6l=2") == Cell(
        tmp_path, {"\u00e4rger": "1", "\u00f6l": "2"}
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"failed_as": math.nan}, "failed_as is nan"),
        ({"passing": "1"}, "passing: Expected"),
        ({"cluster": "document"}, "cluster= wants a list or a tuple, not str"),
        ({"margin": 0}, "margin is 0"),
    ],
)
def test_a_way_to_compare_that_cannot_be_used_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(MCPError, match=says):
        Options(**wrong)


def test_the_cells_are_all_settings_that_differ_or_those_that_leave_enough_cases_in_each() -> None:
    def cases(**axes: int) -> list[JsonObject]:
        names, counts = list(axes), axes.values()
        return [dict(zip(names, each, strict=True)) for each in product(*map(range, counts))]

    assert cell_axes(cases(model=3, prompt=4), 12) == ["model", "prompt"], "one case, repeated, in each"
    assert cell_axes(cases(prompt=2, a=6, b=5), 12) == ["prompt"], "6 cases a cell compare nothing"
    assert cell_axes(cases(question=60, prompt=2, model=2), 12) == ["prompt", "model"]
    assert cell_axes(cases(question=60), 12) == []
    assert cell_axes(cases(seed=60, mcp=2), 12) == ["mcp"]
    assert cell_axes(cases(base_url=2, system=3, question=60), 12, ["system"]) == ["base_url", "system"]
    assert cell_axes(cases(base_url=2, system=3, question=10), 12, ["system"]) == ["system"]
