# ruff: noqa: E501 - tables
import contextlib
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import boxes
import msgspec
import promises
import pytest

from grue import ShellTool, StdioServer
from grue.cli.doctor import boxes as findings
from grue.cli.sandbox import _waited, try_command
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import SandboxError
from grue.runtime.processes.descendants import live_members
from grue.runtime.processes.guard import guard
from grue.runtime.processes.process_group import ProcessRegistry, SpawnError
from grue.sandbox import kernel, launch, places
from grue.sandbox.box import Preset, Sandbox
from grue.sandbox.kernel import Coverage, Rule
from grue.sandbox.learning import Watch, watching
from grue.sandbox.seccomp import Wanted
from grue.testing.leftovers import assert_nothing_left

OLD = Coverage(system="Linux 5.10.0 on x86_64", landlock=0, seccomp=True, listener=True)


@boxes.needs_boxes
@pytest.mark.slow
def test_a_program_has_a_scratch_folder_that_is_its_home_and_is_removed() -> None:
    code = """
import os, tempfile
with open(os.path.expanduser("~/kept"), "w") as file: file.write("x")
deep = os.path.join(tempfile.mkdtemp(), "a"); os.mkdir(deep); os.chmod(deep, 0)
print(tempfile.gettempdir())"""
    ran = boxes.python(Sandbox(), code)
    scratch = Path(ran.stdout.strip())
    assert scratch.name.startswith("grue-box-"), ran
    assert not scratch.exists()


@pytest.mark.slow
@boxes.needs_boxes
def test_a_scratch_folder_that_is_nested_deeper_than_paths_go_is_removed() -> None:
    code = """
import os
print(os.environ["TMPDIR"]); os.chdir(os.environ["TMPDIR"])
for _ in range(3000): os.mkdir("a"); open("f", "w").close(); os.symlink("/etc", "l"); os.chdir("a")
os.chmod("..", 0)"""
    ran = boxes.python(Sandbox(), code)
    assert ran.stderr == ""
    assert not Path(ran.stdout.strip()).exists()
    assert Path("/etc").stat().st_mode & 0o755 == 0o755


@boxes.needs_boxes
def test_a_folder_that_becomes_a_link_before_the_start_opens_nothing(tmp_path: Path) -> None:
    """Another program in the same workspace may still run, and swap the two at any time."""
    work, secrets = tmp_path / "work", tmp_path / "secrets"
    for folder in (work / "data", secrets):
        folder.mkdir(parents=True)
    (secrets / "key").write_text("STOLEN")
    box = Sandbox(preset="files", write=(str(work / "data"),))
    argv = ("/bin/cat", str(work / "data" / "key"))
    started = launch.boxed(box, program=argv[0], args=argv[1:], env=dict(os.environ), cwd=str(work))
    try:
        (work / "data").rmdir()
        (work / "data").symlink_to(secrets)
        ran = started.run(lambda: subprocess.run(argv, capture_output=True, text=True, check=False))
    finally:
        started.end()
    assert "STOLEN" not in ran.stdout
    assert "Permission denied" in ran.stderr


