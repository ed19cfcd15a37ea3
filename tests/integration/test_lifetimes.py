"""What a turn does is the same however long its loop and its servers live: one suite for every mode."""

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from fault_matrix import TOLERATED
from fault_turns import MODES, Mode, drive_turn
from faulty_http_server import faulty_http_server
from lifetimes import (
    DONE,
    ECHO,
    ONCE,
    QUICK,
    SAMPLED,
    STUBBORN,
    Step,
    episode,
    living,
    modes,
    settlements,
)
from msgspec.structs import replace
from transport_servers import faulty

from grue import FailurePolicy, FunctionTools, HttpServer, StdioServer, TurnLimits
from grue.errors import BudgetSpent, MCPServerStartupError, TurnTimedOut
from grue.messages import (
    ConnectFailed,
    McpDisabled,
    PrewarmLost,
    ServerDied,
    ServerEnded,
    SessionClosed,
    SessionOpened,
    SessionPrewarmed,
    ToolCalled,
    ToolDrifted,
    ToolsChanged,
    ToolSkipped,
    ToolTimedOut,
    TurnCompleted,
)
from grue.policies import Budget
from grue.protocol.tools.lock import ToolLock, lock_of
from grue.runtime.processes.descendants import live_members
from grue.runtime.processes.process_group import ProcessRegistry
from grue.tool_sessions.failures import ServerFailed
from grue.tool_sessions.server_requests import ElicitationRequest
from grue.tracing.diff import diff
from grue.tracing.reading import EpisodeEnvelope, open_episode
from grue.transports.mcp.client import McpClient

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    # What they load and keep the first time is no turn's doing.
    drive_turn(TOLERATED[0])


in_all_modes = pytest.mark.parametrize("mode", modes(*MODES))


@pytest.fixture(params=modes(*MODES))
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param  # type: ignore[no-any-return]  # pytest does not know it


def echoes(*texts: str, server: str = "faulty") -> list[tuple[str, dict[str, Any]]]:
    return [(f"{server}.echo", {"text": text}) for text in texts]


# --- Answers and calls ---


@pytest.mark.slow
def test_p24_calls_are_served_in_order_turn_after_turn(mode: Mode, tmp_path: Path) -> None:
    script: list[Step] = []
    for turn in range(3):
        script += [echoes(f"{turn}a", f"{turn}b"), echoes(f"{turn}c"), f"done {turn}"]
    with episode(mode, tmp_path, *script) as played:
        for turn in range(3):
            outcome = played.turn()
            assert (outcome.turn, outcome.kind, outcome.response) == (turn + 1, "answered", f"done {turn}")
            texts = [call.result.content for call in outcome.tool_calls]
            assert [str(text) for text in texts] == [f"{turn}{letter}" for letter in "abc"]
    sent = [body.arguments["text"] for body in played.said(ToolCalled)]
    assert sent == [f"{turn}{letter}" for turn in range(3) for letter in "abc"]
    assert played.named(TurnCompleted) == ["TurnCompleted"] * 3


@in_all_modes
@pytest.mark.slow
def test_several_servers_and_functions_serve_one_turn(mode: Mode, tmp_path: Path) -> None:
    def add(left: int, right: int) -> int:
        """Add."""
        return left + right

    servers = {"a": faulty(), "b": faulty(), "sums": FunctionTools({"add": add})}
    calls = [*echoes("1", server="a"), *echoes("2", server="b"), ("sums.add", {"left": 1, "right": 2})]
    with episode(mode, tmp_path, calls, DONE, calls, DONE, servers=servers) as played:
        for _ in range(2):
            outcome = played.turn()
            assert settlements(outcome) == ["returned"] * 3
    assert [body.server for body in played.said(ToolCalled)] == ["a", "b", "sums"] * 2


