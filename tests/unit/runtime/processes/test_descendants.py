"""Finding what has left a server's process group, with real processes."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grue.runtime.processes.descendants import Descendants, all_processes, carries_host_mark, host_mark
from grue.runtime.processes.process_group import ProcessRegistry
from grue.testing.faulty_server import argv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="marks are Linux's")


ENDS = ("sys.exit(3)", "os.kill(os.getpid(), 9)", "os._exit(0)")


def is_alive(pid: int) -> bool:
    return any(each.pid == pid and each.state != "Z" for each in all_processes())


def wait_until(true: Callable[[], object], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.005)


def pid_in(file: Path) -> int:
    wait_until(lambda: file.exists() and file.read_text())
    return int(file.read_text())


@pytest.fixture
def pid_file(tmp_path: Path) -> Iterator[Path]:
    """Where a daemon writes its id; it is killed after the test, whoever should have done so before."""
    file = tmp_path / "daemon.pid"
    yield file
    if file.exists() and is_alive(int(file.read_text())):
        os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("flags", [(), ("--bare",)], ids=["with its environment", "without"])
def test_a_daemon_ends_with_its_server(flags: tuple[str, ...], pid_file: Path) -> None:
    command, *args = argv("--daemon", str(pid_file), *flags)
    group = ProcessRegistry().spawn(command, tuple(args), dict(os.environ), None)
    daemon = pid_in(pid_file)
    assert os.getpgid(daemon) != group.pid != os.getsid(daemon)
    assert carries_host_mark(daemon)
    group.end()
    group.close_descriptors()
    assert not is_alive(daemon)


@pytest.mark.parametrize("flags", [(), ("--bare",)], ids=["with its environment", "without"])
@pytest.mark.parametrize("end", ENDS)
def test_a_daemon_ends_with_its_host(end: str, flags: tuple[str, ...], pid_file: Path) -> None:
    host = f"""
import os, sys
from grue.runtime.processes.process_group import ProcessRegistry
registry = ProcessRegistry()
command, *args = sys.argv[1:]
group = registry.spawn(command, tuple(args), dict(os.environ), None)
sys.stdin.readline()
{end}
"""
    command = [sys.executable, "-c", host, *argv("--daemon", str(pid_file), *flags)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        daemon = pid_in(pid_file)
        process.communicate(b"\n", timeout=150)
    wait_until(lambda: not is_alive(daemon))


@pytest.mark.slow
def test_a_daemon_ends_with_its_host_where_there_is_no_grep(
    pid_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleep").symlink_to(shutil.which("sleep") or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    test_a_daemon_ends_with_its_host(ENDS[1], (), pid_file)


@pytest.mark.slow
def test_what_other_servers_and_the_host_have_started_is_left_alone(pid_file: Path, tmp_path: Path) -> None:
    registry = ProcessRegistry()
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    command, *args = argv("--daemon", str(pid_file))
    registry.spawn(command, tuple(args), dict(os.environ), None)
    command, *args = argv("--daemon", str(tmp_path / "mine.pid"))
    mine = registry.spawn(command, tuple(args), dict(os.environ), None)
    try:
        pid_in(tmp_path / "mine.pid")
        theirs = pid_in(pid_file)
        mine.end()
        assert is_alive(theirs)
        assert is_alive(bystander.pid)
        assert not carries_host_mark(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait()
        registry.kill_leftovers()
        mine.close_descriptors()
    assert not is_alive(theirs)


def test_what_descendants_start_while_they_are_killed_is_killed_too() -> None:
    # The daemon goes on starting others until it dies: some of them after it has been found.
    starts = "for _ in range(2000):\n    if not os.fork(): time.sleep(600); os._exit(0)"
    script = f"import os, time\ninput()\nif os.fork(): os._exit(0)\nos.setsid()\n{starts}"
    leader = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    found = Descendants(leader.pid)
    assert leader.stdin is not None
    leader.stdin.write(b"\n")
    leader.stdin.close()
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    assert found.kill(20.0) >= 1
    assert not [each for each in all_processes() if carries_host_mark(each.pid) and each.state != "Z"]
    leader.wait()


def test_nothing_is_marked_where_the_limit_is_in_use(pid_file: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    resource.setrlimit(resource.RLIMIT_RTTIME, (200_000, hard))
    host_mark.forget()
    process = subprocess.Popen(["sleep", "600"])
    try:
        found = Descendants(process.pid)
        assert resource.prlimit(process.pid, resource.RLIMIT_RTTIME)[0] == 200_000
        assert host_mark.digits() == ""
        assert found.kill(1.0) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))
        host_mark.forget()
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_host_that_is_part_of_a_server_marks_its_own_and_keeps_its_guard() -> None:
    nested = """
import resource, subprocess
from grue.runtime.processes.descendants import Descendants, carries_host_mark, unmark
limit = 4 * 10**18 + 5 * 10**17 + 7
resource.setrlimit(resource.RLIMIT_RTTIME, (limit, limit))
for take in (Descendants, unmark):
    process = subprocess.Popen(["sleep", "600"])
    take(process.pid)
    mark = resource.prlimit(process.pid, resource.RLIMIT_RTTIME)[1]
    print(mark < limit, carries_host_mark(process.pid), mark >= 4 * 10**18)
    process.kill()
    process.wait()
"""
    done = subprocess.run([sys.executable, "-c", nested], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True", "True", "False", "False"]


@pytest.mark.parametrize("limits", ["(hard, hard)", "(min(soft, 200_000) if soft >= 0 else 200_000, hard)"])
def test_a_daemon_that_raises_or_lowers_its_limits_is_found(limits: str, pid_file: Path) -> None:
    script = f"""
import os, resource, sys, time
input()
if os.fork(): os._exit(0)
os.setsid()
for what in (resource.RLIMIT_RTTIME, resource.RLIMIT_CPU, resource.RLIMIT_CORE):
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, {limits})
open({str(pid_file)!r}, "w").write(str(os.getpid()))
time.sleep(600)
"""
    leader = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    found = Descendants(leader.pid)
    assert leader.stdin is not None
    leader.stdin.write(b"\n")
    leader.stdin.close()
    daemon = pid_in(pid_file)
    assert found.kill(20.0) == 1
    assert not is_alive(daemon)
    leader.wait()