def rulesets() -> list[str]:
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the folder's own
            found += [each.name] if "landlock" in str(each.readlink()) else []
    return sorted(found)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rules each ruleset that is made ahead has got; before, none is kept."""
    for kept in list(launch._ahead.values()):
        os.close(kept.ruleset)
    launch._ahead.clear()
    sizes: list[int] = []
    make = launch.ruleset_of

    def noted(rules: Sequence[Rule], *, any_network: bool) -> int:
        sizes.append(len(rules))
        return make(rules, any_network=any_network)

    monkeypatch.setattr(launch, "ruleset_of", noted)
    return sizes


def wait_until_kept(kinds: int) -> None:
    until = time.monotonic() + promises.GUARD_S
    while len(launch._ahead) < kinds and time.monotonic() < until:
        os.sched_yield()
    assert len(launch._ahead) == kinds


@boxes.needs_boxes
@pytest.mark.slow
def test_the_rules_of_the_system_are_made_ahead_once_a_start(
    made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[bool] = []

    def noted(rules: Sequence[Rule], wanted: Wanted, mark: str, ruleset: int) -> int | None:
        used.append(ruleset >= 0)
        return kernel.confine(rules, wanted, mark, ruleset)

    monkeypatch.setattr(launch, "confine", noted)
    with assert_nothing_left():  # what is kept is not counted
        for kinds, preset in ((1, "pure"), (1, "files"), (1, "pure"), (2, "web")):
            boxes.run(Sandbox(preset=preset, write=("/dev/null",)), "true", cwd="/usr")
            wait_until_kept(kinds)
    assert len(made) == 4
    assert used == [False, True, True, False], "the first of each kind of network makes its own"
    assert len(rulesets()) == 2
    assert not any(os.get_inheritable(int(each)) for each in rulesets())
    # A file of the system has been replaced, or this is a child that was forked: not that ruleset.
    for change in ({"system": ()}, {"process": 1}):
        kept = launch._ahead[False]
        launch._ahead[False] = msgspec.structs.replace(kept, **change)
        ran = boxes.python(Sandbox(), "print(open('/etc/passwd').read()[:1] != '')")
        assert ran.stdout == "True\n", ran
        wait_until_kept(2)
        assert len(rulesets()) == 2
    assert len(made) == 6
    assert used[4:] == [False, False]
    boxes.run(Sandbox(hide=("/etc/passwd",)), "true")
    assert len(made) == 6, "a box that hides something keeps nothing"


@boxes.needs_boxes
def test_the_rules_for_the_next_start_are_made_while_a_program_runs(made: list[int]) -> None:
    registry = ProcessRegistry()
    registry.spawn("/bin/cat", (), dict(os.environ), None, Sandbox())
    try:
        wait_until_kept(1)
        assert len(made) == 1
        assert [*launch._ahead] == [False]
    finally:
        registry.kill_leftovers()


@boxes.needs_boxes
def test_programs_do_not_see_each_others_scratch_folders() -> None:
    code = "import os; open(os.environ['TMPDIR'] + '/mine', 'w').write('STOLEN'); print(os.environ['TMPDIR'], flush=True); input()"
    registry = ProcessRegistry()
    first = registry.spawn(sys.executable, ("-c", code), dict(os.environ), None, Sandbox())
    os.set_blocking(first.stdout, True)
    try:
        folder = os.read(first.stdout, 1000).decode().strip()
        assert (Path(folder) / "mine").read_text() == "STOLEN"
        ran = boxes.python(Sandbox(), f"print(open({folder + '/mine'!r}).read())")
        assert "STOLEN" not in ran.stdout
        assert "PermissionError" in ran.stderr
    finally:
        registry.kill_leftovers()


def test_a_file_of_the_system_that_is_replaced_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_system_folders", lambda: (str(tmp_path),))
    before = places._state_of_system()
    assert places._system_rules(before, executable=True) is places._system_rules(before, executable=True)
    (tmp_path / "new").touch()
    (tmp_path / "new").rename(tmp_path / "resolv.conf")
    os.utime(tmp_path, (1, 1))
    after = places._state_of_system()
    assert places._system_rules(after, executable=True) is not places._system_rules(before, executable=True)
    monkeypatch.undo()
    assert {"/etc", "/etc/ssl"} <= {*places._system_folders()}


@boxes.needs_boxes
@pytest.mark.slow
def test_the_workspace_is_written_with_files_and_not_with_pure(tmp_path: Path) -> None:
    code = "open('made', 'w').write('x')"
    assert "PermissionError" in boxes.python(Sandbox(), code, cwd=tmp_path).stderr
    assert boxes.python(Sandbox(preset="files"), code, cwd=tmp_path).stderr == ""
    assert (tmp_path / "made").read_text() == "x"
    assert (
        boxes.python(Sandbox(write=(str(tmp_path),)), "import os; os.unlink('made')", cwd=tmp_path).stderr
        == ""
    )


@boxes.needs_boxes
def test_a_program_with_a_folder_of_its_own_starts_though_that_of_the_host_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    ran = boxes.python(Sandbox(preset="files"), "import os; print(os.getcwd())", cwd=tmp_path)
    assert ran.stdout == f"{tmp_path}\n", ran


@boxes.needs_boxes
def test_limits_are_set_before_the_program_runs() -> None:
    box = Sandbox(memory_mb=300, open_files=99, file_mb=7, cpu_s=55)
    code = """