@pytest.mark.slow
def test_a_server_that_is_reached_by_url(mode: Mode, tmp_path: Path) -> None:
    with faulty_http_server() as url:
        servers = {"far": HttpServer(name="far", url=url)}
        script = [echoes("1", "2", server="far"), DONE] * 2
        with episode(mode, tmp_path, *script, servers=servers) as played:
            for _ in range(2):
                assert settlements(played.turn()) == ["returned", "returned"]
    assert {body.ending for body in played.said(ServerEnded)} <= {"none"}
    assert played.pids == [None, None]


@pytest.mark.slow
def test_a_turn_without_tools_leaves_the_servers_alone(mode: Mode, tmp_path: Path) -> None:
    with episode(mode, tmp_path, *ONCE, DONE, *ONCE) as played:
        played.turn()
        assert played.turn(tools=False).tool_calls == ()
        assert settlements(played.turn()) == ["returned"]
    assert len(played.pids) == 2
    assert len({*played.pids}) == (1 if mode == "kept" else 2)


@pytest.mark.slow
def test_words_are_shown_as_they_come(mode: Mode, tmp_path: Path) -> None:
    words: list[str] = []
    with episode(mode, tmp_path, DONE, DONE) as played:
        for _ in range(2):
            played.turn(on_delta=lambda delta: words.append(delta.text))
    assert "".join(words) == "donedone"


# --- Timeouts, deaths, forced finals ---


@pytest.mark.slow
def test_p24_a_timeout_skips_the_rest_of_the_batch(mode: Mode, tmp_path: Path) -> None:
    servers = {"faulty": living(tmp_path, "1", "--silent-at", "call")}
    limits = TurnLimits(tool_call_timeout_s=3.0)
    script = [echoes("1", "2", "3"), DONE, *ONCE]
    with episode(mode, tmp_path, *script, servers=servers, limits=limits, process_limits=QUICK) as played:
        first, second = played.turn(), played.turn()
    assert settlements(first) == ["timed_out", "skipped", "skipped"]
    assert played.named(ToolTimedOut, ToolSkipped)[:3] == ["ToolTimedOut", "ToolSkipped", "ToolSkipped"]
    # A kept session goes on with the server that did not answer; a fresh one is in its second life.
    assert settlements(second) == (["timed_out"] if mode == "kept" else ["returned"])


@pytest.mark.parametrize("after", ["force", "reconnect"])
def test_a_dead_server_forces_the_final_or_is_connected_once_more(
    mode: Mode, after: Any, tmp_path: Path
) -> None:
    servers = {"faulty": living(tmp_path, "1", "--exit-at", "call")}
    script: list[Step] = [ECHO, DONE] if after == "force" else [ECHO, ECHO, DONE]
    policy = FailurePolicy(after_death=after)
    with episode(mode, tmp_path, *script, *ONCE, servers=servers, policy=policy) as played:
        first, second = played.turn(), played.turn()
    again = "the server died during faulty.echo, and was started again"
    assert (first.kind, first.reason) == (
        ("forced", "server_died") if after == "force" else ("answered", again)
    )
    assert (second.kind, second.reason) == ("answered", "")
    assert settlements(first) == ["died"] if after == "force" else ["died", "returned"]
    assert settlements(second) == ["returned"]
    assert len(played.said(ServerDied)) == 1
    kept_on = mode == "kept" and after == "reconnect"
    assert len({*played.pids}) == len(played.pids) - kept_on


@pytest.mark.slow
def test_the_last_iteration_forces_the_final(mode: Mode, tmp_path: Path) -> None:
    limits = TurnLimits(max_tool_iterations=1)
    with episode(mode, tmp_path, ECHO, DONE, ECHO, DONE, limits=limits) as played:
        assert [played.turn().kind for _ in range(2)] == ["forced", "forced"]
    assert played.offered()[1] == played.offered()[3]


# --- R6: connects that fail ---


