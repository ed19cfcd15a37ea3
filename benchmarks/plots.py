"""Line plots as SVG: a few curves, linear or logarithmic axes, one picture for light and dark pages.

The colours differ enough on white and on black, also for colour-blind people. Each curve has its name at its
end, so nobody has to match colours with a legend.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 40, 48
COLOURS = ("#2f7ed8", "#d9761a", "#2a9d6f", "#b05cc6")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#444}.title{font-size:14px;font-weight:600}"
    ".grid{stroke:#888;stroke-opacity:.25}.curve{fill:none;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}}"
)
CLOSEST = 14
"""Pixels between the names of two curves at least."""


class Axis(NamedTuple):
    """An axis of a plot. A linear axis starts at zero."""

    label: str
    log: bool = False


class Scale(NamedTuple):
    """Maps values to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        """Return the position of a value in pixels."""
        low, high, at = (math.log10(part) if self.log else part for part in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return the values of the tick marks: about five round values, or each power of ten."""
        if self.log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1)]
        step = _round_up(self.high / 5)
        return [step * number for number in range(int(self.high / step + 1e-9) + 1)]


def line_plot(
    title: str, x_axis: Axis, y_axis: Axis, xs: Sequence[float], curves: Mapping[str, Sequence[float]]
) -> str:
    """Return an SVG document.

    Args:
        title: The text above the plot.
        x_axis: The axis below the plot.
        y_axis: The axis on the left.
        xs: The x values, in ascending order; positive if the axis is logarithmic.
        curves: A y value for each of `xs`, by the curve's name. At most as many curves as `COLOURS`.
    """
    across = _scale(xs, LEFT, WIDTH - RIGHT, x_axis.log)
    up = _scale([y for ys in curves.values() for y in ys], HEIGHT - BOTTOM, TOP, y_axis.log)
    names = _spread({name: up.at(ys[-1]) for name, ys in curves.items()})
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="20">{escape(title)}</text>',
        *_grid(across, up),
        f'<text x="{middle:.0f}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_axis.label)}</text>',
        f'<text x="{LEFT}" y="{TOP - 6}" text-anchor="end">{escape(y_axis.label)}</text>',
    ]
    for colour, (name, ys) in zip(COLOURS, curves.items(), strict=False):
        points = [(across.at(x), up.at(y)) for x, y in zip(xs, ys, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="curve" stroke="{colour}" points="{path}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
        label = f'<text x="{WIDTH - RIGHT + 8}" y="{names[name] + 4:.1f}" style="fill:{colour}">'
        parts.append(f"{label}{escape(name)}</text>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def number(value: float) -> str:
    """Return a value as text, with `k` for thousands and `M` for millions."""
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def _grid(across: Scale, up: Scale) -> list[str]:
    lines = []
    for y in up.ticks():
        at = up.at(y)
        lines.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{number(y)}</text>')
    for x in across.ticks():
        at = across.at(x)
        lines.append(f'<path class="grid" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        lines.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{number(x)}</text>')
    return lines


def _scale(values: Sequence[float], start: float, end: float, log: bool) -> Scale:
    if log:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return Scale(10.0**low, 10.0 ** max(high, low + 1), start, end, log=True)
    step = _round_up(max(values) / 5)
    return Scale(0, step * math.ceil(max(values) / step), start, end, log=False)


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= value * (1 - 1e-9))


def _spread(heights: Mapping[str, float]) -> dict[str, float]:
    """Move the heights of the curves' names apart, so that no two names overlap."""
    spread: dict[str, float] = {}
    lowest = -math.inf
    for name, height in sorted(heights.items(), key=lambda item: item[1]):
        lowest = spread[name] = max(height, lowest + CLOSEST)
    return spread
