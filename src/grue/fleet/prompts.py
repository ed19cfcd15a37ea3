"""Compare prompts on tens of cases in one call, in this process; for more, use a fleet."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from grue.engine.answers import AnswerSpec
from grue.engine.runner import Runner, TurnOutcome, TurnRequest
from grue.engine.turn import BatchItem
from grue.errors import MCPConfigError
from grue.fleet.compare import in_columns
from grue.fleet.statistics import SELDOM, mean_of, sign_test
from grue.fleet.work import contains, finite
from grue.runtime.safe_text import printable
from grue.tracing.facts import counted

# A function that gets the answer and the expected answer, and returns a number; `True` counts as 1.
Score: TypeAlias = Callable[[Any, Any], float]
_MOST_CASES = 10
_WIDEST = 32


class PromptAnswer(Struct, frozen=True, kw_only=True):
    """The answer to one case with one prompt."""

    answer: Any  # `None`: the turn failed
    score: float  # 0 if the turn failed
    error: str  # name of the error's class; empty if the turn did not fail
    turn: int  # number of the turn in the runner's trace


class PromptCase(Struct, frozen=True, kw_only=True):
    """One case. `answers` has the answer to each prompt, by the prompt's name."""

    question: str
    expected: Any
    answers: dict[str, PromptAnswer]


class PromptRow(Struct, frozen=True, kw_only=True):
    """The results of one prompt over all cases. Failed turns count in `score` (0) and `failed` only."""

    score: float  # mean over all cases
    passed: int  # cases with a score of 1 or more
    failed: int
    tokens: int  # tokens of requests and replies
    seconds: float  # sum of the turns' durations


class PromptTable(Struct, frozen=True, kw_only=True):
    """The result of `compare_prompts`; `print` shows it.

    Attributes:
        prompts: The results of each prompt over all cases, by the prompt's name.
        trace: Path of the runner's trace; `None`: the runner writes no trace.
    """

    prompts: dict[str, PromptRow]
    cases: tuple[PromptCase, ...]
    trace: str | None = None

    @property
    def best(self) -> str:
        """The name of the prompt with the highest mean score; of several such prompts, the first."""
        return max(self.prompts, key=lambda name: self.prompts[name].score)

    def __str__(self) -> str:
        rows = [["prompt", "score", "passed", "failed", "tokens", "seconds"]]
        for name, row in self.prompts.items():
            passed = f"{row.passed} of {len(self.cases)}"
            spent = [f"{row.tokens:,}", f"{row.seconds:.1f}"]
            rows.append([_short(name), f"{row.score:.3g}", passed, str(row.failed), *spent])
        first, *others = self.prompts
        said = [*in_columns(rows), "", *(self._against(first, name) for name in others)]
        differing = [case for case in self.cases if len({each.score for each in case.answers.values()}) > 1]
        if differing:
            heads = ["case", "expected", *map(_short, self.prompts), "turns"]
            said += ["", *in_columns([heads, *map(self._row, differing[:_MOST_CASES])])]
        if len(differing) > _MOST_CASES:
            said.append(
                f"... and {len(differing) - _MOST_CASES} more cases in which the prompts differ (`.cases`)"
            )
        if equal := len(self.cases) - len(differing):
            cases = counted(equal, "case")
            said += ["", f"Not shown: {cases} in which the prompts score the same (`.cases`)."]
        if differing and self.trace is not None:
            turn = next(iter(differing[0].answers.values())).turn
            said.append(f"To see a turn: {shlex.join(['grue', 'trace', 'show', self.trace])} --turn {turn}")
        return "\n".join(said)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"

    def _against(self, one: str, other: str) -> str:
        pairs = [(case.answers[one].score, case.answers[other].score) for case in self.cases]
        better, worse = sum(b > a for a, b in pairs), sum(b < a for a, b in pairs)
        counts = (
            f"{_short(other)} against {_short(one)}: better in {counted(better, 'case')}, worse in {worse},"
            f" equal in {len(pairs) - better - worse}."
        )
        chance = sign_test(better, worse)
        if not better and not worse:
            return counts
        told = "Chance alone seldom gives that" if chance < SELDOM else "That may be chance"
        return f"{counts} {told} (p = {chance:.2g})."

    def _row(self, case: PromptCase) -> list[str]:
        answers = [case.answers[name] for name in self.prompts]
        turns = ", ".join(str(each.turn) for each in answers)
        shown = (f"failed: {each.error}" if each.error else str(each.answer) for each in answers)
        return [*(_short(each) for each in (case.question, str(case.expected), *shown)), turns]


