"""Episodes for other programs: tables, samples and trajectories of turns that were really played."""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from commands import DEADLINE_S, start
from made_fleets import add_episode, ended
from typer.testing import CliRunner

from grue import (
    ContextPolicy,
    FunctionTools,
    LlmSettings,
    Runner,
    ToolPolicy,
    ToolRule,
    TurnRequest,
    parked_turns,
)
from grue.cli.app import app
from grue.errors import ApprovalPending
from grue.fleet import export
from grue.fleet.export import EpisodeRow, Samples, trajectory
from grue.fleet.folder import TRACE, AttemptEnd, FleetFolder, Manifest
from grue.messages import (
    CallId,
    CompletionReceived,
    RunTurn,
    ToolCall,
    ToolCallRecord,
    ToolCallResult,
    TurnCompleted,
)
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Recorder
from grue.testing.llm_server import (
    ContextWindow,
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    text_reply,
    tool_calls_reply,
)
from grue.tracing.marks import Mark, write_mark

pytestmark = pytest.mark.made_up_trace  # one of them is damaged

SECRET = "sk-of-the-host-1234567890"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def with_tokens(reply: LlmReply, *ids: int) -> LlmReply:
    body = json.loads(reply.body)
    body["choices"][0] |= {"token_ids": list(ids)}
    body["choices"][0] |= {"logprobs": {"content": [{"token": "x", "logprob": -0.5} for _ in ids]}}
    return msgspec.structs.replace(reply, body=json.dumps(body).encode())


def model(request: LlmRequest) -> LlmReply:
    question = next(each["content"] for each in reversed(request.messages) if each["role"] == "user")
    if "secret" in str(question):
        return with_tokens(text_reply(f"It is {SECRET}"), 1, 2, 3)
    if request.messages[-1]["role"] == "tool":
        return with_tokens(text_reply("5"), 9)
    return with_tokens(
        tool_calls_reply(("functions.add", {"a": 2, "b": 3}), ("functions.nope", {}), content="I add."), 4, 5
    )


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with ScriptedLlmServer(model) as server:
        yield server.base_url


def play(endpoint: str, trace: Path, *questions: str) -> None:
    settings = LlmSettings(base_url=endpoint, model="m", api_key=SECRET, extra_body={"logprobs": True})
    functions = FunctionTools([add])
    with Runner(llm=settings, servers={"functions": functions}, trace=trace) as runner:
        talk = runner.conversation("Be brief.")
        for question in questions:
            talk.ask(question)


@pytest.fixture
def fleet(tmp_path: Path, endpoint: str) -> Path:
    """A fleet of four episodes: a scored one, a failed one without a trace, one under way, a damaged one."""
    played = tmp_path / "played.jsonl"
    play(endpoint, played, "What is 2 + 3?", "And now?")
    fleet = FleetFolder(tmp_path / "runs" / "sums")
    fleet.write_manifest(Manifest(work="m:ask", total=3, axes=["prompt"]))
    trace = played.read_bytes()
    lines = trace.splitlines(keepends=True)
    damaged = b"".join([*lines[:-1], b"{]\n", lines[-1]])
    add_episode(fleet.episode("aa" + "0" * 22), {"prompt": "it's"}, 0, ended(0.5), trace)
    failed = AttemptEnd(outcome="failed", kind="exception", error="no 'quotes'\n")
    add_episode(fleet.episode("bb" + "0" * 22), {"prompt": "b"}, 0, failed)
    interrupted = AttemptEnd(outcome="infrastructure", kind="machine", error="gone")
    add_episode(fleet.episode("cc" + "0" * 22), {"prompt": "c"}, 1, interrupted)
    add_episode(fleet.episode("dd" + "0" * 22), {"prompt": "d"}, 0, ended(1.0), damaged)
    return fleet.path


def run(*words: object, status: int = 0) -> str:
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == status, done.output
    return done.output


