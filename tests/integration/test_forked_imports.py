"""A process that forks while another thread's first turn imports the MCP SDK: the child can run turns."""

import subprocess
import sys
from pathlib import Path

import pytest
from rows import first_of

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


@pytest.mark.parametrize("how", first_of(["fork", "multiprocessing"]))
@pytest.mark.slow
def test_a_child_that_was_forked_during_an_import_runs_turns(how: str, tmp_path: Path) -> None:
    with ScriptedLlmServer(lambda _: text_reply("done")) as llm:
        command = [sys.executable, "-c", PROGRAM, llm.base_url, how, *faulty_server.argv()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    assert done.stdout == "7\n", done.stderr[-3000:]


SLOW = """
import os, sys, threading, time
from pathlib import Path

from grue.runtime import loading

Path("slow.py").write_text('''
import os, time
begun = True
while not os.path.exists("go"): time.sleep(0.001)
ready = True
''')
sys.path.insert(0, "")

def put_off():
    import slow  # as httpx does with what it needs at its first request

began = threading.Event()

def others():
    began.set()
    put_off()

def module():
    Path("slow.py").write_text("__name__ = 'grue.slow'" + Path("slow.py").read_text())
    others()

def ours():
    with_frame_of_grue(lambda: (began.set(), put_off()))

def pydantic():
    with_frame_of_grue(waits_in("pydantic.main"))

def ssl():
    with_frame_of_grue(waits_in("ssl"))

def waits_in(name):
    return type(put_off)(waits.__code__, {**globals(), "__name__": name})

def waits():
    sys.modules["slow"] = slow  # no import is under way
    began.set()
    while not os.access("go", os.F_OK): time.sleep(0.001)  # both compiled: no other frame is above this one
    slow.ready = True

slow = type(sys)("slow")
slow.begun = True

# A call by grue of a function of others.
names = {"__name__": "grue.somewhere"}
exec("def with_frame_of_grue(called): called()", names)
with_frame_of_grue = names["with_frame_of_grue"]

loading._OTHERS_WITHIN_S = 60.0
setattr(loading, sys.argv[2], 0.0)
threading.Thread(target=globals()[sys.argv[1]]).start()
began.wait()
while not hasattr(sys.modules.get("slow"), "begun"):
    time.sleep(0.0005)
if sys.argv[3] == "7":
    threading.Timer(0.3, Path("go").touch).start()
child = os.fork()
if not child:
    if loading._outlasted:
        os._exit(9)  # a thread of the child may get the number of one of these
    os._exit(7 if sys.modules["slow"].__dict__.get("ready") else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

END = """
Path("go").touch()
"""


@pytest.mark.parametrize(
    ("whose", "limit", "status"),
    [
        ("ours", "_OTHERS_WITHIN_S", "7"),
        ("ours", "_OURS_WITHIN_S", "3"),
        ("module", "_OTHERS_WITHIN_S", "7"),
        ("pydantic", "_OTHERS_WITHIN_S", "7"),
        ("ssl", "_OTHERS_WITHIN_S", "7"),
        ("others", "_NONE", "7"),
        ("others", "_OTHERS_WITHIN_S", "3"),
    ],
)
def test_a_fork_waits_for_an_import_that_was_put_off(
    whose: str, limit: str, status: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", SLOW + END, whose, limit, status]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    assert done.stdout == f"{status}\n", done.stderr[-3000:]


@pytest.mark.slow
def test_a_thread_that_never_ends_its_import_delays_one_fork(tmp_path: Path) -> None:
    program = SLOW.replace("Thread(", "Thread(daemon=True, ")
    program += """
began = time.monotonic()
loading._OTHERS_WITHIN_S = loading._OURS_WITHIN_S = 3600
child = os.fork()
os._exit(0) if not child else os.waitpid(child, 0)
print("again")
"""
    command = [sys.executable, "-c", program, "others", "_OTHERS_WITHIN_S", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    assert done.stdout == "3\nagain\n", done.stderr[-3000:]


BUSY = """
import os, sys, time

def passes():  # as on a busy machine: time passes between the last look at the other threads and the fork
    until = time.monotonic() + 0.02
    while time.monotonic() < until: pass

os.register_at_fork(before=passes)
import threading
from grue.runtime import loading

loading._SWITCH_S = 30.0  # of this little time a busy machine may take much
works, over = [], []

def work():
    works.append(True)
    until = time.thread_time() + 0.03
    while time.thread_time() < until: pass
    works.clear()

def now_and_then(work):
    while not over:
        time.sleep(0.0001)
        work()

in_pydantic = type(work)(work.__code__, {**globals(), "__name__": "pydantic.main"})
in_grue = type(work)(now_and_then.__code__, {**globals(), "__name__": "grue.somewhere"})
thread = threading.Thread(target=in_grue, args=(in_pydantic,))
thread.start()
while not works: pass
usual_s = sys.getswitchinterval()
found = []
for _ in range(10):
    child = os.fork()
    if not child:
        os._exit(3 if works else 7 if sys.getswitchinterval() == usual_s else 9)
    found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
over.append(True)
thread.join()
print(*found, sys.getswitchinterval() == usual_s)
"""


@pytest.mark.slow
def test_nothing_begins_between_the_wait_and_the_fork(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUSY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    assert done.stdout == f"{'7 ' * 10}True\n", done.stderr[-3000:]
