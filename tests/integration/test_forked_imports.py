"""A process that forks while another thread's first turn imports the MCP SDK: the child can run turns."""

import subprocess
import sys
from pathlib import Path

import pytest

from grue.testing import faulty_server
from grue.testing.llm_server import ScriptedLlmServer, text_reply

PROGRAM = """
import multiprocessing, os, sys, threading, time
from grue import LlmSettings, Runner, StdioServer, TurnRequest

url, how, command, *args = sys.argv[1:]

def turn():
    servers = {"faulty": StdioServer(name="faulty", command=command, args=tuple(args))}
    with Runner(llm=LlmSettings(base_url=url, model="m"), servers=servers) as runner:
        outcome = runner.run_turn(TurnRequest(system="s", user="u", turn_timeout_s=60))
        assert (outcome.kind, outcome.response) == ("answered", "done"), outcome

thread = threading.Thread(target=turn)
thread.start()
while "mcp" not in sys.modules:
    time.sleep(0.0005)
if how == "fork":
    child = os.fork()
    if not child:
        turn()
        os._exit(7)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
else:
    process = multiprocessing.get_context("fork").Process(target=turn)
    process.start()
    process.join()
    status = 7 + process.exitcode
thread.join()
print(status)
"""


@pytest.mark.parametrize("how", ["fork", "multiprocessing"])
def test_a_child_that_was_forked_during_an_import_runs_turns(how: str, tmp_path: Path) -> None:
    with ScriptedLlmServer(lambda _: text_reply("done")) as llm:
        command = [sys.executable, "-c", PROGRAM, llm.base_url, how, *faulty_server.argv()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    assert done.stdout == "7\n", done.stderr[-3000:]
