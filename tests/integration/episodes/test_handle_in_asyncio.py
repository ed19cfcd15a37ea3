"""Waits for turns where asyncio runs: its loop may take a Ctrl-C, or be stopped."""

import signal
import subprocess
import sys
import textwrap

import pytest
from commands import environment
from fault_turns import Mode
from worded_turns import WordedModel, ask

from grue.testing.llm_server import ScriptedLlmServer, silence

PROGRAM = """
    import asyncio
    import sys

    from grue import LlmSettings, Runner, TurnRequest

    base_url, mode, limit = sys.argv[1:]

    keeps = {"turn": "nothing", "episode": "loop"}

    async def main(runner):
        handle = runner.start_turn(TurnRequest(system="s", user="wait"))
        print("waiting", flush=True)
        try:
            handle.result(None if limit == "none" else float(limit))
        finally:
            print("over" if handle.done() else "goes on", flush=True)

    with Runner(llm=LlmSettings(base_url=base_url, model="m"), keep=keeps[mode]) as runner:
        try:
            asyncio.run(main(runner))
        except KeyboardInterrupt:
            print("KeyboardInterrupt", flush=True)
"""

STOPPED = """
    import asyncio
    import sys

    from grue import LlmSettings, Runner

    runner = Runner(llm=LlmSettings(base_url=sys.argv[1], model="m"), keep="loop")
    loop = asyncio.new_event_loop()
    turn = loop.create_task(runner.run_turn_async("Hello."))
    loop.run_until_complete(asyncio.sleep(0.1))
    print("over" if turn.done() else "under way")
"""


@pytest.mark.slow
def test_a_program_whose_loop_was_stopped_does_not_wait_for_the_turn_at_its_end() -> None:
    with ScriptedLlmServer([silence()]) as llm:
        command = [sys.executable, "-c", textwrap.dedent(STOPPED), llm.base_url]
        done = subprocess.run(
            command, env=environment(), stdout=subprocess.PIPE, text=True, timeout=100, check=False
        )
    assert (done.returncode, done.stdout) == (0, "under way\n")


@pytest.mark.parametrize("limit", ["none", "1000"])
@pytest.mark.slow
def test_ctrl_c_ends_the_waiting_while_the_turn_goes_on(model: WordedModel, mode: Mode, limit: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), model.server.base_url, mode, limit],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "waiting\n"
        program.send_signal(signal.SIGINT)
        # The model says nothing before the gate opens: who missed the signal would wait until then.
        assert program.stdout.readline() == "goes on\n"
        assert program.stdout.read() == "KeyboardInterrupt\n"
    assert program.returncode == 0


@pytest.mark.parametrize("limit_s", [float("inf"), 1e12])
def test_a_limit_may_be_longer_than_any_clock(model: WordedModel, mode: Mode, limit_s: float) -> None:
    with model.runner(mode) as runner:
        handle = runner.start_turn(ask("wait"))
        with pytest.raises(TimeoutError, match=r"not over after 0\.01 s: it goes on"):
            handle.result(timeout_s=0.01)
        model.gate.set()
        assert handle.result(timeout_s=limit_s).response == "done"
