"""What an attempt makes of a work: a score, a result without one, or a failure to be tried again."""

import errno
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest
from made_fleets import Attempted, play
from msgspec.structs import replace

from grue import LlmSettings, Runner, TurnLimits, TurnRequest
from grue.errors import FleetError, LLMError, MCPServerStartupError
from grue.fleet.attempt import Job, end_of_late
from grue.fleet.broker import Amount
from grue.fleet.folder import TRACE, AttemptEnd, CaseFile, EpisodeFolder
from grue.fleet.identity import Case, FileDigests
from grue.fleet.work import Episode
from grue.protocol.turn.prices import Price
from grue.testing.llm_replies import silence
from grue.testing.llm_server import ScriptedLlmServer
from grue.transports.llm.exchange import Permit, WantedRequest, request_gate, set_request_gate

SECRET = "not-to-be-seen-0123456789"


def scores(case: dict[str, Any], episode: Episode) -> float:
    print("noise")
    answered = '{"type":"CompletionReceived","model":"the-model-itself"}'
    episode.trace.write_text(answered + "\n")
    return float(case["n"])


def raises(case: dict[str, Any], episode: Episode) -> float:
    raise {
        "work": ValueError(f"bad luck, {SECRET}"),
        "server": MCPServerStartupError("no", server="s", phase="spawn", command="c"),
        "down": LLMError("down", kind="unreachable", endpoint="http://x"),
        "refused": LLMError("no such model", kind="refused", reason="model", endpoint="http://x"),
        "key": LLMError("no key", kind="refused", reason="key", endpoint="http://x"),
        "credit": LLMError("no credit", kind="refused", reason="credit", endpoint="http://x"),
        "disk": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    }[case["what"]]


def breaks_its_turn(case: dict[str, Any], episode: Episode) -> str:
    def on_delta(delta: object) -> None:
        raise ConnectionError("the database") if case.get("offline") else KeyError(delta)

    with ScriptedLlmServer(["north"]) as model, Runner(llm=model.settings) as runner:
        return runner.run_turn(TurnRequest("Which way?", on_delta=on_delta)).response


def no_score(case: dict[str, Any], episode: Episode) -> str:
    return "many"


def after_an_interruption(case: dict[str, Any], episode: Episode) -> float:
    return float(episode.interrupted is not None and (episode.interrupted / "trace.jsonl").exists())


def case_file(work: str, settings: dict[str, Any] | None = None) -> CaseFile:
    return CaseFile(work=work, version="1", settings=settings or {})


def attempted(tmp_path: Path, work: str, keep: Any = "all", **settings: Any) -> Attempted:
    job = Job(folder=tmp_path / ("0" * 24), case=case_file(f"{__file__}:{work}", settings), keep=keep)
    return play(job)


def test_a_score_is_committed_with_the_model_that_answered(tmp_path: Path) -> None:
    done = attempted(tmp_path, "scores", n=3)
    folder = EpisodeFolder(tmp_path / ("0" * 24))
    assert (done.committed, done.end.scores, done.end.model) == (True, {"score": 3.0}, "the-model-itself")
    assert folder.commit is not None
    assert folder.commit.end == done.end
    assert (folder.path / "attempt-1" / "output.txt").read_text() == "noise\n"


def test_the_second_of_two_attempts_is_no_result(tmp_path: Path) -> None:
    assert attempted(tmp_path, "scores", n=3).committed
    assert not attempted(tmp_path, "scores", n=3).committed
    folder = EpisodeFolder(tmp_path / ("0" * 24))
    assert folder.commit is not None
    assert (folder.commit.attempt, [number for number, _ in folder.attempts()]) == (1, [1, 2])


