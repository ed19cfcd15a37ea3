"""Works of a fleet that damage their process or folder, and an honest work that checks for such damage.

`EXPECTED` has the expected outcome of each work's episode, and the kind of the failure.
"""

import asyncio
import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from grue.fleet import Episode

LONG_S = 600


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__


class ExitingError(Exception):
    def __str__(self) -> str:
        sys.exit(3)

    def __reduce__(self) -> Any:
        os._exit(4)


class Name(str):
    def __reduce__(self) -> Any:
        return (os._exit, (5,))

    def __str__(self) -> str:
        raise ValueError("no")


class Raising(Mapping[str, float]):
    def __getitem__(self, key: str) -> float:
        raise GeneratorExit

    def __iter__(self) -> Iterator[str]:
        raise KeyboardInterrupt

    def __len__(self) -> int:
        return 1


def honest(case: dict[str, Any], episode: Episode) -> float:
    """Check that no other episode has changed this process, and return a score."""
    umask = os.umask(0o022)
    os.umask(umask)
    found = {
        "folder": str(Path.cwd()) == case["folder"],
        "umask": umask == case["umask"],
        "signals": not signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "handlers": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "environment": "HOSTILE" not in os.environ and "PATH" in os.environ,
        "threads": threading.active_count() <= 2,
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 100,
        "memory": resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY,
        "recursion": sys.getrecursionlimit() >= 1000,
    }
    assert all(found.values()), found
    subprocess.run(["true"], check=True)
    print("honest")
    (episode.folder / "note").write_text(str(case["n"]))
    return 2.0 * case["n"]


def raises(error: BaseException) -> Callable[[Episode], Any]:
    def do(episode: Episode) -> Any:
        raise error

    return do


def close_all(episode: Episode) -> float:
    os.closerange(0, 512)
    return 1


def write_everywhere(episode: Episode) -> float:
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\xff{]\n")
        except OSError:
            continue
    time.sleep(LONG_S)
    return 1


def take_memory(episode: Episode) -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 2**27
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    held = []
    while True:
        held.append(bytearray(2**22))


def fork_twice(episode: Episode) -> float:
    os.fork()
    return 1


def leave_children(episode: Episode) -> float:
    if os.fork() == 0:
        time.sleep(LONG_S)
    subprocess.Popen(["sleep", str(LONG_S)])
    return 1


def leave_threads(episode: Episode) -> float:
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(LONG_S,)).start()
    return 1


def recurse(episode: Episode) -> float:
    return recurse(episode)


def block_signals(episode: Episode) -> float:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return 1


def alarm(episode: Episode) -> float:
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    return 1


def resist(episode: Episode) -> float:
    block_signals(episode)
    while True:
        try:
            time.sleep(LONG_S)
        except BaseException:  # noqa: BLE001 - that is what it is for
            continue


def stop_itself(episode: Episode) -> float:
    os.kill(os.getpid(), signal.SIGSTOP)
    return 1


def hold_the_interpreter(episode: Episode) -> float:
    ctypes.PyDLL(None).sleep(LONG_S)
    return 1


def no_files(episode: Episode) -> float:
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return 1


def no_space(episode: Episode) -> float:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    return 1


def change_process(episode: Episode) -> float:
    gone = episode.folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    os.environ.clear()
    os.environ["HOSTILE"] = "1"
    os.umask(0o777)
    sys.path.clear()
    sys.setrecursionlimit(200)
    return 1


def flood(episode: Episode) -> float:
    for _ in range(40):
        print("x" * 2**20)
        os.write(1, b"y" * 2**20)
    return 1


def close_stdout(episode: Episode) -> float:
    sys.stdout.close()
    return 1


def read_stdin(episode: Episode) -> float:
    return float(len(sys.stdin.read()) + len(os.read(0, 10)))


def remove_attempt(episode: Episode) -> float:
    shutil.rmtree(episode.folder)
    return 1


def remove_episode(episode: Episode) -> float:
    shutil.rmtree(episode.folder.parent)
    return 1


def damage_commit(episode: Episode) -> float:
    (episode.folder.parent / "commit.json").write_text('{"attempt": ')
    return 1


def commit_folder(episode: Episode) -> float:
    (episode.folder.parent / "commit.json").mkdir()
    return 1


def damage_rest(episode: Episode) -> float:
    (episode.folder / "attempt.json").write_bytes(b"\xff")
    (episode.folder.parent / "case.json").write_text("[")
    (episode.folder.parent / "attempt-2").write_text("no folder")
    return 1