import resource as r
print([r.getrlimit(each)[1] for each in (r.RLIMIT_DATA, r.RLIMIT_NOFILE, r.RLIMIT_FSIZE, r.RLIMIT_CORE)])
print(r.getrlimit(r.RLIMIT_CPU))  # the lower limit sends SIGXCPU, which says why the program has ended
bytearray(400 << 20)"""
    ran = boxes.python(box, code)
    assert ran.stdout == f"[{300 << 20}, 99, {7 << 20}, 0]\n(55, 56)\n"
    assert "MemoryError" in ran.stderr
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert boxes.run(Sandbox(open_files=2**39), "sh", "-c", "ulimit -Hn").stdout.strip() == str(hard)


@boxes.needs_boxes
def test_processes_are_limited_unless_the_user_is_root() -> None:
    box = Sandbox(processes=3)
    if os.getuid() == 0:
        with pytest.raises(SpawnError, match="does not limit the number of root's processes"):
            boxes.run(box, "true")
        return
    code = "import os, signal\nfor _ in range(9):\n if os.fork() == 0: signal.pause()"
    assert "BlockingIOError" in boxes.python(box, code).stderr


def test_a_kernel_that_offers_less_is_a_reason_not_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kernel, launch):
        monkeypatch.setattr(module, "coverage", lambda: OLD)
    with pytest.raises(SpawnError) as refused:
        boxes.run(Sandbox(), "true")
    assert "The sandbox cannot be enforced: Landlock is not in this kernel" in str(refused.value)
    assert '"required": false' in str(refused.value.remedy)


@boxes.needs_boxes
def test_a_box_that_is_not_required_enforces_what_it_can_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kernel, launch):
        monkeypatch.setattr(module, "coverage", lambda: OLD)
    box = Sandbox(required=False)
    with pytest.warns(launch.SandboxWarning, match="enforced in part: Landlock is not in this kernel"):
        ran = boxes.python(box, "import socket; open('/etc/hostname'); socket.socket()")
    assert "PermissionError" in ran.stderr
    assert "socket" in ran.stderr


def test_where_no_box_can_be_made_a_program_that_does_not_require_one_starts_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(*_: object) -> None:
        raise AssertionError("another system than Linux has no such call")

    have = Coverage(system="Darwin 24 on arm64", supported=False, landlock=0, seccomp=False, listener=False)
    for module in (kernel, launch):
        monkeypatch.setattr(module, "coverage", lambda: have)
    monkeypatch.setattr(kernel, "_libc", absent)
    monkeypatch.setattr(launch, "_thread_of_the_system", absent)
    box = Sandbox(required=False, network=("a.example",))
    with pytest.warns(launch.SandboxWarning, match="this is Darwin 24 on arm64"):
        ran = boxes.python(box, "import os; print(os.environ['HOME'], os.environ.get('HTTP_PROXY'))")
    assert ran.stdout == f"{os.environ['HOME']} {os.environ.get('HTTP_PROXY')}\n", ran


@boxes.needs_boxes
def test_where_hosts_cannot_be_told_apart_a_box_that_is_not_required_opens_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have = msgspec.structs.replace(kernel.coverage(), listener=False)
    for module in (kernel, launch):
        monkeypatch.setattr(module, "coverage", lambda: have)
    box = Sandbox(required=False, network=("a.example",))
    code = "import os, socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print(os.environ['HTTP_PROXY'] == '')"
    warns = pytest.warns(launch.SandboxWarning, match="hosts cannot be limited by name")
    with socket.create_server(("127.0.0.1", 0)) as server, warns:
        ran = boxes.python(box, code, str(server.getsockname()[1]), env={"HTTP_PROXY": ""})
    assert ran.stdout == "True\n", ran


@pytest.mark.parametrize(
    ("have", "hosts", "said"),
    [
        (Coverage(system="Darwin 24 on arm64", supported=False, landlock=0, seccomp=False, listener=False), False,
         "on Linux with x86-64 or ARM64 only, and this is Darwin 24 on arm64"),
        (Coverage(system="L", landlock=2, seccomp=True, listener=True), False, "Landlock has version 2"),
        (Coverage(system="L", landlock=7, seccomp=False, listener=False), True, "seccomp filters cannot"),
        (Coverage(system="L", landlock=7, seccomp=True, listener=False), True, "hosts cannot be limited by name"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(have: Coverage, said: str, *, hosts: bool) -> None:
    (missing,) = have.missing(hosts=hosts)
    assert said in missing


def test_older_landlock_lets_signals_pass_and_says_so() -> None:
    assert Coverage(system="L", landlock=4, seccomp=True, listener=True).notes()[0].startswith("Signals")
    assert not Coverage(system="L", landlock=6, seccomp=True, listener=True).notes()


def test_a_path_that_cannot_be_opened_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(SpawnError, match="which does not exist"):
        boxes.run(Sandbox(write=(str(tmp_path / "absent"),), required=False), "true")


@boxes.needs_boxes
@pytest.mark.parametrize("preset", ["pure", "files", "web"])
def test_p9_a_stubborn_program_in_a_box_is_ended_with_all_that_left_its_group(
    preset: Preset, tmp_path: Path
) -> None:
    code = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
run = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", run], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True); time.sleep(600)"""
    registry = ProcessRegistry()
    with assert_nothing_left():
        group = registry.spawn(
            sys.executable, ("-c", code), dict(os.environ), str(tmp_path), Sandbox(preset=preset)
        )
        os.set_blocking(group.stdout, True)
        child = int(os.read(group.stdout, 100))
        group.end()
        group.close_descriptors()
        assert not live_members(group.pid)
        assert not Path(f"/proc/{child}").exists() or "zombie" in Path(f"/proc/{child}/status").read_text()