@pytest.mark.parametrize(
    ("what", "outcome", "kind"),
    [
        ("work", "failed", "ValueError"),
        ("refused", "failed", "LLMError: refused"),
        ("key", "infrastructure", "LLMError: refused"),
        ("credit", "infrastructure", "LLMError: refused"),
        ("down", "infrastructure", "LLMError: unreachable"),
        ("server", "infrastructure", "MCPServerStartupError"),
        ("disk", "infrastructure", "OSError"),
    ],
)
def test_what_a_work_raises_is_a_result_or_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, outcome: str, kind: str
) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    done = attempted(tmp_path, "raises", what=what)
    assert (done.end.outcome, done.end.kind) == (outcome, kind)
    assert done.committed == (outcome == "failed")
    assert SECRET not in done.end.error
    assert not (tmp_path / ("0" * 24) / "attempt-1" / "output.txt").exists()


def test_a_turn_that_the_works_own_code_broke_is_a_result(tmp_path: Path) -> None:
    done = attempted(tmp_path, "breaks_its_turn")
    assert (done.end.outcome, done.end.kind, done.committed) == ("failed", "ActorCrashed", True)
    done = attempted(tmp_path / "offline", "breaks_its_turn", offline=True)
    assert (done.end.outcome, done.end.kind, done.committed) == ("infrastructure", "ActorCrashed", False)


class OddError(ValueError):
    def __str__(self) -> str:
        raise SystemExit(f"also in its text, {SECRET}")


def odd(case: dict[str, Any], episode: Episode) -> Any:
    if "returns" in case:
        return {"surrogate": {"n\ud800": 1}, "huge": 10**400, "no mapping": object()}[case["returns"]]
    raise {
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "fleet": FleetError("the work says so"),
        "unprintable": OddError(),
        "surrogate": ValueError("half \ud83d of it"),
        "group": BaseExceptionGroup("many", [GeneratorExit()]),
    }[case["what"]]


@pytest.mark.parametrize(
    ("what", "kind", "error"),
    [
        ("exit", "SystemExit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt", "KeyboardInterrupt: "),
        ("fleet", "FleetError", "the work says so"),
        ("unprintable", "OddError", "OddError: its text cannot be made"),
        ("surrogate", "ValueError", "ValueError: half \\ud83d of it"),
        ("group", "BaseExceptionGroup", "BaseExceptionGroup: many (1 sub-exception)"),
    ],
)
def test_whatever_a_work_raises_is_committed(tmp_path: Path, what: str, kind: str, error: str) -> None:
    done = attempted(tmp_path, "odd", what=what)
    assert (done.committed, done.end.outcome, done.end.kind, done.end.error) == (True, "failed", kind, error)


@pytest.mark.parametrize(
    ("returns", "outcome"), [("surrogate", "scored"), ("huge", "failed"), ("no mapping", "failed")]
)
def test_whatever_a_work_returns_is_committed(tmp_path: Path, returns: str, outcome: str) -> None:
    done = attempted(tmp_path, "odd", returns=returns)
    assert (done.committed, done.end.outcome) == (True, outcome)


def asks(case: dict[str, Any], episode: Episode) -> float:
    """Ask for a request, and return a score although it was refused."""
    gate = request_gate()
    assert gate is not None
    answer = anyio.run(gate.admit, WantedRequest(model="m", prompt_bytes=1, max_tokens=1))
    return 0.0 if isinstance(answer, str) else 1.0


class Refusing:
    """A gate that refuses each request."""

    async def admit(self, wanted: WantedRequest) -> Permit | str:
        return "the limit is used up"


def test_an_attempt_whose_request_was_refused_is_no_result_whatever_the_work_returns(tmp_path: Path) -> None:
    set_request_gate(Refusing())
    try:
        done = attempted(tmp_path, "asks")
    finally:
        set_request_gate(None)
    assert (done.committed, done.end.outcome, done.end.error) == (False, "unpaid", "the limit is used up")
    folder = EpisodeFolder(tmp_path / ("0" * 24))
    assert (folder.commit, folder.end_of(folder.path / "attempt-1")) == (None, done.end)
    assert attempted(tmp_path, "asks").end.scores == {"score": 1.0}


