"""Programs in boxes, for tests: run one, and skip where this machine cannot enforce a box."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import Struct

from grue.runtime.processes.process_group import ProcessGroup, ProcessRegistry
from grue.sandbox.box import Sandbox
from grue.sandbox.kernel import coverage

needs_boxes = pytest.mark.skipif(
    bool(coverage().missing(hosts=False)),
    reason="needs Landlock 3 and seccomp: Linux 6.2 or later, booted with landlock among its LSMs",
)
needs_hosts = pytest.mark.skipif(
    bool(coverage().missing(hosts=True)),
    reason="needs seccomp's listener and pidfd_getfd: Linux 5.9 or later, and a container that allows them",
)


class Ran(Struct, frozen=True):
    """What a program in a box has written, and how it ended."""

    ended: str
    stdout: str
    stderr: str


def run(
    box: Sandbox | None,
    *argv: str,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
) -> Ran:
    """Run a program to its end in a box, or without one if `box` is `None`."""
    registry = ProcessRegistry()
    environment = {**os.environ, **(env or {})}
    group = registry.spawn(argv[0], argv[1:], environment, None if cwd is None else str(cwd), box)
    try:
        os.write(group.stdin, stdin) if stdin else None
        group.close_stdin()
        assert group.watch.exited_within(120), "the program did not end"
        out, err = read_all(group, group.stdout), read_all(group, group.stderr)
        return Ran(str(group.end()), out, err)
    finally:
        registry.kill_leftovers()
        group.close_descriptors()


def python(box: Sandbox | None, code: str, *args: str, **options: object) -> Ran:
    """Run Python code to its end in a box."""
    return run(box, sys.executable, "-c", code, *args, **options)  # type: ignore[arg-type]


def read_all(group: ProcessGroup, fd: int) -> str:
    """Return the rest of the output in a pipe of a process that has ended."""
    found = b""
    while True:
        try:
            chunk = os.read(fd, 65536)
        except BlockingIOError:
            break
        if not chunk:
            break
        found += chunk
    return found.decode(errors="replace")