@pytest.mark.slow
def test_r6_1_the_first_connect_failing_ends_the_first_turn(mode: Mode, tmp_path: Path) -> None:
    servers = {"faulty": living(tmp_path, "1,2", "--exit-at", "initialize")}
    with episode(mode, tmp_path, *ONCE, servers=servers) as played:
        for _ in range(2):
            with pytest.raises(MCPServerStartupError, match="exit status 1"):
                played.turn()
        assert settlements(played.turn()) == ["returned"]
    assert [body.then for body in played.said(ConnectFailed)] == ["raise", "raise"]
    assert not played.said(PrewarmLost)


@in_all_modes
def test_p26_r6_7_a_later_connect_is_tried_once_more(mode: Mode, tmp_path: Path) -> None:
    """One start fails in the second turn; ahead, it is the spare, and then the turn's own first attempt."""
    failing = {"ahead": "2,3", "beside": "2,3", "kept": ""}.get(mode, "2")
    servers = {"faulty": living(tmp_path, failing, "--exit-at", "initialize")}
    with episode(mode, tmp_path, *ONCE * 3, servers=servers) as played:
        assert [settlements(played.turn()) for _ in range(3)] == [["returned"]] * 3
    retried = mode != "kept"
    assert [body.then for body in played.said(ConnectFailed)] == ["retry"] * retried
    assert [body.attempt for body in played.said(SessionOpened)] == [1, 1 + retried, 1]
    assert len(played.said(PrewarmLost)) == (mode in ("ahead", "beside"))


def test_p26_a_spare_that_fails_is_no_attempt_of_the_turns(tmp_path: Path) -> None:
    servers = {"faulty": living(tmp_path, "2", "--exit-at", "initialize")}
    with episode("ahead", tmp_path, *ONCE * 2, servers=servers) as played:
        assert [settlements(played.turn()) for _ in range(2)] == [["returned"]] * 2
    assert not played.said(ConnectFailed)
    assert [body.attempt for body in played.said(SessionOpened)] == [1, 1]


@pytest.mark.slow
def test_p27_r6_10_a_server_that_fails_again_is_given_up_and_never_spawned_again(
    mode: Mode, tmp_path: Path
) -> None:
    # It dies in the first turn, so that a kept server, too, has to be connected to in the second.
    servers = {"faulty": dying_server(tmp_path)}
    with episode(mode, tmp_path, ECHO, DONE, DONE, DONE, servers=servers) as played:
        kinds = [played.turn().kind for _ in range(3)]
    assert kinds[1:] == ["degraded", "degraded"]
    assert [body.newly for body in played.said(McpDisabled)] == [True, False]
    assert [body.then for body in played.said(ConnectFailed)] == ["retry", "disable"]
    assert played.runner.disabled.keys() == {"faulty"}
    spawned = (tmp_path / "lives").stat().st_size
    assert spawned == {"ahead": 4, "beside": 4}.get(mode, 3), "none for the third turn, and no spare"


def dying_server(folder: Path) -> StdioServer:
    """A server that dies in its first life's call, and at every start after that."""
    script = (
        "import os, sys\n"
        "from grue.testing import faulty_server\n"
        "lives = open(sys.argv[1], 'ab')\n"
        "lives.write(b'.')\n"
        "phase = 'call' if lives.tell() == 1 else 'initialize'\n"
        "lives.close()\n"
        "os.execv(sys.executable, faulty_server.argv('--exit-at', phase))\n"
    )
    return replace(faulty(), args=("-c", script, str(folder / "lives")))


# --- Limits ---


@pytest.mark.slow
def test_a_turns_limit_holds_and_the_next_turn_is_served(mode: Mode, tmp_path: Path) -> None:
    servers = {"faulty": living(tmp_path, "1", "--silent-at", "call", *STUBBORN)}
    with episode(mode, tmp_path, ECHO, *ONCE, servers=servers, process_limits=QUICK) as played:
        with pytest.raises(TurnTimedOut, match=r"5 s"):
            played.turn(turn_timeout_s=5.0)
        if mode != "kept":
            assert settlements(played.turn()) == ["returned"]


