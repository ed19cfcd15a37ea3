"""What `grue fleet run` shows while it runs."""

import io
import json
import os
import time
from contextlib import suppress
from pathlib import Path

import pyte
import pytest
from msgspec.structs import replace

from grue.cli import fleet
from grue.cli.fleet import FleetProgress, clock
from grue.errors import FleetError
from grue.fleet.broker import Amount, Costs, FleetBudget
from grue.fleet.driver import Tally
from grue.fleet.folder import CaseFile, FleetFolder

ID = "ab" + "0" * 22
TALLY = Tally(total=100, done=30, before=10, failed=2, given_up=1, waiting=4, scores={"score": (28, 140.0)})
COSTS = Costs(Amount(40, 5000, 1.5), overloads=3)


def row(budget: FleetBudget, tally: Tally = TALLY, costs: Costs = COSTS) -> str:
    progress = FleetProgress(io.StringIO(), Path(), budget)
    progress._began -= 60
    progress._tally, progress._running, progress._costs = tally, {ID: time.monotonic()}, costs
    return progress._counts_row()


def test_the_row_has_counts_score_cost_overloads_and_the_time_left() -> None:
    assert row(FleetBudget(money_usd=5.0, requests=1000)) == (
        "30/100 done, 1 running, 4 waiting, 3 failed, score 5, $1.50 of $5.00, 40 of 1,000 requests, "
        "3 overloads, 3:27 left"
    )
    few = Tally(total=100, done=12, before=10)
    assert row(FleetBudget(), few, Costs()) == "12/100 done, 1 running"


def test_without_limits_the_results_say_what_it_has_cost() -> None:
    tally = Tally(total=9, done=1, spent=Amount(3, 30, 0.25))
    assert "$0.25" in row(FleetBudget(), tally, Costs())
    earlier = Costs(Amount(1, 10, 0.05))
    assert "$0.25" in row(FleetBudget(), tally, earlier)


def test_hours_are_shown_as_hours() -> None:
    assert (clock(59.9), clock(3661)) == ("0:59", "1:01:01")


def attempt_of(place: Path) -> Path:
    return FleetFolder(place).episode(ID).begin(CaseFile(work="w", version="1", settings={}))


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_slowest_episode_with_its_trace_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setitem(fleet._SHOWN_EVERY_S, True, 0.0)
    attempt, screen = attempt_of(tmp_path), _Screen()
    progress = FleetProgress(screen, tmp_path, FleetBudget())
    progress.show(TALLY, {ID: time.monotonic() - 83}, COSTS)
    progress.show(TALLY, {}, COSTS)
    progress.end(TALLY)
    first, second, *_ = screen.getvalue().split("\n")
    assert first.endswith("left")
    assert f"slowest 1:23: grue trace show {attempt}" in second
    assert "\x1b[1A\r\r\x1b[J30/100 done, 0 running, 4 waiting" in second, (
        "the second picture goes back over both rows"
    )
    assert screen.getvalue().endswith("left\n\r")


def test_rows_of_wide_characters_are_replaced_and_leave_room_for_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setitem(fleet._SHOWN_EVERY_S, True, 0.0)
    wide = replace(TALLY, scores={"正确率" * 9: (28, 140.0)})
    out, screen = _Screen(), pyte.Screen(40, 10)
    with suppress(FleetError), FleetProgress(out, tmp_path, FleetBudget()) as progress:
        for _ in range(3):
            progress.show(wide, {ID: time.monotonic() - 83}, COSTS)
        pyte.Stream(screen).feed(out.getvalue().replace("\n", "\r\n"))
        assert [row[:6] for row in screen.display if row.strip()] == ["30/100", "  slow"]
        out.truncate(out.seek(0))
        raise FleetError("The folder is gone.")
    pyte.Stream(screen).feed(f"{out.getvalue()}grue: The folder is gone.")
    assert [row.rstrip() for row in screen.display if row.strip()] == ["grue: The folder is gone."]


def test_a_fleet_goes_on_if_nobody_reads_its_progress(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        progress = FleetProgress(pipe, tmp_path, FleetBudget())
        progress.show(TALLY, {}, COSTS)
        with pytest.raises(BrokenPipeError):
            progress.end(TALLY)


def test_a_pipe_gets_json_lines(tmp_path: Path) -> None:
    attempt, pipe = attempt_of(tmp_path), io.StringIO()
    progress = FleetProgress(pipe, tmp_path, FleetBudget(money_usd=5.0, requests=9))
    progress.show(TALLY, {ID: time.monotonic() - 100}, COSTS)
    progress.show(TALLY, {}, COSTS)  # too early
    progress.end(TALLY)
    first, last = (json.loads(line) for line in pipe.getvalue().splitlines())
    assert first["slowest"]["trace"] == f"grue trace show {attempt}"
    assert first["slowest"]["age_s"] >= 100
    assert (first["money_usd"], first["most_money_usd"], first["overloads"]) == (1.5, 5.0, 3)
    assert (last["done"], last["failed"], last["given_up"], last["running"]) == (30, 2, 1, 0)
    assert (last["waiting"], last["scores"]) == (4, {"score": 5.0})
    assert "slowest" not in last


def test_an_episode_without_an_attempt_is_shown_by_the_fleet(tmp_path: Path) -> None:
    command = fleet.trace_command(tmp_path, ID)
    assert command == f"grue fleet show {tmp_path} {ID[:10]}"