class Slow:
    """A gate that lets no request start for a long time."""

    async def admit(self, wanted: WantedRequest) -> Permit | str:
        await anyio.sleep_forever()
        raise AssertionError


def turns(case: dict[str, Any], episode: Episode) -> float:
    limits = TurnLimits(turn_timeout_s=2.0)
    with Runner(llm=LlmSettings(base_url=case["base_url"], model="m"), limits=limits) as runner:
        runner.run_turn(TurnRequest("Hello"))
    return 1.0


@pytest.mark.parametrize(("held_back", "outcome"), [(True, "infrastructure"), (False, "failed")])
def test_a_turn_that_waited_for_the_broker_until_its_end_is_no_result(
    tmp_path: Path, held_back: bool, outcome: str
) -> None:
    with ScriptedLlmServer([silence()]) as llm:
        set_request_gate(Slow() if held_back else None)
        try:
            done = attempted(tmp_path, "turns", base_url=llm.base_url)
        finally:
            set_request_gate(None)
    assert (done.end.kind, done.end.outcome) == ("TurnTimedOut", outcome)


def floods(case: dict[str, Any], episode: Episode) -> float:
    for _ in range(20):
        print("x" * 2**20)
    return 1.0


def test_what_a_work_prints_is_kept_up_to_a_limit(tmp_path: Path) -> None:
    assert attempted(tmp_path, "floods").committed
    assert (tmp_path / ("0" * 24) / "attempt-1" / "output.txt").stat().st_size == 16 * 2**20


def logs(case: dict[str, Any], episode: Episode) -> float:
    logger = logging.getLogger("a work that logs")
    if not logger.handlers:  # as `logging.basicConfig` does
        logger.addHandler(logging.StreamHandler())
    logger.warning("case %s", case["n"])
    return 1.0


def test_what_a_work_logs_is_in_the_file_of_each_attempt(tmp_path: Path) -> None:
    for n in (1, 2):
        assert attempted(tmp_path / str(n), "logs", n=n).committed
    kept = (tmp_path / str(n) / ("0" * 24) / "attempt-1" / "output.txt" for n in (1, 2))
    assert [path.read_text() for path in kept] == ["case 1\n", "case 2\n"]


def test_what_is_no_score_is_said(tmp_path: Path) -> None:
    assert "the work returned 'many'" in attempted(tmp_path, "no_score").end.error


def test_only_results_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    attempted(tmp_path, "scores", "results", n=1)
    assert sorted(path.name for path in (tmp_path / ("0" * 24)).iterdir()) == ["case.json", "commit.json"]


@pytest.mark.parametrize("worker_died", [False, True])
def test_a_work_gets_the_attempt_that_was_interrupted(tmp_path: Path, worker_died: bool) -> None:
    folder = EpisodeFolder(tmp_path / ("0" * 24))
    case = CaseFile(work="", version="", settings={})
    ended, interrupted = folder.begin(case), folder.begin(case)
    for attempt in (ended, interrupted):
        (attempt / "trace.jsonl").write_text("")
    folder.end(ended, AttemptEnd(outcome="infrastructure", kind="LLMError: unreachable"))
    if worker_died:
        folder.end(interrupted, AttemptEnd(outcome="infrastructure", kind="died"))
    job = Job(folder=folder.path, case=case_file(f"{__file__}:after_an_interruption"))
    # With batches it is played from its beginning: resumed, it would not ask for the replies it has.
    assert play(replace(job, batch=True)).end.scores == {"score": 0.0}
    (folder.path / "commit.json").unlink()
    shutil.rmtree(folder.path / "attempt-3")
    assert play(job).end.scores == {"score": 1.0}


