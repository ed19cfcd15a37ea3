"""A worker that may fail: it is given a deadline, and its last words are kept."""

import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from sides import BENCHMARKS

DEADLINE_S = 60.0
ENDS_S, INTERRUPTED_S = 5.0, 0.5
"""How long it may take to end, and how long after the benchmark was interrupted or has failed."""

# What the MCP SDK hands on to a server. Sides that hand on their whole environment would otherwise start
# another server than the rest: with NODE_EXTRA_CA_CERTS, node boots 50 ms later. It also keeps out what would
# make a framework send its traces somewhere.
ENVIRONMENT = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")


class WorkerError(Exception):
    """It ended, or did not answer in time; the text is a line."""


class WorkerProcess:
    """A child process that answers each line on its standard input with a line of JSON."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process, see __exit__
        kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        self._process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=self._said,
            env={**kept, **(environ or {})},
            bufsize=0,
            process_group=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def ask(self, line: str = "") -> dict[str, Any]:
        """Let it work once and return what it reports.

        Raises:
            WorkerError: It ended instead, took longer than a minute, or said something else.
        """
        try:
            self._input.write(f"{line}\n".encode())
            answer: dict[str, Any] = json.loads(self._line())
        except (EOFError, OSError, ValueError) as error:
            raise WorkerError(self._last_words() or str(error)) from error
        return answer

    def running(self, script: str) -> int:
        """Return how many processes below it still run `script`; 0 where the system does not tell."""
        commands = (_command_line(pid) for pid in _below(self._process.pid))
        return sum(script.encode() in command for command in commands)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._input.close()
        try:
            self._process.wait(ENDS_S if exc_info[0] is None else INTERRUPTED_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()
        self._said.close()

    def _line(self) -> bytes:
        answer, until = b"", time.monotonic() + DEADLINE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                if not selector.select(until - time.monotonic()):
                    raise TimeoutError(f"no answer within {DEADLINE_S:g} s")
                chunk = os.read(self._output.fileno(), 65536)
                if not chunk:
                    raise EOFError("it ended")
                answer += chunk
        return answer

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = [line.strip() for line in self._said.read().decode(errors="replace").splitlines()]
        last = next((line for line in reversed(lines) if line), "")
        return "".join(filter(str.isprintable, last.replace(str(BENCHMARKS), "benchmarks")))[:200]


def _below(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids = [int(child) for child in children.read_text().split()]
        except OSError:
            continue
        for child in pids:
            yield child
            yield from _below(child)


def _command_line(pid: int) -> bytes:
    try:
        # Empty for a process that has ended and is not yet waited for.
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
