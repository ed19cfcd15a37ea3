"""Grouping episodes by what went wrong."""

from pathlib import Path

import pytest
from made_fleets import ended, make_fleet
from msgspec.structs import replace

from grue.fleet.course import Course
from grue.fleet.failures import failure_of, group_failures, trace_command
from grue.fleet.folder import AttemptEnd
from grue.fleet.results import Passing, Result, results
from grue.tracing.marks import Mark


def low(**course: object) -> AttemptEnd:
    return ended(0.0, course=Course(**course))  # type: ignore[arg-type]


def failed(kind: str, error: str) -> AttemptEnd:
    return AttemptEnd(outcome="failed", kind=kind, error=error)


SECRET = "k3y-that-nobody-may-see"
REASON = Mark(scorer="style", score=0.0, reason="too long")


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        ("damaged", Result(id="a", outcome="damaged", trouble="x")),
        ("interrupted", Result(id="a", outcome="interrupted")),
        ("unpaid", Result(id="a", outcome="unpaid")),
        ("infrastructure", Result(id="a", outcome="infrastructure")),
        ("timed_out", Result(id="a", outcome="failed", end=failed("timed_out", "it took long"))),
        ("model", Result(id="a", outcome="failed", end=failed("LLMError: refused", "no"))),
        ("work", Result(id="a", outcome="failed", end=failed("ValueError", "no"))),
        ("turn", Result(id="a", outcome="scored", end=low(outcome="failed", error_kind="ToolDenied"))),
        ("refused_call", Result(id="a", outcome="scored", end=low(error_kind="ToolDenied"))),
        ("failed_call", Result(id="a", outcome="scored", end=low(error_kind="ServerDied"))),
        ("scorer", Result(id="a", outcome="scored", end=ended(1.0), marks=(REASON,))),
        ("bad_score", Result(id="a", outcome="scored", end=low())),
        (None, Result(id="a", outcome="scored", end=ended(1.0))),
    ],
)
def test_each_kind_is_told_by_its_row(kind: str | None, result: Result) -> None:
    failure = failure_of(result, "style" if result.marks else "score", Passing())
    assert (failure and failure.kind) == kind


def test_a_good_score_is_no_failure_whatever_went_wrong_on_the_way() -> None:
    end = replace(ended(1.0), course=Course(error_kind="ToolReturned", error="no such file", failed_calls=3))
    assert failure_of(Result(id="a", outcome="scored", end=end), "score", Passing()) is None


def test_where_lower_is_better_a_large_score_is_a_failure_and_0_is_none() -> None:
    lower = Passing(0.2, lower_is_better=True)
    kinds = {
        score: (failure := failure_of(Result(id="a", outcome="scored", end=ended(score)), "score", lower))
        and failure.kind
        for score in (0.0, 0.2, 0.3)
    }
    assert kinds == {0.0: None, 0.2: None, 0.3: "bad_score"}


@pytest.mark.parametrize(
    ("scores", "worst", "higher", "lower"),
    [([0.0, 1.0], None, 1.0, 0.0), ([3.0], None, None, None), ([], None, None, None), ([3.0], 2.0, 2.0, 2.0)],
)
def test_the_worst_score_that_passes_is_the_best_of_scores_from_0_to_1(
    scores: list[float], worst: float | None, higher: float | None, lower: float | None
) -> None:
    assert Passing.of(scores, worst, lower_is_better=False).worst == higher
    assert Passing.of(scores, worst, lower_is_better=True).worst == lower


def test_episodes_that_say_the_same_apart_from_numbers_are_one_group(tmp_path: Path) -> None:
    texts = iter([f"KeyError: no 'room{n}' in deadbeef{n:02}, line {n}" for n in range(5)] + ["Timeout"])
    make_fleet(tmp_path, lambda *_: failed("KeyError", next(texts)), questions=3, repetitions=1)
    groups = group_failures(results(tmp_path), "score", Passing())
    first, other = groups
    assert (len(first.episodes), other.text, len(other.episodes)) == (5, "Timeout", 1)
    assert first.text.startswith("KeyError: no 'room"), "the values are not hidden"
    assert first.text.count("'room") == 3
    assert "|… in deadbeef" in first.text


def test_the_line_of_a_group_shows_the_value_that_all_have_and_each_one_that_differs(tmp_path: Path) -> None:
    texts = iter(["KeyError: 'a' in 'case' 7"] * 3 + ["KeyError: 'b' in 'case' 7"] * 2 + ["HTTP 404"])
    make_fleet(tmp_path, lambda *_: failed("E", next(texts)), questions=3, repetitions=1)
    first, other = group_failures(results(tmp_path), "score", Passing())
    assert (first.text, other.text) == ("KeyError: 'a'|'b' in 'case' 7", "HTTP 404")
    assert {each.text for each in first.examples(2)} == {
        "KeyError: 'a' in 'case' 7",
        "KeyError: 'b' in 'case' 7",
    }


def test_a_cut_text_of_failures_that_differ_says_so(tmp_path: Path) -> None:
    make_fleet(tmp_path, lambda _, __, n: failed("E", f"Turn {n}: {'word ' * 40}"), repetitions=1)
    (group,) = group_failures(results(tmp_path), "score", Passing())
    assert group.text.endswith(" wo…")


def test_a_long_failure_keeps_its_end_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", SECRET)
    text = f"E: {'word ' * 100}{SECRET}"
    make_fleet(tmp_path, lambda *_: failed("E", text), questions=1, repetitions=1)
    (group,) = group_failures(results(tmp_path), "score", Passing())
    assert group.text.startswith("E: word")
    assert group.text.endswith("A_TOKEN]")
    assert SECRET[-6:] not in group.text


def test_the_command_opens_the_trace_at_the_message(tmp_path: Path) -> None:
    end = low(error_kind="ToolReturned", error="no such file", message=12)
    make_fleet(tmp_path, lambda *_: end, questions=1, repetitions=1, trace=b"x")
    first, second = results(tmp_path)
    run = str(first.run(tmp_path))
    assert trace_command(first, tmp_path) == ["trace", "show", run, "--message", "8-13"]
    (second.run(tmp_path) / "trace.jsonl").unlink()
    assert trace_command(second, tmp_path)[:2] == ["fleet", "show"]
