"""Turns in a process that gevent has patched, as gunicorn's gevent workers do: many greenlets, one thread."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from rows import first_of

from grue.testing import faulty_server
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

PROGRAM = """
from gevent import monkey
monkey.patch_all()
import sys
import gevent
import warnings
from grue import LlmSettings, MCPError, Runner, StdioServer, TurnRequest, FunctionTools

url, lifetime, command, *args = sys.argv[1:]
warnings.simplefilter("error")
ticks = []

def tick():
    while True:
        ticks.append(1)
        gevent.sleep(0.005)

def runner():
    server = StdioServer(name="faulty", command=command, args=tuple(args))
    return Runner(llm=LlmSettings(base_url=url, model="m"), servers={"faulty": server}, keep=lifetime)

ticking = gevent.spawn(tick)
with runner() as one, runner() as other:
    requests = [
        gevent.spawn((one, other)[number % 2].run_turn, TurnRequest(system="s", user=f"u{number}"))
        for number in range(12)
    ]
    gevent.joinall(requests, raise_error=True)
    assert [request.value.response for request in requests] == ["done"] * 12
    assert all(call.settlement == "returned" for each in requests for call in each.value.tool_calls)
    killed = gevent.spawn(one.run_turn, TurnRequest(user="wait"))
    while not one.turn >= 7:
        gevent.sleep(0.01)
    killed.kill()
    assert one.run_turn(TurnRequest(user="again")).response == "done"
assert len(ticks) > 20, "other greenlets ran meanwhile"
ticking.kill()
print("all done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("lifetime", first_of(["nothing", "loop"]))
def test_greenlets_run_turns_beside_each_other(lifetime: str, tmp_path: Path) -> None:
    pytest.importorskip("gevent", reason="pip install gevent runs turns in greenlets")

    def answer(request: LlmRequest) -> LlmReply:
        if not any(message["role"] == "tool" for message in request.messages):
            return tool_calls_reply(("faulty.echo", {"text": "hi"}))
        time.sleep(0.05)
        return text_reply("done")

    with ScriptedLlmServer(answer) as llm:
        command = [sys.executable, "-c", PROGRAM, llm.base_url, lifetime, *faulty_server.argv()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all done\n", "")


REFUSALS = """
from gevent import monkey
monkey.patch_all()
import asyncio
import sys
import warnings
from grue import LlmSettings, MCPError, Runner, TurnRequest
from grue.runtime.loops.sync_edge import run_blocking

warnings.simplefilter("ignore")
runner = Runner(llm=LlmSettings(base_url=sys.argv[1], model="m"), keep=sys.argv[2])

def refused(call):
    try:
        print("answered:", call().response)
    except MCPError as error:
        print(error)

async def beside_another_loop():
    refused(lambda: runner.run_turn(TurnRequest(user="in a loop")))

async def in_our_loop():
    refused(lambda: runner.run_turn(TurnRequest(user="in our loop")))

asyncio.run(beside_another_loop())
run_blocking(in_our_loop, on_exit=lambda: None, twin="an async twin")
refused(lambda: runner.run_turn(TurnRequest(user="alone")))
runner.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["nothing", "loop"])
def test_what_cannot_work_under_gevent_is_refused_with_the_reason_and_what_to_do(
    keep: str, tmp_path: Path
) -> None:
    """Two places: inside an asyncio loop of the program's own, and inside one that runs our own work."""
    pytest.importorskip("gevent", reason="pip install gevent runs turns in greenlets")
    with ScriptedLlmServer(lambda _: text_reply("done")) as llm:
        command = [sys.executable, "-c", REFUSALS, llm.base_url, keep]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False)
    first, second, last = done.stdout.splitlines()
    assert "Under gevent, an asyncio loop of the program's own leaves no room for another." in first
    assert "ulimit" not in done.stdout
    assert "Under gevent this call would wait for itself: an event loop runs it. Use " in second
    assert last == "answered: done", done.stderr[-3000:]


LATE = """
from grue.runtime.loops.sync_edge import run_blocking
from gevent import monkey
monkey.patch_all()
import anyio
import gevent

def run():
    return run_blocking(lambda: anyio.sleep(0), on_exit=lambda: None, twin="")

gevent.joinall([gevent.spawn(run) for _ in range(3)], raise_error=True)
"""


@pytest.mark.slow
def test_greenlets_run_turns_if_gevent_has_replaced_the_threads_after_the_import_of_grue() -> None:
    pytest.importorskip("gevent", reason="pip install gevent runs turns in greenlets")
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