def trace_pipe(episode: Episode) -> float:
    os.mkfifo(episode.trace)
    return 1


def delete_trace(episode: Episode) -> float:
    episode.trace.write_text(json.dumps({"seq": 1}) + "\n")
    episode.trace.unlink()
    return 1


def endless_trace(episode: Episode) -> float:
    episode.trace.symlink_to("/dev/zero")
    return 1


DIED, FAILED, SCORED, LATE = "died", "failed", "scored", "timed_out"

WORKS: dict[str, tuple[Callable[[Episode], Any], str, str]] = {
    "exit": (lambda episode: sys.exit(3), FAILED, "SystemExit"),
    "_exit": (lambda episode: os._exit(0), DIED, "died"),
    "kill": (lambda episode: os.kill(os.getpid(), signal.SIGKILL), DIED, "died"),
    "kill group": (lambda episode: os.killpg(0, signal.SIGKILL), DIED, "died"),
    "segfault": (lambda episode: ctypes.string_at(0), DIED, "died"),
    "interrupt": (raises(KeyboardInterrupt()), FAILED, "KeyboardInterrupt"),
    "generator exit": (raises(GeneratorExit()), FAILED, "GeneratorExit"),
    "cancelled": (raises(asyncio.CancelledError()), FAILED, "CancelledError"),
    "unprintable": (raises(UnprintableError()), FAILED, "UnprintableError"),
    "exit in str": (raises(ExitingError()), FAILED, "ExitingError"),
    "surrogate": (raises(ValueError("half \ud83d")), FAILED, "ValueError"),
    "odd class": (raises(type("Odd\n", (Exception,), {})("\x00")), FAILED, "Odd\n"),
    "long text": (raises(ValueError("x" * 10**7)), FAILED, "ValueError"),
    "recursion": (recurse, FAILED, "RecursionError"),
    "memory": (take_memory, FAILED, "MemoryError"),
    "chdir": (lambda episode: os.chdir("/") or 1, SCORED, ""),
    "process": (change_process, SCORED, ""),
    "descriptors": (close_all, SCORED, ""),
    "garbage": (write_everywhere, DIED, "died"),
    "fork": (fork_twice, SCORED, ""),
    "children": (leave_children, SCORED, ""),
    "threads": (leave_threads, SCORED, ""),
    "signals": (block_signals, SCORED, ""),
    "alarm": (alarm, SCORED, ""),
    "stopped": (stop_itself, LATE, "timed_out"),
    "sleeps": (lambda episode: time.sleep(LONG_S), LATE, "timed_out"),
    "resists": (resist, LATE, "timed_out"),
    "holds": (hold_the_interpreter, LATE, "timed_out"),
    "no files": (no_files, DIED, "error"),
    "no space": (no_space, DIED, "error"),
    "output": (flood, SCORED, ""),
    "stdout": (close_stdout, SCORED, ""),
    "stdin": (read_stdin, SCORED, ""),
    "no attempt": (remove_attempt, SCORED, ""),
    "no episode": (remove_episode, DIED, "error"),
    "commit": (damage_commit, DIED, ""),
    "commit folder": (commit_folder, DIED, ""),
    "other files": (damage_rest, SCORED, ""),
    "pipe": (trace_pipe, SCORED, ""),
    "no trace": (delete_trace, SCORED, ""),
    "endless trace": (endless_trace, SCORED, ""),
    "unpicklable": (lambda episode: lambda: 1, FAILED, "ValueError"),
    "raising result": (lambda episode: Raising(), FAILED, "KeyboardInterrupt"),
    "odd names": (lambda episode: {Name("n\ud800"): 1.0}, SCORED, ""),
    "not finite": (lambda episode: float("nan"), FAILED, "ValueError"),
    "huge": (lambda episode: 10**400, FAILED, "ValueError"),
    "many scores": (lambda episode: {str(number): 1.0 for number in range(20_000)}, SCORED, ""),
}


def hostile(case: dict[str, Any], episode: Episode) -> Any:
    """Run the work that `case["what"]` names."""
    if case["what"] == "honest":
        return honest(case, episode)
    return WORKS[case["what"]][0](episode)


EXPECTED = {what: (outcome, kind) for what, (_, outcome, kind) in WORKS.items()}
HERE = Path(__file__)


def never_ready(channel: Connection, _place: object) -> None:
    """Take the place of `grue.fleet.worker.work`, and never say that the worker is ready."""
    channel.recv_bytes()
