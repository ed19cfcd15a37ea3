"""Fork recorded turns as episodes of a fleet: compare hundreds of turns with and without the same change.

Each turn has two cases that differ in the setting `fork`: `recorded` repeats what the trace holds, `changed`
runs the turn again with the change. The scores: `score` (1: the turn was answered, not by its fallback),
`same_answer` (1: `score` is 1, and the answer is as recorded), `same_calls` (1: the calls are as recorded),
`requests` and `tool_calls`. If the trace lacks the turn's end, all scores of the case `recorded` are 0,
and so are `same_answer` and `same_calls` of the case `changed`.
"""

import contextlib
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from grue import Runner, TurnOutcome
from grue import messages as m
from grue.config.wiring import model_for
from grue.engine.conversations.recorded_conversation import forks_of as recorded_forks
from grue.engine.conversations.recorded_conversation import with_forks
from grue.engine.fork import read_run, said_until
from grue.engine.turn_actors import repeat
from grue.errors import FleetError, TraceError
from grue.fleet.folder import EpisodeFolder
from grue.fleet.sweep import Sweep
from grue.fleet.work import Episode, name_of, work
from grue.policies import Misses
from grue.protocol.tools.names import MCP_PREFIX
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Recorder
from grue.tracing.reading import open_episode

_SCORES = ("score", "same_answer", "same_calls", "requests", "tool_calls")