def compare_prompts(
    runner: Runner,
    prompts: Mapping[str, str],
    cases: Iterable[tuple[str, Any]],
    *,
    score: Score | None = None,
    answer: AnswerSpec[Any] | type[Any] | None = None,
    concurrency: int = 8,
    progress: bool = False,
) -> PromptTable:
    """Run a turn for each prompt and case, and return a table of the results, which `print` shows. Blocks.

    Args:
        runner: Runs the turns. In its trace, the turns of each call of this function have numbers from 1.
        prompts: Two or more system texts by name.
        cases: Pairs of the user's text and the expected answer.
        score: Gets the answer and the expected answer, and returns a number; larger is better. `None`: 1 if
            both are equal, or if the answer is a text that contains the expected text or number; else 0.
        answer: As in a `TurnRequest`; `None`: `bool` if all expected answers are of this type, else text.
        concurrency: How many turns run at the same time.
        progress: Show a progress bar on standard error, at a terminal or in a notebook.

    Raises:
        MCPConfigError: A prompt or a case is wrong or missing, or `score` did not return a finite number.
        MCPError: Every turn has failed. This is the error of the first turn.
    """
    if score is not None and not callable(score):
        raise MCPConfigError(
            f"score= wants a function of the answer and what is expected, not {score!r:.60}."
        )
    pairs = _pairs(cases)
    names = list(prompts) if isinstance(prompts, Mapping) else []
    if len(names) < 2 or not all(isinstance(name, str) for name in names):
        raise MCPConfigError(
            "prompts= wants two or more system texts by name, {'plain': '...', 'careful': '...'}."
        )
    if answer is None and all(isinstance(expected, bool) for _, expected in pairs):
        answer = bool
    requests = [
        TurnRequest(system=system, user=text, answer=answer)
        for system in prompts.values()
        for text, _ in pairs
    ]
    items = list(runner.map(requests, concurrency=concurrency, progress=progress))
    failed = [item.error for item in items if item.error is not None]
    if len(failed) == len(items):
        raise failed[0]
    scored = [_scored(item, pairs[item.index % len(pairs)][1], score or _agrees) for item in items]
    parts = {name: slice(at * len(pairs), (at + 1) * len(pairs)) for at, name in enumerate(prompts)}
    return PromptTable(
        prompts={name: _sums(items[part], scored[part]) for name, part in parts.items()},
        cases=tuple(
            PromptCase(
                question=text,
                expected=expected,
                answers={name: scored[part][at] for name, part in parts.items()},
            )
            for at, (text, expected) in enumerate(pairs)
        ),
        trace=None if runner.trace is None else str(runner.trace),
    )


def _pairs(cases: object) -> list[tuple[str, Any]]:
    if isinstance(cases, str | bytes | Mapping) or not isinstance(cases, Iterable):
        raise MCPConfigError("cases= wants pairs, [('the text', what is expected), ...].")
    found: list[tuple[str, Any]] = []
    for number, case in enumerate(cases, start=1):
        if not isinstance(case, list | tuple) or len(case) != 2 or not isinstance(case[0], str):
            raise MCPConfigError(
                f"Case {number} is {case!r:.60}: write a pair, ('the text', what is expected)."
            )
        found.append((case[0], case[1]))
    if not found:
        raise MCPConfigError("cases= is empty: nothing can be compared.")
    return found


def _agrees(answer: object, expected: object) -> bool:
    if isinstance(answer, str) and isinstance(expected, str | int | float):
        return contains(answer, expected)
    return bool(answer == expected)


def _scored(item: BatchItem[TurnOutcome[Any]], expected: object, score: Score) -> PromptAnswer:
    turn = item.index + 1
    if item.outcome is None:
        return PromptAnswer(answer=None, score=0.0, error=type(item.error).__name__, turn=turn)
    value: Any = score(item.outcome.response, expected)
    number = finite(value)
    if number is None:
        raise MCPConfigError(f"score= returned {value!r:.60}: a score is a finite number, or True or False.")
    return PromptAnswer(answer=item.outcome.response, score=number, error="", turn=turn)


def _sums(items: Sequence[BatchItem[TurnOutcome[Any]]], answers: Sequence[PromptAnswer]) -> PromptRow:
    outcomes = [item.outcome for item in items if item.outcome is not None]
    return PromptRow(
        score=mean_of([each.score for each in answers]),
        passed=sum(each.score >= 1 for each in answers),
        failed=sum(bool(each.error) for each in answers),
        tokens=sum(each.usage.input_tokens + each.usage.output_tokens for each in outcomes),
        seconds=sum(each.duration_s for each in outcomes),
    )


def _short(text: str) -> str:
    """Return untrusted text as a cell of a table: one short line without control characters."""
    return printable(" ".join(text[: 10 * _WIDEST].split()), _WIDEST)