@pytest.mark.slow
def test_a_limit_holds_while_a_session_is_opened(mode: Mode, tmp_path: Path) -> None:
    with episode(
        mode, tmp_path, *ONCE, servers={"faulty": living(tmp_path, "1", "--silent-at", "initialize")}
    ) as played:
        with pytest.raises(TurnTimedOut):
            played.turn(turn_timeout_s=5.0)
        assert settlements(played.turn()) == ["returned"]
    assert not played.said(ConnectFailed), "a turn that is out of time says nothing about the server"


@pytest.mark.slow
def test_budgets_are_the_episodes(mode: Mode, tmp_path: Path) -> None:
    with episode(mode, tmp_path, ECHO, DONE, DONE, budget=Budget(requests=3)) as played:
        assert played.turn().requests == 2
        assert played.turn().requests == 1
        with pytest.raises(BudgetSpent):
            played.turn()
    assert len(played.asked) == 3


# --- What servers ask, and how they change ---


def answers_of(folder: Path) -> list[Any]:
    """What the servers were answered, process by process, in the order of their numbers."""
    lines = [line for log in sorted(folder.glob("log-*")) for line in log.read_text().splitlines()]
    return [message for line in lines if "method" not in (message := json.loads(line))]


@pytest.mark.slow
def test_sampling_is_answered_for_the_turn_that_runs(mode: Mode, tmp_path: Path) -> None:
    servers = {"faulty": faulty("--ask", "sampling", "--record", str(tmp_path / "log-{pid}"))}
    limits = TurnLimits(max_samplings=1)
    script = [ECHO, ECHO, DONE] * 2
    with episode(mode, tmp_path, *script, servers=servers, limits=limits) as played:
        for _ in range(2):
            assert settlements(played.turn()) == ["returned", "returned"]
    kinds = ["result" if "result" in answer else "error" for answer in answers_of(tmp_path)]
    assert kinds == ["result", "error"] * 2, "one in each turn, whenever the session was opened"
    assert SAMPLED in json.dumps(answers_of(tmp_path))


@pytest.mark.slow
def test_elicitation_reaches_the_person_in_each_turn(mode: Mode, tmp_path: Path) -> None:
    asked: list[str] = []

    async def elicit(request: ElicitationRequest) -> dict[str, object]:
        asked.append(request.message)
        return {"name": "Ada"}

    servers = {"faulty": faulty("--ask", "elicitation", "--record", str(tmp_path / "log-{pid}"))}
    with episode(mode, tmp_path, *ONCE * 2, servers=servers, elicit=elicit) as played:
        for _ in range(2):
            played.turn()
    assert asked == ["Your name?"] * 2
    assert [answer["result"]["action"] for answer in answers_of(tmp_path)] == ["accept"] * 2


@pytest.mark.slow
def test_new_tools_are_offered_and_a_kept_session_goes_on_with_them(mode: Mode, tmp_path: Path) -> None:
    servers = {"faulty": faulty("--change-tools")}
    script: list[Step] = [ECHO, ECHO, DONE, DONE, DONE]
    with episode(mode, tmp_path, *script, servers=servers) as played:
        played.turn()
        played.turn()
    assert played.named(ToolsChanged) == ["ToolsChanged"]
    first, _, changed, *second = played.offered()
    assert "faulty.added" in changed
    if mode == "presumed":
        # The new process lists the first tools. If it says so before the reply is there, the model is asked
        # again, and the request that was dropped may not have been sent, or not whole.
        assert [names for names in second if names] in ([changed], [changed, first], [first])
    else:
        assert second == [changed if mode == "kept" else first]


