import errno
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from grue.errors import MCPConfigError
from grue.runtime.processes import descendants, process_group
from grue.runtime.processes.descendants import live_members
from grue.runtime.processes.guard import HostGuard
from grue.runtime.processes.limits import ServerExit
from grue.runtime.processes.process_group import ProcessGroup, ProcessRegistry, SpawnError
from grue.testing.leftovers import assert_nothing_left

ENV = dict(os.environ)


def output(group: ProcessGroup) -> str:
    """Wait for the exit and return what the leader wrote."""
    assert group.watch.exited_within(60)
    text = os.read(group.stdout, 1_000_000).decode()
    group.end()
    group.close_descriptors()
    return text


def sh(
    registry: ProcessRegistry, script: str, env: dict[str, str] = ENV, cwd: str | None = None
) -> ProcessGroup:
    return registry.spawn("sh", ("-c", script), env, cwd)


def test_p9_ending_kills_the_whole_group_though_the_leader_left_politely() -> None:
    registry = ProcessRegistry()
    with assert_nothing_left():
        group = sh(registry, "sleep 600 & exit 0")
        assert group.watch.exited_within(60)
        assert live_members(group.pid), "the grandchild should have survived its parent"
        assert group.end() == ServerExit(status=0)
        assert not live_members(group.pid)
        group.close_descriptors()
    assert len(registry) == 0


def test_the_exit_tells_status_and_signal() -> None:
    registry = ProcessRegistry()
    with assert_nothing_left():
        by_itself, killed = sh(registry, "exit 3"), sh(registry, "kill -TERM $$")
        for group in (by_itself, killed):
            assert group.watch.exited_within(60)
            group.end()
            group.close_descriptors()
    assert str(by_itself.exit) == "exit status 3"
    assert str(killed.exit) == "killed by SIGTERM"


def test_signals_after_the_end_go_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    group = sh(ProcessRegistry(), "exit 0")
    group.end()
    group.close_descriptors()
    monkeypatch.setattr(os, "killpg", lambda pgid, number: pytest.fail("the id may belong to others by now"))
    group.signal(signal.SIGTERM)
    assert group.end() == group.exit


def test_the_group_is_killed_before_its_leader_is_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[str] = []
    killpg = os.killpg

    def watched(pgid: int, number: int) -> None:
        if number == signal.SIGKILL:
            states.append(Path(f"/proc/{pgid}/stat").read_text().rpartition(")")[2].split()[0])
        killpg(pgid, number)

    group = sh(ProcessRegistry(), "exit 0")
    assert group.watch.exited_within(60)
    monkeypatch.setattr(os, "killpg", watched)
    group.end()
    group.close_descriptors()
    assert states == ["Z"]


def test_kill_leftovers_ends_its_own_groups_and_no_others() -> None:
    mine, other = ProcessRegistry(), ProcessRegistry()
    with assert_nothing_left():
        groups = [sh(mine, "trap '' TERM; sleep 600 & wait") for _ in range(3)]
        neighbour = sh(other, "sleep 600")
        assert mine.kill_leftovers() == 3
        assert not any(live_members(group.pid) for group in groups)
        assert live_members(neighbour.pid)
        assert mine.kill_leftovers() == 0
        assert other.kill_leftovers() == 1


def test_descriptors_are_left_to_a_loop_that_still_runs() -> None:
    registry = ProcessRegistry()
    group = sh(registry, "sleep 600")
    registry.kill_leftovers(loop_running=True)
    assert group.stdout >= 0
    group.close_descriptors()
    assert group.stdout == -1


@pytest.mark.parametrize("odd", ["", "npm_config_//registry/:x", "with.dot", "BASH_FUNC_f%%"])
def test_r3_2_p7_the_process_gets_exactly_the_environment_given(odd: str) -> None:
    env = {"PATH": ENV["PATH"], "TEXT": "with\nnewline", "EMPTY": "", "PWD": str(Path.cwd())}
    if odd:
        env[odd] = "kept"
    script = "import os, json; print(json.dumps(dict(os.environ)))"
    group = ProcessRegistry().spawn(sys.executable, ("-I", "-c", script), env, None)
    seen = json.loads(output(group))
    seen.pop("LC_CTYPE", None)  # Python's own doing
    assert seen == env


def test_input_after_the_starting_line_is_the_server_s_alone() -> None:
    for _ in range(20):
        registry = ProcessRegistry()
        group = registry.spawn("cat", (), ENV, None)
        sent = b"first\n" * 1000
        os.write(group.stdin, sent)
        group.close_stdin()
        assert output(group).encode() == sent