def asked(sql: str, *places: object) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["trace", "query", sql, *map(str, places), "--json"])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_fleet_is_four_parquet_files_that_others_can_read(fleet: Path) -> None:
    said = run("fleet", "export", fleet)
    assert "4 episodes, 4 turns, 6 calls, 8 requests" in said
    assert "2 episodes without a trace" in said
    assert "line" in said, "the damaged trace is named"

    def rows(sql: str) -> list[Any]:
        return duckdb.execute(sql.replace("$", f"{fleet}/export")).fetchall()

    assert rows("select scores['score'], settings->>'prompt' from '$/episodes.parquet' order by episode")[
        0
    ] == (
        0.5,
        "it's",
    )
    assert rows(
        "select outcome, kind, error from '$/episodes.parquet' where outcome <> 'scored' order by all"
    ) == [("failed", "exception", "no 'quotes'\n"), ("infrastructure", "machine", "gone")]
    calls = rows(
        "select tool, arguments, settlement, is_error, result::VARCHAR from '$/calls.parquet'"
        " where episode like 'aa%' and turn = 1 order by tool"
    )
    assert calls[0] == ("functions.add", '{"a": 2, "b": 3}', "returned", False, "5")
    assert calls[1][2:4] == ("rejected", True)
    turns = rows("select turn, outcome, user, answer, requests, tool_calls from '$/turns.parquet' order by 1")
    assert (1, "answered", "What is 2 + 3?", "5", 2, 2) in turns
    assert rows("select distinct outcome, asked_by from '$/requests.parquet' where episode like 'aa%'") == [
        ("received", "agent")
    ]
    assert {path.name for path in (fleet / "export").iterdir()} == {
        f"{name}.parquet" for name in ("episodes", "turns", "calls", "requests")
    }


@pytest.mark.slow
def test_sql_reads_fleets_runs_traces_and_exported_tables(fleet: Path, tmp_path: Path) -> None:
    counted = "select count(*) n from turns"
    assert asked(counted, fleet / "aa" / ("aa" + "0" * 22) / "attempt-1") == [{"n": 2}]
    assert asked(counted, tmp_path / "played.jsonl") == [{"n": 2}]
    shutil.copytree(fleet / "aa" / ("aa" + "0" * 22) / "attempt-1", tmp_path / "runs" / "alone")
    whole = asked(counted, fleet)[0]["n"]
    assert asked(counted, tmp_path / "runs") == [{"n": whole + 2}]
    assert asked(counted, tmp_path) == [{"n": whole + 2 + 2}], "its runs, and its trace"
    both = "select e.episode, t.episode from episodes e join turns t on e.episode = t.episode limit 1"
    (row,) = asked(both, fleet)
    assert row["episode"] == row["episode_1"], "columns of one name are told apart"
    run("fleet", "export", fleet, "--out", tmp_path / "tables")
    assert asked(counted, tmp_path / "tables") == [{"n": whole}]
    assert asked(counted, tmp_path / "tables", tmp_path / "played.jsonl") == [{"n": whole + 2}]
    per_tool = asked(
        "select tool, count(*) n from calls where episode = 'alone' group by 1 order by 1", fleet.parent
    )
    assert per_tool == [{"tool": "functions.add", "n": 2}, {"tool": "functions.nope", "n": 2}]
    shown = run("trace", "query", "select episode, scores, error from episodes order by 1 limit 2", fleet)
    assert shown.splitlines()[0].split() == ["episode", "scores", "error"]
    assert "{'score': 0.5}" in shown


@pytest.mark.skipif(sys.platform != "linux", reason="macOS refuses such a name")
@pytest.mark.slow
def test_a_run_folder_whose_name_is_not_utf_8_is_queried_too(fleet: Path, tmp_path: Path) -> None:
    alone = tmp_path / "runs" / os.fsdecode(b"alone\xff")
    shutil.copytree(fleet / "aa" / ("aa" + "0" * 22) / "attempt-1", alone)
    named = "select episode, count(*) n from turns group by 1"
    assert asked(named, alone) == [{"episode": "alone\ufffd", "n": 2}]