@pytest.mark.parametrize("end", ["infrastructure", "unpaid", "failed", "damaged"])
def test_a_work_does_not_get_an_attempt_that_has_ended(tmp_path: Path, end: Any) -> None:
    folder = EpisodeFolder(tmp_path / ("0" * 24))
    attempt = folder.begin(CaseFile(work="", version="", settings={}))
    (attempt / "trace.jsonl").write_text("")
    if end == "damaged":
        (attempt / "attempt.json").write_text("{")
    else:
        folder.end(attempt, AttemptEnd(outcome=end))
    assert attempted(tmp_path, "after_an_interruption").end.scores == {"score": 0.0}


def test_a_work_does_not_get_an_attempt_whose_result_was_set_aside(tmp_path: Path) -> None:
    assert attempted(tmp_path, "scores", n=1).end.scores == {"score": 1.0}
    folder = EpisodeFolder(tmp_path / ("0" * 24))
    (folder.path / "commit.json").write_text("{")
    folder.set_aside_commit()
    end = folder.end_of(folder.path / "attempt-1")
    assert end is not None
    assert (end.outcome, end.kind, end.error) == ("infrastructure", "damaged", "its result could not be read")
    job = Job(folder=folder.path, case=case_file(f"{__file__}:after_an_interruption"))
    assert play(job).end.scores == {"score": 0.0}


def test_an_attempt_that_took_too_long_ends_with_what_its_trace_says(tmp_path: Path) -> None:
    with ScriptedLlmServer(["a", "b"]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with Runner(llm=settings, trace=tmp_path / TRACE) as runner:
            for text in ("one", "two"):
                runner.run_turn(TurnRequest(text))
    written = (tmp_path / TRACE).read_bytes()
    (tmp_path / TRACE).write_bytes(written[: written.rindex(b"TurnCompleted")])
    end = end_of_late(tmp_path, "too long", 2.5, {"m": Price(input=1000, output=2000)})
    assert (end.outcome, end.duration_s, end.model) == ("failed", 2.5, "scripted")
    assert end.spent == Amount(2, 30, pytest.approx(0.04))
    assert end.course is not None
    assert end.course.turns == 2


def test_the_zork_host_plays_and_goes_on_from_an_interrupted_attempt(tmp_path: Path) -> None:
    settings = {"offline": True, "mcp": False, "turns": 2, "seed": 1}
    job = Job(folder=tmp_path / ("0" * 24), case=case_file("zork", settings))
    first = play(job)
    assert first.end.scores["turns"] == 2
    folder = EpisodeFolder(job.folder)
    (folder.path / "commit.json").unlink()
    trace = folder.path / "attempt-1" / "trace.jsonl"
    lines = trace.read_bytes().splitlines(keepends=True)
    trace.write_bytes(b"".join(lines[: len(lines) // 2]))
    second = play(job)
    assert (second.committed, second.end.scores) == (True, first.end.scores)
    assert b"EpisodeResumed" in (folder.path / "attempt-2" / "trace.jsonl").read_bytes()


def test_a_file_that_changes_while_the_fleet_runs_is_not_played(tmp_path: Path) -> None:
    game = tmp_path / "game.z3"
    game.write_bytes(b"one")
    settings = {"game_file": str(game), "n": 1}
    files = FileDigests().of(Case(settings=settings), ("game_file",))
    job = Job(folder=tmp_path / ("0" * 24), case=case_file(f"{__file__}:scores", settings), files=files)
    game.write_bytes(b"two")
    with pytest.raises(FleetError, match=r"game_file = '.*game.z3' has changed while the fleet ran"):
        play(job)
    assert not job.folder.exists()
    game.write_bytes(b"one")
    assert play(job).committed


def test_a_case_with_an_unknown_setting_is_a_failed_episode(tmp_path: Path) -> None:
    job = Job(folder=tmp_path / ("0" * 24), case=case_file("zork", {"sed": 1}))
    done = play(job)
    assert (done.end.outcome, done.end.kind) == ("failed", "FleetError")
    assert "unknown field `sed`" in done.end.error
