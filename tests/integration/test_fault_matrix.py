"""The fault matrix: each row has a deadline, leaves nothing behind, and its trace replays."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import fault_matrix
import fault_turns
import pytest
from fault_matrix import ENDS, FAULTS, TOLERATED, run_matrix, try_fault
from fault_turns import MODES, Fault, Mode, RowOutcome, drive_turn
from msgspec.structs import replace
from promises import GUARD_S

from grue import Recorder, TraceWriter
from grue.protocol.retry import RetryPolicy
from grue.testing.leftovers import assert_nothing_left
from grue.tracing.reading import open_episode
from grue.tracing.replay import replay

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    # What they load and keep the first time is no fault's doing.
    drive_turn(TOLERATED[0])


NEVER_LEFT_OUT = {
    "beside": (
        "killed-at-call",
        "ignores-eof-and-term",
        "spare-is-killed-before-use",
        "spare-and-the-next-fail",
    ),
    "presumed": ("dies-at-listing", "silent-at-initialize", "changes-its-tools", "killed-at-call"),
}
"""Rows that differ most in these modes. They run together with those of the default mode."""


# The trace of a long message takes seconds to replay: test_a_long_faulty_turn_replays.
LONG = [fault for fault in FAULTS if fault.name.endswith("-mb") and fault.drive is None]


QUIET = bool(os.environ.get("GRUE_QUIET_MACHINE"))
"""Nothing else runs here, as where `.ci/run` sets this: each row has to end within its own seconds."""

FURTHER_WIRES = ("-messages", "-responses")
"""Rows that differ from another one in the wire format only."""

FLOODS, ONE_FLOOD = "flood-", "flood-of-log"
"""Rows that differ in what the server floods us with, and the one of them that runs always."""


def marks(mode: Mode, fault: Fault) -> tuple[pytest.MarkDecorator, ...]:
    alike = fault.name.endswith(FURTHER_WIRES) or (fault.name.startswith(FLOODS) and fault.name != ONE_FLOOD)
    short = fault not in LONG and not alike
    always = (mode == "turn" and short) or fault.name in NEVER_LEFT_OUT.get(mode, ())
    return () if always else (pytest.mark.slow,)


ROWS = [
    # Short rows in the default mode in every run, the others where there is time for all of it.
    pytest.param(fault, mode, id=f"{mode}-{fault.name}", marks=marks(mode, fault))
    for mode in MODES
    for fault in FAULTS
    if mode in fault.modes
]


@pytest.mark.parametrize(("fault", "mode"), ROWS)
def test_p9_the_fault_is_borne(
    fault: Fault, mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = mode in ("turn", *NEVER_LEFT_OUT) and fault.drive is None and fault not in LONG
    with traced(tmp_path / "trace.jsonl", monkeypatch) if replayed else contextlib.nullcontext():
        result = try_fault(fault if QUIET else patient(fault), mode)
    assert not result.wrong, result.line()
    if replayed:
        assert_replays(tmp_path / "trace.jsonl")


def patient(fault: Fault) -> Fault:
    """Return the row with limits that no server reaches for being slow; those that it is to reach stay."""
    usual = Fault(name="usual")
    return replace(
        fault,
        within_s=GUARD_S,
        startup_s=GUARD_S if fault.startup_s == usual.startup_s else fault.startup_s,
        call_s=GUARD_S if fault.call_s == usual.call_s else fault.call_s,
    )


@pytest.mark.slow
@pytest.mark.parametrize("fault", LONG, ids=lambda fault: fault.name)
def test_a_long_faulty_turn_replays(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with traced(tmp_path / "trace.jsonl", monkeypatch):
        drive_turn(fault)
    assert_replays(tmp_path / "trace.jsonl")


@contextlib.contextmanager
def traced(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the rows that are driven in the block write this trace."""
    writer = TraceWriter(path, episode="fault")

    def recorder() -> Recorder:
        made = Recorder()
        made.add(writer)
        return made

    monkeypatch.setattr(fault_turns, "Recorder", recorder)
    try:
        yield
    finally:
        writer.close()


def assert_replays(trace: Path) -> None:
    """What the faulty server led to is derived again."""
    (turn,) = replay(open_episode(trace))
    assert (turn.end, turn.divergence) == ("finished", None)
    derived = [e for e in open_episode(trace) if e.sender == "agent" and e.receiver != "agent"]
    assert turn.compared >= len(derived) >= 2, "all that the agent said, and what its session said"
    trace.unlink()  # or it is replayed once more after the test, which takes seconds where it is long