@boxes.needs_boxes
@pytest.mark.parametrize(
    "box", [Sandbox(network=("example.com:443",)), watching(Watch())], ids=["box", "watch"]
)
def test_a_box_that_gets_no_socket_is_a_typed_error_and_leaves_no_folder(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("grue.sandbox.gate.socket.create_server", refuse)
    with pytest.raises(SpawnError, match=r"box of .* cannot be made: Too many open files"):
        ProcessRegistry().spawn(sys.executable, ("-c", ""), dict(os.environ), None, box)
    assert not list(tmp_path.iterdir())


@boxes.needs_boxes
def test_a_machine_without_a_folder_for_temporary_files_is_a_typed_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", list)
    with pytest.raises(SpawnError, match=r"box of .* cannot be made: No usable temporary directory"):
        ProcessRegistry().spawn(sys.executable, ("-c", ""), dict(os.environ), None, Sandbox())


HOST = """
import os, sys, time
from grue.runtime.processes.process_group import ProcessRegistry
from grue.sandbox.box import Sandbox
code = "import os, subprocess, time; print(os.getpid(), flush=True); time.sleep(600)"
group = ProcessRegistry().spawn(sys.executable, ("-c", code), dict(os.environ), None, Sandbox(preset=sys.argv[1]))
os.set_blocking(group.stdout, True)
print(os.read(group.stdout, 100).decode().strip(), flush=True)
exec(sys.argv[2])
"""


@boxes.needs_boxes
@pytest.mark.parametrize("preset", ["pure", "files", "web"])
@pytest.mark.slow
def test_the_guard_ends_a_boxed_program_after_a_kill_of_the_host(preset: Preset, tmp_path: Path) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, preset, "time.sleep(600)"],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert host.stdout is not None
    pid = int(host.stdout.readline())
    fd = os.pidfd_open(pid)
    try:
        host.send_signal(signal.SIGKILL)
        host.wait()
        import select

        assert select.select([fd], [], [], 60)[0], "the guard did not end it"
    finally:
        os.close(fd)
        host.stdout.close()
    wait_until_empty(tmp_path)


