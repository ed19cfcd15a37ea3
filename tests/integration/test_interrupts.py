"""Ctrl-C and SIGKILL in the middle of things: fast, with a readable trace, and nothing left alive."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import faulty, group_is_gone, start, trace_of, wait_for_body, write_servers
from promises import within

from grue import LlmSettings, Runner, StdioServer, TurnRequest
from grue.messages import CloseSession, SessionClosed, ToolCalled, TurnFailed, TurnInterrupted
from grue.runtime.loops.sync_edge import BlockingInsideEventLoopWarning
from grue.testing import faulty_server
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply

STUBBORN = ("--ignore-eof", "--ignore-term")


@pytest.fixture
def llm() -> Iterator[str]:
    """An endpoint that calls `faulty.echo` first and answers afterwards."""
    call = tool_calls_reply(("faulty.echo", {"text": "hello"}))
    with ScriptedLlmServer([call, *[text_reply("done")] * 5]) as server:
        yield server.base_url


def playing(tmp_path: Path, llm: str, *flags: str) -> "object":
    config = write_servers(tmp_path / "mcp.json", faulty=faulty(*flags))
    return start(
        *("play", "--base-url", llm, "--model", "m", "--mcp-config", str(config)),
        *("--run-dir", "run", "--turns", "3"),
        cwd=tmp_path,
    )


@pytest.mark.parametrize(
    "flags", [(), STUBBORN, ("--grandchild",), (*STUBBORN, "--grandchild")], ids=lambda flags: " ".join(flags)
)
@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_a_tool_call(tmp_path: Path, llm: str, flags: tuple[str, ...]) -> None:
    program = playing(tmp_path, llm, "--silent-at", "call", *flags)
    pid = wait_for_body(tmp_path / "run", "SessionOpened")["pid"]
    wait_for_body(tmp_path / "run", "ToolCalled")
    with within(3, "what users are promised, however stubborn the server"):
        program.send_signal(signal.SIGINT)  # type: ignore[attr-defined]
        out, err = program.communicate(timeout=150)  # type: ignore[attr-defined]
    assert program.returncode == 130, err  # type: ignore[attr-defined]
    assert group_is_gone(pid, 0)
    assert "Traceback" not in err
    assert "interrupted" in out
    assert "To go on: grue play --resume " in out
    said = [envelope.body for envelope in trace_of(tmp_path / "run").envelopes]
    assert sum(isinstance(body, TurnInterrupted) for body in said) == 1
    assert sum(isinstance(body, CloseSession) for body in said) == 1
    assert sum(isinstance(body, SessionClosed) for body in said) == 1
    assert sum(isinstance(body, TurnFailed) for body in said) == 1


@pytest.mark.slow
def test_ctrl_c_while_a_turn_closes_a_stubborn_server_is_as_fast(tmp_path: Path, llm: str) -> None:
    program = playing(tmp_path, llm, *STUBBORN)
    pid = wait_for_body(tmp_path / "run", "SessionOpened")["pid"]
    wait_for_body(tmp_path / "run", "CloseSession")
    with within(3, "less than the server has where nobody waits for it"):
        program.send_signal(signal.SIGINT)  # type: ignore[attr-defined]
        _, err = program.communicate(timeout=150)  # type: ignore[attr-defined]
    assert program.returncode == 130, err  # type: ignore[attr-defined]
    assert group_is_gone(pid, 0)
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_second_ctrl_c_during_teardown_ends_it_at_once(tmp_path: Path, llm: str) -> None:
    program = playing(tmp_path, llm, "--silent-at", "call", "--grandchild", *STUBBORN)
    pid = wait_for_body(tmp_path / "run", "SessionOpened")["pid"]
    wait_for_body(tmp_path / "run", "ToolCalled")
    program.send_signal(signal.SIGINT)  # type: ignore[attr-defined]
    wait_for_body(tmp_path / "run", "CloseSession")
    with within(3):
        program.send_signal(signal.SIGINT)  # type: ignore[attr-defined]
        _, err = program.communicate(timeout=150)  # type: ignore[attr-defined]
    assert program.returncode == 130, err  # type: ignore[attr-defined]
    assert "Traceback" not in err
    assert group_is_gone(pid, 0)
    assert trace_of(tmp_path / "run").envelopes


@pytest.mark.parametrize("flags", [(), STUBBORN], ids=["polite", "stubborn"])
@pytest.mark.slow
def test_sigkill_of_the_host_takes_the_server_along(tmp_path: Path, llm: str, flags: tuple[str, ...]) -> None:
    program = playing(tmp_path, llm, "--silent-at", "call", "--grandchild", *flags)
    pid = wait_for_body(tmp_path / "run", "SessionOpened")["pid"]
    wait_for_body(tmp_path / "run", "ToolCalled")
    program.kill()  # type: ignore[attr-defined]
    program.communicate(timeout=150)  # type: ignore[attr-defined]
    assert group_is_gone(pid)
    assert trace_of(tmp_path / "run").envelopes


def runner(llm: str, *flags: str, tool_timeout_s: float = 0.2) -> Runner:
    from grue import ProcessLimits, TurnLimits

    command, *args = faulty_server.argv(*flags)
    return Runner(
        llm=LlmSettings(base_url=llm, model="m"),
        servers={"faulty": StdioServer(name="faulty", command=command, args=tuple(args))},
        limits=TurnLimits(tool_call_timeout_s=tool_timeout_s),
        process_limits=ProcessLimits(exit_grace_s=0.2, term_grace_s=0.2),
    )


ASK = TurnRequest[str](system="Answer.", user="What is the plan?")


@pytest.mark.parametrize(
    "flags",
    [(), STUBBORN, ("--grandchild",), ("--silent-at", "call"), ("--kill-at", "call"), ("--exit-at", "call")],
    ids=lambda flags: " ".join(flags) or "well",
)
def test_p9_after_a_turn_nothing_is_left_whatever_happened_in_it(llm: str, flags: tuple[str, ...]) -> None:
    with assert_nothing_left():
        outcome = runner(llm, *flags).run_turn(ASK)
    assert outcome.response == "done"


@pytest.mark.slow
def test_a_turn_runs_in_a_thread_that_ends_before_the_next_one(llm: str) -> None:
    answers: list[str] = []
    with assert_nothing_left():
        one = runner(llm)
        for _ in range(3):
            thread = threading.Thread(target=lambda: answers.append(one.run_turn(ASK).response))
            thread.start()
            thread.join()
    assert answers == ["done"] * 3


def test_p40_a_turn_runs_inside_a_running_event_loop_and_says_so_once(llm: str) -> None:
    from grue.runtime.loops import sync_edge

    sync_edge._warned.clear()

    async def web_view() -> list[str]:
        one = runner(llm)
        with pytest.warns(BlockingInsideEventLoopWarning, match=r"Runner\.run_turn_async"):
            first = one.run_turn(ASK).response
        return [first, one.run_turn(ASK).response]

    with assert_nothing_left():
        assert asyncio.run(web_view()) == ["done", "done"]


def test_the_async_twin_shares_the_callers_loop_and_can_be_cancelled(llm: str) -> None:
    async def cancelled() -> None:
        called = asyncio.Event()
        one = runner(llm, "--silent-at", "call", tool_timeout_s=60)
        one.recorder.add(lambda sent, _: called.set() if isinstance(sent.body, ToolCalled) else None)
        task = asyncio.create_task(one.run_turn_async(ASK))
        await called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with assert_nothing_left():
        asyncio.run(cancelled())


def test_a_turn_limit_bounds_everything_teardown_included(llm: str) -> None:
    from grue.errors import TurnTimedOut

    stubborn = runner(llm, "--silent-at", "call", *STUBBORN, tool_timeout_s=60)
    with (
        within(5.0 + 0.2, "the limit, and some time for what comes before and after the turn"),
        assert_nothing_left(),
        pytest.raises(TurnTimedOut, match=r"did not end within 5 s: it was waiting for faulty\.echo"),
    ):
        stubborn.run_turn(TurnRequest(system="s", user="u", turn_timeout_s=5.0))