def test_every_row_has_a_name_of_its_own_and_a_limit() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert all(0 < fault.within_s <= 10 for fault in FAULTS)


def row(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


WELL = patient(row("well-behaved"))
JUDGED = {
    "outcome": (replace(WELL, outcome="forced"), "the outcome should be forced, not answered"),
    "settlements": (replace(WELL, settlements=("died",)), "the calls should be ('died',)"),
    "words": (replace(WELL, says=("absent",)), "['absent'] should be in 'hi'"),
    "ending": (replace(WELL, ending="killed"), "the server should be killed, not polite"),
    "notes": (replace(WELL, notes=frozenset(["log"])), "no note of log"),
    "time": (replace(WELL, within_s=0.001), "not 0.001 s at most"),
}


@pytest.mark.parametrize(("fault", "verdict"), JUDGED.values(), ids=JUDGED)
@pytest.mark.slow
def test_what_is_not_as_it_has_to_be_is_told(fault: Fault, verdict: str) -> None:
    (result,) = run_matrix([fault])
    assert len(result.wrong) == 1
    assert verdict in result.wrong[0]
    assert verdict[:40] in result.line()
    assert len(result.line().splitlines()) == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
def test_the_ending_is_judged_in_every_mode(mode: Mode) -> None:
    """By a server that can only be killed: on a busy machine another one may end later than expected."""
    stubborn = replace(row("ignores-eof-and-term"), ending="polite")
    (result,) = run_matrix([patient(stubborn)], modes=(mode,))
    assert result.wrong == ("the server should be polite, not killed",)
    assert result.fault.mode == mode


@pytest.mark.slow
def test_a_row_is_tried_in_its_modes_only() -> None:
    assert list(run_matrix([row("spare-dies-before-use")])) == []
    results = run_matrix([row("spare-dies-before-use")], modes=MODES)
    assert [result.fault.mode for result in results] == ["ahead", "beside"]


def test_a_row_in_which_nothing_is_presumed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_turns, "usual_tools", lambda: None)
    result = try_fault(WELL, "presumed")
    assert "the outcome should be answered, not nothing was presumed" in result.wrong[0]


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for half a second where something is left behind, which each row does for ten."""
    monkeypatch.setattr(fault_matrix, "assert_nothing_left", lambda: assert_nothing_left(within_s=0.5))


@pytest.mark.usefixtures("little_patience")
def test_what_is_left_behind_is_told() -> None:
    children = []

    def leaves_a_child(fault: Fault) -> RowOutcome:
        children.append(subprocess.Popen(["sleep", "600"]))
        return RowOutcome(outcome="answered")

    result = try_fault(Fault(name="leaves", drive=leaves_a_child))
    children[0].kill()
    children[0].wait()
    assert "sleep 600" in result.wrong[0]


@pytest.mark.usefixtures("little_patience")
def test_a_crash_and_a_hang_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def crashes(fault: Fault) -> RowOutcome:
        raise LookupError("nobody foresaw this")

    released = threading.Event()

    def hangs(fault: Fault) -> RowOutcome:
        released.wait()
        return RowOutcome(outcome="answered")

    assert try_fault(Fault(name="crashes", drive=crashes)).wrong == ("LookupError: nobody foresaw this",)
    monkeypatch.setattr(fault_matrix, "_HANGS_S", 0.05)
    result = try_fault(Fault(name="hangs", drive=hangs, within_s=0.05))
    released.set()
    assert result.wrong[0] == "it hangs"
    assert "hung" in result.line()


def test_a_key_that_is_told_is_told() -> None:
    told = replace(row("llm-repeats-the-key"), settings={"api_key": "sk-another-made-up-key"})
    assert "not the error shows the key" in try_fault(told).wrong[0]


def test_a_failure_that_is_not_tried_again_is_told() -> None:
    once = replace(row("llm-empty-body-once"), settings={"retry": RetryPolicy(max_retries=0)})
    (result,) = run_matrix([once])
    assert "the outcome should be answered, not LLMError invalid_reply" in result.wrong[0]
    assert "no note of invalid_reply" in result.wrong


def test_the_ends_are_not_only_polite() -> None:
    assert {fault.ending for fault in ENDS} >= {"polite", "terminated", "killed"}