def wait_until_empty(folder: Path) -> None:
    """Wait until the guard has removed the scratch folders of a host that was killed."""
    until = time.monotonic() + promises.GUARD_S
    while left := [*folder.iterdir()]:
        assert time.monotonic() < until, left
        time.sleep(0.01)


@boxes.needs_boxes
@pytest.mark.parametrize(
    "end",
    [
        *("pass", "1 / 0", "os.kill(os.getpid(), 2); time.sleep(600)", "os.kill(os.getpid(), 15)"),
        *("os._exit(1)", "os.kill(os.getpid(), 9)"),
    ],
)
def test_no_scratch_folder_is_left_however_the_host_ends(end: str, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder)}
    command = [sys.executable, "-c", HOST, "pure", end]
    host = subprocess.run(command, capture_output=True, cwd=tmp_path, env=environment, check=False)
    assert host.stdout.strip().isdigit(), host.stderr
    wait_until_empty(folder)  # after a kill, the guard removes it


@boxes.needs_boxes
def test_a_start_that_fails_leaves_no_scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(guard, "_list", set())
    registry, wrong = ProcessRegistry(), {"A": "\0"}
    for box, env in ((Sandbox(write=(str(tmp_path / "absent"),)), {}), (Sandbox(), wrong)):
        with pytest.raises(SpawnError):
            registry.spawn(sys.executable, (), env, None, box)
    assert [*tmp_path.iterdir()] == []
    assert guard._list == set()


@boxes.needs_boxes
def test_the_shell_tool_runs_commands_in_its_box(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("STOLEN")
    folder = tmp_path / "work"
    folder.mkdir()
    shell = ShellTool(folder=folder, commands="any", shell=True, sandbox=Sandbox(preset="files"))
    with ToolClient({"sh": shell}) as client:
        text = str(client.call("sh.run", {"command": f"echo hi > made; cat made {secret}"}))
    assert "hi" in text
    assert "Permission denied" in text
    assert "STOLEN" not in text


@boxes.needs_boxes
@pytest.mark.parametrize("boxed", ["files", "pure"])
def test_a_path_that_a_model_names_opens_nothing(tmp_path: Path, boxed: Preset) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "pyproject.toml").touch()
    script = other / "show.sh"
    script.write_text(f"#!/bin/sh\ncat {other}/secret\n")
    script.chmod(0o700)
    (other / "secret").write_text("STOLEN")
    folder = tmp_path / "work"
    folder.mkdir()
    free = ShellTool(folder=folder, commands="any", sandbox=Sandbox(preset=boxed))
    listed = ShellTool(folder=folder, commands=["cat", ["sh", str(script)]], sandbox=Sandbox(preset=boxed))
    with ToolClient({"free": free, "listed": listed}) as client:
        stolen = [
            client.call(tool, {"argv": argv})
            for tool, argv in (
                ("free.run", ["cat", str(other / "secret"), str(script)]),
                ("free.run", [str(script)]),
                ("listed.run", ["cat", str(other / "secret"), f"--x={script}"]),
            )
        ]
        allowed = client.call("listed.run", {"argv": ["sh", str(script)]})
    assert "STOLEN" not in str(stolen)
    assert "STOLEN" in str(allowed)


