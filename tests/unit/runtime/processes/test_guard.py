"""The guard with real processes: groups of `sleep` that nobody else ends."""

import errno
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from grue.runtime.processes import guard as guard_module
from grue.runtime.processes.descendants import live_members
from grue.runtime.processes.guard import GuardUnavailableWarning, HostGuard


def wait_until(true: object, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.005)


def ignores(status: Path, number: int) -> bool:
    (mask,) = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("SigIgn:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.fixture
def guard() -> Iterator[HostGuard]:
    guard = HostGuard()
    yield guard
    guard.end()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process group of two: a shell and its child."""
    process = subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True)
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_listed_groups_are_killed_when_the_pipe_ends(
    guard: HostGuard, sleeper: subprocess.Popen[bytes]
) -> None:
    guard.watch(sleeper.pid)
    guard.end()
    wait_until(lambda: not live_members(sleeper.pid))


def test_released_groups_are_left_alone(guard: HostGuard, sleeper: subprocess.Popen[bytes]) -> None:
    neighbour = subprocess.Popen(["sleep", "600"], start_new_session=True)
    guard.watch(neighbour.pid)
    guard.watch(sleeper.pid)
    guard.release(sleeper.pid)
    guard.end()
    assert neighbour.wait(60) == -signal.SIGKILL
    assert live_members(sleeper.pid)


def test_listed_folders_are_removed_when_the_pipe_ends(guard: HostGuard, tmp_path: Path) -> None:
    listed, released = tmp_path / "a 'b' * c", tmp_path / "released"
    (listed / "locked" / "inner").mkdir(parents=True)
    (listed / "-rf").touch()
    (listed / "outside").symlink_to(tmp_path)
    (listed / "locked").chmod(0)
    released.mkdir()
    for folder in (released, listed):
        guard.watch(str(folder))
    guard.release(str(released))
    guard.end()
    wait_until(lambda: not listed.exists())
    assert [*tmp_path.iterdir()] == [released]


def test_it_ignores_the_terminal_s_signals(guard: HostGuard) -> None:
    guard.start()
    assert guard.pid
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
    status = Path(f"/proc/{guard.pid}/status")
    if not status.exists():
        pytest.skip("only /proc tells when the shell has set its traps")
    wait_until(lambda: all(ignores(status, number) for number in numbers))
    for number in numbers:
        os.kill(guard.pid, number)
    assert os.getsid(guard.pid) == guard.pid != os.getsid(0)
    pid = guard.pid
    guard.start()
    assert guard.pid == pid


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_stuck_guard_is_replaced_and_told_the_list(
    guard: HostGuard, sleeper: subprocess.Popen[bytes], fate: signal.Signals
) -> None:
    guard.watch(sleeper.pid)
    first = guard.pid
    assert first
    os.kill(first, fate)
    deadline = time.monotonic() + 60
    while guard.pid == first and time.monotonic() < deadline:
        guard.watch(2**22 + 1)  # a group that cannot exist; many of these fill a stopped guard's pipe
    assert guard.pid != first
    assert not Path(f"/proc/{first}").exists(), "the old guard is not reaped"
    guard.end()
    wait_until(lambda: not live_members(sleeper.pid))


@pytest.mark.parametrize("then", ["watch", "end"])
def test_a_guard_whose_pipe_other_code_has_closed_is_replaced(guard: HostGuard, then: str) -> None:
    guard.start()
    first, pipe = guard.pid, guard._shell.stdin if guard._shell else None
    assert pipe
    os.close(pipe.fileno())
    if then == "watch":
        guard.watch(2**22 + 1)
        assert guard.pid not in (first, None)
    guard.end()
    assert guard.pid is None


def test_ending_leaves_no_process_and_no_zombie(guard: HostGuard) -> None:
    guard.start()
    pid = guard.pid
    guard.end()
    assert guard.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid or 0, 0)


def test_ending_wakes_a_guard_that_was_stopped(guard: HostGuard, sleeper: subprocess.Popen[bytes]) -> None:
    guard.watch(sleeper.pid)
    os.kill(guard.pid or 0, signal.SIGSTOP)
    guard.end()
    wait_until(lambda: not live_members(sleeper.pid))


def test_a_guard_that_needs_longer_finishes_after_the_end(
    guard: HostGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This grep does not return before there is a file "go".
    listed, grep = tmp_path / "listed", tmp_path / "grep"
    listed.mkdir()
    grep.write_text(f"#!/bin/sh\nuntil [ -e {tmp_path}/go ]; do sleep 0.01; done\n")
    grep.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(guard_module.host_mark, "digits", lambda: "4000000000")
    monkeypatch.setattr(guard_module, "_END_S", 0.05)
    guard.watch(str(listed))
    pid = guard.pid or 0
    guard.end()
    assert listed.exists()
    (tmp_path / "go").touch()
    os.waitpid(pid, 0)  # nobody else reaps it
    assert not listed.exists()


@pytest.mark.slow
def test_a_ctrl_c_ends_the_wait_for_the_guard_and_shows_no_traceback(
    guard: HostGuard, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    guard.watch(sleeper.pid)
    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    guard.end()
    monkeypatch.undo()
    wait_until(lambda: not live_members(sleeper.pid))


def test_a_forked_child_lets_go_of_the_guard(guard: HostGuard, sleeper: subprocess.Popen[bytes]) -> None:
    guard.watch(sleeper.pid)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: this process may have threads
        child = os.fork()
    if child == 0:  # lives on after the parent's guard has lost its last writer
        guard.forget()
        signal.pause()
        os._exit(0)
    try:
        guard.end()
        wait_until(lambda: not live_members(sleeper.pid))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_pipe_is_not_inherited_by_other_children(
    guard: HostGuard, sleeper: subprocess.Popen[bytes]
) -> None:
    guard.watch(sleeper.pid)
    bystander = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        guard.end()
        wait_until(lambda: not live_members(sleeper.pid))
    finally:
        bystander.kill()
        bystander.wait()


def test_without_a_shell_it_warns_once_and_goes_on(guard: HostGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_shell() -> subprocess.Popen[bytes]:
        raise FileNotFoundError(2, "No such file or directory", "/bin/sh")

    monkeypatch.setattr(guard_module, "_start_shell", no_shell)
    with pytest.warns(GuardUnavailableWarning, match="/bin/sh"):
        guard.watch(2**22 + 1)
    guard.watch(2**22 + 2)
    guard.release(2**22 + 1)
    assert guard.pid is None


def test_it_starts_when_it_can_again(
    guard: HostGuard, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor() -> subprocess.Popen[bytes]:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(guard_module, "_start_shell", no_descriptor)
        with pytest.warns(GuardUnavailableWarning, match="Too many open files"):
            guard.watch(sleeper.pid)
    guard.watch(2**22 + 1)
    guard.release(2**22 + 1)
    assert guard.pid is not None
    guard.end()
    wait_until(lambda: not live_members(sleeper.pid))


@pytest.mark.slow
def test_interpreter_exit_ends_it_quietly() -> None:
    script = "from grue.runtime.processes.guard import guard; guard.start(); print(guard.pid)"
    host = subprocess.run(
        [sys.executable, "-X", "dev", "-c", script], capture_output=True, text=True, timeout=150, check=True
    )
    assert host.stderr == ""
    assert not Path(f"/proc/{host.stdout.strip()}").exists()


def test_a_process_that_goes_while_the_guard_searches_does_not_end_the_search(
    guard: HostGuard, sleeper: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # grep says "2" of a file that it could not read, whatever it has found in the others.
    grep = tmp_path / "grep"
    grep.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/once ] || echo /proc/{sleeper.pid}/limits\n: >{tmp_path}/once\nexit 2\n"
    )
    grep.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(guard_module.host_mark, "digits", lambda: "4000000000")
    guard.watch(2**22 + 1)
    guard.end()
    assert sleeper.wait(60) == -signal.SIGKILL
