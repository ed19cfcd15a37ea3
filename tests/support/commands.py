"""Run `grue` commands in processes of their own, and look at their output, traces and leftover processes."""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import fork_server
import psutil

from grue.testing import faulty_server
from grue.testing.leftovers import _MARK
from grue.tool_sessions.server_specs import StdioServer
from grue.tracing.reading import EpisodeTrace, read_episode

DEADLINE_S = 150.0
_OF_THE_INTERPRETER = ("PYTHON", "LC_", "LANG")


def environment(**extra: str) -> dict[str, str]:
    """Return the environment without API keys, so that no test uses an account."""
    plain = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return {**plain, "COLUMNS": "80", **extra}


def python(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with `args` to its end, without API keys in its environment."""
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def grue(*args: str, cwd: Path, before: str = "", **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `grue ARGS` to its end. `before` is Python code that runs first in the process.

    With `before`, or if `extra` has a variable that Python reads at its start, the process is a new
    interpreter. Otherwise it is a fork of a process that has imported everything.
    """
    return subprocess.run(
        command(*args, before=before) if before or _needs_an_interpreter(extra) else forked("grue", *args),
        cwd=cwd,
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def grue_unread(*args: str, cwd: Path, **extra: str) -> tuple[int, str]:
    """Run `grue ARGS` to its end with a closed pipe as its output. Return its exit status and its errors."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            command(*args),
            stdout=writer,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=environment(**extra),
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    finally:
        os.close(writer)
    return ended.returncode, ended.stderr


def _needs_an_interpreter(variables: Mapping[str, str]) -> bool:
    return any(name.startswith(_OF_THE_INTERPRETER) for name in variables)


def forked(*args: str, before: str = "") -> Sequence[str]:
    """Return a command line that lets the fork server run `grue ARGS` or `FILE.py ARGS`."""
    return (sys.executable, "-I", "-S", fork_server.__file__, "run", _fork_server(), before, *args)


def with_forked_children() -> str:
    """Return code for `before`: with it, the fork server also runs the programs that the program starts."""
    support = str(Path(fork_server.__file__).parent)
    return (
        f"import sys; sys.path.append({support!r}); import forked_children; sys.path.remove({support!r})\n"
        f"forked_children.install({forked()!r})"
    )


@cache
def _fork_server() -> str:
    """Return the path of the fork server's socket. All workers share the server. It ends soon after them."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    owner = os.getppid() if run else os.getpid()
    folder = Path(tempfile.gettempdir(), f"grue-forks-{owner}-{run[:8]}")
    folder.mkdir(mode=0o700, exist_ok=True)
    with _locked(folder):
        if not (folder / "socket").exists():
            _start_fork_server(folder / "socket", owner)
    return str(folder / "socket")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _start_fork_server(path: Path, owner: int) -> None:
    plain = {name: value for name, value in environment().items() if name != _MARK}
    subprocess.run(
        [sys.executable, fork_server.__file__, "serve", str(path), str(owner)],
        env=plain,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        timeout=DEADLINE_S,
        check=True,
    )


def command(*args: str, before: str = "") -> Sequence[str]:
    """Return a command line that runs `before` and then `grue ARGS` in a new interpreter."""
    code = f"{before}\nimport sys; sys.argv[0] = 'grue'\nfrom grue.cli.main import main; main()"
    return (sys.executable, "-c", code, *args)


def start(*args: str, cwd: Path, **extra: str) -> "subprocess.Popen[str]":
    """Start `grue ARGS` in its own operating system session, so that a test can signal it alone."""
    return subprocess.Popen(
        command(*args) if _needs_an_interpreter(extra) else forked("grue", *args),
        cwd=cwd,
        env=environment(**extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def write_servers(path: Path, **servers: Mapping[str, Any]) -> Path:
    """Write `servers` into an `mcp_config.json` at `path`, and return the path."""
    path.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    return path


def faulty(*flags: str) -> dict[str, Any]:
    """Return the configuration of a `faulty_server` with these flags, for `write_servers`."""
    program, *args = faulty_server.argv(*flags)
    return {"command": program, "args": args}


def mock_server(*args: str) -> StdioServer:
    """Return the server `grue mock-server --stdio ARGS`, run by the fork server."""
    command, *rest = forked("grue", "mock-server", "--stdio", *args)
    return StdioServer(name="reference", command=command, args=tuple(rest))


def wait_for_body(folder: Path, kind: str, timeout_s: float = DEADLINE_S) -> dict[str, Any]:
    """Wait until a message of this kind is in the run folder's trace, and return its body."""
    deadline = time.monotonic() + timeout_s
    trace, seen = folder / "trace.jsonl", 0
    while time.monotonic() < deadline:
        if trace.exists():
            with trace.open("rb") as file:
                file.seek(seen)
                whole, newline, _ = file.read().rpartition(b"\n")
            for line in whole.splitlines() if seen else whole.splitlines()[1:]:
                body: dict[str, Any] = json.loads(line)["body"]
                if body["type"] == kind:
                    return body
            seen += len(whole + newline)
        time.sleep(0.01)
    raise AssertionError(f"no {kind} in {trace} within {timeout_s} s")


def server_pids(folder: Path) -> list[int]:
    """Return the process ids of all sessions that were opened, from the trace."""
    return [body["pid"] for body in bodies(folder, "SessionOpened")]


def bodies(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the bodies of all messages of a kind in the trace, in order."""
    lines = (folder / "trace.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    return [body for line in lines if (body := json.loads(line)["body"])["type"] == kind]


def group_is_gone(pgid: int, timeout_s: float = 60.0) -> bool:
    """Wait until no process of a group is alive; return `False` if one still is after `timeout_s`.

    Zombies do not count: a killed grandchild is a zombie until the system's first process reaps it.
    """
    deadline = time.monotonic() + timeout_s
    while any(_alive_in(pgid)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _alive_in(pgid: int) -> Iterator[int]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == pgid and process.status() != psutil.STATUS_ZOMBIE:
                yield process.pid


def trace_of(folder: Path) -> EpisodeTrace:
    """Read and return the run folder's trace."""
    return read_episode(folder / "trace.jsonl")