def test_a_home_folder_that_is_a_link_is_opened_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real" / ".config").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "real")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for path in ("~", "~/.config", str(tmp_path / "home" / ".config"), str(tmp_path / "real" / ".config")):
        assert launch.opens_home(Sandbox(read=(path,)), "/")
    assert not launch.opens_home(Sandbox(read=(str(tmp_path / "realm"),)), "/")


@boxes.needs_boxes
def test_greenlets_are_refused_before_the_box_closes_around_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "start_new_thread", lambda run, arguments: run(*arguments))
    with pytest.raises(SpawnError, match="a sandbox needs a thread of its own"):
        boxes.run(Sandbox(), "true")
    assert SandboxError("x", remedy="y").remedy == "y"


@boxes.needs_boxes
def test_without_proc_a_box_says_that_it_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_mounted(path: str) -> str:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(os, "readlink", not_mounted)
    monkeypatch.setattr(os.path, "realpath", os.path.abspath)
    with (
        assert_nothing_left(),
        pytest.raises(SpawnError, match="A sandbox needs /proc, which is not mounted"),
    ):
        boxes.run(Sandbox(), "true")


@boxes.needs_boxes
def test_nobody_else_may_look_into_a_scratch_folder() -> None:
    started = launch.boxed(Sandbox(), program="/bin/true", args=(), env=dict(os.environ), cwd="/")
    before = os.umask(0)
    try:
        other = launch.boxed(Sandbox(), program="/bin/true", args=(), env=dict(os.environ), cwd="/")
    finally:
        os.umask(before)
    for each in (started, other):
        assert Path(each.scratch).stat().st_mode & 0o777 == 0o700
        each.end()


def test_a_box_that_the_kernel_refuses_keeps_nobody_waiting_for_its_listener() -> None:
    def refused() -> int | None:
        raise SandboxError("no box")

    heard: list[str] = []

    def ask() -> None:
        try:
            launch.in_confined_thread(refused, lambda: None, lambda _: None)
        except SandboxError as error:
            heard.append(str(error))

    asked = threading.Thread(target=ask, daemon=True)
    asked.start()
    asked.join(promises.GUARD_S)
    assert heard == ["no box"]


