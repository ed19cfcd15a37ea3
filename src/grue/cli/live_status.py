"""The status rows below the story: the text that is arriving, and a status line. Pure.

```
    "thinking":"The cat is on the trapdoor, so the sardines
  ⠹ thinking 3 s · turn 13/60 · 15/100 points · 14.2k tokens · $0.031
```

In a narrow terminal, the least important parts of the status line are left out first.
"""

import math
import os
from typing import TypeAlias

from grue import messages as m
from grue.cli.live_progress import Doing, Progress
from grue.cli.live_story import CYAN
from grue.runtime.safe_text import ELLIPSIS
from grue.tracing.columns import cells, cut
from grue.tracing.message_words import DIM, YELLOW

Row: TypeAlias = tuple[tuple[str, str], ...]
"""Pieces of text, each with its ANSI attributes."""

_TICKS_PER_S = 10
_FEWEST_LINES = 6
"""With fewer lines, only the status line is shown."""
_FEWEST_COLUMNS = 16
"""With fewer columns, nothing is shown."""
_NEAR_S = 600
"""The time that is left of a turn is shown from here on."""
_URGENT_S = 10
_INDENT = "  "
_BETWEEN = " · "


def status_rows(progress: Progress, now: float, size: os.terminal_size, spinner: str) -> tuple[Row, ...]:
    """Return at most two rows; none if there is nothing to show or no room.

    Args:
        progress: The state of the episode.
        now: Seconds, by the same clock as the times in `progress`.
        size: Of the terminal; its last column stays free, because a terminal may wrap there.
        spinner: Its frames.
    """
    width = size.columns - 1
    doing = [*progress.doing.values()]
    status = _status(progress, now, width, spinner)
    if not status or size.columns < _FEWEST_COLUMNS:
        return ()
    if not doing or not doing[-1].text or size.lines < _FEWEST_LINES:
        return (status,)
    indent = _INDENT * 2
    text = doing[-1].text
    shown = _tail if doing[-1].activity == "thinking" else cut
    return (((indent, ""), (shown(text, width - len(indent)), DIM)), status)


def _status(progress: Progress, now: float, width: int, spinner: str) -> Row:
    parts = _parts(progress, now)
    if not parts:
        return ()
    mark = spinner[int(now * _TICKS_PER_S) % len(spinner)] if progress.doing else " "
    head = f"{_INDENT}{mark} "
    room = width - cells(head)
    while len(parts) > 1 and cells(_BETWEEN.join(text for _, text, _ in parts)) > room:
        parts.remove(max(parts))
    pieces = [(cut(parts[0][1], room), parts[0][2])]
    for _, text, style in parts[1:]:
        pieces += [(_BETWEEN, DIM), (text, style)]
    return ((head, CYAN), *pieces)


def _parts(progress: Progress, now: float) -> list[tuple[int, str, str]]:
    """Return the rank, text and style of each part, in display order."""
    parts = []
    doing = [*progress.doing.values()]
    if doing:
        waits = doing[-1].activity == "retrying" and now < doing[-1].since
        parts.append((0, _activity(doing, now), YELLOW if waits else ""))
    if progress.deadline is not None:
        left_s = max(0, math.ceil(progress.deadline - now))
        if left_s <= _NEAR_S:
            parts.append((1, f"{_span(left_s)} left", YELLOW if left_s <= _URGENT_S else DIM))
    if progress.turn:
        last = f"/{progress.max_turns}" if progress.max_turns else ""
        parts.append((2, f"turn {progress.turn}{last}", DIM))
    if progress.score is not None:
        most = f"/{progress.max_score}" if progress.max_score is not None else ""
        parts.append((3, f"{progress.score}{most} points", DIM))
    tokens = progress.usage.input_tokens + progress.usage.output_tokens
    if tokens:
        parts.append((5, f"{_count(tokens)} tokens", DIM))
    if progress.dropped:
        parts.append((6, f"{progress.dropped} dropped", YELLOW))
    if progress.usage.cost_usd is not None:
        parts.append((4, _cost(progress.usage), DIM))
    return parts


def _activity(doing: list[Doing], now: float) -> str:
    """Describe the latest activity, together with others of its kind that are running."""
    last = doing[-1]
    alike = [one for one in doing if one.activity == last.activity]
    lasts_s = now - alike[0].since
    if last.activity == "retrying" and lasts_s < 0:
        return f"asking again in {_span(math.ceil(-lasts_s))}"
    verb = {"calling": "", "retrying": "thinking", "checking": "asking about the model"}
    words = [verb.get(last.activity, last.activity), ", ".join(one.name for one in alike)]
    text = " ".join(word for word in words if word)
    if last.attempt > 1:
        text += f", attempt {last.attempt}"
    if lasts_s < 1:
        return text
    limit = f" of {_span(int(last.limit_s))}" if last.limit_s is not None and last.limit_s >= 1 else ""
    return f"{text} {_span(int(lasts_s))}{limit}"


def _span(seconds: int) -> str:
    return f"{seconds} s" if seconds < 100 else f"{seconds // 60}:{seconds % 60:02} min"


def _count(tokens: int) -> str:
    if tokens < 1000:
        return str(tokens)
    return f"{tokens / 1000:.1f}k" if tokens < 999_950 else f"{tokens / 1_000_000:.1f}M"


def _cost(usage: m.Usage) -> str:
    cost = usage.cost_usd or 0.0
    return f"${cost:.2f}" if cost >= 1 else f"${cost:.4f}"


def _tail(text: str, width: int) -> str:
    """Return the end of printable `text` that fits into `width` columns; an ellipsis marks a cut."""
    text = text.lstrip()
    if cells(text) <= width:
        return text
    while cells(text) > width - 1:
        # A character takes two columns at most.
        text = text[max(1, (cells(text) - width) // 2) :]
    return ELLIPSIS + text