@pytest.mark.slow
def test_ctrl_c_ends_a_query_with_130_and_no_traceback(tmp_path: Path) -> None:
    sql = "copy (select 1) to 'begun'; select count(*) from range(100000000) a, range(1000000) b; select 2"
    with start("trace", "query", sql, cwd=tmp_path) as query:
        try:
            deadline = time.monotonic() + DEADLINE_S
            while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            query.send_signal(signal.SIGINT)
            said = query.communicate(timeout=DEADLINE_S)
        finally:
            query.kill()
    assert (query.returncode, said) == (130, ("", ""))


def test_ctrl_c_while_the_statement_is_handed_over_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Struck(export.ThreadPoolExecutor):
        def submit(self, *args: Any, **how: Any) -> Any:
            future = super().submit(*args, **how)
            if "range" in args[1]:
                signal.raise_signal(signal.SIGINT)
            return future

    monkeypatch.setattr(export, "ThreadPoolExecutor", Struck)
    last = tmp_path / "last"
    long = "select count(*) from range(100000) a, range(20000) b where a.range != b.range"
    tables = export._Tables({})
    with tables, pytest.raises(KeyboardInterrupt):
        tables.run(f"{long}; copy (select 2) to '{last}'")
    assert not last.exists()


@pytest.mark.slow
def test_wrong_queries_and_places_are_said_in_a_sentence(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "nonsense" in run("trace", "query", "select nonsense from turns", fleet, status=1)
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    for place in (".", "y"):
        said = run("trace", "query", "select 1 from turns", place, status=1)
        assert said == f"grue: In {place} there is no fleet, no run folder and no trace.\n"
    assert "no fleet in" in run("fleet", "export", tmp_path, status=1)
    assert "'parquet', 'samples'," in run("fleet", "export", fleet, "--as", "csv", status=2)
    (tmp_path / "file").write_text("")
    assert "Cannot make the folder" in run(
        "fleet", "export", fleet, "--out", tmp_path / "file" / "x", status=1
    )
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    assert "pip install 'duckdb>=1.2'" in run("fleet", "export", fleet, status=2)


def test_a_sample_tells_what_the_model_wrote_from_what_others_did(fleet: Path) -> None:
    said = run("fleet", "export", fleet, "--as", "samples", "--out", fleet / "rl")
    assert "samples" in said
    samples = [json.loads(line) for line in (fleet / "rl" / "samples.jsonl").read_text().splitlines()]
    mine = [each for each in samples if each["episode"].startswith("aa")]
    assert [(each["turn"], each["request"]) for each in mine] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    first, second, third, _ = mine
    assert first["reward"] == 0.5
    assert first["settings"]["prompt"] == "it's"
    assert [each["by"] for each in first["messages"]] == ["host", "host"]
    assert [each["function"]["name"] for each in first["tools"]] == ["functions.add"]
    assert first["reply"]["content"] == "I add."
    assert first["token_ids"] == [4, 5]
    assert first["logprobs"] == [-0.5, -0.5]
    assert first["loss_mask"] == [0, 0, 1]
    # The answer to a call that was not made is grue's, not the tool's.
    assert [each["by"] for each in second["messages"]] == ["host", "host", "model", "tool", "grue"]
    assert second["loss_mask"] == [0, 0, 1, 0, 0, 1]
    assert second["token_ids"] == [9]
    told = {name: value for name, value in first["reply"].items() if name != "finish_reason"}
    assert second["messages"][2] == told
    # The next turn has the whole conversation.
    assert [each["by"] for each in third["messages"]][-2:] == ["model", "host"]
    assert third["loss_mask"] == [0, 0, 1, 0, 0, 1, 0, 1]


def test_a_reply_that_was_cut_gives_a_sample(tmp_path: Path) -> None:
    """The trace says that it was cut before it says what it is."""
    trace, cut = tmp_path / "s.jsonl", with_tokens(text_reply("Hello, I", finish_reason="length"), 7)
    with ScriptedLlmServer(lambda request: cut) as server:
        llm = LlmSettings(base_url=server.base_url, model="m", api_key="", max_tokens=3)
        with Runner(llm=llm, trace=trace) as runner:
            runner.run_turn(TurnRequest("Say hello."))
    assert b"ReplyCut" in trace.read_bytes()
    fleet = FleetFolder(tmp_path / "f")
    fleet.write_manifest(Manifest(work="m:ask", total=1, axes=[]))
    add_episode(fleet.episode("aa" + "0" * 22), {"prompt": "p"}, 0, ended(1.0), trace.read_bytes())
    assert "1 sample." in run("fleet", "export", fleet.path, "--as", "samples")
    (sample,) = map(json.loads, (fleet.path / "export" / "samples.jsonl").read_text().splitlines())
    assert (sample["reply"]["content"], sample["token_ids"]) == ("Hello, I", [7])


def play_until_cleared(trace: Path) -> EpisodeRow:
    """Play a conversation whose first texts are replaced by stubs."""
    with ScriptedLlmServer(lambda _: text_reply("seen"), window=ContextWindow(2000)) as server:
        llm = LlmSettings(base_url=server.base_url, model="m", api_key="", max_tokens=100)
        with Runner(llm=llm, trace=trace, context=ContextPolicy(window_tokens=2000)) as runner:
            talk = runner.conversation("Look.")
            for number in range(4):
                talk.ask(f"{number} " + "word " * 500, user_stub="[an earlier question]")
    return EpisodeRow(episode="e", trace=str(trace))


def test_the_stub_of_a_hosts_text_is_the_hosts_in_a_sample(tmp_path: Path) -> None:
    row = play_until_cleared(tmp_path / "s.jsonl")
    said = [message for sample in Samples(tmp_path / "s.jsonl", row) for message in sample.messages]
    assert {each["by"] for each in said if each["content"] == "[an earlier question]"} == {"host"}


def test_a_trajectory_says_where_the_history_was_shortened(tmp_path: Path) -> None:
    row = play_until_cleared(tmp_path / "s.jsonl")
    steps = trajectory(tmp_path / "s.jsonl", row)["steps"]
    told = [each["message"] for each in steps if each["source"] == "system"][1:]
    assert told, "the first one is the system text"
    assert all(each.startswith("The history was rewritten: ") for each in told)
    assert any("text" in each for each in told), told


def test_what_a_secret_was_replaced_in_gives_no_sample(tmp_path: Path, endpoint: str) -> None:
    trace = tmp_path / "s.jsonl"
    play(endpoint, trace, "Tell me a secret.", "What is 2 + 3?")
    assert SECRET.encode() not in trace.read_bytes()
    assert b'"ids":[1,2,3]' not in trace.read_bytes(), "the ids would spell it out"
    assert b'"ids":[4,5]' in trace.read_bytes()
    fleet = FleetFolder(tmp_path / "f")
    fleet.write_manifest(Manifest(work="m:ask", total=1, axes=[]))
    add_episode(fleet.episode("aa" + "0" * 22), {"prompt": "p"}, 0, ended(1.0), trace.read_bytes())
    said = run("fleet", "export", fleet.path, "--as", "samples")
    assert "0 samples" in said
    assert "3 replies gave no sample" in said


def test_a_trajectory_is_in_the_form_of_atif(fleet: Path) -> None:
    run("fleet", "export", fleet, "--as", "atif", "--out", fleet / "atif")
    found = json.loads((fleet / "atif" / f"aa{'0' * 22}.json").read_text())
    assert found["schema_version"] == "ATIF-v1.4"
    assert found["session_id"] == f"aa{'0' * 22}"
    assert found["agent"]["name"] == "grue"
    assert found["extra"]["reward"] == 0.5
    steps = found["steps"]
    assert [each["step_id"] for each in steps] == [*range(1, len(steps) + 1)]
    assert [each["source"] for each in steps] == [
        "system",
        "user",
        "agent",
        "agent",
        "user",
        "agent",
        "agent",
    ]
    asks = steps[2]
    assert asks["tool_calls"][0]["arguments"] == {"a": 2, "b": 3}
    ids = [each["tool_call_id"] for each in asks["tool_calls"]]
    assert [each["source_call_id"] for each in asks["observation"]["results"]] == ids
    assert json.loads(asks["observation"]["results"][0]["content"]) == {"content": 5}
    assert asks["metrics"]["completion_token_ids"] == [4, 5]
    assert found["final_metrics"]["total_steps"] == 7
    assert TRACE not in {path.name for path in (fleet / "atif").iterdir()}


def test_a_trajectory_has_the_turn_once_that_was_parked_and_resumed(tmp_path: Path) -> None:
    script = [
        tool_calls_reply(("functions.add", {"a": 1, "b": 1}), ids=("a",)),
        tool_calls_reply(("functions.drop", {}), ids=("b",)),
        text_reply("done"),
    ]
    functions = FunctionTools({"add": add, "drop": lambda: "dropped"})
    policy = ToolPolicy(rules=(ToolRule(tools=("functions.drop",), verdict="ask"),), parking=True)
    trace = tmp_path / TRACE
    with ScriptedLlmServer(script) as server:
        llm = LlmSettings(base_url=server.base_url, model="m")
        with (
            Runner(llm=llm, servers={"functions": functions}, trace=trace, tool_policy=policy) as runner,
            pytest.raises(ApprovalPending),
        ):
            runner.run_turn(TurnRequest(system="s", user="Tidy up."))
        with Runner(llm=llm, servers={"functions": functions}, tool_policy=policy) as runner:
            runner.resume(trace, [each.approve() for turn in parked_turns(trace) for each in turn.questions])
    steps = trajectory(trace, EpisodeRow(episode="e"))["steps"]
    assert [each["source"] for each in steps] == ["system", "user", "agent", "agent", "agent"]
    observed = [each["observation"]["results"] for each in steps if "observation" in each]
    assert [[each["source_call_id"] for each in results] for results in observed] == [["a"], ["b"]]


def test_a_trajectory_has_the_results_of_turns_that_ran_at_the_same_time(tmp_path: Path) -> None:
    recorder, call = Recorder(), ToolCall(call_id=CallId("a"), name="functions.add", arguments="{}")
    with TraceWriter(tmp_path / TRACE, episode="e") as writer:
        recorder.add(writer)
        turns = (1, 2)
        for turn in turns:
            recorder.record(RunTurn(turn=turn, system="s", user="u"), sender="host", turn=turn)
        for turn in turns:
            reply = CompletionReceived(request=1, content=None, tool_calls=(call,))
            recorder.record(reply, sender="llm", turn=turn)
        for turn in reversed(turns):
            record = ToolCallRecord(
                call_id=call.call_id,
                name=call.name,
                arguments="{}",
                iteration=1,
                settlement="returned",
                result=ToolCallResult(content=f"of turn {turn}"),
            )
            end = TurnCompleted(turn=turn, kind="answered", tool_calls=(record,))
            recorder.record(end, sender="agent", receiver="host", turn=turn)
    steps = trajectory(tmp_path / TRACE, EpisodeRow(episode="e"))["steps"]
    asked = [each for each in steps if each["source"] == "agent"]
    for turn, step in zip(turns, asked, strict=True):
        assert f"of turn {turn}" in step["observation"]["results"][0]["content"]


def test_a_run_folder_of_a_fleet_has_the_marks_of_its_attempt(tmp_path: Path) -> None:
    run = tmp_path / "ab" / "attempt-2"
    run.mkdir(parents=True)
    for version, score, attempt in (("2", 0.2, 2), ("10", 1.0, 2), ("11", 0.5, 1)):
        write_mark(run.parent, Mark(scorer="polite", version=version, score=score, attempt=attempt))
    for place in (run, run / TRACE):
        assert export.run_episode(place).scores == {"polite": 1.0}