@pytest.mark.slow
def test_a_tool_lock_holds_in_every_session(mode: Mode, tmp_path: Path) -> None:
    (tmp_path / "probe").mkdir()
    with episode("turn", tmp_path / "probe", DONE) as probe:
        probe.turn()
    (opened,) = probe.said(SessionOpened)
    lock = ToolLock({"faulty": lock_of(tool for tool in opened.tools if tool.tool != "environ")})
    policy = FailurePolicy(on_tool_drift="refuse")
    with episode(mode, tmp_path, *ONCE * 2, tool_lock=lock, policy=policy) as played:
        for _ in range(2):
            assert settlements(played.turn()) == ["returned"]
    assert {*map(tuple, played.offered())} == {("faulty.echo", "faulty.fail")}
    assert {(note.tool, note.refused) for note in played.said(ToolDrifted)} == {("environ", True)}


# --- Processes ---


@in_all_modes
def test_p6_a_fresh_process_each_turn_or_one_for_all(mode: Mode, tmp_path: Path) -> None:
    with episode(mode, tmp_path, *ONCE * 4) as played:
        for _ in range(4):
            played.turn()
        if mode in ("turn", "presumed"):
            assert not any(live_members(pid) for pid in played.pids), "none is alive after its turn"
    assert len({*played.pids}) == (1 if mode == "kept" else 4)
    ended = [body.pid for body in played.said(ServerEnded)]
    closed = [body.ending for body in played.said(SessionClosed)]
    if mode in ("turn", "episode", "presumed"):
        assert closed == ["polite"] * 4
        assert ended == []
    else:
        assert closed == ["handed_over"] * 4
        assert {*played.pids} <= {*ended}
        assert max(Counter(ended).values()) == 1
    assert {body.ending for body in played.said(ServerEnded)} <= {"polite"}


@pytest.mark.anyio
async def test_a_connection_that_is_broken_is_not_alive_though_its_process_is() -> None:
    async with McpClient(faulty("--after-listing", "close-stdout"), ProcessRegistry()) as client:
        await client.open(60)
        with pytest.raises(ServerFailed):
            await client.call("echo", {"text": "hi"}, 60)
        assert client.status.pid is not None
        assert live_members(client.status.pid)
        assert not client.status.alive


# --- Traces ---

ADDED = (SessionPrewarmed, PrewarmLost, ServerEnded)


def without_lifetime(path: Path) -> list[EpisodeEnvelope]:
    """A trace without what a lifetime adds to it."""
    kept = [item for item in open_episode(path) if not isinstance(item.body, ADDED)]
    return [
        replace(item, body=replace(item.body, ending="none", exit_status=None))
        if isinstance(item.body, SessionClosed)
        else item
        for item in kept
    ]


@pytest.mark.parametrize("other", ["episode", "ahead", "kept", "beside"])
@pytest.mark.slow
def test_traces_are_the_same_but_for_what_a_lifetime_adds(other: Mode, tmp_path: Path) -> None:
    script: list[Step] = [echoes("1", "2"), echoes("3"), DONE]
    for mode in ("turn", other):
        with episode(mode, tmp_path, *script * 3) as played:
            for _ in range(3):
                played.turn()
    left, right = (without_lifetime(tmp_path / f"{mode}.jsonl") for mode in ("turn", other))
    assert list(diff(left, right)) == []
    assert len(left) == len(right) > 60


# --- P39 ---


@pytest.mark.parametrize("mode", modes("episode", "ahead", "kept"))
def test_p39_there_is_one_anyio_run_an_episode_in_a_thread_of_its_own(
    mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[threading.Thread] = []
    run = anyio.run

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(threading.current_thread())
        return run(*args, **options)

    monkeypatch.setattr(anyio, "run", counted)
    with episode(mode, tmp_path, *ONCE * 3) as played:
        for _ in range(3):
            played.turn()
        assert len(calls) == 1
        assert calls[0] is not threading.current_thread()
        assert calls[0].daemon
        assert calls[0].is_alive()
    assert not calls[0].is_alive()
