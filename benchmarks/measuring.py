"""Samples of a measurement, medians (figures) and limits (bars), and how they are printed and stored."""

import gc
import math
import statistics
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

WIDTH = 80


class Figure(NamedTuple):
    """A median and its spread: a quarter of the samples lie below `low`, a quarter above `high`."""

    label: str
    unit: str
    median: float
    low: float
    high: float
    samples: int


class Bar(NamedTuple):
    """A limit: a measured `value` must be at most, or at least, `limit`."""

    label: str
    value: float
    limit: float
    unit: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the value keeps the limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def measured(self) -> str:
        """The value with its unit. A ratio has three decimals, to show on which side of the limit it is."""
        return f"{self.value:.3f} x" if self.unit == "x" else f"{_number(self.value)} {self.unit}".rstrip()

    @property
    def bound(self) -> str:
        """The limit in words."""
        return f"{'at least' if self.at_least else 'at most'} {self.limit:g} {self.unit}".rstrip()


class Section(NamedTuple):
    """The results of one part of the benchmarks.

    Attributes:
        name: The name by which `--only` selects the section.
        title: A line of text.
        measured: A text that says what is measured, and what is not.
        facts: Further numbers with their units, by label.
    """

    name: str
    title: str
    measured: str
    figures: Sequence[Figure]
    bars: Sequence[Bar] = ()
    facts: Mapping[str, str] = {}


class Effort(NamedTuple):
    """How often measurements are repeated at most, and how large they are. `QUICK` is for `--quick`.

    Attributes:
        ends_at: When the section's time is over, as a value of `time.monotonic`.
    """

    turns: int = 100
    cold_starts: int = 13
    starts: int = 25
    rounds: int = 25
    asks: int = 1000
    iterations: tuple[int, int, int] = (50, 100, 200)
    agents: int = 100
    in_a_row: int = 10_000
    talk: tuple[int, int] = (50, 500)
    calls: int = 300
    rate_s: float = 60.0
    fleet: tuple[int, int] = (60, 6)
    fleet_rounds: int = 3
    fleet_many: tuple[int, int] = (100, 10_000)
    reply_ms: float = 300.0
    boots_s: tuple[float, ...] = (0.3, 0.6, 1.2)
    slow_boot_s: float = 0.6
    boot_rounds: int = 4
    boot_turns: int = 4
    one_shots: int = 12
    batch: int = 40
    traced_turns: int = 9_300
    ends_at: float = math.inf

    def within(self, times: int, *, least: int = 2) -> Iterator[int]:
        """Yield the numbers of `times` rounds, or of fewer, if the section's time does not suffice.

        The first `least` rounds run in any case. A further round runs if it will end in time, provided that
        it takes as long as the last one.
        """
        begun = time.monotonic()
        for number in range(times):
            last, begun = begun, time.monotonic()
            if number >= least and begun + (begun - last) > self.ends_at:
                return
            yield number

    def part(self, share: float) -> Self:
        """Return the effort for a part of the section: the part may take this share of the remaining time."""
        now = time.monotonic()
        return self._replace(ends_at=now + share * (self.ends_at - now))


QUICK = Effort(
    turns=2,
    cold_starts=1,
    starts=2,
    rounds=2,
    asks=20,
    iterations=(2, 4, 8),
    agents=4,
    in_a_row=20,
    talk=(10, 20),
    calls=24,
    rate_s=3.0,
    fleet=(4, 1),
    fleet_rounds=1,
    fleet_many=(10, 20),
    reply_ms=20.0,
    boots_s=(0.05,),
    slow_boot_s=0.1,
    boot_rounds=1,
    boot_turns=1,
    one_shots=1,
    batch=2,
    traced_turns=20,
)

ENOUGH = 10
"""The least number of samples of each side for which `steady` returns `True`."""

STEADY = 0.005
"""If the error of a median is at most this fraction of the median, no more samples are needed."""


def figure(label: str, unit: str, samples: Sequence[float]) -> Figure:
    """Return the median and the quartiles of the samples."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    low, high = ordered[round(last * 0.25)], ordered[round(last * 0.75)]
    return Figure(label, unit, statistics.median(ordered), low, high, len(ordered))


def ratio(samples: Sequence[float], of: Sequence[float]) -> float:
    """Return the median of the pairs' ratios. Other load on the machine hardly changes it."""
    return statistics.median(one / other for one, other in zip(samples, of, strict=True))


def interleave(rounds: Iterable[int], sides: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Sample every side once in each round, until all are steady. Each round starts with the next side."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for number in rounds:
        for name in rotated([*sides], number):
            samples[name].append(sides[name]())
        if steady(samples):
            break
    return samples


def rotated(names: Sequence[str], by: int) -> list[str]:
    """Return the names in the same order, rotated to the left by `by` places."""
    shift = by % len(names)
    return [*names[shift:], *names[:shift]]


def steady(samples: Mapping[str, Sequence[float]]) -> bool:
    """Return whether the median of each side is known well enough, judged by the interquartile range.

    For normally distributed samples, the error of the median is 0.93 times this range, divided by the root of
    the number of samples.
    """
    for values in samples.values():
        seen = figure("", "", values)
        if seen.samples < ENOUGH or 0.93 * (seen.high - seen.low) > STEADY * seen.median * seen.samples**0.5:
            return False
    return True


def seconds_each(work: Callable[[], object], times: int) -> float:
    """Return the mean time of one of `times` calls of `work`, in seconds, after a garbage collection."""
    gc.collect()
    begun = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begun) / times


def printed(section: Section) -> str:
    """Return a section as text of at most 80 columns."""
    lines = [section.title, *textwrap.wrap(section.measured, WIDTH - 2, initial_indent="  ")]
    lines[2:] = [f"  {line.strip()}" for line in lines[2:]]
    for item in section.figures:
        spread = f"{_number(item.low)} .. {_number(item.high)}"
        measured = f"{_number(item.median):>9} {item.unit:<6}{spread:>17}"
        # A long label has a line of its own.
        room = WIDTH - 5 - len(measured)
        label = item.label
        if len(label) >= room:
            lines.append(f"    {label}")
            label = ""
        lines.append(f"    {label:<{room}}{measured}")
    lines += [f"    {label:<41} {value:>9}" for label, value in section.facts.items()]
    lines += [f"  {bar_line(bar)}" for bar in section.bars]
    return "\n".join(lines)


def bar_line(bar: Bar) -> str:
    """Return the verdict, the label, the value and the limit in one line, or in more if the label is long."""
    verdict = "met" if bar.met else "MISSED"
    # A long label uses the space in front of the value; a still longer one has lines of its own.
    room = max(51 - len(bar.label), len(bar.measured) + 1)
    line = f"{verdict:<7}{bar.label}{bar.measured:>{room}}  {bar.bound}"
    if len(line) <= WIDTH - 2:
        return line
    first, *others = textwrap.wrap(bar.label, WIDTH - 9)
    return "\n".join(
        [f"{verdict:<7}{first}", *(f"{'':9}{text}" for text in (*others, f"{bar.measured}, {bar.bound}"))]
    )


def stored(section: Section) -> dict[str, object]:
    """Return a section as JSON values."""
    return {
        "name": section.name,
        "title": section.title,
        "figures": [item._asdict() for item in section.figures],
        "bars": [{**bar._asdict(), "met": bar.met} for bar in section.bars],
        "facts": dict(section.facts),
    }


def _number(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
