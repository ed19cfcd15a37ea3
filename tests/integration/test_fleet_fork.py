"""The same change in many recorded turns: which are chosen, how they are paired, and that it can go on."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import grue
from forked_turns import Box, runner
from trace_files import TraceFile

from grue import Runner, TurnRequest
from grue.errors import ConversationError, FleetError, MCPError
from grue.fleet.fork_work import TurnToFork, condition, fork_again, turns_in
from grue.fleet.results import results
from grue.messages import RunTurn, TurnCompleted, UserText
from grue.runtime.trace.recorder import Recorder
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tracing.diff import diff
from grue.tracing.reading import open_episode

TURNS = 18


def shop(request: LlmRequest) -> LlmReply:
    """Look, and answer; the model `other` deletes something in every third room, which the record lacks."""
    told = [message for message in request.messages if message["role"] == "tool"]
    room = int(re.findall(r"room (\d+)", str(request.messages))[0])
    if told:
        return text_reply(f"{request.body['model']} saw {told[-1]['content']}")
    if request.body["model"] == "other" and room % 3 == 0:
        return tool_calls_reply(("box.delete", {"name": "all"}), ids=("x",))
    return tool_calls_reply(("box.look", {"at": f"room {room}"}), ids=("a",))


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer(shop) as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: ScriptedLlmServer) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name in "ab":
        with runner(server, "chat_completions", folder / f"{name}.jsonl", servers=Box().servers()) as each:
            for number in range(TURNS // 2):
                room = number + (TURNS // 2 if name == "b" else 0)
                each.run_turn(TurnRequest(user=f"Go to room {room}."))
    (folder / "notes.jsonl").write_text('{"not": "a trace"}\n')
    return folder


def play(folder: Path, place: Path, *more: str) -> Any:
    return grue(
        "fleet", "fork", str(folder), "--model", "other", "--where", "tool ~ look and turn > 1",
        "--repetitions", "2", "--workers", "2", "--dir", str(place), *more, cwd=folder,
    )  # fmt: skip


@pytest.mark.slow
def test_turns_are_forked_paired_and_not_forked_twice(
    tmp_path: Path, folder: Path, server: ScriptedLlmServer
) -> None:
    place = tmp_path / "forks"
    server.requests.clear()
    done = play(folder, place)
    assert done.returncode == 0, done.stdout + done.stderr
    found = list(results(place))
    assert len(found) == (TURNS - 2) * 2 * 2
    recorded = [each for each in found if each.planned["fork"] == "recorded"]
    changed = [each for each in found if each.planned["fork"] == "changed"]
    assert {each.scores["score"] for each in recorded} == {1.0}
    failed = [each for each in changed if each.outcome == "failed"]
    assert {each.end.kind for each in failed if each.end} == {"ForkMissed"}
    assert len(failed) == 2 * len([room for room in range(TURNS) if room % 3 == 0 and room not in (0, 9)])
    others = [each for each in changed if each.outcome == "scored"]
    assert {each.scores["same_calls"] for each in others} == {1.0}
    assert {each.scores["same_answer"] for each in others} == {0.0}
    trace = recorded[0].run(place) / "trace.jsonl"
    assert [*diff(open_episode(trace), open_episode(trace))] == []
    asked = len(server.requests)
    assert asked == 2 * (TURNS - 2) + len(others), "two requests for each fork, one for each that has failed"
    assert play(folder, place).returncode == 0
    assert len(server.requests) == asked, "what is done is not done again"

    pytest.importorskip("scipy", reason="pip install 'grue[evaluate]'")
    compared = grue("fleet", "compare", f"{place}:fork=recorded", ":fork=changed", "--all", cwd=tmp_path)
    assert f"{TURNS - 2} cases were played on both sides" in compared.stdout, (
        compared.stdout + compared.stderr
    )
    assert "fork: recorded in A, changed in B" in compared.stdout


def test_a_turn_that_cannot_be_forked_fails_in_both_of_its_cases(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    trace = tmp_path / "a.jsonl"
    episode: Any = SimpleNamespace(trace=tmp_path / "b.jsonl")
    with runner(server, "chat_completions", trace, servers=Box().servers()) as each:
        each.run_turn(TurnRequest(user="Go to room 1.", history=[UserText("Hello.")]))
    for fork in ("recorded", "changed"):
        case = {"trace": str(trace), "turn": 1, "fork": fork, "base_url": server.base_url}
        with pytest.raises(ConversationError, match="does not hold what was said before turn 1"):
            fork_again(case, episode)


def test_a_fork_of_a_turn_without_an_end_makes_no_recorded_calls(tmp_path: Path) -> None:
    trace, case = tmp_path / "a.jsonl", {"trace": str(tmp_path / "a.jsonl"), "turn": 1}
    with ScriptedLlmServer(["Hello.", "Hello."]) as model:
        with Runner(llm=model.settings, trace=trace) as each:
            each.run_turn("Hello?")
        lines = trace.read_text().splitlines(keepends=True)
        trace.write_text("".join(lines[:-1]))
        assert "TurnCompleted" in lines[-1]
        episode: Any = SimpleNamespace(trace=tmp_path / "recorded.jsonl")
        recorded = fork_again({**case, "fork": "recorded"}, episode)
        episode.trace = tmp_path / "changed.jsonl"
        changed = fork_again({**case, "base_url": model.base_url}, episode)
    assert set(recorded.values()) == {0.0}
    assert (changed["score"], changed["same_answer"], changed["same_calls"]) == (1.0, 0.0, 0.0)


@pytest.mark.slow
def test_a_budget_ends_the_fleet_and_a_larger_one_goes_on(
    tmp_path: Path, folder: Path, server: ScriptedLlmServer
) -> None:
    place = tmp_path / "forks"
    server.requests.clear()
    done = play(folder, place, "--max-requests", "5")
    assert done.returncode != 0
    assert len(server.requests) <= 5
    assert play(folder, place).returncode == 0
    assert sum(each.played for each in results(place)) == (TURNS - 2) * 2 * 2


@pytest.mark.slow
def test_what_is_wrong_is_refused_before_anything_starts(tmp_path: Path, folder: Path) -> None:
    rows = [
        (("--where", "speed = 1"), "The names are trace, turn, outcome"),
        (("--where", "turn > x"), "'x' is no whole number"),
        (("--where", "answer > 1"), "answer is no number"),
        (("--where", "user ~ ("), "unterminated"),
        (("--where", "turn > 99"), "no recorded turn"),
        (("--misses", "ask"), "'ask' is not one of 'fail', 'call'"),
        (("--set", "speed=1"), "there is no field speed; the fields are"),
        (("--set", "llm.speed=1"), "There is no setting llm.speed. The settings are"),
        (("--set", "llm.temperature=hot"), "--set llm.temperature: Expected `float | null`, got `str`."),
        (("--base-url", "nowhere"), "The base URL must start with http:// or https://"),
        (("--base-url", "http://me:hidden@localhost/v1"), "The base URL has a user or a password in it"),
        (("--set", "llm.base_url=http://me:hidden@localhost/v1"), "has a user or a password in it"),
    ]
    for options, says in rows:
        done = grue("fleet", "fork", str(folder), *options, "--dir", str(tmp_path / "f"), cwd=tmp_path)
        assert done.returncode != 0
        assert says in done.stderr, (options, done.stderr)
    assert not (tmp_path / "f").exists()


@pytest.mark.slow
def test_conditions_choose_turns(folder: Path) -> None:
    turns = [*turns_in(folder)]
    assert len(turns) == TURNS
    assert [turn.turn for turn in turns if condition("user ~ room 1[0-2]")(turn)] == [2, 3, 4]
    assert all(condition("outcome = answered and calls < 2 and tool != box.delete")(turn) for turn in turns)
    assert not any(condition("error ~ .")(turn) for turn in turns)
    assert all(condition("")(turn) for turn in turns)
    with pytest.raises(FleetError):
        condition("outcome")
    assert not condition("tool = a.b")(TurnToFork(trace="t", turn=1))


def test_neither_quotes_nor_an_and_become_part_of_a_value() -> None:
    """Otherwise `tool != shop.list AND calls > 3` would choose all turns."""
    turn = TurnToFork(trace="t", turn=1, tool=("shop.list",), calls=1, user="Salt AND oil", answer='"')
    assert not condition("tool != x\nand calls > 3")(turn)
    for value in ('"shop.list"', "'shop.list'", "'a' and calls = 1", "shop.list AND calls > 3"):
        with pytest.raises(FleetError, match="without quotes, and `and` in small letters"):
            condition(f"tool != {value}")
    assert condition('answer = " and user = Salt AND oil')(turn)


@pytest.mark.parametrize("recorded", ["shop.list", "mcp.shop.list"])
def test_a_condition_may_name_a_tool_with_or_without_the_prefix_of_agent_loops(recorded: str) -> None:
    turn = TurnToFork(trace="t", turn=1, tool=("tools.add", recorded))
    for name in ("shop.list", "mcp.shop.list"):
        assert condition(f"tool = {name}")(turn)
        assert not condition(f"tool != {name}")(turn)
    assert condition("tool ~ ^shop[.]list$")(turn)
    assert condition("tool ~ ^mcp[.]shop")(turn) == recorded.startswith("mcp.")
    assert not condition("tool = shop")(turn)
    assert condition("tool != list")(turn)


@pytest.mark.parametrize(
    "refused",
    [
        "turn != 1 AND calls > 2",
        "calls != two",
        "turn != nan",
        "turn == 1",
        "outcome = answred",
        "outcome != failed or parked",
    ],
)
def test_a_condition_that_no_turn_or_each_would_meet_is_refused(refused: str) -> None:
    with pytest.raises(FleetError, match=r"is no (whole number|outcome)"):
        condition(refused)


def test_numbers_are_compared_as_numbers() -> None:
    turn = TurnToFork(trace="t", turn=12)
    assert condition("turn = 12 and turn != 1 and turn ~ ^1 and calls = 0 and outcome = ")(turn)


@pytest.mark.slow
def test_forks_are_not_forked_again(tmp_path: Path, folder: Path, server: ScriptedLlmServer) -> None:
    shutil.copy(folder / "a.jsonl", tmp_path / "a.jsonl")
    with runner(server, "chat_completions", tmp_path / "fork.jsonl") as each:
        each.fork(tmp_path / "a.jsonl", turn=1)
    assert {Path(turn.trace).name for turn in turns_in(tmp_path)} == {"a.jsonl"}


def test_the_turns_before_a_fork_of_a_conversation_are_not_forked_again(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    """The fork's trace has copies of them."""
    with runner(server, "chat_completions", tmp_path / "a.jsonl", servers=Box().servers()) as each:
        talk = each.conversation("Be brief.")
        for room in (1, 2):
            talk.ask(f"Go to room {room}.")
    with runner(server, "chat_completions", tmp_path / "fork.jsonl") as each:
        each.fork(tmp_path / "a.jsonl", turn=2)
    assert [(Path(turn.trace).name, turn.turn) for turn in turns_in(tmp_path)] == [
        ("a.jsonl", 1), ("a.jsonl", 2),
    ]  # fmt: skip


