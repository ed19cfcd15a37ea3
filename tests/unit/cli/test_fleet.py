"""`grue fleet run` within a process: what it says at the end, and whether that is a success."""

from pathlib import Path
from typing import Any

import pytest
from made_fleets import unread_pipe

from grue.cli.fleet import folder_of_forks, print_plan, run_fleet, score_episodes, stop_fleet
from grue.errors import FleetError, MCPConfigError
from grue.fleet import Finished, Fleet, Tally
from grue.fleet.folder import MANIFEST, STOP, FleetFolder, driver_lock
from grue.fleet.scoring import ScoreTally, Scoring

SWEEP = 'work = "zork"\nsettings = { offline = true, mcp = false }\n'


@pytest.mark.parametrize(
    ("finished", "succeeded", "words"),
    [
        (
            Finished(reason="finished", tally=Tally(total=2, done=2, failed=1)),
            True,
            "2 of 2 episodes done; 1 f",
        ),
        (
            Finished(
                reason="finished",
                tally=Tally(total=2, done=1, given_up=1, troubles=["ab12: it died\nStart it."]),
            ),
            False,
            "ended: 1 of 2 episodes done; 0 failed.\n1 episode given up after three attempts, or unreadable:"
            "\n  ab12: it died\n    Start it.\nTo try them again:",
        ),
        (
            Finished(reason="finished", tally=Tally(total=2, done=1, unpaid=1)),
            False,
            "1 episode not played to the end: the budget has refused a request.",
        ),
        (
            Finished(reason="budget", tally=Tally(total=2, done=1, unpaid=1), why="the limit is used up"),
            False,
            "Ended, because the limit is used up. With a larger budget the same command plays the rest.",
        ),
        (Finished(reason="paused", tally=Tally(total=2), why="all died"), False, "Paused, because all died"),
        (
            Finished(reason="stopped", tally=Tally(total=2, done=1)),
            False,
            "stopped: 1 of 2 episodes done",
        ),
        (
            Finished(reason="stopped", tally=Tally(total=2, done=1, waiting=1)),
            False,
            "1 episode waiting for the replies of a batch: the same command goes on with that.",
        ),
    ],
)
def test_a_run_succeeds_only_if_nothing_is_missing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    finished: Finished,
    succeeded: bool,
    words: str,
) -> None:
    def swept(*_: object, **__: Any) -> Finished:
        return finished

    monkeypatch.setattr(Fleet, "sweep", swept)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    assert run_fleet(tmp_path / "sweep.toml", tmp_path / "fleet") is succeeded
    assert words in capsys.readouterr().out


def test_a_fleet_succeeds_also_if_nobody_reads_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally(total=1, done=1)
    monkeypatch.setattr(Fleet, "sweep", lambda *_, **__: Finished(reason="finished", tally=tally))
    (tmp_path / "sweep.toml").write_text(SWEEP)
    with unread_pipe() as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        assert run_fleet(tmp_path / "sweep.toml", tmp_path / "fleet")


@pytest.mark.parametrize("text", ["gird = {}\n" + SWEEP, "work = [", 'work = "nowhere:play"\n'])
def test_a_sweep_that_cannot_be_used_is_no_episode_without_a_result(tmp_path: Path, text: str) -> None:
    """The exit status is 2, as for other files of settings. With 1 an episode would be missing."""
    (tmp_path / "sweep.toml").write_text(text)
    for command in (run_fleet, print_plan):
        with pytest.raises(MCPConfigError):
            command(tmp_path / "sweep.toml", tmp_path / "fleet")


def test_forks_have_a_folder_with_the_name_of_the_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is whole: forks of `try-1.5` and of `try-1.6` must not become one fleet."""
    for name in ("try-1.5", "try-1.6"):
        run = tmp_path / name
        run.mkdir()
        (run / "trace.jsonl").touch()
        assert folder_of_forks(run) == folder_of_forks(run / "trace.jsonl") == Path("runs", f"{name}-forks")
    monkeypatch.chdir(tmp_path / "try-1.5")
    assert folder_of_forks(Path("..", "try-1.6", "..")) == Path("runs", f"{tmp_path.name}-forks")
    (tmp_path / "try-1.7.jsonl").touch()
    assert folder_of_forks(tmp_path / "try-1.7.jsonl") == Path("runs", "try-1.7-forks")


def test_a_stop_tells_whether_a_process_runs_the_fleet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / MANIFEST).touch()
    stop_fleet(tmp_path)
    with driver_lock(FleetFolder(tmp_path)):
        pass
    stop_fleet(tmp_path)
    told = capsys.readouterr().out.splitlines()
    elsewhere = "No process of this machine runs the fleet. A process of another machine"
    assert told[0].startswith(f"{elsewhere} stops after its running episodes, or at once")
    assert told[1].startswith(elsewhere)
    (tmp_path / STOP).unlink()
    (tmp_path / STOP).mkdir()
    with pytest.raises(FleetError, match=f"Cannot write {tmp_path / STOP}: Is a directory"):
        stop_fleet(tmp_path)
    (tmp_path / STOP).rmdir()
    with driver_lock(FleetFolder(tmp_path)):
        stop_fleet(tmp_path)
        assert capsys.readouterr().out.startswith("The fleet stops after its running episodes")
        stop_fleet(tmp_path)
    assert capsys.readouterr().out.startswith("The fleet cancels its running episodes.")
    assert (tmp_path / STOP).exists()


def test_an_error_of_several_lines_stays_indented_below_its_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / MANIFEST).touch()
    tally = ScoreTally(total=1, failed=1, troubles=["ab12: judge: The model failed.\nSet a key."])
    monkeypatch.setattr("grue.cli.fleet.score_fleet", lambda *_, **__: tally)
    monkeypatch.setattr("grue.cli.fleet.read_scoring", lambda _: Scoring(scorer={}))
    assert not score_episodes(tmp_path, "x", again=False)
    assert "\n    ab12: judge: The model failed.\n      Set a key.\n" in capsys.readouterr().out
