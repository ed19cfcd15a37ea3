"""The intervals of a comparison: they hold in simulated sweeps, and find what is there."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from case_tables import each_case

from grue.fleet import statistics
from grue.fleet.statistics import (
    Interval,
    mean_intervals,
    pass_all,
    pass_at,
    sign_test,
    smallest_detectable,
    times_more,
)


def mean_interval(values: Any, groups: Any = None) -> Interval:
    return mean_intervals([values], groups)[0]


@pytest.mark.slow
def test_the_sign_test_is_exact_and_quick_for_any_number_of_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.stats import binomtest  # takes half a second, which each worker would pay

    counts = [
        (0, 0),
        (0, 1),
        (3, 3),
        (5, 0),
        (6, 0),
        (2, 9),
        (40, 61),
        (900, 1000),
        (9_950, 10_050),
        (700, 0),
    ]
    expected = [
        binomtest(better, better + worse).pvalue if better + worse else 1.0 for better, worse in counts
    ]
    asked: list[int] = []
    ways = math.comb
    monkeypatch.setattr(math, "comb", lambda n, k: asked.append(n) or ways(n, k))
    assert [sign_test(*each) for each in counts] == pytest.approx(expected, rel=1e-9)
    assert len(asked) == len(counts), "each takes a millisecond where there are thousands of cases"


Sweep = Callable[[Any], tuple[Any, Any]]


def repeated(repetitions: int, cases: int, harder: float) -> Sweep:
    """Cases of different difficulty, each tried several times on both sides."""

    def sweep(chance: Any) -> tuple[Any, Any]:
        one = chance.beta(1.2, 1.2, cases)
        other = 1 / (1 + np.exp(-np.log(one / (1 - one)) - harder))
        return chance.binomial(repetitions, other) / repetitions - chance.binomial(
            repetitions, one
        ) / repetitions, None

    return sweep


def clustered(groups: int, most: int) -> Sweep:
    """Cases of which several belong to one document."""

    def sweep(chance: Any) -> tuple[Any, Any]:
        labels = np.repeat(np.arange(groups), chance.integers(1, most, groups))
        return chance.normal(0, 0.2, groups)[labels] + chance.normal(0.05, 0.3, len(labels)), labels

    return sweep


def tied(cases: int, gained: float, lost: float) -> Sweep:
    """Scores of 0 or 1, most of which are the same on both sides."""
    return lambda chance: (
        chance.choice([1.0, -1.0, 0.0], cases, p=[gained, lost, 1 - gained - lost]),
        None,
    )


SWEEPS: dict[str, tuple[Sweep, float]] = {
    "few": (lambda chance: (chance.normal(0.05, 0.3, 15), None), 0.05),
    "more": (lambda chance: (chance.normal(0.05, 0.3, 40), None), 0.05),
    "heavy tails": (lambda chance: (chance.standard_t(3, 15), None), 0.0),
    "heavier tails": (
        lambda chance: (chance.lognormal(0, 0.8, 40) - chance.lognormal(0, 0.8, 40), None),
        0.0,
    ),
    "skewed": (lambda chance: (chance.exponential(1, 20), None), 1.0),
    "ties": (tied(40, 0.15, 0.05), 0.1),
    "many ties": (tied(40, 0.1, 0.1), 0.0),
    "repetitions": (repeated(5, 30, 0.0), 0.0),
    "clusters": (clustered(20, 8), 0.05),
    "many clusters": (clustered(40, 12), 0.05),
}


def coverage(sweep: Sweep, truth: float, sweeps: int) -> float:
    held, chance = 0, np.random.default_rng(2026)
    for _ in range(sweeps):
        values, labels = sweep(chance)
        found = mean_interval(values, labels)
        held += found.low - 1e-9 <= truth <= found.high + 1e-9
    return held / sweeps


@each_case("name", SWEEPS)
@pytest.mark.slow
def test_the_interval_holds_in_200_simulated_sweeps(name: str) -> None:
    """With 200 sweeps, chance alone moves 95 % by up to 4 points."""
    assert 0.91 <= coverage(*SWEEPS[name], 200) <= 0.99, name


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEPS)
def test_the_interval_holds_in_93_to_97_of_100_sweeps(name: str) -> None:
    assert 0.93 <= coverage(*SWEEPS[name], 2000) <= 0.97


def found_shares(shift: float, sweeps: int = 200) -> tuple[float, float]:
    """Return how many sweeps of 150 cases find B better, and worse."""
    better = worse = 0
    for seed in range(sweeps):
        found = mean_interval(np.random.default_rng(seed).normal(shift, 0.2, 150))
        better += found.low > 0
        worse += found.high < 0
    return better / sweeps, worse / sweeps


@pytest.mark.slow
def test_a_planted_difference_of_five_points_is_found() -> None:
    """The smallest detectable difference of such a sweep is 0.046: four of five have to find 0.05."""
    better, worse = found_shares(0.05)
    assert better >= 0.8
    assert worse == 0


@pytest.mark.slow
def test_where_there_is_no_difference_about_one_sweep_of_twenty_finds_one() -> None:
    better, worse = found_shares(0.0)
    assert better + worse <= 0.09


@pytest.mark.slow
def test_the_smallest_detectable_difference_is_found_four_times_out_of_five() -> None:
    chance = np.random.default_rng(3)
    values = chance.normal(0, 1, 40)
    found = mean_interval((values - values.mean()) / values.std(ddof=1))
    least = smallest_detectable(found)
    told = sum(mean_interval(chance.normal(least, 1, 40)).low > 0 for _ in range(300)) / 300
    assert 0.7 <= told <= 0.9
    assert times_more(found, least) == pytest.approx(1.0)
    assert times_more(found, least / 2) == pytest.approx(4.0)
    assert times_more(found, 0.0) == math.inf


def test_the_same_values_give_the_same_interval_alone_or_with_others() -> None:
    values = np.random.default_rng(0).normal(0, 1, 20).tolist()
    both = mean_intervals([values, [1.0] * 20])
    assert both[0] == mean_interval(values) == mean_interval(values)
    assert both[1] == Interval(1.0, 1.0, 1.0, 0.0, 20)


@pytest.mark.slow
def test_the_interval_is_that_of_scipy_where_the_values_are_many() -> None:
    from scipy.stats import bootstrap

    values = np.random.default_rng(0).exponential(1, 400)
    ours = mean_interval(values)
    theirs = bootstrap((values,), np.mean, method="BCa", rng=1).confidence_interval
    assert ours.low == pytest.approx(theirs.low, abs=0.02)
    assert ours.high == pytest.approx(theirs.high, abs=0.02)


def test_a_group_of_equal_cases_counts_once() -> None:
    chance = np.random.default_rng(0).normal(0, 1, 20)
    alone = mean_interval(chance)
    repeated_cases = mean_interval(np.repeat(chance, 5), np.repeat(np.arange(20), 5).tolist())
    assert repeated_cases.low == pytest.approx(alone.low)
    assert repeated_cases.groups == 20
    pretended = mean_interval(np.repeat(chance, 5))
    assert pretended.high - pretended.low < 0.6 * (alone.high - alone.low)


def test_one_case_has_no_interval() -> None:
    with pytest.raises(ValueError, match="two cases"):
        mean_interval([1.0])


@each_case(
    "passed, played, tries, once, always", [(1, 5, 1, 0.2, 0.2), (1, 5, 5, 1.0, 0.0), (3, 5, 2, 0.9, 0.3)]
)
def test_pass_at_k_and_pass_all_k(passed: int, played: int, tries: int, once: float, always: float) -> None:
    assert pass_at(passed, played, tries) == pytest.approx(once)
    assert pass_all(passed, played, tries) == pytest.approx(always)


def test_what_is_missing_is_said_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from grue.errors import MissingDependencyError

    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'numpy>=1\.26' 'scipy>=1\.13'"):
        statistics.mean_intervals([[1.0, 2.0]])