def test_a_runners_own_turns_before_a_fork_of_a_conversation_are_forked(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    with runner(server, "chat_completions", tmp_path / "talk.jsonl", servers=Box().servers()) as each:
        talk = each.conversation("Be brief.")
        for room in (1, 2):
            talk.ask(f"Go to room {room}.")
    trace = tmp_path / "own.jsonl"
    with runner(server, "chat_completions", trace, servers=Box().servers()) as each:
        each.run_turn(TurnRequest(user="Go to room 4."))
        each.fork(tmp_path / "talk.jsonl", turn=2)
    assert [(turn.turn, turn.user) for turn in turns_in(trace)] == [(1, "Go to room 4.")]


@pytest.mark.slow
def test_the_same_command_forks_the_same_turns_if_the_forks_are_among_the_traces(
    tmp_path: Path, folder: Path
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    shutil.copy(folder / "a.jsonl", runs / "a.jsonl")
    command = "fleet", "fork", "runs", "--model", "other", "--where", "turn = 2", "--repetitions", "1"
    unpaid = grue(*command, "--max-requests", "1", cwd=tmp_path).stdout
    assert (
        "budget: 1 of 2 episodes done; 0 failed.\nEnded, because the fleet's limit of 1 request is" in unpaid
    )
    for _ in range(2):
        done = grue(*command, "--workers", "2", cwd=tmp_path)
        assert "1 turn, each forked 1 time" in done.stdout
        assert "finished: 2 of 2 episodes done" in done.stdout
    assert len([*results(runs / "runs-forks")]) == 2

    # The forks of another change are beside those of the first in the same folder.
    assert "finished: 2 of 2" in grue(*command, "--set", "llm.temperature=0", cwd=tmp_path).stdout
    compared = grue("fleet", "compare", "runs/runs-forks:fork=recorded", ":fork=changed", cwd=tmp_path)
    assert "1 case was played on both sides" in compared.stdout, compared.stdout + compared.stderr
    assert "1 episode, 1 not in the latest sweep and left out" in compared.stdout
    assert re.match(r"fork +score", grue("fleet", "table", "runs/runs-forks", cwd=tmp_path).stdout)


@pytest.mark.slow
def test_each_turn_of_a_number_is_forked(tmp_path: Path, server: ScriptedLlmServer) -> None:
    """`map` counts from 1 each time."""
    trace, rooms = tmp_path / "a.jsonl", ("room 1", "room 2", "room 4")
    with runner(server, "chat_completions", trace, servers=Box().servers()) as each:
        for room in rooms:
            [_] = each.map([TurnRequest(user=f"Go to {room}.")])
    turns = [*turns_in(trace)]
    assert [(turn.turn, turn.user) for turn in turns] == [(1, f"Go to {room}.") for room in rooms]
    assert [turn.at is None for turn in turns] == [False, False, True]

    done = grue(
        *("fleet", "fork", str(trace), "--model", "other", "--repetitions", "1", "--workers", "2"),
        *("--dir", str(tmp_path / "forks")),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    forks = [*results(tmp_path / "forks")]
    assert all(each.scores["same_calls"] == 1.0 for each in forks)
    users = [
        (each.planned["fork"], envelope.body.user)
        for each in forks
        for envelope in open_episode(each.run(tmp_path / "forks") / "trace.jsonl")
        if isinstance(envelope.body, RunTurn)
    ]
    assert sorted(users) == [(fork, f"Go to {room}.") for fork in ("changed", "recorded") for room in rooms]


@pytest.mark.made_up_trace
def test_a_turn_that_was_cut_off_and_run_again_is_forked_once(tmp_path: Path) -> None:
    trace, recorder = TraceFile(tmp_path / "trace.jsonl"), Recorder()
    recorder.add(trace)
    for user, ends in (("cut off", False), ("answered", True), ("still running", False)):
        run = recorder.record(RunTurn(turn=1, system="", user=user), sender="host", turn=1)
        if ends:
            end = TurnCompleted(turn=1, kind="answered", requests=1)
            recorder.record(end, sender="agent", turn=1, cause=run.seq)
    found = [(turn.user, turn.outcome, turn.at) for turn in turns_in(trace.path)]
    assert found == [("answered", "answered", 2), ("still running", "", None)]


@pytest.mark.slow
def test_several_turns_need_a_number(folder: Path, server: ScriptedLlmServer) -> None:
    with (
        runner(server, "chat_completions", folder / "unused.jsonl") as each,
        pytest.raises(MCPError, match="several turns: 1, 2, 3"),
    ):
        each.fork(folder / "a.jsonl")
