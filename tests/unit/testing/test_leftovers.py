import _thread
import os
import subprocess
import sys
import threading
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import pytest

from grue.runtime.processes.descendants import live_members
from grue.testing.leftovers import assert_nothing_left


def test_nothing_is_nothing() -> None:
    with assert_nothing_left(within_s=0):
        subprocess.run(["true"], check=True)
        os.close(os.open(os.devnull, os.O_RDONLY))


def wait_until_named(pid: int) -> None:
    """Wait until the kernel tells a new program's command line; for a moment of its start it has none."""
    while sys.platform == "linux" and not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"):
        os.sched_yield()


def named(child: "subprocess.Popen[bytes]") -> "subprocess.Popen[bytes]":
    wait_until_named(child.pid)
    return child


def started_by(script: str) -> int:
    """Run a script that starts a program and prints its id, and return that."""
    ended = subprocess.run([sys.executable, "-Ic", script], stdout=subprocess.PIPE, check=True)
    wait_until_named(int(ended.stdout))
    return int(ended.stdout)


def test_a_child_is_found() -> None:
    with pytest.raises(AssertionError, match=r"process \d+ .*sleep 600"), assert_nothing_left(within_s=0):
        child = named(subprocess.Popen(["sleep", "600"]))
    child.kill()
    child.wait()


def test_an_unreaped_child_is_found() -> None:
    with pytest.raises(AssertionError, match="process"), assert_nothing_left(within_s=0.1):
        child = subprocess.Popen(["true"])
    child.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found by their environment in /proc")
def test_an_orphan_in_a_session_of_its_own_is_found() -> None:
    script = """
import subprocess
print(subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL).pid)
"""
    with pytest.raises(AssertionError, match=r"process \d+ .*sleep 600"), assert_nothing_left(within_s=0):
        orphan = started_by(script)
    os.kill(orphan, 9)


def test_a_descriptor_is_found() -> None:
    with pytest.raises(AssertionError, match=r"descriptor .*null"), assert_nothing_left(within_s=0):
        left = os.open(os.devnull, os.O_RDONLY)
    os.close(left)


def test_a_thread_is_found_unless_it_ends_in_time() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="lingering")
    with pytest.raises(AssertionError, match="thread lingering"), assert_nothing_left(within_s=0):
        thread.start()
    with assert_nothing_left():
        threading.Timer(0.05, end.set).start()
    thread.join()


def test_a_thread_that_python_did_not_start_is_found_as_long_as_it_runs() -> None:
    known, end = threading.Event(), threading.Event()

    def run() -> None:
        threading.current_thread()  # from now on `enumerate` names it, in some Pythons also after its end
        known.set()
        end.wait()

    def start() -> None:
        _thread.start_new_thread(run, ())
        known.wait()

    with pytest.raises(AssertionError, match="thread Dummy"), assert_nothing_left(within_s=0):
        start()
    end.set()
    with assert_nothing_left():
        start()


def test_a_thread_that_has_the_entry_of_one_that_ended_is_found() -> None:
    known, end = threading.Event(), threading.Event()

    def run() -> None:
        # As in Python 3.11 if an earlier thread had this one's number.
        threading.current_thread()._native_id = 2**30  # type: ignore[attr-defined]
        known.set()
        end.wait()

    def start() -> None:
        _thread.start_new_thread(run, ())
        known.wait()

    with pytest.raises(AssertionError, match="thread Dummy"), assert_nothing_left(within_s=0):
        start()
    with assert_nothing_left(within_s=0):
        pass
    end.set()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's numbers of threads are read from /proc")
def test_a_thread_that_ran_before_is_not_found_though_it_asks_for_its_entry_later() -> None:
    runs, ask, known, end = (threading.Event() for _ in range(4))

    def run() -> None:
        runs.set()
        ask.wait()
        threading.current_thread()
        known.set()
        end.wait()

    _thread.start_new_thread(run, ())
    runs.wait()
    with assert_nothing_left(within_s=0):
        ask.set()
        known.wait()
    end.set()


@pytest.mark.slow
def test_the_helpers_that_python_starts_for_a_fleet_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker: Any = resource_tracker.ResourceTracker()
    server: Any = forkserver.ForkServer()
    server.set_forkserver_preload([])
    monkeypatch.setattr(resource_tracker, "_resource_tracker", tracker)
    monkeypatch.setattr(resource_tracker, "ensure_running", tracker.ensure_running)
    monkeypatch.setattr(forkserver, "_forkserver", server)
    with assert_nothing_left(within_s=0):
        server.ensure_running()
    server._stop()
    tracker._stop()


def test_an_exception_passes_through_and_the_environment_is_as_before() -> None:
    before = dict(os.environ)
    with pytest.raises(ZeroDivisionError), assert_nothing_left():
        raise ZeroDivisionError
    assert dict(os.environ) == before


def test_live_members_leaves_out_zombies() -> None:
    child = subprocess.Popen(["sh", "-c", "sleep 600 & exec sleep 600"], start_new_session=True)
    while len(members := live_members(child.pid)) < 2:
        assert child.pid in members
    os.killpg(child.pid, 9)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.pid not in live_members(child.pid)
    child.wait()
