"""A child that is forked while another thread holds a lock of grue: what works there, and does not wait."""

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from grue.engine.conversations.kept_conversation import EarlierResults
from grue.engine.turn import EpisodeMemory, Spending
from grue.engine.wiring import TurnsUnderWay
from grue.messages import Usage
from grue.runtime import forks
from grue.runtime.secrets.redaction import Redaction
from grue.runtime.trace.recorder import Recorder

# Newer Pythons warn of what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

PROGRAM = """
import os, signal, threading
from grue import LlmSettings, Recorder, Runner
from grue.messages import IterationStarted

said, go_on = threading.Event(), threading.Event()
MESSAGE = IterationStarted(iteration=1, max_iterations=1)

def observe(envelope, line):
    if not said.is_set():
        said.set()
        go_on.wait()

recorder = Recorder()
recorder.add(observe)
runner = Runner(llm=LlmSettings(base_url="http://127.0.0.1:1/v1", model="m"), recorder=recorder)
thread = threading.Thread(target=recorder.record, args=[MESSAGE], kwargs={"sender": "host"})
thread.start()
said.wait()
child = os.fork()
if not child:
    signal.alarm(60)  # so that a child that hangs has an end
    assert recorder.record(MESSAGE, sender="host").seq == 2
    runner.close()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
go_on.set()
thread.join()
"""


@pytest.mark.slow
def test_a_child_records_that_was_forked_while_another_thread_did() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout == "7\n", done.stderr[-3000:]


@pytest.mark.parametrize(
    ("made", "lock", "use"),
    [
        (Redaction, "_lock", lambda each: each.hide("key", "a secret")),
        (EpisodeMemory, "_lock", lambda each: each.start(None)),
        (Spending, "_lock", lambda each: each.add(1, Usage())),
        (TurnsUnderWay, "_lock", lambda each: each.running(1).__enter__()),
        (TurnsUnderWay, "resuming", lambda each: each.resuming.acquire()),
        (TurnsUnderWay, "forking", lambda each: each.forking.acquire()),
        (EarlierResults, "_lock", lambda each: each.find("c1")),
    ],
)
def test_a_lock_that_another_thread_holds_is_free_in_a_child(
    made: Callable[[], Any], lock: str, use: Callable[[Any], Any]
) -> None:
    one = made()
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with getattr(one, lock):
            held.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        mine = getattr(one, lock)
        free = mine.acquire(blocking=False)
        if free:
            mine.release()
            use(one)
        os._exit(7 if free else 3)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    go_on.set()
    thread.join()
    assert status == 7


@pytest.mark.slow
def test_a_thread_that_forks_while_it_holds_the_lock_goes_on_in_the_child() -> None:
    recorder = Recorder()
    with recorder._lock:
        child = os.fork()
    if not child:
        os._exit(3 if recorder._lock.locked() else 7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.slow
def test_an_object_that_is_gone_leaves_nothing_behind() -> None:
    one = Redaction()
    (mine,) = (each for each in forks._objects.keyrefs() if each() is one)
    del one
    gc.collect()
    assert mine not in forks._objects.keyrefs()
