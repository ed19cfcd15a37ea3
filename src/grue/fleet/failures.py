"""Group the episodes of a fleet by what went wrong, most frequent first.

`failure_of` returns the first kind in `WORDS` that fits. Episodes of a kind are in one group if their texts
differ only in numbers, ids and quoted parts. The group's text shows the commonest of these (`'a'|'b'|…`).
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from grue.fleet.course import Course
from grue.fleet.results import Passing, Result, has_trace
from grue.runtime.safe_text import shortened
from grue.runtime.secrets.redaction import Redaction

WORDS = {
    "damaged": "its files cannot be read",
    "interrupted": "interrupted, or still running",
    "unpaid": "not paid for",
    "infrastructure": "the machine, the network or a server failed",
    "timed_out": "took too long",
    "model": "the model's endpoint failed",
    "work": "the work failed",
    "turn": "the last turn failed",
    "refused_call": "a tool call was refused",
    "failed_call": "a tool call failed",
    "scorer": "the scorer says why",
    "bad_score": "a bad score, and nothing else went wrong",
}

_REFUSED = frozenset({"ToolRejected", "ToolDenied", "ToolSkipped"})
_CALLED = frozenset({"ToolReturned", "ToolTimedOut", "ServerDied"})
_MOST_TEXT = 160
_MOST_VALUES = 3
_MOST_VALUE = 40
_VARIES = re.compile(
    r"'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"|`[^`\n]{0,200}`"  # text in quotes
    r"|\b[0-9a-f]{8,}\b|\b0x[0-9a-f]+\b"  # ids
    r"|\d+(?:[.,]\d+)*",  # numbers
    re.IGNORECASE,
)


class Failure(Struct, frozen=True):
    """The failure of an episode: its kind, and a text that describes it."""

    kind: str
    text: str = ""


class FailedEpisode(Struct, frozen=True, kw_only=True):
    """An episode of a `FailureGroup`, with the text of its failure."""

    id: str
    text: str
    # number of the trace message with the last problem, which need not be this failure; 0: none
    message: int = 0


class FailureGroup(Struct, frozen=True, kw_only=True):
    """Episodes with the same failure, in the results' order. Where texts differ, `text` has `'a'|'b'|…`."""

    kind: str
    text: str
    episodes: list[FailedEpisode]

    def examples(self, most: int) -> list[FailedEpisode]:
        """Return at most `most` episodes: first one for each different `text`, then others."""
        seen: Counter[str] = Counter()
        order = []
        for each in self.episodes:
            order.append((seen[each.text], each.id, each))
            seen[each.text] += 1
        return [each for *_, each in sorted(order, key=lambda row: row[:2])[:most]]


def failure_of(result: Result, score: str, passing: Passing) -> Failure | None:
    """Return the failure of an episode; `None`: the episode has passed, or it lacks this score."""
    end = result.end
    match result.outcome:
        case "interrupted":
            return Failure("interrupted")
        case "damaged" | "unpaid" | "infrastructure" as kind:
            return Failure(kind, result.error)
        case "failed" if end is not None:
            named = "model" if end.kind.startswith("LLMError") else "work"
            return Failure("timed_out" if end.kind == "timed_out" else named, end.error)
    value = result.scores.get(score)
    if value is None or passing.passes(value):
        return None
    course = result.course or Course()
    if course.outcome == "failed":
        return Failure("turn", course.error)
    if course.error_kind in _REFUSED:
        return Failure("refused_call", course.error)
    if course.error_kind in _CALLED:
        return Failure("failed_call", course.error)
    reason = next((mark.reason for mark in result.marks if score in (mark.scorer, mark.name)), "")
    return Failure("scorer", reason) if reason else Failure("bad_score")


def group_failures(found: Iterable[Result], score: str, passing: Passing) -> list[FailureGroup]:
    """Group the episodes for which `failure_of` returns a failure, the largest group first."""
    # Redact before texts are cut: half of a secret would not be recognised.
    redact = Redaction.of_environment().redact_text
    groups: dict[tuple[str, tuple[str, ...]], list[FailedEpisode]] = {}
    for result in found:
        failure = failure_of(result, score, passing)
        if failure is None:
            continue
        text = redact(failure.text)
        episode = FailedEpisode(id=result.id, text=text, message=(result.course or Course()).message)
        groups.setdefault((failure.kind, _fixed(text)), []).append(episode)
    made = (
        FailureGroup(kind=kind, text=_shared([each.text for each in episodes], fixed), episodes=episodes)
        for (kind, fixed), episodes in groups.items()
    )
    return sorted(made, key=lambda group: (-len(group.episodes), group.kind, group.text))


def _line(text: str) -> str:
    return " ".join(text[: 4 * _MOST_TEXT].split())


def _fixed(text: str) -> tuple[str, ...]:
    """Return the pieces between a text's numbers, ids and quoted parts: equal for all texts of a group."""
    pieces, room = [], _MOST_TEXT
    for piece in _VARIES.split(_line(text)):
        if room <= 0:
            break
        pieces.append(piece[:room])
        room -= len(piece) + 1
    return tuple(pieces)


def _shared(texts: Sequence[str], fixed: tuple[str, ...]) -> str:
    """Return one line for all `texts`: the pieces `fixed`, with the most frequent values between them."""
    if len(set(texts)) == 1:
        return shortened(_line(texts[0]), 2 * _MOST_TEXT)
    values = [Counter[str]() for _ in fixed[1:]]
    for text in texts:
        for counter, value in zip(values, _VARIES.findall(_line(text)), strict=False):
            counter[value] += 1
    said = [fixed[0]]
    for counter, piece in zip(values, fixed[1:], strict=True):
        shown = [shortened(value, _MOST_VALUE) for value, _ in counter.most_common(_MOST_VALUES)]
        said += ["|".join([*shown, "…"] if len(counter) > _MOST_VALUES else shown), piece]
    if "".join(fixed) != "".join(_VARIES.split(_line(texts[0]))):
        said.append("…")
    return shortened("".join(said), 2 * _MOST_TEXT)


def trace_command(result: Result, fleet: Path) -> list[str]:
    """Return grue's arguments to show the trace (near its last problem, if any), or else the result."""
    if not has_trace(result, fleet):
        return ["fleet", "show", str(fleet), result.id[:10]]
    message = (result.course or Course()).message
    near = ["--message", around(message)] if message else []
    return ["trace", "show", str(result.run(fleet)), *near]


def around(message: int) -> str:
    """Return a range of message numbers, such as `6-11`: from 4 before `message` (not below 1) to 1 after."""
    return f"{max(1, message - 4)}-{message + 1}"