def test_commands_are_found_by_name_by_path_and_relative_to_cwd(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "hello"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho hello from $PWD\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    registry = ProcessRegistry()
    expected = f"hello from {tmp_path}\n"
    for command in ("bin/hello", "./bin/hello", str(program)):
        assert output(registry.spawn(command, (), ENV, str(tmp_path))) == expected
    on_path = {**ENV, "PATH": f"{program.parent}:{ENV['PATH']}"}
    assert output(registry.spawn("hello", (), on_path, str(tmp_path))) == expected
    assert output(registry.spawn("hello", (), on_path, "")) == f"hello from {Path.cwd()}\n"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("no-such-command", "was not found"),
        ("./no/such/path", "was not found"),
        ("/etc/passwd", "is not executable"),
        ("/", "is a folder"),
    ],
)
def test_r6_1_a_command_that_cannot_be_started_fails_before_the_spawn(command: str, says: str) -> None:
    registry = ProcessRegistry()
    with assert_nothing_left(), pytest.raises(SpawnError, match=says) as caught:
        registry.spawn(command, (), ENV, None)
    assert caught.value.missing == (command if says == "was not found" else None)
    assert len(registry) == 0


def test_a_command_in_a_folder_that_may_not_be_entered_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may enter every folder, so the test does not depend on real permissions.
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(SpawnError, match="'/absent/server' is in a folder that this user may not enter"):
        ProcessRegistry().spawn("/absent/server", (), ENV, None)


def test_other_refusals_are_spawn_errors_too() -> None:
    registry = ProcessRegistry()
    with assert_nothing_left():
        with pytest.raises(SpawnError, match="/no/such/dir cannot be used: No such file or directory"):
            sh(registry, "exit", cwd="/no/such/dir")
        with pytest.raises(SpawnError, match=f"{__file__} cannot be used: Not a directory"):
            sh(registry, "exit", cwd=__file__)
        with pytest.raises(SpawnError, match=r"cannot be used: .*embedded null"):
            sh(registry, "exit", cwd="/\0")
        with pytest.raises(SpawnError, match="null"):
            registry.spawn("sh", ("a\0b",), ENV, None)
        with pytest.raises(SpawnError, match="too long"):
            registry.spawn("sh", ("x" * 10_000_000,), ENV, None)


def test_at_a_limit_the_advice_is_about_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    with pytest.raises(SpawnError, match="Too many open files") as caught:
        sh(ProcessRegistry(), "exit")
    assert "ulimit -a" in (caught.value.remedy or "")


def test_a_group_is_ended_although_the_process_table_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    registry = ProcessRegistry()
    with assert_nothing_left():
        group = sh(registry, "sleep 600 & exit 0")
        assert group.watch.exited_within(60)
        with monkeypatch.context() as patched:
            for reading in ("_read", "_listed", "_listed_by_ps"):
                patched.setattr(descendants, reading, refuse)
            assert group.end() == ServerExit(status=0)
        group.close_descriptors()
    assert len(registry) == 0


def test_windows_gets_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "name", "nt")
    try:
        with pytest.raises(MCPConfigError, match="need Linux or macOS"):
            ProcessRegistry().spawn("sh", (), {}, None)
    finally:
        monkeypatch.undo()


@pytest.mark.slow
def test_interpreter_exit_kills_what_nobody_closed() -> None:
    script = """
import os
from grue.runtime.processes.process_group import ProcessRegistry
registry = ProcessRegistry()
group = registry.spawn("sh", ("-c", "trap '' TERM; sleep 600 & wait"), dict(os.environ), None)
print(group.pid)
"""
    host = subprocess.run(
        [sys.executable, "-X", "dev", "-c", script], capture_output=True, text=True, timeout=150, check=True
    )
    assert host.stderr == ""
    assert not live_members(int(host.stdout))


@pytest.mark.slow
def test_a_forked_child_does_not_touch_its_parent_s_servers() -> None:
    script = """
import os, sys, warnings
from grue.runtime.processes.process_group import ProcessRegistry
warnings.simplefilter("ignore", DeprecationWarning)
registry = ProcessRegistry()
group = registry.spawn("cat", (), dict(os.environ), None)
if os.fork() == 0:
    assert registry.kill_leftovers() == 0
    sys.exit()  # runs the child's exit handlers
os.wait()
assert not group.watch.exited_within(0.1)
assert registry.kill_leftovers() == 1
"""
    subprocess.run([sys.executable, "-c", script], timeout=150, check=True)


def test_an_ended_group_leaves_the_guards_list_before_its_id_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the leader is reaped its id may be another group's, which the guard would kill with the host."""
    released: list[tuple[int | str, int | None]] = []

    class Watched(HostGuard):
        def release(self, listed: int | str) -> None:
            released.append((listed, group._leader.returncode))
            super().release(listed)

    guard = Watched()
    monkeypatch.setattr(process_group, "guard", guard)
    group = ProcessRegistry().spawn("cat", (), ENV, None)
    try:
        assert guard._list == {group.pid}
        group.end()
        assert released == [(group.pid, None)]
        assert guard._list == set()
    finally:
        group.close_descriptors()
        guard.end()


def test_the_end_waits_until_no_member_of_the_group_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    alive = [True, True, True, False]
    monkeypatch.setattr(process_group, "_has_members", lambda _pgid: alive.pop(0))
    group = sh(ProcessRegistry(), "exit 0")
    group.end()
    group.close_descriptors()
    assert alive == []