class ForkCase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a case."""

    trace: str
    turn: int
    at: int | None = None  # number of the turn's first message; `None`: the last turn with the number `turn`
    fork: Literal["recorded", "changed"] = "changed"
    model: str | None = None
    base_url: str | None = None
    system: str | None = None
    llm: dict[str, Any] = {}  # changed settings of the model, as in `--set llm.NAME=VALUE`
    changes: dict[str, Any] = {}  # limits and policies, as in `Runner.fork`
    misses: Misses = "fail"  # what happens at a tool call whose result is not in the trace
    seed: int = 0


@work(files=("trace",), scores=_SCORES, settings=ForkCase)
def fork_again(case: dict[str, Any], episode: Episode) -> dict[str, float]:
    """Repeat a recorded turn, or fork it. Raises an `MCPError` if it cannot be forked or its fork fails."""
    settings = msgspec.convert(case, ForkCase)
    run = read_run(settings.trace, settings.turn, settings.at)
    ends = (each.body for each in reversed(run.envelopes) if isinstance(each.body, m.TurnEnd))
    recorded = next(ends, None)
    if settings.fork == "recorded":
        # Raise if the turn cannot be forked. Then both cases of the turn fail, not only the changed case.
        said_until(run, run.place(settings.at), run.begun)
        recorder = Recorder()
        with TraceWriter(episode.trace, episode=run.episode) as writer:
            recorder.add(writer)
            repeat(run.messages, recorder, {each.seq for each in run.messages})
            recorder.settle()
        return _scores(recorded, recorded)
    llm = model_for(run.asks(run.place(settings.at)), settings.llm, settings.model, settings.base_url)
    with Runner(llm=llm, servers=_servers(settings, run.begun.servers), trace=episode.trace) as runner:
        outcome: TurnOutcome[Any] = runner.fork(
            settings.trace,
            turn=settings.turn,
            at=settings.at,
            system=settings.system,
            changes=settings.changes,
            misses=settings.misses,
        )
    return _scores(outcome, recorded)


def _servers(case: ForkCase, needed: Iterable[str]) -> dict[str, Any]:
    if case.misses == "fail":
        return {}
    from grue.config.mcp_servers import MCPConfig, configured_names, tool_servers
    from grue.config.settings import GameConfiguration

    known = tool_servers(MCPConfig.from_file(GameConfiguration.of_project().mcp_config_path))
    return {name: known[configured] for name, configured in configured_names(needed, known).items()}


def _scores(end: TurnOutcome[Any] | m.TurnEnd | None, recorded: m.TurnEnd | None) -> dict[str, float]:
    if end is None:
        return dict.fromkeys(_SCORES, 0.0)
    answered = isinstance(end, TurnOutcome | m.TurnCompleted) and end.kind != "fallback"
    return {
        "score": float(answered),
        "same_answer": float(answered and _answer(end) == _answer(recorded)),
        "same_calls": float(recorded is not None and _calls(end) == _calls(recorded)),
        "requests": float(end.requests),
        "tool_calls": float(len(end.tool_calls)),
    }


def _answer(end: TurnOutcome[Any] | m.TurnEnd | None) -> str | None:
    return end.raw_response if isinstance(end, TurnOutcome | m.TurnCompleted) else None


def _calls(end: TurnOutcome[Any] | m.TurnEnd) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in end.tool_calls]


# --- The choice of the turns to fork ---


class TurnToFork(Struct, frozen=True, kw_only=True):
    """A recorded turn that may be forked. Conditions (`--where`) can test all attributes except `at`."""

    trace: str
    turn: int
    # number of the first message, if a later turn in the trace has the number `turn` too
    at: int | None = None
    outcome: str = ""  # an `OutcomeKind`, `failed` or `parked`; empty: the trace lacks the turn's end
    answer: str = ""
    user: str = ""
    system: str = ""
    model: str = ""
    tool: tuple[str, ...] = ()
    error: tuple[str, ...] = ()
    requests: int = 0
    calls: int = 0


_NAMES = tuple(name for name in TurnToFork.__struct_fields__ if name != "at")
_CONDITION = re.compile(r"\s*(\w+)\s*(!=|=|~|>|<)\s*(.*?)\s*", re.DOTALL)
# Values to refuse: `tool != shop AND calls > 3` and `tool != "shop"` would be true for all turns.
_NO_VALUE = re.compile(r"(['\"]).*\1|.*\sand\s+\w+\s*[!=~<>].*", re.DOTALL | re.IGNORECASE)
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "~": lambda value, wanted: re.search(wanted, value) is not None,
    ">": operator.gt,
    "<": operator.lt,
}
_NUMBERS = ("turn", "requests", "calls")
_OUTCOMES = (*get_args(m.OutcomeKind), "failed", "parked")


def condition(written: str) -> Callable[[TurnToFork], bool]:
    """Parse a condition, such as `outcome = forced and tool ~ shop`, into a test.

    A part about `tool` or `error` is true if it is true for one of the turn's calls; with `!=`, for all
    calls. A tool may be named with or without the prefix `mcp.`, which agent loops add.

    Raises `FleetError` if a part is not `NAME OP VALUE`, or its operator or value does not fit the attribute.
    """
    tests = re.split(r"\s+and\s+", written) if written.strip() else []
    parts = [_CONDITION.fullmatch(part) for part in tests]
    checks = []
    for part in parts:
        if part is None or part[1] not in _NAMES:
            raise FleetError(
                f"--where {written!r:.200}: a condition is NAME OP VALUE, several are joined by ' and '. The"
                f" names are {', '.join(_NAMES)}; the operators =, !=, ~ (a regular expression), >, <."
            )
        checks.append(_check(part[1], part[2], part[3], written))
    return lambda turn: all(check(turn) for check in checks)


def _check(name: str, sign: str, wanted: str, written: str) -> Callable[[TurnToFork], bool]:
    said = f"--where {written!r:.200}:"
    read = int if name in _NUMBERS and sign != "~" else str
    try:
        re.compile(wanted if sign == "~" else "")
        looked_for = read(wanted)
    except re.error as error:
        raise FleetError(f"{said} {wanted!r} is no regular expression: {error}.") from error
    except ValueError as error:
        raise FleetError(f"{said} {wanted!r} is no whole number.") from error
    if sign in ("=", "!=") and _NO_VALUE.fullmatch(wanted):
        raise FleetError(f"{said} write values without quotes, and `and` in small letters.")
    if sign in "<>" and name not in _NUMBERS:
        raise FleetError(f"{said} {name} is no number, so {sign} says nothing about it.")
    if name == "outcome" and sign != "~" and wanted not in ("", *_OUTCOMES):
        raise FleetError(f"{said} {wanted!r} is no outcome. The outcomes are {', '.join(_OUTCOMES)}.")

    if name == "tool" and sign in ("=", "!="):
        looked_for = wanted.removeprefix(MCP_PREFIX)

    def check(turn: TurnToFork) -> bool:
        value = getattr(turn, name)
        values = value if isinstance(value, tuple) else (read(value),)
        if name == "tool":
            values += tuple(each.removeprefix(MCP_PREFIX) for each in values)
        return (all if sign == "!=" else any)(_OPERATORS[sign](each, looked_for) for each in values)

    return check


def turns_in(folder: Path) -> Iterator[TurnToFork]:
    """Yield the turns of the traces below `folder`, or of the trace `folder`; no forks, no replaced turns."""
    # A turn is replaced if it has no end, and a later turn of the trace has its number.
    traces = [folder] if folder.is_file() else sorted(folder.rglob("*.jsonl"))
    for path in traces:
        with contextlib.suppress(TraceError):  # the file is not a trace, or a damaged one
            if not _is_of_a_fork(path):
                yield from _turns_of(path)


def _is_of_a_fork(trace: Path) -> bool:
    """Return whether `fork_again` wrote a trace: `turns_in` may search a folder with a fleet of forks."""
    try:
        case = EpisodeFolder(trace.absolute().parent.parent).case
    except FleetError:
        return False
    return case is not None and case.work == name_of(fork_again)


def _turns_of(path: Path) -> Iterator[TurnToFork]:
    found: dict[int, TurnToFork] = {}  # by the number of the turn's first message
    # Each resumption of a parked turn records another `RunTurn`. `parts` maps the number of each `RunTurn` to
    # the number of the first `RunTurn` of the same turn.
    parts: dict[int, int] = {}
    last: dict[int, int] = {}  # by turn number: the number of the first message of the last such turn
    goes_on: set[int] = set()  # the numbers of the first messages of turns that continue a conversation
    episode = open_episode(path).header.episode
    for line, fork in with_forks(path, recorded_forks(path)):
        if line.tag == m.TurnForked.__name__ and last.get(line.line.turn) in goes_on:
            forked = line.envelope().body
            if isinstance(forked, m.TurnForked) and not forked.first and forked.episode != episode:
                found.clear()  # an old trace: the turns so far may be copies from the trace that was forked
        if line.tag not in ("RunTurn", "TurnCompleted", "TurnFailed", "TurnParked"):
            continue
        body, number, seq = line.envelope().body, line.line.turn, line.line.seq
        if isinstance(body, m.RunTurn):
            if body.resumed is None or number not in last:
                last[number] = seq
                if body.history is not None and body.history.length:
                    goes_on.add(seq)
                model = "" if body.asks is None else body.asks.model
                trace = str(path.absolute())
                if fork is None:
                    found[seq] = TurnToFork(
                        trace=trace, turn=number, user=body.user, system=body.system, model=model
                    )
            parts[seq] = last[number]
        elif isinstance(body, m.TurnEnd) and (first := parts.get(line.line.cause or 0)) in found:
            found[first] = _with_end(found[first], body)
    for first, turn in found.items():
        if first == last[turn.turn]:
            yield turn
        elif turn.outcome:
            yield msgspec.structs.replace(turn, at=first)


def _with_end(turn: TurnToFork, end: m.TurnEnd) -> TurnToFork:
    kind = "failed" if isinstance(end, m.TurnFailed) else "parked"
    return msgspec.structs.replace(
        turn,
        outcome=end.kind if isinstance(end, m.TurnCompleted) else kind,
        answer=_answer(end) or "",
        tool=tuple(call.name for call in end.tool_calls),
        error=tuple(call.result.error_message or "" for call in end.tool_calls if call.result.is_error),
        requests=end.requests,
        calls=len(end.tool_calls),
    )


def forks_of(turns: Iterable[TurnToFork], change: Mapping[str, Any], repetitions: int) -> Sweep:
    """Return a sweep with two cases for each turn: the turn as recorded, and the turn with `change`."""
    cases = ({"trace": turn.trace, "turn": turn.turn, "at": turn.at} for turn in turns)
    return Sweep(
        work=name_of(fork_again),
        grid={"fork": ["recorded", "changed"]},
        cases=[{name: value for name, value in case.items() if value is not None} for case in cases],
        settings=dict(change),
        repetitions=repetitions,
    )
