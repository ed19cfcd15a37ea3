"""`grue runs` lists episodes, and the trace commands take the latest one."""

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from commands import grue

from grue import LlmSettings, Recorder, Runner, TraceWriter, TurnRequest
from grue.errors import LLMError, TraceError
from grue.hosts.zork.facts import EpisodeEnded
from grue.testing.llm_server import ScriptedLlmServer, error_reply, text_reply


def episode(path: Path, when: int, **result: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"trace": "grue", "format": 2, "episode": path.parent.name, "started_at": 0.0}
    path.write_text(json.dumps(header, separators=(",", ":")) + "\n")
    if result:
        (path.parent / "result.json").write_text(json.dumps(result))
    os.utime(path, (when, when))


@pytest.mark.slow
def test_a_result_that_only_the_trace_of_a_bundled_host_has_is_listed(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.add(writer := TraceWriter(tmp_path / "run.jsonl", episode="one"))
    recorder.record(EpisodeEnded(reason="won", detail="", turns=2, score=7, max_score=10), sender="host")
    writer.close()
    assert ", score 7 of 10, " in grue("runs", str(tmp_path), cwd=tmp_path).stdout


@pytest.mark.slow
def test_runs_lists_the_latest_first_with_how_each_ended(tmp_path: Path) -> None:
    episode(
        tmp_path / "runs/old/trace.jsonl", 1000, reason="won", turns=1, score=5, max_score=10, duration_s=2.0
    )
    episode(tmp_path / "runs/a new/trace.jsonl", 2000)
    episode(tmp_path / "runs/open/trace.jsonl", 900, reason="ended", turns=1, score=5)
    (tmp_path / "runs/notes.txt").write_text("no trace")
    listed = grue("runs", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    new, old, endless, hint = listed.stdout.splitlines()
    assert new.startswith("runs/a new  ")
    assert old.startswith("runs/old    ")
    assert old.endswith("won: 1 turn, 5 of 10 points, 2.0 s")
    assert endless.endswith("ended: 1 turn, 5 points"), "this game has no highest score"
    assert hint == "To read one: grue trace show 'runs/a new'"


@pytest.mark.slow
def test_without_a_path_the_latest_trace_is_shown(tmp_path: Path) -> None:
    episode(tmp_path / "runs/old/trace.jsonl", 1000)
    episode(tmp_path / "bot.jsonl", 2000)
    (tmp_path / "other.jsonl").write_text("{}\n")
    shown = grue("trace", "show", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == "The latest: bot.jsonl\n"
    episode(tmp_path / "runs/new/trace.jsonl", 3000)
    assert grue("trace", "stats", cwd=tmp_path).stderr == "The latest: runs/new\n"


@pytest.mark.slow
def test_where_there_is_no_trace_both_say_so(tmp_path: Path) -> None:
    shown = grue("trace", "show", cwd=tmp_path)
    assert shown.returncode == 2
    assert "There is no trace in runs or here" in shown.stderr
    listed = grue("runs", cwd=tmp_path)
    assert listed.returncode == 2
    assert "There is no folder runs" in listed.stderr


@pytest.mark.slow
def test_a_folder_of_a_fleet_or_of_fleets_names_the_commands_for_it(tmp_path: Path) -> None:
    (tmp_path / "runs/prompts").mkdir(parents=True)
    (tmp_path / "runs/prompts/fleet.json").write_text("{}")
    for named in ("runs/prompts", "runs"):
        listed = grue("runs", named, cwd=tmp_path)
        assert listed.returncode == 2
        for command in ("table runs/prompts", "failures runs/prompts", "show runs/prompts ID"):
            assert f"grue fleet {command}" in listed.stderr


def test_a_folder_of_a_batch_names_the_folder_of_its_traces(tmp_path: Path) -> None:
    (tmp_path / "runs/tickets/turns").mkdir(parents=True)
    (tmp_path / "runs/tickets/batch.json").write_text("{}")
    for command in (("runs",), ("trace", "query", "select * from turns")):
        for named in ("runs/tickets", "runs"):
            said = grue(*command, named, cwd=tmp_path).stderr
            assert "runs/tickets is a batch: the traces of its turns are in runs/tickets/turns." in said


@pytest.mark.slow
def test_runs_of_a_program_of_ones_own_say_how_they_ended(tmp_path: Path) -> None:
    for reply in (text_reply("three"), error_reply(404, "no model m")):
        with ScriptedLlmServer([reply]) as server, suppress(LLMError):
            llm = LlmSettings(base_url=server.base_url, model="m")
            with Runner(llm=llm, trace=tmp_path / "runs") as runner:
                runner.run_turn(TurnRequest(user="How many eggs\nare left?"))
    failed, answered, _ = grue("runs", cwd=tmp_path).stdout.splitlines()
    assert " answered: 1 turn, 0 tool calls, " in answered
    assert answered.endswith(" s  How many eggs")
    assert " failed: 1 turn, 1 without an answer, 0 tool calls, " in failed


@pytest.mark.slow
def test_trace_files_of_the_working_directory_are_listed_beside_runs(tmp_path: Path) -> None:
    with ScriptedLlmServer(["one", "two"]) as server:
        llm = LlmSettings(base_url=server.base_url, model="m")
        for trace in (tmp_path / "shop.jsonl", tmp_path / "runs"):
            with Runner(llm=llm, trace=trace) as runner:
                runner.run_turn("How many?")
            listed = grue("runs", cwd=tmp_path).stdout
            assert "shop.jsonl" in listed
    assert len(listed.splitlines()) == 3
    assert listed.startswith("runs/")
    assert grue("runs", ".", cwd=tmp_path).stdout == listed
    (tmp_path / "shop.jsonl").unlink()
    assert grue("runs", ".", cwd=tmp_path).stdout.startswith("runs/")


def test_a_trace_file_makes_its_folder(tmp_path: Path) -> None:
    trace = tmp_path / "of" / "today" / "bot.jsonl"
    with ScriptedLlmServer(["three"]) as server:
        llm = LlmSettings(base_url=server.base_url, model="m")
        with Runner(llm=llm, trace=trace) as runner:
            runner.run_turn("How many?")
    assert trace.exists()
    (tmp_path / "file").touch()
    with pytest.raises(TraceError, match="Cannot write the trace file"):
        Runner(
            llm=LlmSettings(base_url="http://127.0.0.1:9/v1", model="m"), trace=tmp_path / "file" / "a.jsonl"
        )


def test_the_traceback_of_a_failed_turn_names_its_trace(tmp_path: Path) -> None:
    with ScriptedLlmServer([error_reply(404, "no model m")]) as server:
        llm = LlmSettings(base_url=server.base_url, model="m")
        with Runner(llm=llm, trace=tmp_path / "bot.jsonl") as runner, pytest.raises(LLMError) as failed:
            runner.run_turn(TurnRequest(user="How many?"))
    assert failed.value.__notes__ == [
        f"The turn's messages are in its trace: grue trace show {tmp_path / 'bot.jsonl'}"
    ]
    assert "bot.jsonl" not in str(failed.value)
