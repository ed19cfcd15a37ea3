"""A function of the host's that blocks does not keep its program alive."""

import subprocess
import sys

import pytest

PROGRAM = '''
import os
import signal
import threading

from grue import FunctionTools, LlmSettings, Runner, ToolPolicy, ToolRule, TurnLimits, TurnRequest
from grue.errors import TurnTimedOut
from grue.testing.llm_server import ScriptedLlmServer, tool_calls_reply

TURN = TurnRequest(system="s", user="u")
CTRL_C = []


def block():
    """Never return."""
    if CTRL_C:
        os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()


def ask(questions):
    threading.Event().wait()


with ScriptedLlmServer([tool_calls_reply(("tools.block", {}))] * 3) as server:
    llm = LlmSettings(base_url=server.base_url, model="m")
    settings = {"llm": llm, "servers": {"tools": FunctionTools([block])}}
    limits = TurnLimits(turn_timeout_s=1)
    asks = ToolPolicy(rules=(ToolRule(verdict="ask"),))
    for more in ({}, {"tool_policy": asks, "approve": ask}):
        try:
            Runner(**settings, limits=limits, **more).run_turn(TURN)
        except TurnTimedOut:
            print("timed out")
    CTRL_C.append(True)
    try:
        Runner(**settings).run_turn(TURN)
    except KeyboardInterrupt:
        print("interrupted")
'''


@pytest.mark.slow
def test_a_blocked_function_ends_with_its_program() -> None:
    """Before, the interpreter waited at its exit for each thread, for ever."""
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert program.returncode == 0, program.stderr
    assert program.stdout.split("\n") == ["timed out", "timed out", "interrupted", ""]