@boxes.needs_boxes
@pytest.mark.parametrize("way", ["server", "command"])
def test_a_program_that_has_failed_is_looked_up_in_the_records(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(launch, "refusals", lambda *_, died, **__: told.append(died) or ())
    if way == "command":
        assert try_command("pure", ["/bin/false"], None) == 1
    else:
        server = StdioServer("/bin/false", sandbox=Sandbox())
        with ToolClient({"gone": server}) as client:
            client.connect("gone")
    assert told[-1] is True


@pytest.mark.parametrize(("landlock", "named"), [(6, False), (7, True)])
def test_the_kernel_is_told_the_mark_of_a_box_if_it_writes_records(
    landlock: int, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[object, ...]] = []

    class Library:
        def prctl(self, *arguments: object) -> int:
            calls.append(arguments)
            return 0

        syscall = prctl

    monkeypatch.setattr(kernel, "_libc", Library)
    monkeypatch.setattr(kernel, "_drop_capabilities", lambda: None)
    have = Coverage(system="Linux", landlock=landlock, seccomp=False, listener=False)
    monkeypatch.setattr(kernel, "coverage", lambda: have)
    ruleset = os.open("/dev/null", os.O_RDONLY)
    kernel.confine((), Wanted(network="none"), "0123456789abcde", ruleset)
    assert ((kernel._SET_NAME, b"0123456789abcde", 0, 0, 0) in calls) == named
    assert calls[-1] == (kernel._RESTRICT_SELF, ruleset, kernel._LOG_NEW_EXEC_ON if named else 0)


@pytest.mark.parametrize("presses", [1, 2])
def test_a_program_that_ignores_ctrl_c_is_killed(presses: int) -> None:
    class Stubborn:
        def __init__(self) -> None:
            self.waits: list[float | None] = []
            self.is_killed = False

        def wait(self, within_s: float | None = None) -> int:
            self.waits.append(within_s)
            if len(self.waits) <= presses:
                raise KeyboardInterrupt
            if within_s is not None:
                raise subprocess.TimeoutExpired("stubborn", within_s)
            return -9

        def kill(self) -> None:
            self.is_killed = True

    process = Stubborn()
    with pytest.raises(KeyboardInterrupt):
        _waited(process)  # type: ignore[arg-type]
    assert process.is_killed
    assert process.waits[-1] is None


def test_where_no_thread_can_start_the_box_says_so_and_nothing_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(launch, "start_new_thread", no_thread)
    with pytest.raises(SandboxError, match="needs a thread of its own: can't start new thread"):
        launch.in_confined_thread(lambda: None, lambda: None, None)


@boxes.needs_hosts
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_start_leaves_no_program_thread_or_folder(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, boxed_, scratch = subprocess.Popen, launch.boxed, list[str]()

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)  # the main thread waits for this one, and raises the KeyboardInterrupt meanwhile

    def start(*args: object, **options: object) -> object:
        leader = started(*args, **options)  # type: ignore[call-overload]
        interrupt()
        return leader

    def prepared(*args: object, **options: object) -> launch.Boxed:
        found = boxed_(*args, **options)  # type: ignore[arg-type]
        scratch.append(found.scratch)
        return found

    def confined(*given: object) -> int | None:
        interrupt()
        return kernel.confine(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(launch, "boxed", prepared)
    with assert_nothing_left():
        if when == "before":
            monkeypatch.setattr(launch, "confine", confined)
        else:
            monkeypatch.setattr(subprocess, "Popen", start)
        with pytest.raises(KeyboardInterrupt):
            boxes.run(Sandbox(network=("a.example:443",)), "cat")
        monkeypatch.setattr(subprocess, "Popen", started)
    assert not Path(*scratch).exists()
    assert not guard._list & {*scratch}


def test_the_doctor_says_what_each_server_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = {
        "free": StdioServer(name="free", command="x"),
        "boxed": StdioServer(name="boxed", command="x", sandbox=Sandbox(network=("a.example:443",))),
    }
    monkeypatch.setattr("grue.cli.doctor.coverage", lambda: OLD)
    monkeypatch.setattr(launch, "coverage", lambda: OLD)
    machine, free, boxed = findings(servers, "mcp.json")
    assert machine.verdict == "note"
    assert "Landlock absent, seccomp present" in machine.text
    assert "free (mcp.json): no sandbox: it can reach all that you can" in free.text
    assert boxed.verdict == "WRONG"
    assert "network: a.example:443" in boxed.text
    assert "Not enforced here: Landlock is not in this kernel" in boxed.text


def test_the_doctor_names_paths_of_a_box_that_do_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        launch, "coverage", lambda: Coverage(system="", landlock=9, seccomp=True, listener=True)
    )
    (tmp_path / "there").touch()
    written: list[dict[str, tuple[str, ...]]] = [
        {"read": ("there", "absent", f"{tmp_path}/there"), "hide": ("~/no such file",)},
        {"read": ("there",)},
    ]
    servers = {
        str(n): StdioServer(name=str(n), command="x", cwd=str(tmp_path), sandbox=Sandbox(**box))  # type: ignore[arg-type]
        for n, box in enumerate(written)
    }
    _, first, second = findings(servers, "mcp.json")
    assert first.verdict == "note"
    assert first.text.splitlines()[1:] == [
        "absent in 'read' does not exist.",
        "~/no such file in 'hide' does not exist.",
    ]
    assert (second.verdict, second.text.count("\n")) == ("ok", 0)
