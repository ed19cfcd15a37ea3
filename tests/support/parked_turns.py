"""Turns that park and are resumed, each in a process of its own, which a test can kill.

`Stage` starts this module as a program. It loads everything once and forks a child for each job.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import asdict

DELETE = ("box.delete", {"name": "old.txt"})
ASK_BEFORE_DELETING: dict[str, Any] = {"tools": ("box.delete*",), "verdict": "ask", "reason": "it deletes"}


class Job(Struct, frozen=True, kw_only=True):
    """What a process does.

    Attributes:
        action: Run the turn, or resume it.
        folder: Where the trace is, and `deleted`, to which the tool appends a line for each run.
        decide: What is decided about each question of the park: `approve`, `deny`, `change`, or nothing.
        kill_after_s: Kill the process so many seconds after it began; `None`: never.
        park_for_s: As in the policy.
        description: The tool's; another one is another definition.
    """

    action: str
    folder: str
    base_url: str
    decide: str = "approve"
    kill_after_s: float | None = None
    park_for_s: float | None = None
    description: str = "Delete a file."


class Stage:
    """A warm program that does jobs; a context manager."""

    def __enter__(self) -> Self:
        self._program = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self._program.communicate(timeout=150)

    def do(self, *jobs: Job) -> list[str]:
        """Do these jobs at the same time, each in a process of its own; return what each one says."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps([asdict(job) for job in jobs]) + "\n")
        self._program.stdin.flush()
        said: list[str] = json.loads(self._program.stdout.readline())
        return said


def runner(job: Job, trace: bool) -> Any:
    from grue import FunctionTools, LlmSettings, Recorder, Runner, ToolPolicy, ToolRule, TraceWriter

    folder = Path(job.folder)

    def delete(name: str) -> str:
        with (folder / "deleted").open("a") as file:
            file.write(f"{name}\n")
        return "deleted"

    delete.__doc__ = job.description
    recorder = Recorder()
    if trace:
        recorder.add(TraceWriter(folder / "trace.jsonl", episode="e"))
    policy = ToolPolicy(rules=(ToolRule(**ASK_BEFORE_DELETING),), parking=True, park_for_s=job.park_for_s)
    return Runner(
        llm=LlmSettings(base_url=job.base_url, model="m"),
        servers={"box": FunctionTools({"delete": delete, "look": lambda: "dust"})},
        recorder=recorder,
        tool_policy=policy,
    )


def act(job: Job) -> str:
    from grue import MCPError, TurnRequest

    with contextlib.closing(runner(job, trace=job.action == "run")) as made:
        try:
            if job.action == "run":
                return str(made.run_turn(TurnRequest(system="s", user="Tidy up.")).response)
            return str(made.resume(job.folder, decided(job)).response)
        except MCPError as error:
            return f"{type(error).__name__}: {error}"


def decided(job: Job) -> list[Any]:
    from grue import parked_turns

    questions = [question for parked in parked_turns(job.folder) for question in parked.questions]
    match job.decide:
        case "approve":
            return [question.approve() for question in questions]
        case "deny":
            return [question.deny("keep it") for question in questions]
        case "change":
            return [question.change({"name": "new.txt"}) for question in questions]
        case _:
            return []


def main() -> None:
    import grue.engine.resume
    import grue.engine.resumed_run
    import grue.runner  # noqa: F401 - forks have it loaded

    for line in sys.stdin:
        jobs = [Job(**each) for each in json.loads(line)]
        sys.stdout.write(json.dumps([*_done([_begun(job) for job in jobs], jobs)]) + "\n")
        sys.stdout.flush()


def _begun(job: Job) -> tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(writing, act(job).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    return pid, reading


def _done(begun: list[tuple[int, int]], jobs: list[Job]) -> list[str]:
    said = []
    for (pid, reading), job in zip(begun, jobs, strict=True):
        if job.kill_after_s is not None:
            # The process may end before that; then nothing is killed.
            ended, _, _ = select.select([reading], [], [], job.kill_after_s)
            if not ended:
                os.kill(pid, signal.SIGKILL)
        words = b""
        while piece := os.read(reading, 65536):
            words += piece
        os.close(reading)
        os.waitpid(pid, 0)
        said.append(words.decode() or "killed")
    return said


def wait_until_past(moment: float) -> None:
    """Wait until the wall clock has passed a moment."""
    while time.time() <= moment:
        time.sleep(0.01)


if __name__ == "__main__":
    main()
